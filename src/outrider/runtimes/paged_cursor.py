"""A model over blocks in the middle of drafting."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ..errors import ModelError
from ..types.records import Prefix
from ..types.transfer import sent
from .base import Cursor
from .flat import Computed, DraftedTokens, FlatBatch, Integers
from .lengths import overfed

if TYPE_CHECKING:
    from .paged import PagedModel


class PagedCursor(Cursor):
    """A model in the middle of drafting: each call is one forward.

    Args:
        model: the model.
        run: computes in its place; None for the model.
        prefixes: of the rows.
        held: what was computed of each; the cursor is of use while it is all.
        drafts: what it is fed is noted here.
        logits: after the prefixes, [B, V].
    """

    def __init__(
        self,
        model: PagedModel,
        run: Any,
        prefixes: Sequence[Prefix],
        held: Sequence[Computed],
        drafts: DraftedTokens,
        logits: Tensor,
    ) -> None:
        self._model = model
        self._run = run
        self._prefixes = prefixes
        self._held = held
        self._drafts = drafts
        self._logits = logits
        self._ends = np.array([len(prefix) for prefix in prefixes], dtype=np.int64)
        self._nodes: tuple[Tensor, Tensor] | None = None

    @property
    def logits(self) -> Tensor:
        """Logits [B, V] after the prefixes and the tokens that `step` was fed so far."""
        return self._logits

    @torch.inference_mode()
    def step(self, tokens: Tensor) -> Tensor:
        """Feed one token to each row; see `Cursor`.

        Raises:
            ContextLengthError: no row has room for another token.
            ModelError: `expand` was called before, or the sequences were verified, opened or
                released since this cursor was.
        """
        model, fed = self._model, len(self._drafts.calls)
        past, one = self._ends + fed, np.ones_like(self._ends)
        if past.min() >= model.longest:
            raise overfed(fed + 1, model.longest)
        with model.whole():
            self._check(self._nodes is None)
            tables = self._tables(past, past + 1)
            positions = sent(past.clip(max=model.longest - 1), model.device)
            ids = [prefix.sequence_id for prefix in self._prefixes]
            batch = FlatBatch(tokens, positions, ids, past, one, 0 * one, tables)
            self._logits = model.forward(batch, self._run).logits[:, 0]
            # Noted only now: a forward that did not end has computed nothing to be relied on.
            self._drafts.add(tokens[:, None])
        return self._logits

    @torch.inference_mode()
    def expand(self, tokens: Tensor, parents: Tensor) -> Tensor:
        """Feed nodes of a tree; see `Cursor`.

        All nodes so far are computed once more, after the prefix's last token: among those of one
        forward each sees its own ancestors alone. None of it is relied on later.

        Raises:
            ModelError: `step` was called before, or as `step`.
        """
        model, new = self._model, tokens.shape[1]
        before, mask = self._nodes or (tokens[:, :0], None)
        nodes, ancestors = torch.cat([before, tokens], 1), grown(mask, parents)
        width = nodes.shape[1]
        with model.whole():
            self._check(self._nodes is not None or not self._drafts.calls)
            tables = self._tables(self._ends - 1, self._ends + width, own=True)
            self._held = [model.drop_last(prefix) for prefix in self._prefixes]
            lasts, widths = (self._ends - 1).tolist(), np.full_like(self._ends, width)
            batch = model.flat_batch(
                self._prefixes, lasts, tables, nodes, widths, ancestors, width - new + 1
            )
            logits = model.forward(batch, self._run).logits
        self._nodes = nodes, ancestors
        return logits

    def _tables(self, starts: Integers, ends: Integers, *, own: bool = False) -> list[list[int]]:
        """The rows' blocks, more of them where they do not reach so far.

        Those from `starts` on are the rows' own then; with `own` in any case.
        """
        pool, tables = self._model.pool, []
        for prefix, start, end in zip(self._prefixes, starts.tolist(), ends.tolist(), strict=True):
            name = prefix.sequence_id
            if own or len(pool.blocks(name)) * pool.size < end:
                self._model.copy_blocks(pool.extend(name, start, end))
            tables.append(list(pool.blocks(name)))
        return tables

    def _check(self, fed_alike: bool) -> None:
        """Raise ModelError if this cursor is fed both ways, or its sequences have gone on."""
        if not fed_alike:
            raise ModelError("a cursor is fed by step or by expand, not by both; open another one")
        if not self._model.holds(self._prefixes, self._held):
            raise ModelError(
                "the sequences of this cursor were verified, opened or released since; open "
                "another one"
            )


def grown(ancestors: Tensor | None, parents: Tensor) -> Tensor:
    """The ancestor mask bool [B, T, T] of a tree to which nodes with parents [B, M] were added."""
    batch, width = parents.shape
    itself = torch.eye(width, dtype=torch.bool, device=parents.device).expand(batch, -1, -1)
    if ancestors is None:
        return itself
    root = ancestors.new_zeros(batch, 1, ancestors.shape[2])
    before = torch.cat([root, ancestors], 1)
    inherited = before.gather(1, parents[..., None].expand(-1, -1, ancestors.shape[2]))
    above = torch.cat([ancestors, ancestors.new_zeros(batch, ancestors.shape[1], width)], 2)
    return torch.cat([above, torch.cat([inherited, itself], 2)], 1)
