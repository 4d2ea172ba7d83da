"""Tokens that are looked up where more is expected of them than of a draft model's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import pad

from ..config.validation import real
from ..errors import InvalidConfigError
from ..runtimes.base import Runtime
from ..types import trees
from ..types.records import MODEL, Distributions, DraftPlan, DraftProposal, Prefix
from ..types.transfer import sent
from .base import DraftContext, Drafter
from .lookup import NOTHING, Candidate, LookupDrafter, ScoredCandidate, proposal_of
from .model import ModelDrafter
from .prediction import PredictionDrafter
from .suffix.drafter import SuffixDrafter

_KEPT = 0.6
"""How often a token of a model's is kept, where nothing is known of it."""


class HybridDrafter(Drafter):
    """Looks tokens up, and drafts with a model where little is expected of what was found.

    A looked-up token takes no step of a model. Each row, in chains and trees, takes its tokens from
    one source. With `SpeculativeConfig(depth="adaptive")` the plan's stop rule decides. With a
    fixed depth a candidate is used of which `min_expected` tokens are expected to be kept, or as
    many as of a model's draft that deep, of which each token is kept three times in five. A round
    in which no row is left to the model takes no step of it.

    Tokens of both sources in one batch are verified exactly by every lossless method; a decoder
    refuses it with the lossy ones, which know chains of one kind only.

    Args:
        drafter: drafts with a model; a model is wrapped in a `ModelDrafter`.
        lookups: one or more drafters that look tokens up; of what they find the candidate is taken
            of which most is expected to be kept, from the first if two are equal.
        min_expected: with a fixed depth, how many tokens of a candidate must be expected to be
            kept for the model not to be asked, at least 0; None for the usual.

    Raises:
        InvalidConfigError: an argument is none of these.
    """

    looks_up = True
    vocab_size: int = 0
    """The width of its model's distributions, V."""

    def __init__(
        self,
        drafter: Drafter | Runtime,
        *lookups: LookupDrafter,
        min_expected: float | None = None,
    ) -> None:
        own = ModelDrafter(drafter) if isinstance(drafter, Runtime) else drafter
        if not isinstance(own, Drafter) or own.vocab_size is None:
            kind = type(drafter).__name__
            raise InvalidConfigError("drafter", kind, "a drafter with a model, or a model")
        if not lookups or not all(isinstance(each, LookupDrafter) for each in lookups):
            kinds = [type(lookup).__name__ for lookup in lookups]
            expected = "one or more drafters that look tokens up, such as SuffixDrafter()"
            raise InvalidConfigError("lookups", kinds, expected)
        if min_expected is not None:
            real("min_expected", min_expected, "a number >= 0, or None", lambda x: x >= 0)
        self.drafter = own
        self.lookups = lookups
        self.min_expected = min_expected
        self.models = (own, *lookups)
        self.cost_ratio = own.cost_ratio
        self.branches = own.branches
        self.vocab_size = own.vocab_size

    @classmethod
    def usual(
        cls, drafter: Drafter | Runtime, suffix: SuffixDrafter | None = None
    ) -> HybridDrafter:
        """Make what drafts where nothing else is asked for: a model, suffix lookup, predictions.

        Args:
            drafter: drafts with a model.
            suffix: looks tokens up; None makes one with its usual settings.
        """
        return cls(drafter, suffix or SuffixDrafter(), PredictionDrafter())

    def steps(self, depth: int) -> int:
        """Return how many forwards the model takes to draft so many tokens in a row."""
        return self.drafter.steps(depth)

    def propose(
        self, prefixes: Sequence[Prefix], plan: DraftPlan, ctx: DraftContext
    ) -> DraftProposal:
        """Propose looked-up tokens for some rows, and the model's for the others."""
        each = [lookup.find(prefixes, plan, ctx) for lookup in self.lookups]
        best = [max(row, key=lambda found: found.expected) for row in zip(*each, strict=True)]
        used = [self._used(found, plan, row) for row, found in enumerate(best)]
        pairs = zip(best, used, strict=True)
        sources = [found.source if len(own) else MODEL for found, own in pairs]
        looked_up = proposal_of(used, sources, plan, ctx)
        taken = looked_up.lengths > 0
        steps = np.where(taken, 0, plan.model_depth)
        if not steps.any():
            return looked_up
        ctx.limit_depths(steps)
        drawn = self.drafter.propose(prefixes, DraftPlan(steps, plan.tree, plan.stop), ctx)
        if not taken.any():
            return drawn
        return _merged(drawn, looked_up, taken) if drawn.width else looked_up

    def _used(self, found: ScoredCandidate, plan: DraftPlan, row: int) -> Candidate:
        """Return what is proposed of a row's candidate; nothing where the model drafts."""
        if plan.stop is not None:
            return found.chosen(plan, row)
        least = self.min_expected
        if least is None:
            least = sum(_KEPT**place for place in range(1, int(plan.depth[row]) + 1))
        return found.candidate if found.reach.sum() >= least else NOTHING


def _merged(
    drawn: DraftProposal, looked_up: DraftProposal, taken: NDArray[np.bool_]
) -> DraftProposal:
    """Put two proposals into one: what was looked up in the rows `taken`, [B], or was drawn."""
    width = max(drawn.width, looked_up.width)
    rows = taken[:, None]
    tokens = torch.where(
        sent(rows, drawn.tokens.device),
        pad(looked_up.tokens, (0, width - looked_up.width)),
        pad(drawn.tokens, (0, width - drawn.width)),
    )
    parents = np.where(rows, _widened(looked_up.structure, width), _widened(drawn.structure, width))
    assert looked_up.confidence is not None
    made, own = drawn.distributions, drawn.distribution_rows
    distribution_rows = None
    if made is None or made.probs is None:
        made = Distributions(point_masses=tokens)
    else:
        own = trees.chain(*drawn.tokens.shape) if own is None else own
        distribution_rows = np.where(rows, -1, _widened(own, width, -1))
    return DraftProposal(
        tokens,
        np.where(taken, looked_up.lengths, drawn.lengths),
        made,
        None if looked_up.parents is None else parents,
        distribution_rows,
        looked_up.sources,
        _widened(looked_up.confidence, width),
    )


def _widened(values: NDArray[Any], width: int, fill: int = 0) -> NDArray[Any]:
    """Return values [B, M] with columns up to `width` after them."""
    return np.pad(values, ((0, 0), (0, width - values.shape[1])), constant_values=fill)
