"""Drafting with a smaller model, token by token, or a tree level by level."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from ..errors import InvalidConfigError
from ..runtimes.base import Cursor, Runtime
from ..types.records import Distributions, DraftPlan, DraftProposal, Prefix
from ..types.transfer import sent
from .base import DraftContext, Drafter, nothing_drafted
from .tree import draft_tree


class ModelDrafter(Drafter):
    """Drafts chains, or trees, by sampling a model of the target's vocabulary.

    Each token is drawn from the distribution that the request's own sampling parameters make of the
    draft model's logits, and that distribution, as drawn from, is what verification sees. Drafted
    tokens stay on the device. Drafts end where the model's context does.

    Args:
        model: any runtime that drafts, `TransformersModel` and `TabularModel` among them.
        vocab_size: the target's V, where the two models share a tokenizer but pad their logits to
            different widths: missing ids get no probability, surplus ones are masked before
            sampling. None takes the model's own.

    Raises:
        InvalidConfigError: `model` is no such model.
    """

    vocab_size: int = 0
    """The width of its distributions, V."""

    def __init__(self, model: Runtime, vocab_size: int | None = None) -> None:
        given: object = model
        if not isinstance(given, Runtime):
            name = given.__name__ if isinstance(given, type) else type(given).__name__
            expected = "an outrider.Runtime, such as TransformersModel(...)"
            raise InvalidConfigError("model", name, expected)
        self.model = model
        self.models = (model,)
        self.branches = model.capabilities.trees and model.capabilities.drafts_trees
        self.vocab_size = vocab_size or model.vocab_size

    def fresh(self, max_sequences: int) -> Self:
        """Make a drafter like this one, over the same weights, that has computed nothing yet.

        Args:
            max_sequences: for how many sequences it may draft at once.
        """
        other = copy(self)
        other.model = self.model.fresh(max_sequences)
        other.models = (other.model,)
        return other

    def propose(
        self, prefixes: Sequence[Prefix], plan: DraftPlan, ctx: DraftContext
    ) -> DraftProposal:
        """Propose chains, or trees, of the plan's depth for a model; chains end by `ctx.depths`."""
        depth = plan.model_depth
        shown = [self._shown(p) if n else p for p, n in zip(prefixes, depth, strict=True)]
        depth = np.minimum(depth, self._room(shown, plan))
        if not depth.any():
            return nothing_drafted(len(prefixes), ctx.device)
        ctx.limit_depths(depth)
        return self._draft(self._opened(shown, depth), depth, plan, ctx)

    def prefill(self, prefix: Prefix, most: int) -> int:
        """Prefill a part of a long prompt; nothing where the model has no room to draft."""
        shown, longest = self._shown(prefix), self.model.max_length
        if longest is not None and len(shown) > longest:
            return 0
        return self.model.prefill(shown, most).missing

    def _draft(
        self, cursor: Cursor, depth: NDArray[np.int64], plan: DraftPlan, ctx: DraftContext
    ) -> DraftProposal:
        """Draft rows to these depths, int64 [B], one of them at least 1."""
        if plan.tree is not None:
            return draft_tree(cursor, plan.tree, depth, ctx, self._fed, self._aligned)
        logits = cursor.logits
        tokens: list[Tensor] = []
        made: list[Distributions] = []
        for position in range(int(depth.max())):
            if position:
                logits = cursor.step(self._fed(tokens[-1]))
            path = torch.stack(tokens, -1)[:, None] if tokens and ctx.processes_logits else None
            made.append(ctx.distribution(self._aligned(logits), path))
            tokens.append(ctx.pick(made[-1], position))
            depth = ctx.depths(None if plan.stop is None else cursor.confidence)
            if (depth <= len(tokens)).all():
                break
        drafted = torch.stack(tokens, 1)
        probs = [distribution.probs for distribution in made if distribution.probs is not None]
        if probs:
            return DraftProposal(drafted, depth, Distributions(probs=torch.stack(probs, 1)))
        return DraftProposal(drafted, depth, Distributions(point_masses=drafted))

    def _opened(self, shown: Sequence[Prefix], depth: NDArray[np.int64]) -> Cursor:
        """Open a cursor of all rows, one of which drafts at least.

        Rows of depth 0 are not computed by the model: their logits are padding, 0.
        """
        rows = np.flatnonzero(depth)
        cursor = self._open([shown[row] for row in rows.tolist()], int(depth.max()))
        return cursor if len(rows) == len(shown) else _SomeRows(cursor, rows, len(shown))

    def _open(self, prefixes: Sequence[Prefix], depth: int) -> Cursor:
        """Open the model at the end of prefixes that it is shown."""
        return self.model.open(prefixes, depth)

    def _room(self, shown: Sequence[Prefix], plan: DraftPlan) -> NDArray[np.int64]:
        """Return how deep each row may be drafted in the model's context, int64 [B]."""
        longest = self.model.max_length
        if longest is None:
            return plan.depth
        levels = [1] * plan.deepest if plan.tree is None else plan.tree.levels
        # A level's tokens are fed to draft the next: none for the first.
        fed = np.cumsum([0, *levels[:-1]])
        left = longest - np.array([prefix.length for prefix in shown], dtype=np.int64)
        return np.searchsorted(fed, left, side="right")

    def _shown(self, prefix: Prefix) -> Prefix:
        """Return a prefix as the model reads it: ids that it has no embedding for are its last.

        Drafts may be drawn from any distribution, so that this costs acceptance at most.
        """
        own = self.model.vocab_size
        if own >= self.vocab_size or prefix.tokens.max(initial=0) < own:
            return prefix
        return Prefix(prefix.sequence_id, np.minimum(prefix.tokens, own - 1))

    def _fed(self, tokens: Tensor) -> Tensor:
        """Return drafted tokens in the model's own ids."""
        return tokens

    def _aligned(self, logits: Tensor) -> Tensor:
        """Return the model's logits [..., own V] for the target's ids, [..., V]."""
        surplus = logits.shape[-1] - self.vocab_size
        return logits if surplus == 0 else pad(logits, (0, -surplus), value=-torch.inf)


class _SomeRows(Cursor):
    """A cursor of some rows, as one of all; see `Cursor`."""

    def __init__(self, cursor: Cursor, rows: NDArray[np.int64], count: int) -> None:
        self._cursor = cursor
        self._count = count
        self._rows = sent(rows, cursor.logits.device)

    @property
    def logits(self) -> Tensor:
        """Logits [B, V]."""
        return self._among_all(self._cursor.logits)

    @property
    def confidence(self) -> Tensor | None:
        """How likely the next tokens are kept, [B], if the model says so."""
        found = self._cursor.confidence
        return None if found is None else self._among_all(found)

    def step(self, tokens: Tensor) -> Tensor:
        """Feed tokens int64 [B]."""
        return self._among_all(self._cursor.step(tokens[self._rows]))

    def expand(self, tokens: Tensor, parents: Tensor) -> Tensor:
        """Feed nodes [B, M]."""
        return self._among_all(self._cursor.expand(tokens[self._rows], parents[self._rows]))

    def _among_all(self, logits: Tensor) -> Tensor:
        whole = logits.new_zeros(self._count, *logits.shape[1:])
        return whole.index_copy_(0, self._rows, logits)
