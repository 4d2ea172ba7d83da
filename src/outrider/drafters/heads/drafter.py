"""Drafting with heads on the target's hidden states: EAGLE-3, P-EAGLE and the DFlash family."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ...types.records import DraftPlan, DraftProposal, HiddenStates, Prefix
from ..context import DraftContext
from ..model import ModelDrafter
from .model import HeadModel


class HeadDrafter(ModelDrafter):
    """Drafts with a head on the target's hidden states.

    Tokens that the head has no entry for get no probability, before any filter. Verification sees
    the distributions as drawn from, so that every method stays exact.

    Args:
        head: the head as a model.
        vocab_size: the target's.
        cost_ratio: what a forward of it costs beside the target's.
    """

    model: HeadModel

    def __init__(self, head: HeadModel, vocab_size: int, cost_ratio: float) -> None:
        super().__init__(head, vocab_size)
        self.hidden_layers = head.config.target_layers
        self.cost_ratio = cost_ratio

    def propose(
        self, prefixes: Sequence[Prefix], plan: DraftPlan, ctx: DraftContext
    ) -> DraftProposal:
        """Propose tokens, none after a prompt: the target has to compute it before."""
        prompts = np.array([len(prefix) for prefix in prefixes]) == ctx.prompt_lengths
        later = replace(plan, depth=np.where(prompts, 0, plan.depth))
        return super().propose(prefixes, later, ctx)

    def observe_round(self, hidden: Sequence[HiddenStates]) -> None:
        """Keep the states of what the target computed."""
        self.model.receive(hidden)

    def known(self, prefix: Prefix) -> int:
        """Return of how many first tokens of a sequence it knows the states."""
        return self.model.known(prefix)

    def prefill(self, prefix: Prefix, most: int) -> int:
        """Prefill nothing: the target's states come first."""
        return 0

    def _room(self, shown: Sequence[Prefix], plan: DraftPlan) -> NDArray[np.int64]:
        """Return how deep each row may be drafted: not where states are not known."""
        pairs = zip(shown, plan.model_depth.tolist(), strict=True)
        there = [bool(n) and self.known(each) >= len(each) - 1 for each, n in pairs]
        return np.where(there, super()._room(shown, plan), 0)

    def _aligned(self, logits: Tensor) -> Tensor:
        """Return the head's logits [..., n] for the target's ids, [..., V]."""
        if self.model.net.tokens is None:
            return super()._aligned(logits)
        whole = logits.new_full((*logits.shape[:-1], self.vocab_size), -np.inf)
        whole[..., self.model.net.tokens] = logits
        return whole


class EagleDrafter(HeadDrafter):
    """Drafts chains, or trees, with an EAGLE-3 head: a forward for each token or level.

    Method: Li et al., arXiv 2503.01840. See `HeadDrafter`.
    """


class BlockDrafter(HeadDrafter):
    """Drafts chains in one forward: P-EAGLE, DFlash, DSpark, DFlash2 and XPress.

    Each token is drawn from its place's distribution given the tokens drawn before it, which is
    what verification sees. Formats: speculators 0.9. See `HeadDrafter`.
    """

    def steps(self, depth: int) -> int:
        """Return 1: a block is one forward, however many of its tokens are drafted."""
        return 1

    def _room(self, shown: Sequence[Prefix], plan: DraftPlan) -> NDArray[np.int64]:
        """Return how deep each row may be drafted: no deeper than a block."""
        return np.minimum(super()._room(shown, plan), self.model.config.most)
