"""What the engine asks of a drafter."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence

import numpy as np
import torch

from ..types.records import MODEL, DraftPlan, DraftProposal, HiddenStates, Prefix
from .context import DraftContext as DraftContext


class Drafter(ABC):
    """Proposes tokens for the target to check, cheaply.

    Attributes:
        source: names where its tokens come from, in records.
        models: models and drafters behind this one, whose room the engine has to know of.
        cost_ratio: a draft step beside a plain forward of the target; None if that is unknown.
        looks_up: whether some of its tokens take no step of a model.
        hidden_layers: of the target, whose hidden states it drafts from; see `observe_round`.
        branches: whether it drafts trees where they are asked for; if not, chains.
        follows: whether it drafts from what the target has computed; so does whatever names
            `hidden_layers`. Without look-ups beside it no sequence is drafted in its first round.
    """

    source: str = MODEL
    models: Sequence[object] = ()
    cost_ratio: float | None = None
    looks_up: bool = False
    hidden_layers: Sequence[int] = ()
    branches: bool = True
    follows: bool = False

    @property
    @abstractmethod
    def vocab_size(self) -> int | None:
        """The width of its distributions, V; None if it proposes tokens that it has seen."""

    @abstractmethod
    def propose(
        self, prefixes: Sequence[Prefix], plan: DraftPlan, ctx: DraftContext
    ) -> DraftProposal:
        """Propose at most `plan.depth[b]` tokens in a row for row b, with their distributions.

        Whether a token is proposed must not depend on the token's own drawn value.
        """

    def steps(self, depth: int) -> int:
        """Return how many forwards its model takes to draft tokens in a row, of at least one."""
        return depth

    def release(self, sequence_ids: Iterable[int], *, discard: bool = False) -> None:
        """Forget sequences that end; with `discard`, share nothing of them. Ids may be unknown."""

    def observe_round(self, hidden: Sequence[HiddenStates]) -> None:
        """Receive the hidden states of what the target computed, if `hidden_layers` names some.

        Args:
            hidden: of each sequence, of tokens that follow one another: those of its text, as they
                are computed, and those that a round kept. There are none of the token that it
                emitted last, nor of a new sequence's first ones that are `known`. The layers are
                `hidden_layers`, in that order.
        """

    def known(self, prefix: Prefix) -> int:
        """Return of how many first tokens of a sequence it knows the states.

        The target computes those of all tokens after them before it drafts, found in its cache or
        not. By default all: it takes what is computed anyway.
        """
        return len(prefix)

    def observe_output(self, prefixes: Sequence[Prefix]) -> None:
        """Learn from whole sequences that ended; they are released next."""

    def prefill(self, prefix: Prefix, most: int) -> int:
        """Prefill a part of a long prompt by a model of the drafter's own; see `Runtime.prefill`.

        Returns:
            How many tokens are still missing.
        """
        return 0


def nothing_drafted(rows: int, device: torch.device) -> DraftProposal:
    """Return the proposal of no tokens for B rows."""
    tokens = torch.empty(rows, 0, dtype=torch.int64, device=device)
    return DraftProposal(tokens, np.zeros(rows, dtype=np.int64), None)
