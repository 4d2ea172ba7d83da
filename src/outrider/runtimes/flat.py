"""A forward's new tokens side by side, and what is known of tokens that were computed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .blocks import SIZE, Tokens, common

Integers = NDArray[np.int64]

_NONE: Tokens = np.empty(0, dtype=np.int64)


def rows_of(counts: Integers) -> tuple[Integers, Integers]:
    """Return the row of each of counts[b] items of row b side by side, and its place there."""
    row = np.repeat(np.arange(len(counts)), counts)
    return row, np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)


def slots(table: Integers, row: Integers, place: Integers) -> Integers:
    """Return where places of rows are among all tokens of all blocks; see `FlatBatch.table`."""
    found: Integers = table[row, place // SIZE] * SIZE + place % SIZE
    return found


@dataclass(frozen=True, slots=True, eq=False)
class FlatBatch:
    """New tokens of B sequences, side by side: of each its last tokens, then its drafts.

    Attributes:
        tokens: int64 [T], on the device.
        positions: of each token in its text, int64 [T], on the device.
        sequence_ids: of the B sequences.
        past: how many tokens of each sequence were computed before, int64 [B].
        missing: how many of its new tokens are the prefix's, at least one, int64 [B].
        drafted: how many drafts follow them, int64 [B].
        tables: the numbers of each sequence's blocks, for earlier and new tokens.
        ancestors: of drafts that are trees, whether column j is column i or one that it follows,
            bool [B, N, N] by (i, j), on the device; None for chains.
        width: N, the most drafts that a sequence may have.
        first: the first node whose logits are wanted; 0 is the prefix's last token.
        layers: whose hidden states are wanted.
    """

    tokens: Tensor
    positions: Tensor
    sequence_ids: Sequence[int]
    past: Integers
    missing: Integers
    drafted: Integers
    tables: Sequence[Sequence[int]]
    ancestors: Tensor | None = None
    width: int = 0
    first: int = 0
    layers: Sequence[int] = ()

    @property
    def begins(self) -> Integers:
        """Where each sequence's tokens begin, and last where they end, int64 [B + 1]."""
        begins: Integers = np.append(0, np.cumsum(self.missing + self.drafted))
        return begins

    def nodes(self, states: Tensor) -> Tensor:
        """Lay hidden states [T, L, D] out by node, [B, N + 1, L, D]; zero where there is none."""
        count = self.drafted + 1
        row, node = rows_of(count)
        token = (self.begins[:-1] + self.missing - 1)[row] + node
        made = states.new_zeros(len(count), self.width + 1, *states.shape[1:])
        made[torch.from_numpy(row), torch.from_numpy(node)] = states[torch.from_numpy(token)]
        return made

    @property
    def table(self) -> Integers:
        """The numbers of each sequence's blocks, int64 [B, n]; 0 where it has fewer."""
        blocks = max(map(len, self.tables))
        return np.array([[*each, *[0] * (blocks - len(each))] for each in self.tables])

    @property
    def places(self) -> Integers:
        """How many tokens of its sequence come before each, as they are written, int64 [T]."""
        row, within = rows_of(self.missing + self.drafted)
        places: Integers = self.past[row] + within
        return places


class Outputs(NamedTuple):
    """What a forward of a flat batch gives.

    Attributes:
        logits: [B, N + 1 - first, V] of each sequence's nodes, the prefix's last token and then its
            drafts, from the batch's `first` on. A row with fewer drafts has padding.
        hidden: of all tokens, [T, L, D]; None where no layers were asked for.
    """

    logits: Tensor
    hidden: Tensor | None = None


class DraftedTokens:
    """Tokens that a forward computed after the prefixes of a batch, not yet on the host.

    They stay on the device until the host has to compare them, a round later, when they have been
    computed anyway.
    """

    def __init__(self) -> None:
        self.calls: tuple[Tensor, ...] = ()
        self._read: tuple[int, Tokens] = (0, np.empty((0, 0), np.int64))

    def add(self, tokens: Tensor) -> DraftedTokens:
        """Note that a forward has computed tokens [B, M] that follow one another."""
        self.calls = (*self.calls, tokens.clone())
        return self

    def row(self, index: int) -> Tokens:
        """Return one row's tokens [n] on the host."""
        if not self.calls:
            return _NONE
        if self._read[0] != len(self.calls):
            self._read = len(self.calls), torch.cat(self.calls, 1).cpu().numpy()
        row: Tokens = self._read[1][index]
        return row


@dataclass(frozen=True, slots=True, eq=False)
class Computed:
    """What was computed of one sequence.

    Attributes:
        tokens: of its prefix.
        drafts: that followed them.
        row: the row of `drafts` that is this sequence's.
        count: how many of that row's tokens were computed; None for all.
    """

    tokens: Tokens
    drafts: DraftedTokens = field(default_factory=DraftedTokens)
    row: int = 0
    count: int | None = None

    def shared(self, prefix: Tokens) -> int:
        """Find how many leading tokens of `prefix` were computed."""
        alike = common(self.tokens, prefix)
        if alike < len(self.tokens):
            return alike
        return alike + common(self.drafts.row(self.row)[: self.count], prefix[alike:])
