"""Tokens that a slot's columns were computed from before the host knew them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...types.trees import Parents

Tokens = NDArray[np.int64]


class DeviceTokens(Protocol):
    """Tokens of one row that are on the device, or on their way to the host."""

    def read(self) -> tuple[Tokens, Parents | None]:
        """The tokens, int64 [n], and their parents [n], None if each follows the one before it."""
        ...


class HostCopy:
    """Device tokens [B, N] on their way to the host: started when made, awaited when read.

    With `parents` [B, N], host data, they are trees.
    """

    def __init__(self, tokens: Tensor, parents: Parents | None = None) -> None:
        self._event: torch.cuda.Event | None = None
        self._host = tokens
        self._parents = parents
        if tokens.is_cuda:
            self._host = torch.empty(tokens.shape, dtype=tokens.dtype, pin_memory=True)
            self._host.copy_(tokens, non_blocking=True)
            self._event = torch.cuda.Event()
            self._event.record(torch.cuda.current_stream(tokens.device))

    def read(self) -> tuple[Tokens, Parents | None]:
        """The tokens, int64 [B, N], once they have arrived, and the parents [B, N], if any."""
        if self._event is not None:
            self._event.synchronize()
        return self._host.numpy(), self._parents


class FedTokens:
    """Tokens fed to a cursor, read on the host only when next compared.

    Attributes:
        calls: what each call fed: tokens [B], each after the one before it, and None; or a part of
            a tree, tokens [B, M] and their parents [B, M].
    """

    def __init__(self, rows: int) -> None:
        self.calls: list[tuple[Tensor, Tensor | None]] = []
        self._rows = rows
        self._read: tuple[int, tuple[Tokens, Parents | None]] | None = None

    def read(self) -> tuple[Tokens, Parents | None]:
        """The tokens fed so far, int64 [B, n], and their parents [B, n], None for chains.

        Each row of the batch asks for them, which are copied from the device once.
        """
        calls = list(self.calls)
        found = self._read
        if found is None or found[0] != len(calls):
            found = self._read = len(calls), self._joined(calls)
        return found[1]

    def _joined(self, calls: list[tuple[Tensor, Tensor | None]]) -> tuple[Tokens, Parents | None]:
        """What calls fed, on the host."""
        if not calls:
            return np.empty((self._rows, 0), dtype=np.int64), None
        tokens = [tokens for tokens, _ in calls]
        parents = [parents for _, parents in calls if parents is not None]
        if not parents:
            return torch.stack(tokens, 1).cpu().numpy(), None
        return torch.cat(tokens, 1).cpu().numpy(), torch.cat(parents, 1).cpu().numpy()


@dataclass(frozen=True, slots=True)
class RowTokens:
    """One row of a batch's device tokens: the first `length` of them, or all."""

    batch: HostCopy | FedTokens
    row: int
    length: int | None = None

    def read(self) -> tuple[Tokens, Parents | None]:
        """The row's tokens, int64 [n], and their parents [n], None for a chain."""
        tokens, parents = self.batch.read()
        own = tokens[self.row, : self.length]
        return own, None if parents is None else parents[self.row, : self.length]
