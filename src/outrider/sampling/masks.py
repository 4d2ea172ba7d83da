"""The tokens that requests' grammars allow after each node of a round."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import embedding

from ..types.records import SequenceState
from .grammar import Mask
from .paths import Path

_BITS = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
_BYTES = np.where(_BITS, 0.0, -np.inf)
"""What is added to eight logits whose bits are a byte, [256, 8]."""


class RoundMasks:
    """The masks of one round, each made once, for the drafter and the target alike.

    Args:
        states: the sequences.
        vocab_size: V.
    """

    def __init__(self, states: Sequence[SequenceState], vocab_size: int) -> None:
        self._grammars = {
            row: (state.grammar, state.output)
            for row, state in enumerate(states)
            if state.grammar is not None
        }
        self._vocab_size = vocab_size
        self._known: dict[tuple[int, tuple[int, ...]], Mask | None] = {}

    def __call__(self, logits: Tensor, path: Path) -> Tensor:
        """Logits [B, M, V] with minus infinity for the tokens that are not allowed.

        Nodes that no sequence comes to are left as they are: one below a token that the grammar
        refuses, to which the target gives no probability, or below the end. Their logits are finite
        and otherwise of no consequence.

        Where nothing is left of a row, because the grammar has led to a dead end or the request
        forbids by other means all that it allows, the tokens that it refuses are left instead: a
        sequence that comes there emits one of them, which `stopping.until_stop` tells, and one that
        does not is none the worse for what was drafted.
        """
        count = logits.shape[1]
        rows = list(self._grammars)
        bits = np.full((len(rows), count, (self._vocab_size + 7) // 8), 255, dtype=np.uint8)
        for place, (row, paths) in enumerate(path.listed(rows, count).items()):
            # In lexical order, in which the matcher goes from each to the next by short steps.
            for node in sorted(range(len(paths)), key=paths.__getitem__):
                mask = self._mask(row, paths[node])
                if mask is not None:
                    bits[place, node] = mask
        allowed = torch.from_numpy(bits).to(logits.device)
        every = len(rows) == len(logits)
        asked = logits if every else logits[rows]
        masked = asked + self._added(allowed, asked)
        nothing = masked.amax(-1, keepdim=True) == -torch.inf
        if nothing.any():
            masked = torch.where(nothing, asked + self._added(~allowed, asked), masked)
        if every:
            return masked
        logits[rows] = masked
        return logits

    def leads_to(self, row: int, drafted: tuple[int, ...]) -> bool:
        """Whether a row's grammar takes a path; True where it has none."""
        return row not in self._grammars or self._mask(row, drafted) is not None

    def _added(self, bits: Tensor, logits: Tensor) -> Tensor:
        """0 for the tokens whose bits uint8 [n, M, ceil(V / 8)] are set, else -inf: [n, M, V]."""
        table = torch.from_numpy(_BYTES).to(logits)
        return embedding(bits.int(), table).flatten(2)[..., : self._vocab_size]

    def _mask(self, row: int, drafted: tuple[int, ...]) -> Mask | None:
        """The mask after a path; None where no sequence takes it."""
        key = (row, drafted)
        if key not in self._known:
            grammar, output = self._grammars[row]
            self._known[key] = grammar.mask(output, drafted)
        return self._known[key]
