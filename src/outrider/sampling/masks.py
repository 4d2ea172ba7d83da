"""The tokens that requests' grammars allow after each node of a round."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import embedding

from ..types.records import SequenceState
from .grammar import Mask

_BITS = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
_ADDED = np.where(_BITS, 0.0, -np.inf)
"""What is added to eight logits whose bits are a byte, [256, 8]."""


class RoundMasks:
    """The masks of one round, each made once, for the drafter and the target alike.

    Args:
        states: the sequences.
    """

    def __init__(self, states: Sequence[SequenceState]) -> None:
        self._states = states
        self._known: dict[tuple[int, tuple[int, ...]], Mask | None] = {}

    def after(self, row: int, drafted: tuple[int, ...]) -> Mask | None:
        """Return which tokens may follow a row's path; None if its grammar refuses the path."""
        key = (row, drafted)
        if key not in self._known:
            state = self._states[row]
            self._known[key] = state.grammar.mask(state.output, drafted)
        return self._known[key]


def forbid(logits: Tensor, places: list[tuple[int, int]], masks: list[Mask]) -> list[bool]:
    """Set logits [B, M, V] of tokens that masks do not allow to minus infinity, in place.

    Args:
        logits: the logits.
        places: row and node of each mask.
        masks: uint8 [ceil(V / 8)] each, a bit a token, the lowest first.

    Returns:
        For each mask whether any token was left; where none was the logits are as they were.
    """
    rows, nodes = torch.tensor(places, device=logits.device).T
    bits = torch.from_numpy(np.stack(masks)).to(logits.device)
    table = torch.from_numpy(_ADDED).to(logits)
    given = logits[rows, nodes]
    masked = given + embedding(bits.int(), table).flatten(1)[:, : logits.shape[2]]
    left = masked.amax(-1) > -torch.inf
    logits[rows, nodes] = torch.where(left[:, None], masked, given)
    found: list[bool] = left.tolist()
    return found
