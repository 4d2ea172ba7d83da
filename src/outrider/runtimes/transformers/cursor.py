"""A model over the slot cache in the middle of drafting."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ...errors import ModelError
from ..base import Cursor
from ..lengths import overfed
from ..slots import PendingTokens, Slot
from .attention_inputs import AttentionInputs, grown

if TYPE_CHECKING:
    from .model import TransformersModel

Run = Callable[..., Any]
"""What computes a forward: a model of transformers, or what behaves like one."""


@dataclass(frozen=True, slots=True)
class SlotBatch:
    """The rows of one forward, sorted by slot.

    Attributes:
        slots: the cache row of each.
        starts: the first column that each computes.
        tokens: int64 [B, m], the last m tokens of each prefix, on the device.
        order: the caller's row of each; None if it is the same.
        cached: how many tokens of each new prefix were found computed, by the caller's rows.
    """

    slots: list[int]
    starts: list[int]
    tokens: Tensor
    order: list[int] | None
    cached: tuple[int, ...]

    def sorted(self, rows: Tensor) -> Tensor:
        """Bring the caller's rows to the order of the slots."""
        return rows if self.order is None else rows[self.order]

    def unsorted(self, rows: Tensor) -> Tensor:
        """Bring rows from the order of the slots to the caller's."""
        if self.order is None:
            return rows
        order = torch.tensor(self.order, device=rows.device)
        return torch.empty_like(rows).index_copy_(0, order, rows)


class SlotCursor(Cursor):
    """A transformers model in the middle of drafting: each call is one forward.

    It goes on from the batch that came to the end of the prefixes, with the logits [B, V] of its
    last tokens in its order, and is of use while the table knows of the slots what it `held`. `run`
    computes in place of the model, as its first layers do.
    """

    def __init__(
        self,
        model: TransformersModel,
        run: Run | None,
        batch: SlotBatch,
        held: Sequence[Slot],
        pending: PendingTokens,
        logits: Tensor,
    ) -> None:
        self._model = model
        self._run = run
        self._batch = batch
        self._held = held
        self._ends = [start + batch.tokens.shape[1] for start in batch.starts]
        self._pending = pending
        self._logits = logits
        self._ancestors: Tensor | None = None

    @property
    def logits(self) -> Tensor:
        """Logits [B, V] after the prefixes and the tokens that `step` was fed so far."""
        return self._batch.unsorted(self._logits)

    @torch.inference_mode()
    def step(self, tokens: Tensor) -> Tensor:
        """Feed one token to each row; see `Cursor`.

        Raises:
            ContextLengthError: no row has room for another token.
            ModelError: `expand` was called before, or the sequences were verified, opened or
                released since this cursor was.
        """
        fed = len(self._pending.calls)
        starts, most = [end + fed for end in self._ends], self._model.attention.max_length
        if min(starts) >= most:
            raise overfed(fed + 1, most)
        with self._model.lock:
            self._check(self._ancestors is None)
            inputs = self._model.attention.chain(starts, 1)
            logits = self._forward(starts, tokens[:, None], inputs)
            # Noted only now: a forward that did not end has computed nothing to be relied on.
            self._pending.add(tokens[:, None])
        self._logits = logits[:, 0]
        return self.logits

    @torch.inference_mode()
    def expand(self, tokens: Tensor, parents: Tensor) -> Tensor:
        """Feed nodes of a tree; see `Cursor`.

        The nodes fed before stay where they are: the new ones are written after them, and see those
        that they follow.

        Raises:
            ModelError: `step` was called before, or as `step`.
        """
        width = tokens.shape[1]
        ancestors = grown(self._ancestors, self._batch.sorted(parents))
        starts = [end + ancestors.shape[1] - width for end in self._ends]
        with self._model.lock:
            self._check(self._ancestors is not None or not self._pending.calls)
            inputs = self._model.attention.tree(self._ends, ancestors, width)
            logits = self._forward(starts, tokens, inputs)
            if self._ancestors is None:
                self._pending.add(tokens[:, :1])  # what follows need not stand in its place
        self._ancestors = ancestors
        return self._batch.unsorted(logits)

    def _forward(self, starts: list[int], tokens: Tensor, inputs: AttentionInputs) -> Tensor:
        rows = self._batch.sorted(tokens)
        return self._model.forward(
            self._batch.slots, starts, rows, inputs, tokens.shape[1], self._run
        )

    def _check(self, fed_alike: bool) -> None:
        """Raise ModelError if this cursor is fed both ways, or its slots have changed."""
        if not fed_alike:
            raise ModelError("a cursor is fed by step or by expand, not by both; open another one")
        if not self._model.holds(self._batch.slots, self._held):
            raise ModelError(
                "the sequences of this cursor were verified, opened or released since; open "
                "another one"
            )
