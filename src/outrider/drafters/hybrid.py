"""Tokens that are looked up where they promise more than a draft model, the model elsewhere.

A token that was looked up takes no step of a model; verifying it costs what verifying any token
costs. So a row's candidate is compared with the best that can be done without it, `Worth`: it is
used if a round with it emits more, and of its tokens those that are likelier to be kept than what
the time of verifying them brings elsewhere. A round in which no row is left to the model takes no
step of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import isfinite
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidConfigError
from ..types.acceptance import expected_tokens
from ..types.protocols import AutoregressiveModel, DraftContext, Drafter, EndsEarly, KnowsCost
from ..types.records import DraftPlan, DraftProposal, Prefix
from .candidate import Candidate, as_asked, as_proposal
from .merge import merged
from .model import ModelDrafter
from .prediction import PredictionDrafter
from .suffix.drafter import SuffixDrafter
from .together import decide

_KEPT = 0.6
"""How often a token of a model's is kept, where nothing is known of it."""


@runtime_checkable
class Lookup(Protocol):
    """A drafter with candidates, such as `SuffixDrafter` and `PredictionDrafter`."""

    def candidates(
        self, prefixes: Sequence[Prefix], plan: DraftPlan, ctx: DraftContext
    ) -> Sequence[Candidate]:
        """What may follow each prefix."""
        ...


class HybridDrafter:
    """Looks tokens up, and drafts with a model where nothing worth its verification is found.

    With `SpeculativeConfig(depth="adaptive")` measured costs decide. With a fixed depth a candidate
    is used where `min_expected` of its tokens are expected to be kept, or as many as of a model's
    draft that deep, of which each token is kept three times in five.

    On chains a row takes its tokens from one source. In a tree both have a place: a candidate's
    tokens are point masses beside the model's nodes, and the model drafts as deep as the rest of
    the plan's nodes allows. Where measured costs decide, a candidate that promises more than the
    model is used alone, and one that does not is added as deep as the model's tree.

    Tokens of both sources in one batch are verified exactly by every lossless method; a decoder
    refuses it with the lossy ones, which know chains of one kind only.

    Args:
        drafter: drafts with a model; a model is wrapped in a `ModelDrafter`.
        lookups: one or more drafters that look tokens up; of what they find the candidate is taken
            of which most is expected to be kept, from the first if two are equal.
        min_expected: where no costs are measured, as with a fixed depth, how many tokens of a
            candidate must be expected to be kept for the model not to be asked: what the model's
            own drafts bring, less what their steps cost. At least 0; None for the usual.

    Raises:
        InvalidConfigError: an argument is none of these.
    """

    def __init__(
        self,
        drafter: Drafter | AutoregressiveModel,
        *lookups: Lookup,
        min_expected: float | None = None,
    ) -> None:
        model = ModelDrafter(drafter) if isinstance(drafter, AutoregressiveModel) else drafter
        if not isinstance(model, Drafter) or model.vocab_size is None:
            raise InvalidConfigError(
                "drafter", type(drafter).__name__, "a drafter with a model, or a model"
            )
        known = [isinstance(each, Lookup) and not isinstance(each, type) for each in lookups]
        if not lookups or not all(known):
            raise InvalidConfigError(
                "lookups",
                [type(lookup).__name__ for lookup in lookups],
                "one or more drafters that say how sure they are, such as SuffixDrafter()",
            )
        if min_expected is not None:
            number = isinstance(min_expected, int | float) and not isinstance(min_expected, bool)
            if not number or not isfinite(min_expected) or min_expected < 0:
                raise InvalidConfigError("min_expected", min_expected, "a number >= 0, or None")
        self.drafter: Drafter = model
        self.lookups = lookups
        self.min_expected = None if min_expected is None else float(min_expected)
        self._vocab_size: int = model.vocab_size

    @classmethod
    def usual(
        cls, drafter: Drafter | AutoregressiveModel, suffix: SuffixDrafter | None = None
    ) -> HybridDrafter:
        """What drafts where nothing else is asked for: a model, suffix lookup and predictions.

        Args:
            drafter: drafts with a model.
            suffix: looks tokens up; None makes one with its usual settings.
        """
        return cls(drafter, suffix or SuffixDrafter(), PredictionDrafter())

    @property
    def models(self) -> tuple[object, ...]:
        """All drafters behind this one."""
        return (self.drafter, *self.lookups)

    @property
    def vocab_size(self) -> int:
        """Width of the model's distributions, V."""
        return self._vocab_size

    @property
    def ends_early(self) -> bool:
        """Whether the model's chains do."""
        return isinstance(self.drafter, EndsEarly) and self.drafter.ends_early

    @property
    def cost_ratio(self) -> float | None:
        """The model's, if it says so."""
        return self.drafter.cost_ratio if isinstance(self.drafter, KnowsCost) else None

    def candidates(
        self, prefixes: Sequence[Prefix], plan: DraftPlan, ctx: DraftContext
    ) -> list[Candidate]:
        """For each row the candidate of which most tokens are expected to be kept."""
        found = [lookup.candidates(prefixes, plan, ctx) for lookup in self.lookups]
        return [max(row, key=lambda each: each.expected) for row in zip(*found, strict=True)]

    def propose(
        self, prefixes: Sequence[Prefix], plan: DraftPlan, ctx: DraftContext
    ) -> DraftProposal:
        """Looked-up tokens for the rows where they are worth it, the model's for the others."""
        found = self.candidates(prefixes, plan, ctx) if plan.looks else []
        steps, used = plan.model_steps.copy(), [Candidate.nothing()] * len(prefixes)
        if any(map(len, found)):
            steps, used = self._split(found, plan)
        if not steps.any():
            return as_proposal(used, ctx.device, branches=plan.levels is not None)
        ctx.limit(steps)
        own = DraftPlan(steps, plan.levels, plan.shape, keep_going=plan.keep_going)
        drawn = self.drafter.propose(prefixes, own, ctx)
        if not any(map(len, used)):
            return drawn
        if plan.levels is not None and drawn.parents is None:
            # A draft by text is a chain where a tree was asked for.
            drawn = replace(drawn, parents=drawn.structure)
        return merged(drawn, used)

    def _split(
        self, found: list[Candidate], plan: DraftPlan
    ) -> tuple[NDArray[np.int64], list[Candidate]]:
        """How deep the model drafts for each row, [B], and what is proposed beside it."""
        steps = plan.model_steps.copy()
        together = decide(found, plan)
        used = []
        for row, candidate in enumerate(found):
            worth = plan.worth
            if row in together.taken:
                alone = together.taken[row]
            elif worth is not None:
                plain, token = float(worth.plain[row]), float(worth.token[row])
                alone = as_asked(candidate.worthwhile(plain, token), plan, row)
            else:
                least = self._least(int(plan.depth[row]))
                alone = candidate if candidate.expected >= least else Candidate.nothing()
                alone = as_asked(alone, plan, row)
            if len(alone) and (worth is not None or plan.levels is None):
                steps[row] = 0
            elif len(alone):
                steps[row] = min(int(steps[row]), _depth_beside(len(alone), plan, row))
            elif worth is not None and plan.levels is not None and steps[row]:
                # A tree as deep as the model's, so that what is learnt of its depths stays true.
                room = int(plan.lengths[row]) - sum(plan.levels[: steps[row]])
                token = float(worth.token[row])
                alone = candidate.worthwhile(0.0, token).within(room, int(steps[row]))
            used.append(alone)
        if not together.stepping:
            steps[list(together.taken)] = 0
        return steps, used

    def _least(self, depth: int) -> float:
        """How many tokens have to be expected where a model may draft this many in a row."""
        if self.min_expected is not None:
            return self.min_expected
        return expected_tokens([_KEPT] * depth)[depth] - 1


def _depth_beside(nodes: int, plan: DraftPlan, row: int) -> int:
    """How deep a model's tree may be if `nodes` of the row's nodes are taken."""
    assert plan.levels is not None
    sizes = np.cumsum(plan.levels[: int(plan.depth[row])])
    return int(np.searchsorted(sizes, int(plan.lengths[row]) - nodes, side="right"))
