"""The certificate passes the engine as it ships, and each of its parts can fail."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from functools import cache, partial
from itertools import combinations, count, product
from multiprocessing import active_children
from time import sleep
from typing import Any

import numpy as np
import pytest

from outrider import ModelDrafter, OutriderError, SamplingParams, SpeculativeDecoder
from outrider.certify import cases, checks, controls, exact, faults
from outrider.certify.ceilings import ceilings
from outrider.certify.spread import spread, workers
from outrider.engine import stopping
from outrider.policies.rule import BreakEven
from outrider.runtimes.tabular import mock_pair
from outrider.sampling.paths import Path
from outrider.sampling.pipeline import LogitsPipeline
from outrider.verification import TokenVerification, Verifier
from outrider.verification.lossy import LenientVerification

pytestmark = pytest.mark.exact


def quiet(done: int, total: int, what: str) -> None:
    assert 0 <= done <= total, what


@cache
def designed() -> Any:
    return cases.design()


def chosen(**values: str) -> list[cases.Case]:
    """Cases of the design that have these values and sample their tokens."""
    return [
        case
        for case in designed()
        if values.items() <= case.values.items() and case.values["sampling"] != "greedy"
    ]


@pytest.mark.parametrize("size", [2, 3])
def test_every_combination_of_settings_that_may_occur_does(size: int) -> None:
    """Counted anew, from rows that have the first value of every other factor, and any drafter."""
    made = designed()
    first = {factor: values[0] for factor, values in cases.FACTORS.items()}
    possible: set[Any] = set()
    for names in combinations(cases.FACTORS, size):
        for values in product(*(cases.FACTORS[name] for name in names)):
            row = first | dict(zip(names, values, strict=True))
            drafters = [row["drafter"]] if "drafter" in names else cases.DRAFTERS
            if any(cases.allowed(row | {"drafter": drafter}) for drafter in drafters):
                possible.add(tuple((name, row[name]) for name in names))
    assert all(cases.allowed(case.values) for case in made)
    assert {cells for case in made for cells in combinations(case.values.items(), size)} == possible


def test_the_design_is_the_same_every_time() -> None:
    assert cases.design() == designed()


def test_every_parameter_is_in_a_case_or_named_among_those_left_out() -> None:
    levels = [*cases.SAMPLING.values(), *cases.LOGITS_PROCESSING.values(), *cases.STOP.values()]
    asked = {name for level in levels for name in level}
    asked |= {"depths", "max_tokens", "prediction"}
    left_out = {name for names in cases.LEFT_OUT for name in names.split(", ")}
    assert {field.name for field in fields(SamplingParams)} <= asked | left_out
    forms = {form.kind for level in levels if (form := level.get("structured_output"))}
    assert {"json_schema", "regex", "grammar", "choice"} <= forms | left_out


@pytest.mark.slow
@pytest.mark.parametrize("start", range(4))
def test_every_eleventh_case_is_exact(start: int) -> None:
    for case in designed()[11 * start :: 44]:
        measured = case.measure()
        assert measured.passed, measured


def test_a_method_of_the_users_own_passes_exactly_if_it_is_lossless() -> None:
    for method, sound in ((TokenVerification(), True), (LenientVerification(0.8), False)):
        part = cases.Part("own", verifier=Verifier(method))
        found = [case.measure() for case in cases.design(part)[::40]]
        assert all(item.passed for item in found) is sound
        assert all(item.problem is None for item in found)


def test_a_drafter_that_does_not_fit_is_a_finding() -> None:
    part = cases.Part("broken", drafter=lambda _: ModelDrafter(mock_pair(9)[1]))
    measured = cases.design(part)[0].measure()
    assert not measured.passed
    assert "VocabMismatchError" in (measured.problem or "")


@pytest.mark.slow
def test_the_checks_beside_the_distributions_pass() -> None:
    findings = [run() for _, run in exact._checks(None)]
    assert all(finding.passed for finding in findings), findings
    names = {finding.name for finding in findings}
    assert {"keys", "batches", "metrics", "policies", "perfect draft", "known answers"} <= names
    assert "ceilings" in names


@pytest.mark.slow
def test_another_process_finds_what_this_one_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact, "_checks", lambda part: [])
    monkeypatch.setattr(exact, "design", lambda part: designed()[:12])
    done: list[int] = []
    alone = exact.exact_tier()(quiet)
    with workers(1) as pool:
        shared = exact.exact_tier(None, pool)(lambda count, *_: done.append(count))
    assert alone.measured == shared.measured
    assert done == list(range(13))


@pytest.mark.slow
def test_a_process_that_is_ended_from_outside_is_an_error_with_a_remedy() -> None:
    jobs = [(str(number), partial(signal.raise_signal, signal.SIGKILL)) for number in range(13)]
    with workers(1) as pool, pytest.raises(OutriderError, match="ended from outside"):
        spread(jobs, pool)(quiet)


@pytest.mark.slow
def test_an_interrupt_does_not_wait_for_the_work_of_other_processes() -> None:
    jobs = [(str(number), partial(sleep, 600)) for number in range(13)]

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), workers(1) as pool:
        spread(jobs, pool)(interrupted)
    assert not active_children()


# Levels of the design: a fault that a level is there for is seen in it


def stale(patch: pytest.MonkeyPatch) -> None:
    """What looks at earlier tokens does not see the drafted ones."""
    pipeline = LogitsPipeline.__call__

    def without(self: LogitsPipeline, logits: Any, path: Path) -> Any:
        return pipeline(self, logits, Path.of(path.tokens[..., :0]))

    patch.setattr(LogitsPipeline, "__call__", without)


def remembers_refused(patch: pytest.MonkeyPatch) -> None:
    """The next round goes on from the last call of this one, kept or not."""
    processors = LogitsPipeline.processors

    def last_called(self: LogitsPipeline, row: int, path: Any) -> Any:
        called = [after for (owner, _), after in self._after.items() if owner == row]
        return called[-1] if called else processors(self, row, path)

    patch.setattr(LogitsPipeline, "processors", last_called)


def late_stops(patch: pytest.MonkeyPatch) -> None:
    """A stop string ends a request with the round's last token."""
    found = stopping._first_completed

    def late(state: Any, tokens: list[int], tokenizer: Any) -> int | None:
        return None if found(state, tokens, tokenizer) is None else len(tokens) - 1

    patch.setattr(stopping, "_first_completed", late)


def drafts_distribution(patch: pytest.MonkeyPatch) -> None:
    """The target's distributions are made by the parameters of the draft's."""
    pack = SpeculativeDecoder.pack

    def packed(self: SpeculativeDecoder, states: Any) -> Any:
        batch = pack(self, states)
        return replace(batch, params=batch.drafting)

    patch.setattr(SpeculativeDecoder, "pack", packed)


def loses_unlikely_last(patch: pytest.MonkeyPatch) -> None:
    """Where the draft ends early by the plan, the unlikely token that it ended with is lost."""
    propose = ModelDrafter.propose

    def loses(self: ModelDrafter, prefixes: Any, plan: Any, ctx: Any) -> Any:
        sound = propose(self, prefixes, plan, ctx)
        if plan.stop is None or sound.distributions is None or sound.distributions.probs is None:
            return sound
        lengths = sound.lengths.copy()
        for row, length in enumerate(lengths.tolist()):
            last = sound.distributions.probs[row, length - 1, sound.tokens[row, length - 1]]
            lengths[row] -= length > 0 and bool(last < 0.3)
        return replace(sound, lengths=lengths)

    patch.setattr(ModelDrafter, "propose", loses)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("values", "fault"),
    [
        ({"logits processing": "repetition", "stop": "never"}, stale),
        ({"logits processing": "penalties", "stop": "never"}, stale),
        ({"logits processing": "bans", "stop": "never"}, stale),
        ({"logits processing": "processor", "stop": "never"}, stale),
        ({"logits processing": "memory", "stop": "never"}, remembers_refused),
        ({"logits processing": "regex", "stop": "never"}, stale),
        ({"logits processing": "choice", "stop": "never"}, stale),
        ({"logits processing": "none", "stop": "at a string"}, late_stops),
        ({"logits processing": "none", "stop": "not before two"}, late_stops),
        ({"logits processing": "none", "stop": "not before two"}, stale),
        (
            {"logits processing": "none", "stop": "never", "drafting": "otherwise"},
            drafts_distribution,
        ),
        ({"policy": "adaptive, measured", "drafter": "model"}, loses_unlikely_last),
        ({"policy": "confidence", "drafter": "model"}, loses_unlikely_last),
    ],
    ids=lambda value: value.__name__ if callable(value) else " ".join(value.values()),
)
def test_a_fault_is_seen_in_the_level_that_is_there_for_it(
    monkeypatch: pytest.MonkeyPatch, values: dict[str, str], fault: Callable[[Any], None]
) -> None:
    some = [case for case in chosen(**values) if case.values["depth"] != "1"]
    fault(monkeypatch)
    for case in some:
        if not case.measure().passed:
            break
    else:
        pytest.fail(f"none of {len(some)} cases sees it")
    monkeypatch.undo()
    assert case.measure().passed


def test_measured_costs_end_some_drafts_of_a_case_and_let_others_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers: set[bool] = set()
    continues = BreakEven.continues

    def noted(self: BreakEven, confidence: Any, drafting: Any) -> Any:
        going = continues(self, confidence, drafting)
        answers.update(going[drafting].tolist())
        return going

    monkeypatch.setattr(BreakEven, "continues", noted)
    usual = {factor: levels[0] for factor, levels in cases.FACTORS.items()}
    values = {"drafter": "model", "policy": "adaptive, measured", "depth": "3"}
    assert cases.Case(5, usual | values).measure().passed
    assert answers == {True, False}


# Ceilings


@pytest.mark.parametrize(
    ("planted", "above"),
    [
        (controls.method(LenientVerification(0.8)), True),
        (controls.method(TokenVerification()), False),
        (controls.decoder(faults.no_bonus), False),
    ],
    ids=["lenient", "token", "no bonus"],
)
def test_a_fault_is_above_the_optimum_or_does_not_attain_it(planted: Any, above: bool) -> None:
    finding = ceilings(planted, depths=(2,))
    assert not finding.passed
    assert ("nothing above the optimum" in finding.detail) is not above


def test_a_ceiling_that_is_exceeded_fails_the_tier(monkeypatch: pytest.MonkeyPatch) -> None:
    planted = partial(ceilings, controls.method(LenientVerification(0.8)))
    monkeypatch.setattr(exact, "_checks", lambda part: [("ceilings", planted)])
    monkeypatch.setattr(exact, "design", lambda part: [])
    tier = exact.exact_tier()(quiet)
    assert not tier.passed
    assert [item.name for item in tier.findings] == ["ceilings"]


# Controls


@pytest.mark.slow
@pytest.mark.parametrize("control", controls.CONTROLS, ids=lambda control: control.fault)
def test_the_named_check_rejects_the_fault_and_not_the_engine(control: Any) -> None:
    verdict = control.run()
    assert verdict.passed, verdict


def test_a_control_without_a_fault_does_not_pass() -> None:
    control = replace(controls.CONTROLS[0], planted=controls.shipped)
    assert not control.run().passed


def test_a_policy_that_writes_while_it_plans_is_rejected() -> None:
    """Though a single plan shows nothing: only plans in other orders do."""

    def once_a_long_batch(policy: Any) -> Any:
        sound, long = policy.plan, count()

        def plan(knowledge: Any, states: Any) -> Any:
            made = sound(knowledge, states)
            seen = next(long) if len(states[0].prefix) > 20 else 0
            return replace(made, depth=np.where(seen > 30, 0, made.depth))

        return plan

    planted = controls.policy(once_a_long_batch)
    config = cases.configured("block", "model", 3)
    found = checks.policies(planted, [config])
    assert not found.passed
    assert "plan changes nothing" in found.detail
    assert checks.policies(controls.shipped, [config]).passed


def test_cases_draft_as_deep_as_they_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Early exits reach their depth, and knowledge of measured costs has most cases draft."""
    deepest: list[int] = []
    step = SpeculativeDecoder.step

    def noting(self: Any, *args: Any) -> Any:
        result = step(self, *args)
        deepest.append(max(result.record.depth))
        return result

    monkeypatch.setattr(SpeculativeDecoder, "step", noting)
    reached: dict[tuple[str, str], list[bool]] = {}
    for case in _of_each_kind(designed()):
        deepest.clear()
        assert case.measure().problem is None
        measured = case.values["policy"] == "adaptive, measured"
        goal = 1 if measured else int(case.values["depth"])
        key = case.values["policy"], case.values["depth"]
        reached.setdefault(key, []).append(max(deepest, default=0) >= goal)
    assert all(sum(each) > len(each) / 2 for each in reached.values()), reached


def _of_each_kind(design: Sequence[cases.Case]) -> list[cases.Case]:
    """Some cases of each depth: of early exits with fixed depths, and of measured costs."""
    found: list[cases.Case] = []
    for depth in ("1", "2", "3"):
        own = [each for each in design if each.values["depth"] == depth]
        own = [each for each in own if each.values["stop"] == "never"]
        exits = [
            each
            for each in own
            if each.values["drafter"].endswith("early exit") and each.values["policy"] == "fixed"
        ]
        measured = [
            each
            for each in own
            if each.values["policy"] == "adaptive, measured"
            and each.values["drafter"].startswith("model")
            and each.values["replay"] == "no"
        ]
        found += exits[:4] + measured[:4]
    return found
