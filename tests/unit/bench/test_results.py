"""`outrider bench` as a whole: every trial measured, and its results written."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from benchmarks.results import machine_slug
from rich.console import Console

from outrider.bench import BenchOptions, Results
from outrider.bench.environment import environment
from outrider.bench.records import PLAIN, Candidate
from outrider.bench.run import run_bench
from outrider.bench.speedup import Speedup
from outrider.bench.tables import as_markdown, rendered, verdicts
from outrider.errors import InvalidConfigError

from ...support.bench import MODEL, load_pair, measured, prompt_file


@pytest.fixture(autouse=True, scope="module")
def _tiny_models() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("outrider.bench.run.load", load_pair)
        yield


def _options(folder: Path, **given: Any) -> BenchOptions:
    defaults: dict[str, Any] = {
        "prompts": (prompt_file(folder),),
        "drafters": ("draft_model",),
        "k": (3,),
        "max_tokens": 6,
        "peers": ("none",),
    }
    return BenchOptions(**defaults | given)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """A small run with everything in it."""
    options = _options(
        tmp_path_factory.mktemp("bench"),
        drafters=("draft_model", "suffix", "ngram"),
        trees=("2x1",),
        batches=(1, 2),
        peers=("transformers",),
    )
    return run_bench(options)


@pytest.mark.slow
def test_every_candidate_is_in_every_trial_with_plain_decoding_first(results: Results) -> None:
    own = ["plain", "draft_model k=3", "suffix k=3", "ngram k=3"]
    trees = ["draft_model tree 2x1", "suffix tree 2x1"]
    kinds = ("plain", "ngram k=3", "draft_model k=3", "draft_model adaptive")
    peers = [f"transformers {name}" for name in kinds]
    assert [trial.split(",")[1:] for trial in results.trials] == [
        [f" temperature {temperature}", *batch]
        for temperature in ("0", "0.8")
        for batch in ([], [" batch 2"])
    ]
    for trial, members in results.trials.items():
        expected = [*own, *trees, *([] if "batch" in trial else peers)]
        assert [each.candidate.label for each in members] == expected
        for each in members:
            assert sum(each.tokens) == 6 * len(each.tokens) * each.batch
            assert each.speedup is not None
            if each.temperature == 0:
                assert each.identical == len(each.tokens)
    assert results.missing == ("peers: not in batches of 2, they decode one at a time",)
    assert not results.partial


@pytest.mark.slow
def test_documents_have_fields_and_what_follows_from_them(results: Results) -> None:
    document = json.loads(json.dumps(results.document()))
    assert document["format"] == "outrider-bench/4"
    assert len(document["measurements"]) == len(results.measurements)
    for found, fields in zip(results.measurements, document["measurements"], strict=True):
        assert fields["label"] == found.candidate.label
        assert fields["candidate"]["drafter"] == found.candidate.drafter
        assert fields["tokens"] == list(found.tokens)
        assert fields["tokens_per_s"] == pytest.approx(sum(found.tokens) / sum(found.seconds))
        if found.metrics is not None:
            assert fields["metrics"]["acceptance_rate"] == found.metrics.acceptance_rate


@pytest.mark.slow
def test_tables_show_every_measurement(results: Results) -> None:
    console = Console(width=160, file=io.StringIO(), record=True)
    console.print(rendered(results))
    terminal, markdown = console.export_text(), as_markdown(results)
    for found in results.measurements:
        assert found.candidate.label in terminal
        assert f": {found.candidate.label} | {found.tokens_per_s:.1f} |" in markdown
    for verdict in verdicts(results):
        assert verdict in markdown


def _verdict(*members: Any) -> str:
    return next(verdicts(Results({}, (measured(PLAIN, 1.0), *members))))


def test_verdicts_say_what_to_do() -> None:
    hybrid = Candidate("hybrid", "block")
    fast, slow, near = measured(), measured(speedup=0.5), measured(speedup=1.05)
    said = "draft_model k=3 is 2.00x as fast as plain decoding (95% interval 1.82 to 2.20)"
    assert said in _verdict(fast, slow)
    assert "turn it off: plain decoding is faster" in _verdict(slow)
    said = "no clear difference: draft_model k=3 is between 0.95x and 1.16x as fast as plain"
    assert said in _verdict(near, slow)
    # What is surely faster goes before what is faster, but not surely.
    lucky = measured(hybrid, 3.0, margin=9.0)
    assert "draft_model k=3 is 2.00x" in _verdict(fast, lucky)


@pytest.mark.parametrize(
    ("plain", "why"),
    [
        ({}, "the prompts differ too much"),
        ({"tokens": (10, 30)}, "own speed varied by 28%: a busy machine, or unlike prompts"),
    ],
)
def test_an_open_result_is_explained(plain: dict[str, Any], why: str) -> None:
    baseline = measured(PLAIN, 1.0, **{"tokens": (10, 20)} | plain)
    said = next(verdicts(Results({}, (baseline, measured(speedup=1.2, margin=1.5)))))
    assert "cannot tell on this machine: draft_model k=3 is between 0.80x and 1.80x as" in said
    assert said.endswith(why)


@pytest.mark.parametrize(("batch", "one"), [(1, "prompt"), (2, "batch of prompts")])
def test_one_prompt_has_no_interval(batch: int, one: str) -> None:
    plain = measured(PLAIN, batch=batch)
    found = Results({}, (plain, replace(measured(batch=batch), speedup=Speedup(2.0))))
    said = next(verdicts(found)).partition(": ")[2]
    assert said.startswith(f"one {one} has no interval: on it draft_model k=3 is 2.00x as fast")


def test_a_faster_peer_is_named() -> None:
    peer = measured(Candidate("draft_model", system="transformers"), 2.5)
    assert "transformers draft_model adaptive, at 2.50x, is ahead" in _verdict(measured(), peer)
    slower = measured(Candidate("none", system="transformers"), 0.9)
    assert "ahead" not in _verdict(measured(speedup=0.5), slower)


def test_what_readers_have_to_know_is_said() -> None:
    found = Results(
        {},
        (
            measured(speedup=None),
            measured(identical=1, errors=("heapq.py, token 12: id 5 where plain has id 8",)),
            measured(identical=0),
            measured(identical=2),
        ),
        missing=("a peer",),
        skipped=("line 2: too long",),
        partial=True,
    )
    text = as_markdown(found)
    for said in (
        "partial: the run was interrupted",
        "tokens that were asked for are missing, so there is no speedup",
        "other tokens than plain decoding in 1 of 2\n",
        "temperature 0: heapq.py, token 12: id 5 where plain has id 8\n",
        "other tokens than plain decoding in 2 of 2; rounding explains it\n",
        "missing: a peer",
        "left out: line 2: too long",
    ):
        assert said in text
    assert text.count("other tokens") == 2


def test_lossy_candidates_are_labelled() -> None:
    found = Results({}, (measured(replace(MODEL, verification="typical")),))
    assert ": draft_model typical k=3 (lossy) |" in as_markdown(found)


@pytest.mark.slow
def test_an_interrupt_keeps_what_was_measured(tmp_path: Path) -> None:
    def interrupt(done: int, _total: int, _what: str) -> None:
        if done == 4:
            raise KeyboardInterrupt

    found = run_bench(_options(tmp_path), interrupt)
    assert found.partial
    assert [len(each.tokens) for each in found.measurements] == [3, 3, 1, 1]


def test_bad_options_are_refused_before_models_are_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> Any:
        raise AssertionError("loaded")

    monkeypatch.setattr("outrider.bench.run.load", refuse)
    with pytest.raises(InvalidConfigError, match="there is no such file"):
        run_bench(_options(tmp_path, prompts=(tmp_path / "none",)))
    with pytest.raises(InvalidConfigError):
        run_bench(_options(tmp_path, verification=("typical",), trees=("2x1",)))
    with pytest.raises(InvalidConfigError, match="1024 nodes in all at most"):
        run_bench(_options(tmp_path, trees=("64x64",)))


@pytest.mark.slow
def test_the_environment_names_versions_machine_and_settings_and_no_host(
    results: Results,
) -> None:
    found = results.environment
    assert {"torch", "python", "outrider", "threads", "date", "machine", "dtype"} <= set(found)
    assert found["settings"]["max_tokens"] == 6
    assert found["settings"]["prompts"] == ["some.jsonl"]
    assert environment({}, {})["machine"]["cores"] >= 1


@pytest.mark.parametrize(
    ("machine", "slug"),
    [
        ({"cpu": "Intel(R) Xeon(R) Platinum 8259CL CPU @ 2.50GHz", "cores": 2},
         "intel-xeon-platinum-8259cl-2-cores"),
        ({"cpu": "AMD EPYC 7B13 64-Core Processor", "cores": 8}, "amd-epyc-7b13-8-cores"),
        ({"cpu": "Apple M3", "cores": 8, "gpu": "NVIDIA H100 80GB HBM3"}, "nvidia-h100-80gb-hbm3"),
    ],
)  # fmt: skip
def test_machines_have_short_names(machine: dict[str, Any], slug: str) -> None:
    assert machine_slug(machine) == slug


def test_labels_tell_candidates_apart() -> None:
    candidates = [
        PLAIN,
        MODEL,
        Candidate("draft_model", "block"),
        Candidate("draft_model", "token", 3),
        Candidate("draft_model", "block", 2, (3, 1)),
        Candidate("none", system="transformers"),
        Candidate("draft_model", depth=3, system="transformers"),
    ]
    assert len({each.label for each in candidates}) == len(candidates)
