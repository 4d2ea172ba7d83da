"""Which rows a batch waits for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ..records import SequenceState
from .choices import Choices

_SPREAD = 1.0
"""By how many tokens rows are expected to change places, beside the root of what they have left."""


class LastToEnd:
    """How much a token of each row brings the end of its batch nearer.

    Where others take the places of rows that end, all tokens count alike. Where none do, a batch
    takes as long as its slowest row: what another row gains is idle time. Which one that is can be
    told if all go on for a number of tokens that is known. Rows gain or lose on each other by
    chance, so that each is the last with some probability: about that of a logistic law of their
    distances, as wide as their walks are long.

    Whether others take their places is told by what happened last: until a first row has ended,
    and for batches that take turns in several threads, nobody seems to.
    """

    def __init__(self) -> None:
        self._ids = frozenset[int]()
        self._joined = False

    def weighed(self, choices: Choices, states: Sequence[SequenceState]) -> Choices:
        """What was planned for a batch, with what a token of each of its rows counts.

        Args:
            choices: of all rows.
            states: of all rows, before the next round.
        """
        unknown = any(state.stop_ids or state.params.stop or state.grammar for state in states)
        if len(states) < 2 or self._joined or unknown:
            return choices
        left = np.array([state.remaining for state in states], dtype=np.float64)
        likely = np.exp((left - left.max()) / (_SPREAD * np.sqrt(left.max())))
        return replace(choices, weights=likely * (len(left) / likely.sum()))

    def happened(self, states: Sequence[SequenceState]) -> None:
        """Note who took part in a round: whether others took the places of those that ended."""
        ids = frozenset(state.prefix.sequence_id for state in states)
        if ids - self._ids:
            self._joined = bool(ids & self._ids)
        elif ids < self._ids:
            self._joined = False
        self._ids = ids
