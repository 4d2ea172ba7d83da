"""The tuner: its measurements on a clock of our own, its arithmetic, and its command line."""

from __future__ import annotations

import json
import tomllib
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import outrider
import outrider.bench.measure
import outrider.bench.race
import outrider.engine.rounds
from outrider.bench.checks import Check
from outrider.bench.contending import PLAIN
from outrider.bench.forecast import Prediction, predict
from outrider.bench.measure import (
    RoundTime,
    Watched,
    at_one_pace,
    cycled,
    forward_times,
    usual_times,
)
from outrider.bench.records import Contender, Measurement, Prompt, Workload
from outrider.bench.regime import Regime
from outrider.bench.search import Models, Search
from outrider.bench.tune import (
    TuneResult,
    batches_of,
    best_depth,
    ranked,
    recommend,
    to_check,
    tune,
)
from outrider.cli import main
from outrider.errors import InvalidConfigError
from outrider.runtimes.tabular import TabularModel

SIZE = 6
K2 = Contender("outrider", "draft_model", "block", 2)
K4 = Contender("outrider", "draft_model", "block", 4)
ADAPTIVE = Contender("outrider", "draft_model", "block")


class Clock:
    """Seconds that pass only when something says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Fitful(Clock):
    """On a machine that takes `slow` times as long for everything."""

    def __init__(self) -> None:
        self.slow = 1.0
        self._passed = 0.0

    @property
    def now(self) -> float:
        return self._passed

    @now.setter
    def now(self, later: float) -> None:
        self._passed += self.slow * (later - self._passed)


class OneByOne(Models):
    """Contenders are measured one after the other, each beside plain decoding."""

    def groups(self, contenders: Any, batch: int) -> Any:
        return [[each] for each in contenders]


def keep_time(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    for module in (outrider.engine.rounds, outrider.bench.measure, outrider.bench.race):
        monkeypatch.setattr(module, "perf_counter", clock)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    keep_time(monkeypatch, made)
    return made


def distribution(prefix: tuple[int, ...]) -> np.ndarray:
    """Of the last two tokens, so that texts come round to where they were."""
    rng = np.random.default_rng(zlib.crc32(f"{prefix[-2:]}".encode()))
    return rng.dirichlet(np.full(SIZE, 0.3))


def rough(prefix: tuple[int, ...]) -> np.ndarray:
    return 0.7 * distribution(prefix) + 0.3 * distribution((9, *prefix[-1:]))


class SlowTarget(TabularModel):
    """A forward takes a second, and a tenth for each token that it is given."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(distribution, SIZE)
        self._clock = clock

    def verify(self, prefixes: Any, proposal: Any) -> Any:
        self._clock.now += 1.0 + 0.1 * len(prefixes) * (proposal.width + 1)
        return super().verify(prefixes, proposal)


class SlowDrafter(outrider.ModelDrafter):
    """Reading, then a fifth of a second for each token of the deepest row."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(TabularModel(rough, SIZE))
        self._clock = clock

    def propose(self, prefixes: Any, plan: Any, ctx: Any) -> Any:
        self._clock.now += 0.2 * plan.deepest
        return super().propose(prefixes, plan, ctx)


def workload(count: int = 4) -> Workload:
    rng = np.random.default_rng(1)
    prompts = tuple(
        Prompt(tuple(rng.integers(0, SIZE, 5).tolist()), f"line {i + 1}") for i in range(count)
    )
    return Workload("some", prompts)


def search(**changes: Any) -> Search:
    usual: dict[str, Any] = {
        "depths": (1, 4),
        "shapes": ((2, 1),),
        "temperatures": (0.0,),
        "params": outrider.SamplingParams(max_tokens=30, ignore_eos=True),
        "checks": 1,
        "repeats": 1,
    }
    return Search(**(usual | changes))


@pytest.mark.parametrize("batch", [1, 2])
def test_predictions_are_what_is_measured_where_no_noise_is(clock: Clock, batch: int) -> None:
    """Greedy texts are the same every time, so that nothing but noise could set them apart."""
    models = Models(SlowTarget(clock), SlowDrafter(clock))
    wanted = search(batch=batch, verify=99)
    result = tune(models, workload(2 * batch), wanted)
    assert not result.partial
    known = [check for check in result.checks if check.predicted and check.predicted.exact]
    assert len(known) == 4 * 2 * 2
    for check in known:
        assert check.error == pytest.approx(0, abs=1e-9), check.measured.contender.label
        assert check.measured.identical == len(check.measured.tokens)
        assert check.predicted is not None
        assert check.measured.metrics is not None
        assert check.predicted.rounds == pytest.approx(check.measured.metrics.rounds)
    plain = next(found for found in result.predictions if found.contender.plain)
    tokens = 2 * batch * 30
    assert plain.tokens == tokens
    reading = 2 * (1 + 0.1 * batch)
    assert plain.seconds == pytest.approx(tokens / batch * (1 + 0.1 * batch) - reading)
    assert {found.contender for found in result.predictions} == set(wanted.contenders())


def test_a_slow_while_of_the_machine_is_no_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    """All rounds of one method are measured in it, and none of the other.

    With times as they are one of them is predicted twice as fast as it is.
    """
    clock = Fitful()
    keep_time(monkeypatch, clock)

    def report(done: int, total: int, what: str) -> None:
        clock.slow = 3.0 if what.startswith("measuring") and done < 3 else 1.0

    models = OneByOne(SlowTarget(clock), SlowDrafter(clock))
    wanted = search(drafters=("draft_model",), shapes=(), verify=99)
    result = tune(models, workload(3), wanted, report)
    known = [check for check in result.checks if check.predicted]
    assert len(known) == 4
    for check in known:
        assert abs(check.error or 0.0) < 0.02, (check.measured.contender.label, check.error)


def test_trees_are_predicted_by_their_own_rounds(clock: Clock) -> None:
    models = Models(SlowTarget(clock), SlowDrafter(clock))
    wanted = search(drafters=("draft_model",), depths=(2,), verify=99)
    result = tune(models, workload(), wanted)
    (tree,) = [
        check
        for check in result.checks
        if check.measured.contender == Contender("outrider", "draft_model", "block", 2, (2, 1))
    ]
    assert tree.predicted is not None
    assert not tree.predicted.exact
    assert tree.error == pytest.approx(0, abs=0.1)


def test_sampled_texts_are_predicted_on_average(clock: Clock) -> None:
    """Of seeded texts, so that a test passes or fails for good; the standard error is near 4%."""
    models = Models(SlowTarget(clock), SlowDrafter(clock))
    params = outrider.SamplingParams(max_tokens=40, ignore_eos=True, seed=5)
    wanted = search(
        drafters=("draft_model",), shapes=(), temperatures=(1.0,), params=params, verify=9
    )
    result = tune(models, workload(12), wanted)
    for check in result.checks:
        if check.error is not None:
            assert abs(check.error) < 0.12, check.measured.contender.label


def test_an_interrupt_keeps_what_is_known(clock: Clock) -> None:
    def report(done: int, total: int, what: str) -> None:
        if what.startswith("checking") and done == 1:
            raise KeyboardInterrupt

    models = Models(SlowTarget(clock), SlowDrafter(clock))
    result = tune(models, workload(2), search(drafters=("draft_model",)), report)
    assert result.partial
    assert [len(check.measured.seconds) for check in result.checks] == [1, 1]
    assert result.predictions
    assert result.recommendation is not None
    assert not result.recommendation.speculate
    assert "too few prompts" in result.recommendation.verdict


def test_an_interrupt_at_once_leaves_nothing(clock: Clock) -> None:
    def report(done: int, total: int, what: str) -> None:
        raise KeyboardInterrupt

    result = tune(Models(SlowTarget(clock)), workload(1), search(drafters=("ngram",)), report)
    assert result.partial
    assert (result.predictions, result.checks, result.curve) == ((), (), ())
    assert result.recommendation is None


def test_the_curve_is_of_real_rounds(clock: Clock) -> None:
    models = Models(SlowTarget(clock))
    result = tune(models, workload(1), search(drafters=("ngram",)))
    for point in result.curve:
        assert point.seconds == pytest.approx(1 + 0.1 * point.rows * point.width)
    assert {1, 2, 5} <= {point.width for point in result.curve}


def test_too_few_prompts_for_a_batch() -> None:
    with pytest.raises(InvalidConfigError, match="batch=3"):
        batches_of(workload(2), 3)
    assert [len(batch) for batch in batches_of(workload(5), 2)] == [2, 2]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"drafters": ("magic",)}, "magic"),
        ({"drafters": ()}, "drafters"),
        ({"verifications": ("typical",)}, "lossless"),
        ({"verifications": ("magic",)}, "verification"),
        ({"depths": (0,)}, "depths"),
        ({"depths": (2, 2)}, "each once"),
        ({"temperatures": (-1.0,)}, "temperature"),
        ({"batch": 0}, "batch"),
        ({"params": outrider.SamplingParams()}, "params"),
    ],
)
def test_a_search_is_checked_at_the_door(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidConfigError, match=told):
        search(**changes)


def test_depths_come_equally_often() -> None:
    depths = cycled((1, 2, 4), 9)
    assert sorted(depths) == [1, 1, 1, 2, 2, 2, 4, 4, 4]
    assert depths == cycled((1, 2, 4), 9)


def seen(width: int, seconds: float, rows: int = 1, *, first: bool = False) -> RoundTime:
    return RoundTime(width, rows, width, False, 1, first, seconds / 2, seconds, 2 * seconds)


def test_times_are_medians_by_size() -> None:
    rounds = [seen(2, 1.0), seen(2, 1.5), seen(2, 60.0), seen(0, 4.0), seen(0, 1.0, rows=3)]
    found = usual_times(rounds, lambda each: each.total_s, {1})
    assert found == pytest.approx({(1, 2): 3.0, (1, 0): 8.0})
    first, *_ = forward_times(rounds)
    assert (first.rows, first.width, first.seconds) == (1, 1, 4.0)


class TestOnePace:
    """Plain rounds of 20 turns that take 2 seconds, or 6 from the 8th to the 13th."""

    SLOW = [1.0] * 8 + [3.0] * 6 + [1.0] * 6

    def paced(self, of: list[float], plain: list[float] | None = None) -> list[float]:
        """What rounds come to that take so many seconds where the machine is as usual."""
        lanes = [
            Watched((tuple(seen(0, took, first=not i) for i, took in enumerate(times)),), ((),))
            for times in (plain or self.SLOW, of)
        ]
        (rounds,) = at_one_pace(lanes, {1: 2.0})[1].rounds
        for each in rounds:
            assert (each.draft_s, each.target_s) == (each.total_s / 4, each.total_s / 2)
        return [each.total_s / 2 for each in rounds]

    def test_a_slow_while_is_taken_out(self) -> None:
        found = self.paced([1.5 * slow for slow in self.SLOW])
        assert found == pytest.approx([1.5] * 20)

    def test_a_slow_round_of_plain_decoding_alone_says_nothing(self) -> None:
        plain = [1.0] * 20
        plain[4] = 9.0
        assert self.paced([1.5] * 20, plain) == pytest.approx([1.5] * 20)

    def test_the_first_round_reads_the_prompt_and_says_nothing(self) -> None:
        assert self.paced([1.5] * 3, [50.0, 1.0, 1.0]) == pytest.approx([1.5] * 3)

    def test_after_plain_decoding_the_machine_is_as_it_was_at_its_end(self) -> None:
        found = self.paced([4.0] * 6, [1.0, 2.0, 2.0, 2.0])
        assert found == pytest.approx([2.0] * 6)

    @pytest.mark.parametrize("plain", [[3.0], [0.0] * 6])
    def test_where_nothing_tells_times_are_as_measured(self, plain: list[float]) -> None:
        assert self.paced([1.0, 2.0], plain) == pytest.approx([1.0, 2.0])


def rows_of(rounds: list[tuple[int, float]]) -> tuple[RoundTime, ...]:
    """A batch's rounds of trees of three nodes, as (sequences, seconds), two tokens for each."""
    return tuple(
        RoundTime(2, rows, 3, True, 2 * rows, index == 0, 0.0, 0.5, seconds)
        for index, (rows, seconds) in enumerate(rounds)
    )


def test_rounds_of_single_sequences_are_no_rounds_of_a_batch() -> None:
    """Four sequences of eight tokens in four rounds; what one alone takes is a cost, and no more.

    Three rounds of a second were seen apart from the first, which emit six of a text's eight
    tokens: a third more, and for the first round the forward's half second less.
    """
    tree = Contender("outrider", "draft_model", "block", 2, (2, 1))
    batch = rows_of([(4, 9.0), (4, 1.0), (4, 1.0), (4, 1.0)])
    single = rows_of([(1, 9.0), (1, 0.7), (1, 0.7), (1, 0.7)])
    texts = [[((1,), (1,) * 8)] * 4]
    for rounds in ((batch,), (batch, single, single)):
        seen = Watched(rounds, ((),) * len(rounds))
        regime = Regime(0.0, 4, 1, {PLAIN: seen, tree: seen}, {}, (0.0,), texts, None)
        (found,) = predict(
            Models(TabularModel(distribution, SIZE)),
            regime,
            [tree],
            lambda _done, _total, _what: None,
        )
        assert found.seconds == pytest.approx(4.0 - 0.5)
        assert found.rounds == pytest.approx(4 * 4)


def test_each_batch_has_its_own_reading() -> None:
    """A second, another and ten: what was read once for each is charged once for each."""
    tree = Contender("outrider", "draft_model", "block", 2, (2, 1))
    seen = Watched((rows_of([(1, 9.0), (1, 1.0), (1, 1.0)]),) * 3, ((),) * 3)
    texts = [[((1,), (1,) * 6)]] * 6
    model = Models(TabularModel(distribution, SIZE))
    predicted = []
    for readings in ((0.0, 0.0, 0.0), (1.0, 1.0, 10.0)):
        regime = Regime(0.0, 1, 3, {PLAIN: seen, tree: seen}, {}, readings, texts, None)
        predicted += predict(model, regime, [tree], lambda _done, _total, _what: None)
    none, some = predicted
    assert some.seconds - none.seconds == pytest.approx(2 * (1.0 + 1.0 + 10.0))


def prediction(
    contender: Contender, seconds: float, temperature: float = 0.0, *, exact: bool = True
) -> Prediction:
    return Prediction(contender, temperature, 100, 50.0, seconds, exact)


def measured(contender: Contender, seconds: float, temperature: float = 0.0) -> Measurement:
    times = (seconds * 0.9, seconds * 1.1)
    return Measurement(
        contender, "some", temperature, 1, "float32", times, (50, 50), None, 2, None, None, None
    )


def check(contender: Contender, plain: float, seconds: float, temperature: float = 0.0) -> Check:
    return Check(
        measured(PLAIN, plain, temperature),
        measured(contender, seconds, temperature),
        prediction(contender, 2 * seconds, temperature),
        2,
    )


PREDICTIONS = [
    *[prediction(PLAIN, 10.0, at) for at in (0.0, 1.0)],
    *[prediction(K2, seconds, at) for at, seconds in ((0.0, 4.0), (1.0, 8.0))],
    *[prediction(K4, seconds, at) for at, seconds in ((0.0, 3.0), (1.0, 12.0))],
]


def test_ranks_are_by_all_temperatures_together() -> None:
    order = ranked(PREDICTIONS)
    assert [contender for contender, _ in order] == [K2, K4, PLAIN]
    assert [gain for _, gain in order] == pytest.approx([20 / 12, 20 / 15, 1.0])


def test_what_is_checked() -> None:
    settings: dict[str, Any] = {"drafters": ("draft_model",), "temperatures": (0.0, 1.0)}
    wanted = search(depths=(2, 4), checks=1, **settings)
    first = [(each, at) for each in (ADAPTIVE, K2) for at in (0.0, 1.0)]
    assert to_check(wanted, PREDICTIONS) == first
    some = search(depths=(2, 4), checks=1, verify=3, **settings)
    assert to_check(some, PREDICTIONS) == [*first, (K4, 0.0)]
    every = search(depths=(2, 4), checks=1, verify=9, **settings)
    assert to_check(every, PREDICTIONS) == [*first, (K4, 0.0), (K4, 1.0)]


def test_predictions_are_verified_evenly_over_kinds_and_temperatures() -> None:
    wanted = search(depths=tuple(range(1, 11)), temperatures=(0.0, 1.0), checks=3, verify=24)
    random = np.random.default_rng(0)
    predictions = [
        prediction(contender, random.uniform(1, 2), at)
        for contender in wanted.contenders()
        for at in wanted.temperatures
    ]
    jobs = to_check(wanted, predictions)
    assert len(jobs) == len(set(jobs)) == 24 + 2
    spread = jobs[2 + 3 * 2 :]
    assert sum(at == 0.0 for _, at in spread) == 9
    kinds = Counter((contender.drafter, contender.verification) for contender, _ in spread)
    assert len(kinds) == 8
    assert set(kinds.values()) <= {2, 3}


def test_the_default_drafts_with_what_there_is() -> None:
    """As `load` and the command line do."""
    assert search().default() == Contender("outrider", "hybrid", "block")
    assert search(drafters=("draft_model", "suffix")).default().drafter == "draft_model"
    assert search(drafters=("suffix", "ngram")).default().drafter == "ngram"
    assert search(drafters=("suffix",)).default().drafter == "suffix"


def test_the_best_measured_is_recommended() -> None:
    checks = [
        check(contender, 10.0, seconds, at)
        for contender, times in ((K2, (4.0, 8.0)), (ADAPTIVE, (3.0, 5.0)))
        for at, seconds in zip((0.0, 1.0), times, strict=True)
    ]
    found = recommend((0.0, 1.0), PREDICTIONS, checks)
    assert found is not None
    assert found.contender == found.best == ADAPTIVE
    assert found.measured == pytest.approx(20 / 8)
    assert found.expected == pytest.approx(20 / 12)
    assert found.low > 1
    assert found.speculate
    assert "2.50x" in found.verdict
    assert "1.67x was expected" in found.verdict
    assert "expected of its best fixed depth" in found.verdict
    assert best_depth(found.contender, PREDICTIONS) == 2


def test_a_hybrid_leaves_its_draft_model_the_depth_that_is_best_for_that() -> None:
    hybrid = replace(K4, drafter="hybrid")
    predictions = [*PREDICTIONS, *[prediction(hybrid, 1.0, at) for at in (0.0, 1.0)]]
    assert (
        best_depth(hybrid, predictions)
        == best_depth(replace(hybrid, num_speculative_tokens=None), predictions)
        == 2
    )
    assert best_depth(K4, predictions) == 4
    lonely = [each for each in predictions if each.contender.drafter != "draft_model"]
    assert best_depth(hybrid, lonely) == 4
    assert best_depth(replace(hybrid, num_speculative_tokens=None), lonely) == 1


def test_no_recommendation_before_every_temperature_was_checked() -> None:
    assert recommend((0.0, 1.0), PREDICTIONS, [check(K2, 10.0, 4.0)]) is None


def test_do_not_speculate() -> None:
    found = recommend((0.0,), PREDICTIONS, [check(K2, 10.0, 11.0), check(K4, 10.0, 12.0)])
    assert found is not None
    assert found.contender == PLAIN
    assert found.best == K2
    assert not found.speculate
    assert found.verdict.startswith("do not speculate: the best checked, outrider draft_model k=2")


def test_what_may_be_faster_is_not_advised_against() -> None:
    """One prompt twice as fast, one a little slower: the interval holds 1."""
    uneven = check(K2, 10.0, 8.0)
    uneven = replace(uneven, measured=replace(uneven.measured, seconds=(4.5, 11.5)))
    found = recommend((0.0,), PREDICTIONS, [uneven])
    assert found is not None
    assert found.low < 1 < found.measured < found.high
    assert found.contender == PLAIN
    assert found.verdict.startswith("not told apart from plain decoding, more prompts may tell: ")


def test_one_prompt_has_no_interval(clock: Clock) -> None:
    models = Models(SlowTarget(clock), SlowDrafter(clock))
    result = tune(models, workload(1), search(drafters=("draft_model",), repeats=3))
    assert {len(check.measured.seconds) for check in result.checks} == {3}
    assert {(check.measured.low, check.measured.high) for check in result.checks} == {(None, None)}
    assert result.recommendation is not None
    assert not result.recommendation.speculate


def test_what_is_predicted_by_formula_is_verified_first() -> None:
    wanted = search(depths=tuple(range(1, 11)), temperatures=(0.0, 1.0), checks=3, verify=24)
    shapes = {each for each in wanted.contenders() if each.tree_shape}
    for seconds in (0.5, 2.0):
        predictions = [
            prediction(each, seconds if each in shapes else 1.0, at, exact=each not in shapes)
            for each in wanted.contenders()
            for at in wanted.temperatures
        ]
        jobs = to_check(wanted, predictions)[2:]
        assert len(jobs) == len(set(jobs))
        trees = sum(contender in shapes for contender, _ in jobs)
        assert trees == (4 if seconds == 0.5 else 0)
        assert len(jobs) - trees == (20 if seconds == 0.5 else 24)
    every = replace(wanted, verify=999)
    assert len(to_check(every, predictions)) == 2 * len(wanted.contenders())


class TestCommandLine:
    def refused(self, capsys: Any, *args: str) -> str:
        with pytest.raises(SystemExit) as caught:
            raise SystemExit(main(["tune", *args]))
        assert caught.value.code == 2
        error: str = capsys.readouterr().err
        assert error.count("\n") == 1
        return error

    @pytest.mark.parametrize(
        ("args", "told"),
        [
            (("--drafters", "magic"), "'magic' is not allowed"),
            (("--target", "x", "--drafters", "hybrid"), "--draft MODEL"),
            (("--verifications", "typical"), "lossless"),
            (("--verifications", "magic"), "'magic' is not allowed"),
            (("--depths", "0"), "integer >= 1"),
            (("--depths", "2,2"), "each only once"),
            (("--temp", "hot"), "'hot' is not allowed: expected a number"),
            (("--shape", "0"), "integer >= 1"),
            (("--shape", "40,40"), "at most 1024 nodes"),
            (("--no-trees", "--shape", "2"), "not allowed with"),
            (("-m", "1"), "--max-tokens=1"),
            (("--save", "/nowhere/at/all.toml"), "--save"),
            (("--save", "/tmp"), "this is a folder"),
            (("--out", "/dev/null/x"), "--out"),
            (("--export", "magic"), "magic"),
            (("--config", "/nowhere.toml"), "readable file"),
        ],
    )
    def test_errors_are_one_line_before_anything_is_loaded(
        self, capsys: Any, monkeypatch: pytest.MonkeyPatch, args: tuple[str, ...], told: str
    ) -> None:
        def unreachable(*_: Any, **__: Any) -> Iterator[None]:
            raise AssertionError("loaded")

        monkeypatch.setattr("outrider.engine.loading.load", unreachable)
        assert told in self.refused(capsys, *args)

    def test_a_prompt_file_without_a_prompt(self, capsys: Any, tmp_path: Path) -> None:
        path = tmp_path / "prompts.jsonl"
        path.write_text("{\n")
        assert "line 1" in self.refused(capsys, "--prompts", str(path))

    def test_a_whole_run(self, capsys: Any, tmp_path: Path, piped: Callable[[bytes], Path]) -> None:
        """A bad row in a pipe, everything written, and the file read back by `generate`."""
        prompts = piped(b'{"prompt": "import os"}\nnonsense\n')
        saved, out = tmp_path / "tuned.toml", tmp_path / "out"
        args = ["tune", "--prompts", str(prompts), "-m", "6", "--depths", "2", "--no-trees"]
        args += ["--drafters", "draft_model", "--verifications", "block", "--temp", "0"]
        args += ["--repeats", "1", "--save", str(saved), "--out", str(out), "--json"]
        assert main(args) == 0
        document = json.loads(capsys.readouterr().out)
        assert json.loads((out / "tune.json").read_text()) == document
        assert document["prompts"] == 1
        assert document["skipped"][0].startswith("line 2")
        assert {found["label"] for found in document["predictions"]} == {
            "outrider plain",
            "outrider draft_model k=2",
        }
        assert {found["label"] for found in document["checks"]} == {
            "outrider draft_model adaptive",
            "outrider draft_model k=2",
        }
        assert {each["system"] for each in document["exports"]} == {
            "vllm",
            "sglang",
            "llama.cpp",
            "transformers",
        }
        assert tomllib.loads(saved.read_text()) == document["config"]
        assert main(["generate", "--config", str(saved), "-p", "import", "-m", "2", "--json"]) == 0
        used = json.loads(capsys.readouterr().out)["config"]
        assert used["method"] == document["config"]["method"]


def test_a_result_knows_its_speedups() -> None:
    result = TuneResult({}, "some", 1, (), (), tuple(PREDICTIONS), (), None, False)
    assert result.predicted_speedup(PREDICTIONS[2]) == pytest.approx(2.5)
