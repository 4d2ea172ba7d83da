"""The shape of a draft of each depth: chains, trees of a fixed shape, trees of a budget."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..types import trees
from ..types.records import DraftPlan, KeepGoing, SequenceState
from ..types.worth import Worth


class Levels:
    """How many tokens a draft has at each depth.

    Args:
        num_speculative_tokens: the most tokens in a row.
        shape: how many children a node has at each depth; None drafts chains.
        budget: how many nodes a tree has, shared out evenly among its depths, the first of them
            first; not together with `shape`.

    Attributes:
        deepest: the most tokens in a row.
    """

    def __init__(
        self,
        num_speculative_tokens: int,
        shape: tuple[int, ...] | None = None,
        budget: int | None = None,
    ) -> None:
        self.deepest = num_speculative_tokens
        self._shape = shape
        self._levels: tuple[int, ...] | None = None
        if shape is not None:
            self.deepest = min(num_speculative_tokens, len(shape))
            self._levels = tuple(trees.level_sizes(shape))
        elif budget is not None:
            self.deepest = min(num_speculative_tokens, budget)
            self._levels = tuple(
                budget // self.deepest + (depth < budget % self.deepest)
                for depth in range(self.deepest)
            )

    @property
    def chains(self) -> bool:
        """Whether a draft has one token at each depth."""
        return self._levels is None

    def width(self, depth: int) -> int:
        """How many tokens a draft of this depth has in all."""
        return depth if self._levels is None else sum(self._levels[:depth])

    def plan(
        self,
        depths: list[int],
        steps: list[int] | None = None,
        worth: Worth | None = None,
        keep_going: KeepGoing | None = None,
        repeats: list[int] | None = None,
        looks: bool = True,
    ) -> DraftPlan:
        """A plan for these depths; see `DraftPlan`."""
        taken = None if steps is None else np.array(steps, dtype=np.int64)
        depth = np.array(depths, dtype=np.int64)
        own = None if repeats is None else np.array(repeats, dtype=np.int64)
        return DraftPlan(depth, self._levels, self._shape, taken, worth, keep_going, own, looks)

    def replay(
        self, own: list[int], asked: list[int | None], keep_going: KeepGoing | None = None
    ) -> DraftPlan:
        """A plan for a drafter that looks tokens up, of rows some of which repeat a run.

        Args:
            own: what each row would be planned for by itself.
            asked: what its `depths` ask for; None for a row that repeats nothing.
            keep_going: see `DraftPlan`.
        """
        pairs = list(zip(own, asked, strict=True))
        steps = [depth if wanted is None else wanted for depth, wanted in pairs]
        repeats = [-1 if wanted is None else depth for depth, wanted in pairs]
        return self.plan(list(map(max, own, steps)), steps, None, keep_going, repeats)

    def replayed(self, state: SequenceState) -> int | None:
        """The depth that a request's own `depths` ask for in its next round, if they do."""
        wanted = state.params.depths
        if wanted is None or state.round >= len(wanted):
            return None
        return (
            wanted[state.round] if self._levels is None else min(wanted[state.round], self.deepest)
        )

    def asked(self, states: Sequence[SequenceState]) -> list[int | None]:
        """What each row's own `depths` ask for and its length allows; None for the others."""
        wanted = [self.replayed(state) for state in states]
        return [
            None if depth is None else allowed(depth, state)
            for depth, state in zip(wanted, states, strict=True)
        ]


def allowed(depth: int, state: SequenceState) -> int:
    """A depth, or less: a round's last token is the correction or the bonus."""
    return max(0, min(depth, state.remaining - 1))
