"""The exact tier: enumerated distributions over a covering design, and checks with known answers."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..config.params import Verification
from ..engine.decoder import SpeculativeDecoder
from ..random import philox4x32
from . import ceilings, checks
from .cases import DRAFTERS, METHODS, NOT_MODELS, Measured, Part, configured, design
from .ceilings import Reached
from .checks import Build, Finding, Report
from .contracts import described
from .covering import Coverage


@dataclass(frozen=True, slots=True)
class ExactTier:
    """What the exact tier found.

    Attributes:
        coverage: what its cases cover of pairs and of triples of settings.
        measured: a case each.
        findings: of the other checks.
        reached: expected tokens beside their bounds; none with a user's own part.
    """

    coverage: tuple[Coverage, ...]
    measured: tuple[Measured, ...]
    findings: tuple[Finding, ...]
    reached: tuple[Reached, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether every distribution is exact, and every check passes."""
        return all(item.passed for item in self.measured) and all(
            item.passed for item in self.findings
        )

    @property
    def largest_error(self) -> float:
        """The largest error in the probability of any output."""
        return max(item.error for item in self.measured)

    @property
    def raised(self) -> int:
        """In how many cases an exception was raised."""
        return sum(item.problem is not None for item in self.measured)


def exact_tier(report: Report, part: Part | None = None) -> ExactTier:
    """Enumerate every case of the design, and run the other checks.

    Args:
        report: is told of the progress.
        part: a method or drafter of the user's own, put in the place of the shipped ones.
    """
    part = None if part is None else part.checked()
    covered, cases = design(part)
    others = _checks(part)
    reached: list[Reached] = []
    if part is None:
        others.append(("ceilings", lambda: _ceilings(reached)))
    total = len(cases) + len(others)
    measured: list[Measured] = []
    for case in cases:
        report(len(measured), total, ", ".join(case.values.values()))
        measured.append(case.measure())
    findings: list[Finding] = []
    for name, run in others:
        report(len(cases) + len(findings), total, name)
        findings.append(_caught(name, run))
    report(total, total, "")
    return ExactTier(covered, tuple(measured), tuple(findings), tuple(reached))


def _ceilings(reached: list[Reached]) -> Finding:
    """The check of the ceilings, which leaves in `reached` what it looked at."""
    reached += (ceilings.reached(checks.shipped, *case) for case in ceilings.CASES)
    return ceilings.finding(reached)


def _caught(name: str, run: Callable[[], Finding]) -> Finding:
    """What a check found; whatever it raised is a finding, too."""
    try:
        return run()
    except Exception as error:
        return Finding(name, described(error), math.inf, False)


def _checks(part: Part | None) -> list[tuple[str, Callable[[], Finding]]]:
    """Everything but the distributions; what a user's own part need not fulfil is left out."""
    build = checks.shipped if part is None else _with(part)
    chains = [configured(method, "model", 3) for method in METHODS.values()]
    kinds = [kind for kind in DRAFTERS if kind not in NOT_MODELS]
    drafting = [configured(method, kind, 3) for method in METHODS.values() for kind in kinds]
    coupled = [configured("coupled", kind, depth) for kind in kinds for depth in (1, 2, 3)]
    if part is not None:
        drafting = [configured("block", "model", 3)]
    every: list[tuple[str, Callable[[], Finding]]] = [
        ("keys", lambda: checks.keys(build, drafting)),
        ("batches", lambda: checks.batches(build, drafting)),
        ("metrics", lambda: checks.metrics(build, drafting)),
    ]
    if part is None:
        every += [
            ("coupled", lambda: checks.coupled(build, coupled)),
            ("perfect draft", lambda: checks.perfect_draft(build, chains)),
            ("known answers", lambda: checks.known_answers(philox4x32)),
        ]
        every += [
            ("accepted tokens", _accepted_tokens("block", 11 / 9)),
            ("accepted tokens", _accepted_tokens("token", 10 / 9)),
        ]
    return every


def _accepted_tokens(method: Verification, known: float) -> Callable[[], Finding]:
    config = configured(method, "model", 2)
    return lambda: checks.accepted_tokens(checks.shipped, config, known)


def _with(part: Part) -> Build:
    def build(target: Any, draft: Any, config: Any, chance: Any) -> SpeculativeDecoder:
        drafter = draft if part.drafter is None else part.drafter(draft)
        return SpeculativeDecoder(
            target, drafter, config=config, chance=chance, verifier=part.verifier
        )

    return build
