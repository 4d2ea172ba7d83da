"""Which rows of the tables of recurrent states are whose.

OpenVINO's operators read the state before a sequence's new tokens from one row, and write those
after every so many of them to others. So what rejected drafts did to a state stands in rows of its
own: the next forward reads the row of the state after the last token that was kept. A row is
written once while it is in use; that of a checkpoint is not copied, but stays in use.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from ..blocks import Tokens
from ..flat import FlatBatch
from ..states import Checkpoints, States

EACH = 8
"""Rows of one sequence at most; longer drafts have a state after every second token, or fewer."""

_ZERO, _UNUSED = 0, 1
"""The rows of the state before all tokens, and of states that are not read."""


class StateRows(States):
    """The rows of the sequences of a hybrid model, by after how many tokens their states are.

    Args:
        slots: for how many sequences there are rows, and at most so many checkpoints.

    Attributes:
        count: how many rows there are.
    """

    checkpoints: Checkpoints[int]

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self.count = 2 + slots * (EACH + 1)  # one of a checkpoint
        self.forget()

    def forget(self) -> None:
        """Forget all sequences and checkpoints."""
        self._users = [1, 1, *[0] * (self.count - 2)]
        self._held: dict[int, dict[int, int]] = {}
        self._forks: dict[int, int] = {}
        self.checkpoints = Checkpoints(self._slots)

    def admit(self, name: int, known: Tokens) -> int:
        """Take a new sequence, with the state of the last checkpoint in its tokens."""
        found, row = self.checkpoints.use(known)
        self._held[name] = {}
        if row is not None:
            self._users[row] += 1
            self._held[name][found] = row
        return found

    def cut(self, name: int, shared: int) -> int:
        """Return after how many tokens, at most so many, a sequence has a state."""
        return max((place for place in self._held[name] if place <= shared), default=0)

    def fork(self, name: int, other: int) -> None:
        """Let a sequence read another one's states; its own are not kept."""
        self._forks[other] = name

    def fold(self, names: Sequence[int], starts: Sequence[int]) -> None:
        """Keep of sequences the states at these positions alone."""
        for name, start in zip(names, starts, strict=True):
            for place in self._held[name].keys() - {start}:
                self._drop(name, place)

    def save(self, name: int, tokens: Tokens) -> None:
        """Let others find the last state of a sequence, whose tokens begin with these."""
        end = self.cut(name, len(tokens))
        if end:
            row = self._held[name][end]
            self._users[row] += 1
            for other in self.checkpoints.add(tokens[:end], row):
                self._users[other] -= 1

    def release(self, names: Iterable[int]) -> None:
        """Give back the rows of sequences."""
        for name in names:
            self._forks.pop(name, None)
            for row in self._held.pop(name, {}).values():
                self._users[row] -= 1

    def placed(self, batch: FlatBatch) -> list[NDArray[np.int32]]:
        """Give the new tokens of a batch rows for their states.

        Returns:
            What the operators have to know of it, in the order of `recurrent.ROWS`.
        """
        pasts, counts = batch.past.tolist(), (batch.missing + batch.drafted).tolist()
        rows, alike = [], []
        for place, name in enumerate(batch.sequence_ids):
            past, missing = pasts[place], int(batch.missing[place])
            read = self._row(self._forks.get(name, name), past)
            # An interval of 0 writes the last state, or none.
            written, within, interval = [_UNUSED], 0, 0
            if name not in self._forks:
                written, within, interval = self._written(name, past, missing, counts[place])
            rows.append([read, *written])
            alike.append((within, interval))
        begins = np.cumsum([0, *map(len, rows)])
        found = (np.concatenate(rows), begins, *np.array(alike).T)
        return [np.ascontiguousarray(each, np.int32) for each in found]

    def _written(
        self, name: int, past: int, missing: int, count: int
    ) -> tuple[list[int], int, int]:
        """Take rows for the states of one sequence's new tokens.

        Among those are the state before its prefix's last token and the one after all.

        Returns:
            The rows; how many tokens of an interval were computed before; and the interval.
        """
        held = self._held[name]
        for place in [place for place in held if place > past]:
            self._drop(name, place)
        while EACH - len(held) <= 1:
            self._drop(name, max(held.keys() - {past}))
        interval, within = 1, 0
        while -(-(within + count) // interval) > EACH - len(held):
            interval += 1
            within = -(missing - 1) % interval
        ends = range(past - within + interval, past + count + interval, interval)
        for end in ends:
            row = self._users.index(0)
            self._users[row] = 1
            held[min(end, past + count)] = row
        return [held[min(end, past + count)] for end in ends], within, interval

    def _row(self, name: int, place: int) -> int:
        return self._held[name][place] if place else _ZERO

    def _drop(self, name: int, place: int) -> None:
        self._users[self._held[name].pop(place)] -= 1
