"""Races: every candidate decodes the same prompts, in turn, and is counted by its tokens."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest

from outrider import Pair, SamplingParams
from outrider.bench import BenchOptions
from outrider.bench.peers import Peer, runners
from outrider.bench.race import OutriderRunner, Run, Runner, Turns, race
from outrider.bench.records import PLAIN, Candidate, Measurement, Prompt, Workload
from outrider.bench.speedup import Speedup
from outrider.bench.trial import Trial, TrialRace
from outrider.certify.toys import TEXTS, of_another_vocabulary
from outrider.errors import InvalidConfigError
from outrider.runtimes.tabular import TabularModel

from ...support.bench import MODEL, PROMPTS, WORKLOAD, pair

IDS = [prompt.token_ids for prompt in PROMPTS]


class Scripted(Runner):
    """A system that emits fixed tokens, a round at a time, and writes down whose turn it is."""

    def __init__(self, name: str, turns: list[str], rounds: int = 2, seconds: float = 1.0) -> None:
        self.candidate = Candidate("none", system=name)
        self.taken, self.rounds, self.seconds = turns, rounds, seconds
        self.closed = 0

    def turns(
        self, prompts: Sequence[tuple[int, ...]], params: Sequence[SamplingParams], seed: int
    ) -> Turns:
        try:
            for turn in range(1, self.rounds + 1):
                self.taken.append(self.candidate.system)
                yield turn * self.seconds
            return Run(self.seconds, tuple((7,) * each.max_tokens for each in params))
        finally:
            self.closed += 1


def _trial(temperature: float = 0.0, **given: Any) -> Trial:
    return Trial(
        workload=WORKLOAD, sampling=SamplingParams(max_tokens=6, temperature=temperature), **given
    )


def _params(tokens: int, temperature: float = 0.0) -> SamplingParams:
    return SamplingParams(max_tokens=tokens, temperature=temperature, ignore_eos=True)


def test_who_is_behind_has_the_next_round_and_the_first_turn_rotates() -> None:
    turns: list[str] = []
    field = [Scripted("a", turns), Scripted("b", turns, rounds=4, seconds=0.6)]
    race(field, IDS[:1], [_params(4)])
    assert turns == ["a", "b", "b", "a", "b", "b"]
    turns.clear()
    race(field, IDS[:1], [_params(4)], seed=1)
    assert turns == ["b", "a", "b", "a", "b", "b"]
    assert [each.closed for each in field] == [2, 2]


def test_ours_take_turns_by_rounds_while_a_peer_takes_a_whole_request() -> None:
    turns: list[str] = []

    class Whole(Peer):
        def decode(self, prompt: Any, asked: SamplingParams, seed: int) -> Run:
            turns.append("peer")
            return Run(9.0, ((7,) * asked.max_tokens,))

    peer = Whole(Candidate("none", system="peer"), None, None, 0)
    runs = race([Scripted("a", turns), peer, Scripted("b", turns)], IDS[:1], [_params(4)])
    assert turns == ["a", "peer", "b", "a", "b"]
    assert [run.tokens for run in runs] == [4, 4, 4]


@pytest.mark.parametrize("batch", [1, 2])
def test_tokens_are_those_of_generate_and_every_round_is_timed(
    batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, ticks = pair(), count()
    monkeypatch.setattr("outrider.bench.race.perf_counter", lambda: float(next(ticks)))
    field = [OutriderRunner.of(each, given, batch) for each in (PLAIN, MODEL)]
    params = [_params(9), _params(4)][:batch]
    runs = race(field, IDS[:batch], params)
    rounds = [len(runner.records) for runner in field]
    expected = [
        output.token_ids
        for output in field[0].decoder.generate([list(each) for each in IDS[:batch]], params)
    ]
    for runner, run, turns in zip(field, runs, rounds, strict=True):
        assert list(run.token_ids) == expected
        assert run.tokens == sum(each.max_tokens for each in params)
        # The clock goes on by one whenever it is asked: at the ends of each round.
        assert run.seconds == pytest.approx(turns - runner.records[0].target_s)
        assert runner.decoder.metrics.emitted >= run.tokens
    assert rounds[0] == 9
    assert rounds[1] < 9


def test_candidates_share_weights_and_no_cache() -> None:
    given = pair()
    first, second = (OutriderRunner.of(MODEL, given, 1).decoder for _ in range(2))
    assert first.target is not second.target
    assert first.target.hf_model is given.target.hf_model
    assert first.drafter is not second.drafter


def test_a_prompt_that_comes_again_is_read_again() -> None:
    runner = OutriderRunner.of(MODEL, pair(), 1)
    for _ in range(2):
        race([runner], IDS[:1], [_params(4)])
        assert runner.records[0].cached == (0,)


def test_a_draft_that_is_missing_is_refused() -> None:
    given = pair(draft=False)
    with pytest.raises(InvalidConfigError, match="suffix or ngram"):
        OutriderRunner.of(MODEL, given, 1)


def test_a_draft_of_another_vocabulary_keeps_its_way_between_the_two() -> None:
    target = TabularModel(lambda _: np.full(len(TEXTS), 1 / len(TEXTS)), len(TEXTS))
    draft = of_another_vocabulary(target, ("", "b", "a"))
    made = OutriderRunner.of(MODEL, Pair(target, draft, None), 1).decoder.drafter
    assert type(made) is type(draft)
    assert made is not draft
    assert made.common == draft.common


def test_stretches_are_batches_and_short_ones_are_filled() -> None:
    trial = _trial(batch=2, repeats=2)
    assert trial.stretches == [PROMPTS[:2], (PROMPTS[2], PROMPTS[0])]


@pytest.mark.slow
def test_equal_output_is_checked_where_there_is_one_right_output() -> None:
    given = pair()
    coupled, typical = (
        Candidate("draft_model", "coupled", 3),
        Candidate("draft_model", "typical", 3),
    )
    for temperature, expected in ((0.0, [3, 3, 3, None]), (0.8, [None, None, None, None])):
        field = [OutriderRunner.of(each, given, 1) for each in (PLAIN, MODEL, coupled, typical)]
        trial = TrialRace(_trial(temperature), field)
        trial.run()
        assert [each.identical for each in trial.measurements()] == expected
        lossy = [each.candidate.lossy for each in trial.measurements()]
        assert lossy == [False, False, False, True]


def test_another_output_than_plain_decodings_is_counted() -> None:
    field: list[Runner] = [OutriderRunner.of(PLAIN, pair(), 1), Scripted("other", [])]
    trial = TrialRace(_trial(), field)
    trial.run()
    plain, other = trial.measurements()
    assert (plain.identical, other.identical) == (3, 0)
    assert len(other.errors) == 3
    assert other.errors[0].startswith("prompt 1, token 1: id 7 where plain has ")
    assert ", and rounding explains " in other.errors[0]


class Uncertain(Peer):
    """Takes the other token of a near-tie."""

    def decode(self, prompt: Any, asked: SamplingParams, seed: int) -> Run:
        return Run(1.0, (self.target[: asked.max_tokens],))


@pytest.mark.parametrize(("gap", "tie"), [(1e-13, True), (1e-3, False)])
def test_a_tie_that_rounding_decides_is_no_error(gap: float, tie: bool) -> None:
    """Tokens 1 and 2 are the likeliest everywhere, `gap` apart."""
    weights = np.array([0.1, 1.0, math.exp(-gap), 0.1])
    target = TabularModel(lambda _: weights / weights.sum(), 4)
    prompts = Workload("kind", (Prompt((3, 0), "short"),))
    trial = Trial(workload=prompts, sampling=SamplingParams(max_tokens=8, temperature=0))
    uncertain = Uncertain(Candidate("ngram", "block"), (1, 1, 2, *[1] * 5), None, 0)
    field = [OutriderRunner(target), uncertain]
    (_, found) = _measured(TrialRace(trial, field))
    assert (found.identical, found.wrong) == (0, not tie)
    if not tie:
        (error,) = found.errors
        assert error.startswith("short, token 3: id 2 where plain has 1; their logits are 0.001 a")


def _measured(race: TrialRace) -> list[Measurement]:
    race.run()
    return race.measurements()


def test_no_speedup_is_given_when_tokens_are_missing() -> None:
    class Short(Scripted):
        def turns(self, prompts: Any, params: Any, seed: int) -> Turns:
            return super().turns(prompts, [_params(each.max_tokens - 1) for each in params], seed)

    trial = TrialRace(_trial(), [Scripted("plain", []), Short("short", [])])
    trial.run()
    assert [each.speedup for each in trial.measurements()] == [Speedup(1.0), None]


def test_speedups_come_from_seconds_of_the_same_stretches() -> None:
    trial = TrialRace(_trial(), [Scripted("plain", [], seconds=3.0), Scripted("fast", [])])
    trial.run()
    plain, fast = trial.measurements()
    assert plain.speedup == Speedup(1.0)
    assert fast.speedup is not None
    assert fast.speedup.ratio == pytest.approx(3.0)
    assert fast.outcome == 1
    assert fast.tokens == (6, 6, 6)


def test_what_fails_is_named_and_the_others_are_measured() -> None:
    class Failing(Peer):
        def decode(self, prompt: Any, asked: SamplingParams, seed: int) -> Run:
            raise RuntimeError("no room\nat all")

    failing = Failing(Candidate("none", system="broken"), None, None, 0)
    trial = TrialRace(_trial(), [Scripted("plain", []), failing])
    trial.run()
    assert trial.failed == {failing: "RuntimeError: no room at all"}
    assert [each.candidate.system for each in trial.measurements()] == ["plain"]


def test_an_interrupt_leaves_the_stretches_before_it() -> None:
    done = count(1)

    def interrupt() -> None:
        if next(done) == 2:
            raise KeyboardInterrupt

    trial = TrialRace(_trial(), [OutriderRunner.of(each, pair(), 1) for each in (PLAIN, MODEL)])
    with pytest.raises(KeyboardInterrupt):
        trial.run(interrupt)
    for each in trial.measurements():
        assert each.tokens == (6, 6)
        assert each.metrics is not None
        assert each.metrics.emitted == 12


def test_prompts_may_have_their_own_number_of_tokens() -> None:
    prompts = (PROMPTS[0], type(PROMPTS[1])(PROMPTS[1].token_ids, "short", max_tokens=3))
    trial = Trial(workload=Workload("own", prompts), sampling=SamplingParams(max_tokens=6))
    assert [each.max_tokens for each in trial.params(prompts)] == [6, 3]


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.slow
def test_transformers_races_on_the_same_weights(temperature: float) -> None:
    given = pair()
    config = given.target.hf_model.generation_config
    peers, missing = runners(BenchOptions(k=(3,)), given, 20)
    labels = [each.candidate.label for each in peers]
    assert missing == []
    assert labels == [
        "transformers plain",
        "transformers ngram k=3",
        "transformers draft_model k=3",
        "transformers draft_model adaptive",
    ]
    trial = TrialRace(_trial(temperature), [OutriderRunner.of(PLAIN, given, 1), *peers])
    trial.run()
    assert trial.failed == {}
    for each in trial.measurements():
        assert each.tokens == (6, 6, 6)
        assert each.identical == (3 if temperature == 0 else None)
        assert all(seconds > 0 for seconds in each.seconds)
    assert given.target.hf_model.generation_config is config


def test_peers_have_a_depth_where_only_the_adaptive_one_is_asked_for() -> None:
    peers, _ = runners(BenchOptions(quick=True), pair(), 20)
    labels = [each.candidate.label.removeprefix("transformers ") for each in peers]
    assert labels == ["plain", "ngram k=4", "draft_model k=4", "draft_model adaptive"]


def _installed(monkeypatch: pytest.MonkeyPatch, name: str, **members: Any) -> None:
    """Puts a module in place of one that may not be installed."""
    module = ModuleType(name)
    vars(module).update(members)
    monkeypatch.setitem(sys.modules, name, module)


class Llama:
    """Stands in for llama-cpp-python's class: it emits the numbers from 0."""

    made: ClassVar[list[Llama]] = []

    def __init__(self, path: str, **settings: Any) -> None:
        self.path, self.settings, self.calls = path, settings, list[Any]()
        self.made.append(self)

    def reset(self) -> None:
        self.calls.append("reset")

    def set_seed(self, seed: int) -> None:
        self.calls.append(seed)

    def generate(self, tokens: list[int], **settings: Any) -> Iterator[int]:
        self.calls.append((tokens, settings["temp"]))
        return iter(range(100))


@pytest.fixture
def llamas(monkeypatch: pytest.MonkeyPatch) -> list[Llama]:
    """Those made."""
    _installed(monkeypatch, "llama_cpp", Llama=Llama)
    kinds = {"LlamaDraftModel": object, "LlamaPromptLookupDecoding": dict}
    _installed(monkeypatch, "llama_cpp.llama_speculative", **kinds)
    monkeypatch.setattr(Llama, "made", [])
    return Llama.made


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    """Two files that look like GGUF files."""
    for name in ("target.gguf", "draft.gguf"):
        (tmp_path / name).write_bytes(b"GGUF")
    return str(tmp_path / "target.gguf"), str(tmp_path / "draft.gguf")


def test_llama_cpp_decodes_the_target_file(llamas: list[Llama], files: tuple[str, str]) -> None:
    options = BenchOptions(target=files[0], draft=files[1], peers=("llama.cpp",), k=(3, "adaptive"))
    peers, missing = runners(options, pair(), 600)
    assert missing == []
    labels = [f"llama.cpp {kind}" for kind in ("plain", "ngram k=3", "draft_model k=3")]
    assert [each.candidate.label for each in peers] == labels
    assert llamas == []
    runs = race(peers, IDS[:1], [_params(5)], seed=3)
    assert {run.token_ids for run in runs} == {((0, 1, 2, 3, 4),)}
    assert [each.path for each in llamas] == [files[0], files[0], files[1], files[0]]
    plain, lookup, draft, drafting = llamas
    assert plain.calls == ["reset", 3, (list(IDS[0]), 0.0)]
    assert (plain.settings["n_ctx"], lookup.settings["n_ctx"]) == (600, 603)
    assert lookup.settings["draft_model"] == {"num_pred_tokens": 3}
    drafted = drafting.settings["draft_model"](np.array([7, 8], np.intc))
    assert drafted.tolist() == [0, 1, 2]
    assert draft.calls == ["reset", ([7, 8], 0.0)]
    assert drafting.settings["logits_all"]


class Pipeline:
    """Stands in for OpenVINO GenAI's: it emits the numbers from 0, the first after 10 ms."""

    made: ClassVar[list[Pipeline]] = []

    def __init__(self, path: str, device: str, **settings: Any) -> None:
        self.path, self.settings, self.asked = path, settings, list[Any]()
        self.made.append(self)

    def generate(self, ids: Any, config: SimpleNamespace) -> Any:
        self.asked.append((ids.tolist(), config))
        metrics = SimpleNamespace(get_ttft=lambda: SimpleNamespace(mean=10.0))
        return SimpleNamespace(tokens=[list(range(config.max_new_tokens))], perf_metrics=metrics)


def test_openvino_genai_decodes_the_target_file(
    monkeypatch: pytest.MonkeyPatch, files: tuple[str, str]
) -> None:
    made = {"LLMPipeline": Pipeline, "GenerationConfig": SimpleNamespace}
    _installed(monkeypatch, "openvino_genai", **made)
    _installed(monkeypatch, "openvino", Tensor=np.asarray)
    monkeypatch.setattr(Pipeline, "made", [])
    options = BenchOptions(target=files[0], draft=files[1], peers=("openvino-genai",), k=(3,))
    peers, (why,) = runners(options, pair(), 20)
    assert why.startswith("openvino-genai draft_model: ")
    runs = race(peers, IDS[:1], [_params(5, 0.8)], seed=2)
    assert [run.token_ids for run in runs] == [((0, 1, 2, 3, 4),)] * 2
    plain, lookup = Pipeline.made
    assert (plain.path, "prompt_lookup" in plain.settings) == (files[0], False)
    assert lookup.settings["prompt_lookup"]
    ((ids, config),) = lookup.asked
    assert ids == [list(IDS[0])]
    assert vars(config) == {
        "max_new_tokens": 5, "ignore_eos": True, "do_sample": True, "temperature": 0.8,
        "rng_seed": 2, "num_assistant_tokens": 3, "max_ngram_size": 3,
    }  # fmt: skip


def test_peers_that_cannot_take_part_say_why(
    monkeypatch: pytest.MonkeyPatch, files: tuple[str, str], llamas: list[Llama]
) -> None:
    def said(given: Pair, **options: Any) -> list[str]:
        return runners(BenchOptions(**options), given, 20)[1]

    assert runners(BenchOptions(peers=("none",)), pair(), 20) == ([], [])
    assert said(pair(draft=False)) == []
    assert said(pair(), batches=(1, 2, 4)) == [
        "peers: not in batches of 2, 4, they decode one at a time"
    ]
    (why,) = said(pair(), peers=("llama.cpp",))
    assert why == "llama.cpp: here it takes a GGUF file as the target, such as --target model.gguf"
    (why,) = said(pair(), target=files[0], peers=("llama.cpp",))
    assert why.startswith("llama.cpp draft_model: the draft's tokenizer is another, or")
    monkeypatch.setitem(sys.modules, "openvino_genai", None)
    (why,) = said(pair(), target=files[0], peers=("openvino-genai",))
    assert "pip install 'outrider[openvino-genai]'" in why
    by_llama_cpp = Pair(TabularModel(lambda _: np.ones(4) / 4, 4), None, None)
    (why,) = said(by_llama_cpp, target=files[0])
    assert "--runtime transformers" in why
