"""What the engine asks of a drafter, and what it offers one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..types.records import (
    MODEL,
    Children,
    Distributions,
    DraftPlan,
    DraftProposal,
    HiddenStates,
    Prefix,
)

if TYPE_CHECKING:
    import torch
    from torch import Tensor


class DraftContext(ABC):
    """What a drafter may know of a round: how to make distributions, and how to draw.

    Whether drafts are greedy, drawn or coupled is hidden from the drafter.
    """

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """Where proposals are expected."""

    @property
    @abstractmethod
    def processes_logits(self) -> bool:
        """Whether distributions depend on the tokens drafted before: `distribution` needs them."""

    @property
    @abstractmethod
    def local(self) -> NDArray[np.bool_]:
        """Rows that must be drafted from their own sequence alone, bool [B], on the host.

        Their text depends on what is drafted and is promised to repeat: what a drafter learnt from
        other sequences must not be used for them.
        """

    @property
    @abstractmethod
    def prompt_lengths(self) -> NDArray[np.int64]:
        """The number of prompt tokens of each row, int64 [B], on the host."""

    @abstractmethod
    def prediction(self, row: int) -> NDArray[np.int64] | None:
        """Return the row's expected output, int64 [m], on the host; None if there is none."""

    @abstractmethod
    def stop_ids(self, row: int) -> frozenset[int]:
        """Return the tokens that end the row's request: a draft may end with one of them."""

    @abstractmethod
    def allowed(
        self, row: int, tokens: NDArray[np.int64], parents: NDArray[np.int64]
    ) -> NDArray[np.bool_]:
        """Return which tokens of a row's chain or tree its request allows, with all before them.

        Args:
            row: of the round.
            tokens: int64 [n], on the host.
            parents: the node that each follows, int64 [n]: 0 the prefix.

        Returns:
            bool [n].
        """

    @property
    @abstractmethod
    def learning(self) -> bool:
        """Whether a drafter may learn from this round. An enumeration walks all its outcomes."""

    @abstractmethod
    def limit_depths(self, depth: NDArray[np.int64]) -> None:
        """Draw nothing from now on for rows beyond these depths [B], at most the plan's.

        What is drawn for a row must not depend on what others need.
        """

    @abstractmethod
    def distribution(self, logits: Tensor, path: Tensor | None = None) -> Distributions:
        """Make the distributions that the rows' own parameters ask for.

        Args:
            logits: [B, V] or [B, M, V], after M nodes of each row, all at one depth D.
            path: the drafted tokens that lead to them, int64 [B, M, D]; None if there are none, or
                if logits are not processed.
        """

    @abstractmethod
    def pick(self, distributions: Distributions, position: int) -> Tensor:
        """Draw tokens int64 [B], the `position`-th of this round; each position once a round."""

    @abstractmethod
    def depths(self) -> NDArray[np.int64]:
        """Return how deep each row is drafted, int64 [B], after the tokens drawn so far.

        To be asked after each `pick`, before the next step of the model. Where the plan's stop rule
        says so a row ends here, and draws nothing from now on.
        """

    @abstractmethod
    def children(
        self, distributions: Distributions, counts: Tensor, most: int, first: int, level: int
    ) -> Children:
        """Draw tokens that follow the same node, for each of M nodes at depth `level`.

        Args:
            distributions: for [B, M].
            counts: the number of children of each node, int64 [B, M], 0 included.
            most: the largest count, known on the host.
            first: the index of the first of these M nodes in the tree; each node once a round.
            level: how many drafted tokens lead to these nodes.
        """

    @abstractmethod
    def estimate_acceptance(self, distributions: Distributions, most: int) -> Tensor:
        """Estimate how likely each of `most` children is kept, float64 [B, M, most].

        Made before anything is drawn; it does not grow from one child to the next.
        """


class Drafter(ABC):
    """Proposes tokens for the target to check, cheaply.

    Attributes:
        source: names where its tokens come from, in records.
        models: models and drafters behind this one, whose room the engine has to know of.
        cost_ratio: a draft step beside a plain forward of the target; None if that is unknown.
        looks_up: whether some of its tokens take no step of a model.
        hidden_layers: of the target, whose hidden states it drafts from; see `observe_round`.
        branches: whether it drafts trees where they are asked for; if not, chains.
        follows: whether it drafts from what the target has computed, so that no sequence is drafted
            in its first round; so does whatever names `hidden_layers`.
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
        """Return how many forwards its model takes to draft so many tokens in a row."""
        return depth

    def release(self, sequence_ids: Iterable[int], *, discard: bool = False) -> None:
        """Forget sequences that end; with `discard`, share nothing of them. Ids may be unknown."""
        del sequence_ids, discard

    def observe_round(self, hidden: Sequence[HiddenStates]) -> None:
        """Receive the hidden states of what the target computed, if `hidden_layers` names some.

        Args:
            hidden: of each sequence, of tokens that follow one another: those that were prefilled,
                and those that the round kept. There are none of the token that it emitted last, nor
                of tokens that were found in the target's cache: nothing is to be drafted where
                those that are needed are not known. The layers are `hidden_layers`, in that order.
        """
        del hidden

    def observe_output(self, prefixes: Sequence[Prefix]) -> None:
        """Learn from whole sequences that ended; they are released next."""
        del prefixes

    def prefill(self, prefix: Prefix, most: int) -> int:
        """Prefill a part of a long prompt by a model of the drafter's own; see `Runtime.prefill`.

        Returns:
            How many tokens are still missing.
        """
        del prefix, most
        return 0


def nothing_drafted(rows: int, device: torch.device) -> DraftProposal:
    """Return the proposal of no tokens for B rows."""
    import torch

    tokens = torch.empty(rows, 0, dtype=torch.int64, device=device)
    return DraftProposal(tokens, np.zeros(rows, dtype=np.int64), None)
