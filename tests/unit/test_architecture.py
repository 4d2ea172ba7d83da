"""The library keeps its layers, loads no framework at import, and shows the same public face."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import outrider

SOURCE = Path(outrider.__file__).parent

LAYERS = (
    {"errors", "config"},
    {"types"},
    {"random", "sampling"},
    {"verification", "policies", "runtimes"},
    {"drafters"},
    {"engine"},
    {"certify", "integrations", "server"},
    {"bench"},
    {"cli"},
)
"""Packages, lowest first: each imports only from its own layer and from lower ones."""

FREE = {"__init__", "__main__"}


def package(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imported(path: Path) -> set[str]:
    """The packages that a module imports, those for type checking included."""
    base = ("outrider", *path.relative_to(SOURCE).parent.parts)
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            above = base[: len(base) - node.level + 1]
            full = (*above, *(node.module.split(".") if node.module else ()))
            found.update([full[1]] if len(full) > 1 else [alias.name for alias in node.names])
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.update(node.module.split(".")[1:2] if node.module.startswith("outrider.") else [])
    # Names of the public face are in none of them.
    return {name for name in found if any(name in names for names in LAYERS)}


def edges() -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for path in SOURCE.rglob("*.py"):
        if package(path) not in FREE:
            found.setdefault(package(path), set()).update(imported(path) - {package(path)})
    return found


def test_a_package_imports_only_from_its_own_layer_and_below() -> None:
    height = {name: layer for layer, names in enumerate(LAYERS) for name in names}
    upward = {
        (name, other)
        for name, others in edges().items()
        for other in others
        if height[other] > height[name]
    }
    assert not upward


def test_no_two_packages_import_each_other_in_a_circle() -> None:
    graph = edges()

    def reach(name: str, seen: frozenset[str]) -> None:
        assert name not in seen, f"{name} is in a circle with {sorted(seen)}"
        for other in graph.get(name, ()):
            reach(other, seen | {name})

    for name in graph:
        reach(name, frozenset())


def modules(path: Path) -> set[str]:
    """The modules of this library that a module imports at its top, those for types included."""
    base = ("outrider", *path.relative_to(SOURCE).parent.parts)
    found = set()
    top = ast.parse(path.read_text()).body
    for node in (
        inner
        for each in top
        if not isinstance(each, ast.FunctionDef | ast.ClassDef)
        for inner in ast.walk(each)
    ):
        if isinstance(node, ast.ImportFrom) and node.level and node.module:
            found.add(".".join((*base[: len(base) - node.level + 1], node.module)))
    return found


def test_no_two_modules_of_the_engine_import_each_other_in_a_circle() -> None:
    graph = {
        ".".join(("outrider", *path.relative_to(SOURCE).with_suffix("").parts)): modules(path)
        for path in (SOURCE / "engine").glob("*.py")
    }
    done: set[str] = set()

    def reach(name: str, above: tuple[str, ...]) -> None:
        assert name not in above, " -> ".join((*above, name))
        for other in graph.get(name, set()) - done:
            reach(other, (*above, name))
        done.add(name)

    for name in graph:
        reach(name, ())


def test_verification_imports_no_framework() -> None:
    for path in (SOURCE / "verification").glob("*.py"):
        assert "import torch" not in path.read_text(), path
        assert "from torch" not in path.read_text(), path


def test_no_file_is_over_450_lines() -> None:
    for path in SOURCE.rglob("*.py"):
        assert len(path.read_text().splitlines()) <= 450, path


def test_the_array_functions_work_where_nothing_but_numpy_is_installed() -> None:
    program = """
import sys
from importlib.abc import MetaPathFinder

class Absent(MetaPathFinder):
    names = {"torch", "transformers", "llguidance", "tokenizers", "safetensors", "rich", "cyclopts"}

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in self.names:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
import numpy as np
import outrider
outrider.SamplingParams(), outrider.SpeculativeConfig(), outrider.OutriderError
probs = np.full((1, 2, 4), 0.25)
target = np.full((1, 3, 4), 0.25)
outrider.verify_speculative_tokens(probs, target, np.array([[0, 1]]), seed=1)
outrider.accept(-1.0, -0.5, 0.25)
outrider.Philox4x32().uniforms(np.zeros((1, 5), dtype=np.uint64))
try:
    outrider.SpeculativeDecoder
except outrider.MissingExtraError as error:
    assert "pip install" in str(error), error
else:
    sys.exit("a decoder without torch")
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_importing_outrider_loads_no_framework() -> None:
    program = (
        "import sys, outrider; outrider.SamplingParams(); outrider.verify_speculative_tokens; "
        "heavy = {'torch', 'transformers', 'rich', 'cyclopts'} & set(sys.modules); "
        "sys.exit(f'loaded {heavy}' if heavy else 0)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


ERRORS = sorted(
    name
    for name, value in vars(outrider.errors).items()
    if isinstance(value, type) and issubclass(value, outrider.errors.OutriderError)
)


def test_the_public_face() -> None:
    names = [
        "BlockDrafter",
        "Choice",
        "EagleDrafter",
        "EarlyExitDrafter",
        "GenerationOutput",
        "HybridDrafter",
        "LlamaCppModel",
        "LlamaCppTokenizer",
        "ModelDrafter",
        "NgramDrafter",
        "OpenVinoModel",
        "Pair",
        "Philox4x32",
        "PredictionDrafter",
        "SamplingParams",
        "SpeculationMetrics",
        "SpeculativeConfig",
        "SpeculativeDecoder",
        "StatefulProcessor",
        "StreamEvent",
        "StructuredOutput",
        "SuffixDrafter",
        "TransformersModel",
        "VerificationResult",
        "VocabularyDrafter",
        "__version__",
        "accept",
        "adjusted_distribution",
        "certify",
        "compute_acceptance_probs",
        "compute_expected_tokens",
        "config",
        "errors",
        "from_generation_config",
        "generate_with",
        "load",
        "load_head",
        "resample_from_adjusted_target",
        "runtimes",
        "sample_from_logprobs",
        "sample_index",
        "verify_speculative_tokens",
    ]
    assert sorted(outrider.__all__) == sorted([*names, *ERRORS])
    # llama.cpp is built from source, and not everywhere.
    absent = {"LlamaCppModel", "LlamaCppTokenizer"} if find_spec("llama_cpp") is None else set()
    for name in {*outrider.__all__} - absent:
        assert getattr(outrider, name) is not None


@pytest.mark.parametrize("name", ERRORS)
def test_every_error_is_in_the_tree_that_its_module_draws(name: str) -> None:
    assert name in (outrider.errors.__doc__ or "")
