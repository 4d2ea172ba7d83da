"""A model over the slot cache in the middle of drafting."""

from __future__ import annotations

from dataclasses import dataclass
from threading import RLock
from typing import Protocol

import torch
from torch import Tensor

from ...errors import ModelError
from .pending import FedTokens
from .views import View, Views, grown

_MIXED = "a cursor is fed by step or by expand, not by both; open another one"


class SlotModel(Protocol):
    """What computes columns of a slot cache."""

    @property
    def lock(self) -> RLock:
        """Held while slots, views and cache are in use."""
        ...

    @property
    def views(self) -> Views:
        """What forwards see."""
        ...

    def forward(
        self, slots: list[int], starts: list[int], tokens: Tensor, view: View, keep: int
    ) -> Tensor:
        """Compute columns [B, q] of the cache, and the logits [B, keep, V] of the last of them."""
        ...


@dataclass(frozen=True, slots=True)
class SlotBatch:
    """The rows of one forward, sorted by slot.

    Attributes:
        slots: the cache row of each.
        starts: the first column each computes.
        tokens: int64 [B, m], the last m tokens of each prefix, on the device.
        order: the caller's row of each; None if it is the same.
        cached: how many tokens of each new prefix were found computed, by the caller's rows.
    """

    slots: list[int]
    starts: list[int]
    tokens: Tensor
    order: list[int] | None
    cached: list[int]


class SlotCursor:
    """A transformers model in the middle of drafting: each call is one forward.

    It is fed either chains, by `step`, or trees, by `expand`, in torch's inference mode, as all of
    a round is.

    Args:
        model: computes columns of the slots.
        batch: the rows of the forward that came to the end of the prefixes.
        fed: notes what is fed.
        logits: [B, V] of the batch's last tokens, in its order.
        depth: it is fed fewer tokens in a row.
    """

    def __init__(
        self,
        model: SlotModel,
        batch: SlotBatch,
        fed: FedTokens,
        logits: Tensor,
        depth: int,
    ) -> None:
        self._model = model
        self._slots = batch.slots
        self._ends = [start + batch.tokens.shape[1] for start in batch.starts]
        self._order = batch.order
        self._fed = fed
        self._logits = logits
        self._depth = depth
        self._views: list[View] = []
        self._ancestors: Tensor | None = None

    @property
    def logits(self) -> Tensor:
        """Logits [B, V] after the prefixes and the tokens that `step` was fed so far."""
        return unsorted(self._logits, self._order)

    def step(self, tokens: Tensor) -> Tensor:
        """Feed tokens int64 [B], on the device, and return the logits [B, V] after them.

        Raises:
            ModelError: `expand` was called before.
        """
        if self._ancestors is not None:
            raise ModelError(_MIXED)
        step = len(self._fed.calls)
        if not self._views:
            with self._model.lock:
                self._views = self._model.views.steps(self._ends, self._depth - 1)
        rows = tokens if self._order is None else tokens[self._order]
        starts = [end + step for end in self._ends]
        view = self._views[step]
        logits = self._model.forward(self._slots, starts, rows[:, None], view, 1)
        # Noted only now: a forward that did not end has computed nothing to be relied on.
        self._fed.calls.append((tokens, None))
        self._logits = logits[:, 0]
        return self.logits

    def expand(self, tokens: Tensor, parents: Tensor) -> Tensor:
        """Feed nodes of a tree, and return the logits [B, M, V] after them.

        The nodes fed before stay where they are: the new ones are written after them, and see those
        that they follow. What each row's next prefix names of them all is kept.

        Args:
            tokens: int64 [B, M], on the device.
            parents: int64 [B, M], on the device: the node that each token follows, 0 the prefix, j
                the j-th fed before this call.

        Raises:
            ModelError: `step` was called before.
        """
        if self._views:
            raise ModelError(_MIXED)
        width = tokens.shape[1]
        rows, follows = tokens, parents
        if self._order is not None:
            rows, follows = tokens[self._order], parents[self._order]
        ancestors = grown(self._ancestors, follows)
        starts = [end + ancestors.shape[1] - width for end in self._ends]
        with self._model.lock:
            view = self._model.views.tree(self._ends, ancestors, width)
            logits = self._model.forward(self._slots, starts, rows, view, width)
        self._ancestors = ancestors
        self._fed.calls.append((tokens, parents))
        return unsorted(logits, self._order)


def unsorted(rows: Tensor, order: list[int] | None) -> Tensor:
    """Rows sorted by slot, back in the caller's order."""
    if order is None:
        return rows
    return torch.empty_like(rows).index_copy_(0, torch.tensor(order, device=rows.device), rows)
