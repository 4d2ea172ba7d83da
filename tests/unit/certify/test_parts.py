"""A part of the user's own: found by name, certified, and named where it breaks its contract."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from outrider.certify import cases
from outrider.certify.modules import load_part
from outrider.errors import InvalidConfigError
from outrider.verification import Verifier
from outrider.verification.lossy import LenientVerification

MODULE = """
from outrider.certify import faults
from outrider.drafters.base import Drafter
from outrider.drafters.model import ModelDrafter
from outrider.verification import TokenVerification, Verifier
from outrider.verification.lossy import LenientVerification

class Own(TokenVerification):
    trees = False

Biased = LenientVerification(0.8)
Whole = Verifier(LenientVerification(0.8))
Drafts = ModelDrafter
FalseDrafts = faults.argmax_reported_as_sampled
nothing = 3

class Raises(ModelDrafter):
    def propose(self, prefixes, plan, ctx):
        raise RuntimeError("no idea")

class Lists(ModelDrafter):
    def propose(self, prefixes, plan, ctx):
        return [[0]]

class Changed(TokenVerification):
    trees = False
    def first(self, found): return found
    def last(self, found): return found
    def stop_distribution(self, tree): return self.first(super().stop_distribution(tree))
    def residual(self, tree, weights, node): return self.last(super().residual(tree, weights, node))

class InNumPy(Changed):
    def first(self, found): return found[0].numpy()

class HalfInNumPy(Changed):
    def first(self, found): return found[0].numpy(), found[1]

class Short(Changed):
    def first(self, found): return found[0][:, 1:], found[1]

class Single(Changed):
    def first(self, found): return found[0].float(), found[1]

class Heavy(Changed):
    def first(self, found): return found[0] * 2, found[1]

class NaN(Changed):
    def last(self, found): return found / 0 * 0

class Nothing(Changed):
    def last(self, found): return None

class Stumbles(Changed):
    def last(self, found): raise TypeError("no sum")

class Needs(TokenVerification):
    def __init__(self, needed):
        self.needed = needed

class Shapeless:
    def propose(self, prefixes, plan, ctx):
        raise RuntimeError("never asked")

class Unfinished(Drafter):
    def propose(self, prefixes, plan, ctx):
        raise RuntimeError("never asked")
"""


@pytest.fixture
def module(tmp_path: Path) -> Path:
    path = tmp_path / "own.py"
    path.write_text(MODULE)
    return path


def problems(module: Path, name: str) -> list[tuple[bool, str | None]]:
    """Whether three cases that sample pass, and what they raised."""
    part = load_part(f"{module}:{name}")
    plain = {factor: values[0] for factor, values in cases.FACTORS.items()}
    found = [cases.Case(n, plain | {"depth": "2"}, part).measure() for n in range(3)]
    return [(item.passed, item.problem) for item in found]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Own", "Drafts"])
def test_a_sound_part_passes(module: Path, name: str) -> None:
    assert problems(module, name) == [(True, None)] * 3


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Biased", "Whole", "FalseDrafts"])
def test_a_biased_part_fails_without_an_exception(module: Path, name: str) -> None:
    assert problems(module, name) == [(False, None)] * 3


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("InNumPy", "InNumPy.stop_distribution returned a numpy.ndarray; expected two torch"),
        ("HalfInNumPy", "HalfInNumPy.stop_distribution returned a tuple of a numpy.ndarray and a"),
        (
            "Short",
            "Short.stop_distribution returned a torch tensor of shape [1, 2] and torch.float64;",
        ),
        ("Single", "weights [B, N + 1], torch.float64, here [1, 3]"),
        ("Heavy", "Heavy.stop_distribution returned a distribution with total mass 2 and least"),
        ("NaN", "NaN.residual returned a distribution with total mass nan and least entry nan;"),
        ("Nothing", "Nothing.residual returned None; expected a torch tensor: the distribution"),
        ("Stumbles", "Stumbles.residual raised TypeError: no sum (own.py, line "),
        ("Raises", "the drafter raised RuntimeError: no idea (own.py, line 19)"),
        ("Lists", "DraftShapeError: the drafter returned a list of a list of an int; expected a"),
    ],
)
def test_a_broken_contract_is_named(module: Path, name: str, message: str) -> None:
    for passed, problem in problems(module, name):
        assert not passed
        assert message in (problem or "")


@pytest.mark.parametrize("source", ["own.py", "folder/own.py", "folder.own"])
def test_what_is_beside_a_part_can_be_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    path = tmp_path / f"{source.removesuffix('.py').replace('.', '/')}.py"
    path.parent.mkdir(exist_ok=True)
    (tmp_path if source == "folder.own" else path.parent).joinpath("beside.py").write_text(MODULE)
    path.write_text("from beside import Own\n")
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry not in ("", ".")])
    monkeypatch.setattr(sys, "modules", sys.modules.copy())
    monkeypatch.chdir(tmp_path)
    assert load_part(f"{source}:Own").verifier is not None


def test_an_object_is_taken_as_it_is(module: Path) -> None:
    for name in ("Biased", "Whole"):
        verifier = load_part(f"{module}:{name}").verifier
        assert isinstance(verifier, Verifier)
        assert isinstance(verifier.method, LenientVerification)


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("own.py", "path.py:Name or package.module:Name"),
        ("own.py:nothing", "nothing is neither"),
        ("own.py:Absent", "it has no Absent"),
        ("own.py:Needs", "a method that can be made without arguments"),
        ("own.py:Unfinished", "a drafter that can be made"),
        ("own.py:Shapeless", "Shapeless is neither"),
        ("missing.py:Name", "FileNotFoundError"),
        ("no_such_module:Name", "ModuleNotFoundError"),
        ("folder/own:Name", "a path that ends in .py"),
    ],
)
def test_what_is_no_part_is_refused(
    module: Path, monkeypatch: pytest.MonkeyPatch, reference: str, message: str
) -> None:
    monkeypatch.chdir(module.parent)
    with pytest.raises(InvalidConfigError, match=message.replace(".", r"\.")):
        load_part(reference)
