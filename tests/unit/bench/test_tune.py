"""The search for the fastest configuration, and its recommendation."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any, get_args

import pytest

from outrider.bench import TuneOptions
from outrider.bench.engine_flags import export
from outrider.bench.options import Engines
from outrider.bench.records import PLAIN, Candidate
from outrider.bench.speedup import Speedup
from outrider.bench.tune import Recommendation, _halvings, candidates, run_tune
from outrider.errors import InvalidConfigError

from ...support.bench import MODEL, load_pair, prompt_file

HYBRID = Candidate("hybrid", "block")


@pytest.fixture(autouse=True)
def _tiny_models(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outrider.bench.run.load", load_pair)


def _options(folder: Path, **given: Any) -> TuneOptions:
    defaults: dict[str, Any] = {
        "prompts": (prompt_file(folder),),
        "drafters": ("draft_model", "ngram"),
        "verifications": ("block",),
        "depths": (2, 3),
        "shape": ("2x1",),
        "max_tokens": 8,
        "checks": 2,
        "repeats": 1,
    }
    return TuneOptions(**defaults | given)


def _recommendation(**given: Any) -> Recommendation:
    defaults: dict[str, Any] = {
        "best": MODEL,
        "gain": Speedup(2.0, 1.5, 2.5),
        "measurements": (),
        "eliminated": (),
        "exports": (),
        "environment": {"settings": {"target": "a", "draft": "b", "dtype": None}},
    }
    return Recommendation(**defaults | given)


@pytest.mark.slow
def test_the_field_is_halved_and_the_best_are_raced_at_length(tmp_path: Path) -> None:
    said: list[tuple[int, int, str]] = []
    found = run_tune(_options(tmp_path), lambda *step: said.append(step))
    grid = {
        "draft_model adaptive", "draft_model k=2", "draft_model k=3", "draft_model tree 2x1",
        "ngram adaptive", "ngram k=2", "ngram k=3",
    }  # fmt: skip
    final = {each.candidate for each in found.measurements if not each.candidate.plain}
    tried = {each.candidate.label for each in (*found.measurements, *found.eliminated)}
    assert tried - {"plain"} == grid
    # The best two, and the default if it is not among them.
    assert len(final) in (2, 3)
    assert Candidate("draft_model", "block") in final
    assert {each.temperature for each in found.measurements} == {0.0, 0.8}
    for each in found.measurements:
        assert each.tokens == (8, 8, 8)
    for each in found.eliminated:
        assert sum(each.tokens) < 24
    assert found.best in final
    assert found.candidate in (found.best, PLAIN)
    assert found.gain is not None
    assert found.candidate.plain == (found.gain.low is not None and found.gain.low <= 1)
    assert said[-1][:2] == (said[-1][1], said[-1][1])
    assert len(found.exports) == (0 if found.candidate.plain else 4)
    json.dumps(found.document())


def test_an_interrupt_before_the_last_race_recommends_nothing(tmp_path: Path) -> None:
    def interrupt(done: int, _total: int, _what: str) -> None:
        if done == 2:
            raise KeyboardInterrupt

    found = run_tune(_options(tmp_path), interrupt)
    assert found.partial
    assert found.candidate == PLAIN
    assert found.verdict.startswith("no recommendation")


def test_too_few_prompts_for_a_batch_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfigError, match="at most 3"):
        run_tune(_options(tmp_path, batch=4))


@pytest.mark.parametrize("count", [1, 3, 4, 38, 100])
def test_races_get_longer_as_the_field_gets_smaller(count: int) -> None:
    races = _halvings(count, 3)
    assert races == sorted(races, key=lambda race: (-race[0], race[1]))
    assert all(size > 3 and share < 1 for size, share in races)
    assert bool(races) == (count > 3)


def test_the_default_is_always_in_the_grid() -> None:
    assert candidates(TuneOptions())[0] == HYBRID
    assert candidates(TuneOptions(target="a"))[0] == Candidate("ngram", "block")
    assert len(set(candidates(TuneOptions()))) == len(candidates(TuneOptions()))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "draft_model k=3 is 2.00x as fast as plain decoding (95% interval 1.50 to 2.50"),
        ({"gain": Speedup(2.0, 0.9, 4.4)}, "undecided, more prompts may decide"),
        ({"gain": Speedup(0.8, 0.7, 0.9)}, "turn it off"),
        ({"gain": Speedup(2.0)}, "too few prompts"),
        ({"best": None, "gain": None}, "no recommendation"),
    ],
)
def test_the_verdict_says_what_to_do(given: dict[str, Any], said: str) -> None:
    assert said in _recommendation(**given).verdict


@pytest.mark.parametrize(
    ("candidate", "settings"),
    [
        (PLAIN, {"method": "none"}),
        (HYBRID, {"method": "hybrid", "depth": "adaptive", "verification": "block"}),
        (
            Candidate("draft_model", "token", 2, (3, 1)),
            {
                "method": "draft_model",
                "depth": "fixed",
                "verification": "token",
                "num-speculative-tokens": 2,
                "tree-shape": [3, 1],
            },
        ),
    ],
)
def test_settings_are_those_of_the_command_line(
    candidate: Candidate, settings: dict[str, Any]
) -> None:
    gain = Speedup(0.5, 0.4, 0.6) if candidate.plain else Speedup(2.0, 1.5, 2.5)
    found = _recommendation(best=candidate, gain=gain).settings()
    assert found == {"target": "a", "draft": "b"} | settings


CANDIDATES = (
    MODEL,
    HYBRID,
    Candidate("ngram", "token", 4),
    Candidate("suffix", "block"),
    Candidate("draft_model", "token", 2, (3, 1)),
)


@pytest.mark.parametrize("engine", get_args(Engines))
@pytest.mark.parametrize("candidate", CANDIDATES, ids=lambda each: each.label)
def test_exports_are_flags_that_a_shell_reads(engine: str, candidate: Candidate) -> None:
    found = export(engine, candidate, target="a b", draft="d", depth=5)
    depth = candidate.depth or 5
    assert found.system == engine
    assert depth in found.settings.values()
    if engine == "transformers":
        assert json.loads(found.text) == found.settings
    else:
        assert any("a b" in word for word in shlex.split(found.text))
    if engine == "vllm":
        assert json.loads(shlex.split(found.text)[-1]) == found.settings
    text = " ".join(found.notes)
    assert ("adaptive depth" in text) == (candidate.depth is None)
    assert ("hybrid drafter" in text) == (candidate.drafter == "hybrid")
    assert ("tree" in text) == (candidate.tree is not None)


def test_a_tree_is_as_large_for_sglang_as_it_is_here() -> None:
    tree = Candidate("draft_model", "block", 2, (3, 2))
    settings = export("sglang", tree, target="a", draft="d", depth=2).settings
    assert settings["speculative-num-draft-tokens"] == 3 + 6 + 1
    assert settings["speculative-eagle-topk"] == 3
