"""The exact tier: distributions over a covering design, and checks with known answers."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from typing import Any

from ..drafters.model import ModelDrafter
from ..random import philox4x32
from ..types.finding import Finding
from . import checks
from .cases import DRAFTERS, METHODS, POLICIES, Measured, Part, configured, design
from .ceilings import ceilings
from .checks import Report
from .kits.runner import finding
from .spread import spread


@dataclass(frozen=True, slots=True)
class ExactTier:
    """What the cases came to, and the checks."""

    measured: tuple[Measured, ...]
    findings: tuple[Finding, ...]

    @property
    def passed(self) -> bool:
        """Whether every distribution is exact, and every check passes."""
        items: tuple[Measured | Finding, ...] = (*self.measured, *self.findings)
        return all(item.passed for item in items)


def exact_tier(
    part: Part | None = None, pool: Executor | None = None
) -> Callable[[Report], ExactTier]:
    """Begin to enumerate every case of the design, and the other checks.

    A part of the user's own takes the place of the shipped ones, and is not put in a pool.

    Returns:
        What waits for the tier and reports the progress.
    """
    cases = design(part or Part())
    jobs: list[tuple[str, Callable[[], Any]]]
    jobs = [(name, partial(finding, name, run)) for name, run in _checks(part)]
    first = len(jobs)
    jobs += [(", ".join(case.values.values()), case.measure) for case in cases]
    finish = spread(jobs, pool if part is None else None)

    def tier(report: Report) -> ExactTier:
        found = finish(report)
        return ExactTier(tuple(found[first:]), tuple(found[:first]))

    return tier


def _checks(part: Part | None) -> list[tuple[str, Callable[[], Finding]]]:
    """Everything but the distributions; what a user's own part need not fulfil is left out."""
    build = (part or Part()).build
    kinds = [kind for kind, (make, _) in DRAFTERS.items() if make is ModelDrafter]
    drafting = [configured(method, kind, 3) for method in METHODS for kind in kinds]
    if part is not None:
        drafting = [configured("block", "model", 3)]
    every: list[tuple[str, Callable[[], Finding]]] = [
        ("keys", partial(checks.keys, build, drafting)),
        ("batches", partial(checks.batches, build, drafting)),
        ("metrics", partial(checks.metrics, build, drafting)),
    ]
    if part is not None:
        return every
    chains = [configured(method, "model", 3) for method in METHODS]
    coupled = [configured("coupled", kind, depth) for kind in kinds for depth in (1, 2, 3)]
    planned = [
        configured("block", kind, 3, **policy)
        for policy in POLICIES.values()
        for kind in ("model", "tree, greedy")
        if (kind, policy["depth"]) != ("tree, greedy", "confidence")
    ]
    return [
        *every,
        ("coupled", partial(checks.coupled, build, coupled)),
        ("policies", partial(checks.policies, build, planned)),
        ("perfect draft", partial(checks.perfect_draft, build, chains)),
        ("known answers", partial(checks.known_answers, philox4x32)),
        ("ceilings", partial(ceilings, build)),
    ]
