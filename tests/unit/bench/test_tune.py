"""The search for the best configuration within a budget, and its recommendation."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any, get_args

import pytest

from outrider.bench import TuneOptions
from outrider.bench.engine_flags import export
from outrider.bench.forecast import Forecast
from outrider.bench.options import Engines
from outrider.bench.records import PLAIN, Candidate
from outrider.bench.search import CYCLE, candidates
from outrider.bench.speedup import Stretch
from outrider.bench.texts import Text, written
from outrider.bench.tune import Recommendation, _exports, run_tune
from outrider.errors import InvalidConfigError, ModelError

from ...support.bench import load_pair, prompt_file

HYBRID = Candidate("hybrid", "block")
FIXED = Candidate("draft_model", "block", 2)


@pytest.fixture(autouse=True)
def _tiny_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """Load tiny models; each look at the clock of the budget takes .01 s of it."""
    monkeypatch.setattr("outrider.bench.run.load", load_pair)
    looks = count()
    monkeypatch.setattr("outrider.bench.search.perf_counter", lambda: 0.01 * next(looks))


def options(folder: Path, **given: Any) -> TuneOptions:
    defaults: dict[str, Any] = {
        "prompts": (prompt_file(folder),),
        "drafters": ("draft_model", "ngram"),
        "depths": (2,),
        "max_tokens": 16,
        "schedule": (1, 2),
        "budget": 20.0,
    }
    return TuneOptions(**defaults | given)


def recommendation(candidate: Candidate, gain: float = 2.0) -> Recommendation:
    stretches = tuple(Stretch(0.0, name, "code", 9, gain, 1.0) for name in "abc")
    settings = {"settings": {"target": "a", "draft": "b", "dtype": None, "runtime": "auto"}}
    return Recommendation((Forecast(candidate, stretches),), (), (), (), (), settings)


@pytest.mark.slow
def test_all_is_predicted_and_the_best_are_raced(tmp_path: Path) -> None:
    said: list[tuple[int, int, str]] = []
    asked = options(tmp_path)
    found = run_tune(asked, lambda *step: said.append(step))
    assert {each.candidate for each in found.forecasts} == set(candidates(asked))
    for each in found.forecasts:
        assert len(each.stretches) == 3 * 2  # prompts and temperatures
    raced = {each.candidate for each in found.measurements}
    assert PLAIN in raced
    assert len(raced) == 3
    assert {each.temperature for each in found.measurements} == {0.0, 0.8}
    assert sum(each.off is not None for each in found.forecasts) == 2
    assert len(found.costs) == 4
    assert all(done <= total == 20 for done, total, _ in said[1:])
    assert not found.partial
    json.dumps(found.document())


@pytest.mark.slow
def test_batches_are_raced_as_they_were_predicted(tmp_path: Path) -> None:
    found = run_tune(options(tmp_path, batch=2))
    raced = [each for each in found.forecasts if each.raced]
    assert len(raced) == 2
    assert all(each.off is not None for each in raced)


@pytest.mark.slow
def test_rounds_are_timed_where_prompts_nearly_fill_the_context(tmp_path: Path) -> None:
    path = tmp_path / "long.jsonl"
    rows = [{"prompt": [(place + n) % 50 + 1 for place in range(140)]} for n in range(2)]
    path.write_text("\n".join(map(json.dumps, rows)))
    found = run_tune(options(tmp_path, prompts=(path,)))
    assert found.forecasts
    assert found.costs[0].context == 160 - CYCLE
    with pytest.raises(InvalidConfigError, match=f"context.*at most {160 - CYCLE}"):
        run_tune(options(tmp_path, context=100))


STEPS = ("timing", "decoding plainly", "predicting", "racing")


@pytest.mark.slow
@pytest.mark.parametrize("step", STEPS)
def test_an_interrupt_leaves_what_is_known(tmp_path: Path, step: str) -> None:
    times = 0

    def interrupt(_done: int, _total: int, what: str) -> None:
        nonlocal times
        times += what.startswith(step)
        if what.startswith(step) and times == 2 - (step != "predicting"):
            raise KeyboardInterrupt

    found = run_tune(options(tmp_path), interrupt)
    assert found.partial
    assert found.verdict
    tried = candidates(options(tmp_path))
    adaptive = [each for each in tried if each.depth is None]
    known = {"predicting": len(adaptive), "racing": len(tried)}
    assert len(found.forecasts) == known.get(step, 0)
    if not found.forecasts:
        assert found.candidate == PLAIN
        assert found.verdict[0].startswith("no answer yet")
    json.dumps(found.document())


@pytest.mark.slow
def test_a_head_is_not_taken_for_prompts_that_end_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is left out from the start, and says nothing of the texts."""

    def interrupt(_done: int, _total: int, what: str) -> None:
        if what.startswith("timing"):
            raise KeyboardInterrupt

    monkeypatch.setattr("outrider.drafters.model.ModelDrafter.steps", lambda *_: 1, raising=False)
    found = run_tune(options(tmp_path), interrupt)
    assert "it drafts blocks" in found.skipped[0]
    assert found.verdict[0].startswith("no answer yet")
    with pytest.raises(InvalidConfigError, match="outrider bench measures heads"):
        run_tune(options(tmp_path, drafters=("draft_model",)))


@pytest.mark.slow
def test_a_failure_after_the_predictions_leaves_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> None:
        raise ModelError("no memory for 512 rows")

    monkeypatch.setattr("outrider.bench.search.Search._curve", fails)
    found = run_tune(options(tmp_path))
    assert found.partial
    assert found.forecasts
    assert any("no memory for 512 rows" in line for line in found.skipped)
    monkeypatch.setattr("outrider.bench.search.Search._write", fails)
    with pytest.raises(ModelError, match="512 rows"):
        run_tune(options(tmp_path))


@pytest.mark.slow
def test_prompts_that_the_target_ends_at_once_are_no_prompts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def short(*given: Any) -> Iterator[list[Text]]:
        texts = next(written(*given))
        for text in texts:
            text.ended = True
        yield texts

    monkeypatch.setattr("outrider.bench.search.written", short)
    found = run_tune(options(tmp_path))
    assert not found.measurements
    assert found.verdict[0].startswith("no answer: the target ends all")
    assert len(found.skipped) == 3
    assert not found.partial


@pytest.mark.slow
def test_a_budget_that_is_gone_ends_the_search(tmp_path: Path) -> None:
    """The first texts and costs are waited for; there is no race."""
    found = run_tune(options(tmp_path, budget=1.0, temp=(0.0, 0.8)))
    assert not found.partial
    assert found.forecasts
    assert not found.measurements


def test_too_few_prompts_for_a_batch_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfigError, match="at most 3"):
        run_tune(options(tmp_path, batch=4))


def test_the_adaptive_depth_is_always_tried() -> None:
    tried = candidates(TuneOptions())
    assert HYBRID in tried
    assert Candidate("ngram", "block") in candidates(TuneOptions(target="a"))
    assert len(set(tried)) == len(tried)


@pytest.mark.parametrize(
    ("candidate", "gain", "settings"),
    [
        (HYBRID, 0.5, {"method": "none"}),
        (HYBRID, 2.0, {"draft": "b", "method": "hybrid", "depth": "adaptive"}),
        (Candidate("suffix", "block"), 2.0, {"method": "suffix", "depth": "adaptive"}),
        (
            FIXED,
            2.0,
            {
                "draft": "b",
                "method": "draft_model",
                "depth": "fixed",
                "num-speculative-tokens": 2,
            },
        ),
    ],
)
def test_settings_are_those_of_the_command_line(
    candidate: Candidate, gain: float, settings: dict[str, Any]
) -> None:
    assert recommendation(candidate, gain).settings() == {"target": "a"} | settings


SCHEDULES = ([(1, 4)], [(1, 4), (4, 2), (16, 0)])


@pytest.mark.parametrize("engine", get_args(Engines))
@pytest.mark.parametrize("drafter", ["draft_model", "hybrid", "ngram", "suffix"])
@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_exports_are_flags_that_a_shell_reads(
    engine: str, drafter: str, schedule: list[tuple[int, int]]
) -> None:
    found = export(engine, drafter, target="a b", draft="d", schedule=schedule)
    assert found.system == engine
    assert {4, 5} & {value for value in found.settings.values() if isinstance(value, int)}
    if engine == "tensorrt-llm":
        assert json.loads(found.text).keys() == found.settings.keys()
    else:
        assert any("a b" in word for word in shlex.split(found.text))
    if engine == "vllm":
        assert json.loads(shlex.split(found.text)[-1]) == found.settings
    assert ("beside" in " ".join(found.notes)) == (drafter == "hybrid")


def test_schedules_in_the_words_of_engines() -> None:
    schedule = [(1, 4), (2, 4), (4, 2), (16, 0)]

    def settings(engine: str) -> dict[str, Any]:
        return export(engine, "draft_model", target="a", draft="d", schedule=schedule).settings

    ranges = settings("vllm")["num_speculative_tokens_per_batch_size"]
    assert ranges == [[1, 3, 4], [4, 15, 2], [16, 512, 0]]
    assert settings("tensorrt-llm")["draft_len_schedule"] == {3: 4, 15: 2}


@pytest.mark.parametrize(("batch", "depth"), [(1, None), (3, None), (4, 2), (20, 3)])
def test_engines_that_have_one_depth_get_that_of_the_batch_size(
    batch: int, depth: int | None
) -> None:
    found = _exports(TuneOptions(target="a", batch=batch), "ngram", [(1, 0), (4, 2), (16, 3)])
    depths = {each.system: each.settings.get("speculative-num-draft-tokens") for each in found}
    assert {"vllm", "tensorrt-llm"} <= depths.keys()
    assert depths.get("sglang") == depth


def test_a_depth_that_pays_only_in_batches_is_named_by_size() -> None:
    found = export("tensorrt-llm", "ngram", target="a", draft=None, schedule=[(1, 0), (4, 4)])
    assert found.settings["draft_len_schedule"] == {3: 0, 512: 4}
