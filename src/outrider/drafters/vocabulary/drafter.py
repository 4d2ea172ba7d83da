"""Drafting with a model whose tokenizer is not the target's.

By tokens (Timor et al. 2025, arXiv 2502.05202, "token-level intersection"): the draft's
distribution is cut to the tokens that both vocabularies have before anything is drawn from it, and
what is drawn is named by the target's ids. What verification sees is the very distribution that was
drawn from, so that every method stays exact, on chains and trees alike.

By text, where few tokens are common (the same paper's string-level matching): the draft writes on
in its own tokens, the likeliest each time, and the text is proposed as the target would write it,
each token a point mass.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import takewhile
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...errors import InvalidConfigError, VocabMismatchError
from ...runtimes.base import Cursor, Runtime
from ...types.records import Distributions, DraftPlan, DraftProposal, Prefix
from ...types.transfer import sent
from ..base import DraftContext, Drafter
from ..model import ModelDrafter, nothing, opened
from .respelling import Respeller, Writer
from .spelling import Spelling, counterparts

_FEW = 0.1
"""Below this share of the draft's tokens in common, drafting goes by text."""

_FOR_DRAFTS = 64
"""How many tokens of the draft's context are left for what it drafts, a quarter of it at most."""

_FAR = -1e4
"""The logit of a target token that the draft does not have.

Its probability rounds to zero beside any token that both have. It is finite so that a request that
forbids all of those still has a distribution to draft from.
"""


class VocabularyDrafter(Drafter):
    """Drafts with a model of another vocabulary.

    Args:
        model: any runtime that drafts, in the draft's vocabulary.
        draft_tokenizer: the draft's, a fast tokenizer of transformers.
        target_tokenizer: the target's, likewise.
        vocab_size: the width V of the target's logits; None takes its tokenizer's length.
        match: "tokens" draws from the distribution over the common tokens, "text" proposes what the
            draft would write; "auto" goes by text where less than a tenth of the draft's tokens are
            common.

    Attributes:
        model: the draft model.
        match: "tokens" or "text", as it is in use.
        common: how many tokens both vocabularies have.

    Raises:
        VocabMismatchError: no token is common to both, or a tokenizer does not say what its tokens
            spell.
        InvalidConfigError: `match` is not one of the three, or a tokenizer is not a fast one.
    """

    def __init__(
        self,
        model: Runtime,
        draft_tokenizer: Any,
        target_tokenizer: Any,
        vocab_size: int | None = None,
        *,
        match: Literal["auto", "tokens", "text"] = "auto",
    ) -> None:
        if match not in ("auto", "tokens", "text"):
            raise InvalidConfigError("match", match, "'auto', 'tokens' or 'text'")
        target, draft = Spelling.of(target_tokenizer), Spelling.of(draft_tokenizer)
        width = len(target_tokenizer) if vocab_size is None else vocab_size
        common = {
            index: own
            for index, own in counterparts(target, draft).items()
            if index < width and own < model.vocab_size
        }
        if not common:
            raise VocabMismatchError(
                f"no token of the draft's tokenizer ({len(draft_tokenizer)} tokens) spells the "
                f"same as one of the target's ({len(target_tokenizer)}); use another draft, or "
                "prompt lookup"
            )
        if match == "auto":
            match = "text" if len(common) < _FEW * len(draft.words) else "tokens"
        self.model = model
        self.models = (model,)
        self.match: Literal["tokens", "text"] = match
        self.common = len(common)
        self._vocab_size = width
        self._respeller = Respeller(target, Writer(draft_tokenizer, draft), common)
        prefixes = DraftPrefixes(model, self._respeller)
        self._drafter: Drafter
        if match == "tokens":
            self._drafter = _TokenDrafter(model, prefixes, common, width)
        else:
            writer = Writer(target_tokenizer, target)
            self._drafter = _TextDrafter(model, prefixes, draft, writer, width)

    @property
    def vocab_size(self) -> int:
        """The target's V."""
        return self._vocab_size

    def propose(
        self, prefixes: Sequence[Prefix], plan: DraftPlan, ctx: DraftContext
    ) -> DraftProposal:
        """Propose a chain for each row, or by tokens a tree if the plan has one."""
        return self._drafter.propose(prefixes, plan, ctx)

    def release(self, sequence_ids: Iterable[int], *, discard: bool = False) -> None:
        """Forget how these sequences' prefixes were written."""
        del discard
        self._respeller.release(sequence_ids)


class DraftPrefixes:
    """Prefixes in the draft's tokens, cut to what the draft has room for."""

    def __init__(self, model: Runtime, respeller: Respeller) -> None:
        self._respeller = respeller
        self._room = model.max_length
        self._known = model.vocab_size

    def written(self, prefixes: Sequence[Prefix], depth: int) -> list[Prefix]:
        """Write prefixes as the draft does, to be followed by up to `depth` tokens.

        The draft may need more tokens for a text than the target. If they are more than its
        context, it is shown the last of them; half of that is dropped at a time, so that its cache
        serves again. Room is left for drafts of any usual depth: what a row is shown must not
        depend on how deep another drafts.

        Tokens that the draft has no embedding for are replaced by its last: drafts may be drawn
        from any distribution, so that this costs acceptance at most.
        """
        return [self._cut(self._respeller.written(prefix), depth) for prefix in prefixes]

    def _cut(self, prefix: Prefix, depth: int) -> Prefix:
        if prefix.tokens.max(initial=0) >= self._known:
            prefix = Prefix(prefix.sequence_id, np.minimum(prefix.tokens, self._known - 1))
        if self._room is None:
            return prefix
        most = self._room - max(depth, min(self._room // 4, _FOR_DRAFTS))
        if len(prefix) <= most:
            return prefix
        some = max(1, most // 2)
        surplus = len(prefix) - most
        dropped = min(-(-surplus // some) * some, len(prefix) - 1)
        return Prefix(prefix.sequence_id, prefix.tokens[dropped:])


class _TokenDrafter(ModelDrafter):
    """Draws from the draft's distribution over the common tokens."""

    def __init__(
        self, model: Runtime, prefixes: DraftPrefixes, common: dict[int, int], vocab_size: int
    ) -> None:
        super().__init__(model, vocab_size)
        self._prefixes = prefixes
        self._common = torch.tensor(sorted(common.items()))

    def _possible(self, prefixes: Sequence[Prefix], plan: DraftPlan) -> NDArray[np.int64]:
        """Return the planned depths: prefixes are cut to the draft's context."""
        del prefixes
        return np.minimum(plan.depth, plan.model_depth)

    def _open(self, prefixes: Sequence[Prefix], depth: NDArray[np.int64]) -> Cursor:
        """Open the draft at the end of the target's prefixes."""
        written = self._prefixes.written(prefixes, int(depth.max()))
        cursor = opened(self.model, written, depth)
        return _MappedCursor(cursor, self._common.to(cursor.logits.device), self.vocab_size)


class _MappedCursor(Cursor):
    """A draft model in the middle of drafting, fed the target's ids; see `Cursor`.

    Args:
        cursor: the draft's.
        common: pairs of ids, the target's and the draft's, int64 [n, 2].
        vocab_size: the target's V.
    """

    def __init__(self, cursor: Cursor, common: Tensor, vocab_size: int) -> None:
        self._cursor = cursor
        self._target_ids, self._draft_ids = common.unbind(1)
        self._vocab_size = vocab_size
        # A token that the draft does not have is drawn where nothing else is allowed; any id will
        # do to go on from there.
        self._own = torch.zeros(vocab_size, dtype=torch.int64, device=common.device)
        self._own[self._target_ids] = self._draft_ids

    @property
    def logits(self) -> Tensor:
        """Logits [B, V]."""
        return self._named(self._cursor.logits)

    def step(self, tokens: Tensor) -> Tensor:
        """Feed tokens int64 [B]."""
        return self._named(self._cursor.step(self._own[tokens]))

    def expand(self, tokens: Tensor, parents: Tensor) -> Tensor:
        """Feed nodes [B, M]."""
        return self._named(self._cursor.expand(self._own[tokens], parents))

    def _named(self, logits: Tensor) -> Tensor:
        """Logits [..., V] of the target's ids from those of the draft's."""
        wide = logits.new_full((*logits.shape[:-1], self._vocab_size), _FAR)
        return wide.index_copy_(-1, self._target_ids, logits.index_select(-1, self._draft_ids))


class _TextDrafter(Drafter):
    """Proposes the text that the draft would write, as the target writes it."""

    def __init__(
        self,
        model: Runtime,
        prefixes: DraftPrefixes,
        draft: Spelling,
        writer: Writer,
        vocab_size: int,
    ) -> None:
        self._model = model
        self._prefixes = prefixes
        self._draft = draft
        self._writer = writer
        self._vocab_size = vocab_size

    @property
    def vocab_size(self) -> int:
        """The target's V."""
        return self._vocab_size

    def propose(
        self, prefixes: Sequence[Prefix], plan: DraftPlan, ctx: DraftContext
    ) -> DraftProposal:
        """Propose a chain of point masses for each row: what follows from the prefix alone."""
        depth = np.minimum(plan.depth, plan.model_depth)
        deepest = int(depth.max(initial=0))
        if not deepest:
            return nothing(len(prefixes), ctx.device)
        cursor = opened(self._model, self._prefixes.written(prefixes, deepest), depth)
        drafted = [cursor.logits.argmax(-1)]
        while len(drafted) < deepest:
            drafted.append(cursor.step(drafted[-1]).argmax(-1))
        # What a row's mates draft beyond its own depth must not change how it is written.
        rows = zip(torch.stack(drafted, 1).tolist(), depth.tolist(), strict=True)
        runs = [self._as_target(row[:most])[:most] for row, most in rows]
        lengths = np.array([len(run) for run in runs], dtype=np.int64)
        tokens = np.zeros((len(runs), int(lengths.max())), dtype=np.int64)
        for row, run in enumerate(runs):
            tokens[row, : len(run)] = run
        proposed = sent(torch.from_numpy(tokens), ctx.device)
        return DraftProposal(proposed, lengths, Distributions(point_masses=proposed))

    def _as_target(self, drafted: list[int]) -> list[int]:
        """Drafted tokens in the target's, up to the first that spells nothing."""
        words = self._draft.words
        spelling = list(takewhile(words.__contains__, drafted))
        ids = self._writer.written(b"".join(words[token] for token in spelling), opens=False)
        eos = self._writer.spelling.eos
        ends = len(spelling) < len(drafted) and drafted[len(spelling)] == self._draft.eos
        if ends and eos is not None:
            ids = [*ids, eos]
        return list(takewhile(lambda token: token < self._vocab_size, ids))
