"""The public checks of a policy, each with a fault that it rejects."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from outrider import InvalidConfigError, SamplingParams, SpeculativeConfig, SpeculativeDecoder
from outrider.certify.kits import check_policy
from outrider.engine.compatibility import policy_of
from outrider.policies import AdaptiveDepth, FixedDepth, Policy, Shape
from outrider.policies.rule import BreakEven
from outrider.runtimes.tabular import mock_pair
from outrider.types.records import DraftPlan, DraftTree, SequenceState
from tests.support.drafter_traits import Drafter

DRAFTERS = {
    "model": Drafter(),
    "look-up": Drafter(looks_up=True, vocab_size=None),
    "both": Drafter(looks_up=True),
}
CONFIGS: list[dict[str, Any]] = [
    {"depth": "fixed"},
    {"depth": "adaptive"},
    {"depth": "confidence"},
    {"depth": "adaptive", "tree_shape": (2, 2, 1)},
    {"depth": "fixed", "tree_budget": 7},
]


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_the_policies_of_every_configuration_conform(drafter: str, config: dict[str, Any]) -> None:
    policy = policy_of(SpeculativeConfig(**config), DRAFTERS[drafter])
    assert not [finding for finding in check_policy(policy) if not finding.passed]


class Changed(AdaptiveDepth):
    """An adaptive policy whose plans are spoilt."""

    def __init__(self, change: Any) -> None:
        super().__init__(Shape(4))
        self.change, self.calls = change, 0

    def plan(self, knowledge: Any, states: Sequence[SequenceState]) -> DraftPlan:
        self.calls += 1
        plan = super().plan(knowledge, states)
        changed: DraftPlan = self.change(plan, states, self.calls)
        return changed


class Unhashable(FixedDepth):
    def start(self) -> Any:
        return {}


class Raising(Policy):
    def plan(self, knowledge: Any, states: Sequence[SequenceState]) -> DraftPlan:
        raise RuntimeError("no plan")


def stopping(**methods: Any) -> Any:
    """Replace methods of the stop rule."""
    spoilt = type("Spoilt", (BreakEven,), methods)

    def change(plan: DraftPlan, states: Any, calls: int) -> DraftPlan:
        rule = plan.stop
        assert isinstance(rule, BreakEven)
        values = {name: getattr(rule, name) for name in BreakEven.__dataclass_fields__}
        return replace(plan, stop=spoilt(**values))

    return change


def counting() -> Any:
    calls = [0]

    def lookup(self: Any, row: int, reach: Any) -> int:
        calls[0] += 1
        return calls[0] % 2

    return lookup


FAULTS: dict[str, tuple[Policy, str]] = {
    "raises": (Raising(), "plans fit rounds, and are learnt from"),
    "float depths": (
        Changed(lambda plan, *_: replace(plan, depth=plan.depth.astype(float))),
        "plans fit rounds, and are learnt from",
    ),
    "one depth too many": (
        Changed(lambda plan, *_: replace(plan, depth=np.append(plan.depth, 0))),
        "plans fit rounds, and are learnt from",
    ),
    "beyond the end": (
        Changed(lambda plan, *_: replace(plan, depth=plan.depth + 40)),
        "plans fit rounds, and are learnt from",
    ),
    "remembers plans": (
        Changed(lambda plan, _, calls: replace(plan, depth=plan.depth * (calls % 2))),
        "plan changes nothing",
    ),
    "unhashable": (Unhashable(Shape(4)), "knowledge and histories are hashable"),
    "replays nothing": (
        Changed(lambda plan, *_: replace(plan, depth=np.minimum(plan.depth, 1))),
        "recorded depths are replayed",
    ),
    "ends replays": (
        Changed(stopping(continues=lambda self, told, drafting: drafting & False)),
        "recorded depths are not ended early",
    ),
    "one answer for all": (
        Changed(stopping(continues=lambda self, told, drafting: bool(drafting.any()))),
        "the stop rule answers in the right shapes",
    ),
    "no probability": (
        Changed(stopping(kept=lambda self, source, told, row=None: told * 3)),
        "the stop rule answers in the right shapes",
    ),
    "too many looked up": (
        Changed(stopping(lookup=lambda self, row, reach: len(reach) + 1)),
        "the stop rule answers in the right shapes",
    ),
    "a rule with a state": (Changed(stopping(lookup=counting())), "the stop rule is pure"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_named(fault: str) -> None:
    policy, name = FAULTS[fault]
    failed = {
        finding.name: finding.detail for finding in check_policy(policy) if not finding.passed
    }
    assert name in failed
    assert failed[name]


def test_a_tree_without_levels_is_named() -> None:
    shape = Shape.of(SpeculativeConfig(tree_shape=(2, 2)))

    class Short(FixedDepth):
        def plan(self, knowledge: Any, states: Sequence[SequenceState]) -> DraftPlan:
            plan = super().plan(knowledge, states)
            assert plan.tree is not None
            return replace(plan, tree=replace(plan.tree, levels=plan.tree.levels[:1]))

    names = {finding.name for finding in check_policy(Short(shape)) if not finding.passed}
    assert "plans fit rounds, and are learnt from" in names


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda plan, *_: None, "the policy returned a NoneType; expected a DraftPlan"),
        (lambda plan, *_: replace(plan, depth=plan.depth * 1.0), r"planned depth=array.*integer"),
        (lambda plan, *_: replace(plan, depth=plan.depth + 40), "from 0 to its remaining tokens"),
        (
            lambda plan, *_: replace(plan, depth=plan.depth + 2, tree=DraftTree((2,))),
            "at most the 1 levels of its tree",
        ),
    ],
)
def test_the_engine_refuses_a_plan_that_cannot_be_carried_out(change: Any, message: str) -> None:
    decoder = SpeculativeDecoder(*mock_pair(5, 1), policy=Changed(change))
    with pytest.raises(InvalidConfigError, match=message):
        decoder.generate([0], SamplingParams(max_tokens=20))
