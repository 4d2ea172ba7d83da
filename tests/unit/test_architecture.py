"""The house keeps its rules: floors, a light front door, a public face, files of one idea."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import outrider

SOURCE = Path(outrider.__file__).parent

FLOORS = (
    {"errors", "jit"},
    {"config", "trees", "acceptance", "processors", "structured", "worth"},
    {"records", "protocols", "grammar"},
    {"noise"},
    {"chance", "sampling", "shaping", "paths", "masks"},
    {"verification", "depth"},
    {"models"},
    {"drafters", "growth"},
    {"metrics", "trace", "logprobs", "anchors", "stopping", "pairing"},
    {
        "text",
        "requests",
        "outputs",
        "proposals",
        "rounds",
        "batch",
        "context",
        "running",
        "streaming",
    },
    {"engine", "calibration", "loading", "generation", "given_processors", "settings"},
    {"certify"},
    {"bench"},
    {"cli"},
)
FREE = {"__init__", "__main__"}


def room(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imported_rooms(path: Path) -> set[str]:
    """The rooms a module imports, type-checking imports included."""
    package = ("outrider", *path.relative_to(SOURCE).parent.parts)
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = package[: len(package) - node.level + 1]
            full = (*base, *(node.module.split(".") if node.module else ()))
            names = [full[1]] if len(full) > 1 else [alias.name for alias in node.names]
            found.update(names)
        elif isinstance(node, ast.ImportFrom | ast.Import):
            modules = (
                [node.module] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names]
            )
            found.update(m.split(".")[1] for m in modules if m and m.startswith("outrider."))
    return found


def test_a_room_imports_only_from_its_own_floor_and_below() -> None:
    floor = {name: height for height, names in enumerate(FLOORS) for name in names}
    for path in SOURCE.rglob("*.py"):
        if room(path) in FREE:
            continue
        for other in imported_rooms(path):
            if other not in FREE and other != "__version__":
                assert floor[other] <= floor[room(path)], f"{path} imports {other}"


def test_verification_imports_no_framework() -> None:
    """Except the fast path beside the readable one."""
    for path in (SOURCE / "verification").glob("*.py"):
        if path.name in {"fused.py", "lazy.py", "kernels.py"}:
            continue
        assert "torch" not in path.read_text(), path


def test_no_file_is_over_450_lines() -> None:
    for path in SOURCE.rglob("*.py"):
        assert len(path.read_text().splitlines()) <= 450, path


def test_importing_outrider_loads_no_framework() -> None:
    program = (
        "import sys, outrider; outrider.SamplingParams(); outrider.errors.OutriderError; "
        "outrider.verify_speculative_tokens; outrider.accept; outrider.Philox4x32; "
        "heavy = {'torch', 'transformers', 'rich', 'safetensors'} & set(sys.modules); "
        "sys.exit(f'loaded {heavy}' if heavy else 0)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_what_few_requests_need_is_loaded_for_those_alone() -> None:
    for path in SOURCE.rglob("*.py"):
        top = ast.parse(path.read_text()).body
        names = [alias.name for node in top if isinstance(node, ast.Import) for alias in node.names]
        names += [node.module or "" for node in top if isinstance(node, ast.ImportFrom)]
        assert not any(name.startswith("llguidance") for name in names), path


def test_the_public_face() -> None:
    assert outrider.__all__ == [
        "Choice",
        "EarlyExitDrafter",
        "GenerationOutput",
        "HybridDrafter",
        "ModelDrafter",
        "NgramDrafter",
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
        "errors",
        "from_generation_config",
        "generate_with",
        "load",
        "models",
        "resample_from_adjusted_target",
        "sample_from_logprobs",
        "sample_index",
        "verify_speculative_tokens",
    ]
    for name in outrider.__all__:
        assert getattr(outrider, name) is not None


def test_every_error_is_in_the_tree_its_module_draws() -> None:
    errors = outrider.errors
    drawn = errors.__doc__ or ""
    for name, value in vars(errors).items():
        if isinstance(value, type):
            assert issubclass(value, errors.OutriderError)
            assert name in drawn
