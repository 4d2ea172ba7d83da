"""Drafting with a model whose tokenizer is not the target's.

By tokens (Timor et al. 2025, arXiv 2502.05202, "token-level intersection"): the draft's distribution is cut
to the tokens that both vocabularies have before anything is drawn from it, and what is drawn is
named by the target's ids. What verification sees is the very distribution that was drawn from, so that every
method stays exact, on chains and trees alike.

By text, where few tokens are common (the same paper's string-level matching): the draft writes on
in its own tokens, the likeliest each time, and the text is proposed as the target would write it,
each token outright.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import takewhile
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from ...errors import InvalidConfigError, VocabMismatchError
from ...types.protocols import AutoregressiveModel, CachedModel, Cursor, DraftContext, is_bounded
from ...types.records import Distributions, DraftPlan, DraftProposal, Prefix
from ..model import ModelDrafter
from ..some_rows import opened
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


class VocabularyDrafter:
    """Drafts with a model of another vocabulary.

    Args:
        model: any autoregressive model, in the draft's vocabulary.
        draft_tokenizer: the draft's, a fast tokenizer of transformers.
        target_tokenizer: the target's, likewise.
        vocab_size: the width V of the target's logits; None takes its tokenizer's length.
        match: "tokens" draws from the distribution over the common tokens, "text" proposes what the draft
            would write; "auto" goes by text where less than a tenth of the draft's tokens are
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
        model: AutoregressiveModel,
        draft_tokenizer: Any,
        target_tokenizer: Any,
        vocab_size: int | None = None,
        *,
        match: Literal["auto", "tokens", "text"] = "auto",
    ) -> None:
        if match not in ("auto", "tokens", "text"):
            raise InvalidConfigError("match", match, "'auto', 'tokens' or 'text'")
        self.model = model
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
        self.common = len(common)
        if match == "auto":
            match = "text" if self.common < _FEW * len(draft.words) else "tokens"
        self.match: Literal["tokens", "text"] = match
        respeller = Respeller(target, Writer(draft_tokenizer, draft), common)
        self._drafter: ModelDrafter | _TextDrafter
        if match == "tokens":
            self._drafter = ModelDrafter(_MappedModel(model, respeller, common, width))
        else:
            writer = Writer(target_tokenizer, target)
            self._drafter = _TextDrafter(model, respeller, draft, writer, width)
        self._vocab_size = width

    @property
    def models(self) -> Sequence[object]:
        """The draft model, in the target's ids or in its own."""
        return self._drafter.models

    @property
    def ends_early(self) -> bool:
        """Drafts by tokens end where the plan says so; text is written to its end."""
        return self.match == "tokens"

    @property
    def vocab_size(self) -> int:
        """The target's V."""
        return self._vocab_size

    def propose(
        self, prefixes: Sequence[Prefix], plan: DraftPlan, ctx: DraftContext
    ) -> DraftProposal:
        """A chain for each row, or by tokens a tree if the plan asks for one."""
        return self._drafter.propose(prefixes, plan, ctx)


class _MappedModel:
    """A draft model that is spoken to in the target's ids."""

    def __init__(
        self,
        model: AutoregressiveModel,
        respeller: Respeller,
        common: dict[int, int],
        vocab_size: int,
    ) -> None:
        self.models = (model,)
        self.vocab_size = vocab_size
        self._prefixes = _Prefixes(model, respeller)
        device = model.device if isinstance(model, CachedModel) else torch.device("cpu")
        pairs = torch.tensor(sorted(common.items()), device=device)
        self._target_ids, self._draft_ids = pairs.unbind(1)
        # A token that the draft does not have is drawn where nothing else is allowed; any id will
        # do to go on from there.
        self._own = torch.zeros(vocab_size, dtype=torch.int64, device=device)
        self._own[self._target_ids] = self._draft_ids

    def open(self, prefixes: Sequence[Prefix], depth: int) -> _MappedCursor:
        """A cursor at the end of the target's prefixes."""
        cursor = self.models[0].open(self._prefixes.written(prefixes, depth), depth)
        return _MappedCursor(self, cursor)

    def release(self, sequence_ids: Iterable[int], *, discard: bool = False) -> None:
        """Forget how these sequences' prefixes were written."""
        self._prefixes.release(sequence_ids)

    def own(self, tokens: Tensor) -> Tensor:
        """The draft's ids for the target's."""
        return self._own[tokens]

    def named(self, logits: Tensor) -> Tensor:
        """Logits [..., V] of the target's ids from those of the draft's."""
        wide = logits.new_full((*logits.shape[:-1], self.vocab_size), _FAR)
        return wide.index_copy_(-1, self._target_ids, logits.index_select(-1, self._draft_ids))


class _MappedCursor:
    """A draft model in the middle of drafting, spoken to in the target's ids."""

    def __init__(self, model: _MappedModel, cursor: Cursor) -> None:
        self._model = model
        self._cursor = cursor

    @property
    def logits(self) -> Tensor:
        """Logits [B, V] after the prefixes and the tokens fed so far."""
        return self._model.named(self._cursor.logits)

    def step(self, tokens: Tensor) -> Tensor:
        """Feed tokens int64 [B], and return the logits [B, V] after them."""
        return self._model.named(self._cursor.step(self._model.own(tokens)))

    def expand(self, tokens: Tensor, parents: Tensor) -> Tensor:
        """Feed nodes of a tree [B, M], and return the logits [B, M, V] after them."""
        return self._model.named(self._cursor.expand(self._model.own(tokens), parents))


class _TextDrafter:
    """Proposes the text that the draft would write, as the target writes it."""

    def __init__(
        self,
        model: AutoregressiveModel,
        respeller: Respeller,
        draft: Spelling,
        writer: Writer,
        vocab_size: int,
    ) -> None:
        self._model = model
        self._prefixes = _Prefixes(model, respeller)
        self._draft = draft
        self._writer = writer
        self._vocab_size = vocab_size

    @property
    def models(self) -> Sequence[object]:
        """The draft model, and what writes its prefixes."""
        return (self._model, self._prefixes)

    def propose(
        self, prefixes: Sequence[Prefix], plan: DraftPlan, ctx: DraftContext
    ) -> DraftProposal:
        """A chain for each row, at most as long as its plan: each token is a point mass.

        What is proposed follows from the prefix alone, so that it is known whatever is drawn.
        """
        depth = plan.deepest
        cursor = opened(self._model, self._prefixes.written(prefixes, depth), plan.depth)
        drafted = [cursor.logits.argmax(-1)]
        while len(drafted) < depth:
            drafted.append(cursor.step(drafted[-1]).argmax(-1))
        runs = [
            # What a row's mates draft beyond its own depth is not to change how it is written.
            self._as_target(row[:most])[:most]
            for row, most in zip(torch.stack(drafted, 1).tolist(), plan.depth, strict=True)
        ]
        lengths = np.array([len(run) for run in runs], dtype=np.int64)
        tokens = np.zeros((len(runs), int(lengths.max(initial=0))), dtype=np.int64)
        for row, run in enumerate(runs):
            tokens[row, : len(run)] = run
        sent = torch.from_numpy(tokens).to(ctx.device)
        return DraftProposal(sent, lengths, Distributions(point_masses=sent))

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


class _Prefixes:
    """Prefixes in the draft's tokens, cut to what the draft has room for."""

    def __init__(self, model: AutoregressiveModel, respeller: Respeller) -> None:
        self._respeller = respeller
        self._room = model.max_length if is_bounded(model) else None
        self._known = model.vocab_size

    def written(self, prefixes: Sequence[Prefix], depth: int) -> list[Prefix]:
        """The prefixes as the draft writes them, to be followed by up to `depth` tokens.

        The draft may need more tokens for a text than the target. If they are more than its
        context, it is shown the last of them; half of that is dropped at a time, so that
        its cache serves again. Room is left for drafts of any usual depth: what a row is shown is
        not to depend on how deep another drafts.

        Tokens that the draft has no embedding for are its last: any prefix is a lawful one.
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

    def release(self, sequence_ids: Iterable[int], *, discard: bool = False) -> None:
        """Forget how these sequences' prefixes were written."""
        self._respeller.release(sequence_ids)
