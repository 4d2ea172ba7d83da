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

from dataclasses import replace
from itertools import takewhile
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...config.validation import choice
from ...errors import VocabMismatchError
from ...runtimes.base import Cursor, Runtime
from ...types.records import DraftPlan, DraftProposal, Prefix
from ..base import DraftContext
from ..lookup import Candidate, proposal_of
from ..model import ModelDrafter
from .respelling import Respeller, Writer
from .spelling import Spelling, counterparts

_FEW = 0.1
"""Below this share of the draft's tokens in common, drafting goes by text."""


class VocabularyDrafter(ModelDrafter):
    """Drafts with a model of another vocabulary.

    Args:
        model: any runtime that drafts, in the draft's vocabulary.
        draft_tokenizer: the draft's, a fast tokenizer of transformers, or one that says what its
            tokens spell, as `LlamaCppTokenizer` does.
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
        choice("match", match, ("auto", "tokens", "text"))
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
        super().__init__(model, width)
        self.match: Literal["tokens", "text"] = match
        self.branches = self.branches and match == "tokens"
        self.common = len(common)
        self._draft_spelling = draft
        self._target_writer = Writer(target_tokenizer, target)
        self._respeller = Respeller(target, Writer(draft_tokenizer, draft), common)
        self._target_ids, self._draft_ids = map(
            torch.tensor, zip(*sorted(common.items()), strict=True)
        )

    def _shown(self, prefix: Prefix) -> Prefix:
        """Return a prefix in the draft's tokens."""
        return super()._shown(self._respeller.written(prefix))

    def _fed(self, tokens: Tensor) -> Tensor:
        """Return tokens that both have in the draft's ids."""
        places = torch.searchsorted(self._target_ids.to(tokens.device), tokens)
        return self._draft_ids.to(tokens.device)[places.clamp(max=self.common - 1)]

    def _aligned(self, logits: Tensor) -> Tensor:
        """Return logits [..., V] for the target's ids: those that the draft has not get -inf."""
        wide = logits.new_full((*logits.shape[:-1], self.vocab_size), -torch.inf)
        target_ids, own = (ids.to(logits.device) for ids in (self._target_ids, self._draft_ids))
        return wide.index_copy_(-1, target_ids, logits.index_select(-1, own))

    def _draft(
        self, cursor: Cursor, depth: NDArray[np.int64], plan: DraftPlan, ctx: DraftContext
    ) -> DraftProposal:
        """Draft by tokens, or propose the likeliest text: it follows from the prefix alone."""
        if self.match == "tokens":
            return super()._draft(cursor, depth, plan, ctx)
        drafted = [cursor.logits.argmax(-1)]
        while len(drafted) < depth.max():
            drafted.append(cursor.step(drafted[-1]).argmax(-1))
        # What a row's mates draft beyond its own depth must not change how it is written.
        rows = zip(torch.stack(drafted, 1).tolist(), depth.tolist(), strict=True)
        runs = [np.array(self._as_target(row[:most])[:most], np.int64) for row, most in rows]
        found = [Candidate(run, np.zeros(len(run))) for run in runs]
        return replace(proposal_of(found, [self.source] * len(found), plan, ctx), confidence=None)

    def _as_target(self, drafted: list[int]) -> list[int]:
        """Return drafted tokens in the target's, up to the first that spells nothing."""
        words = self._draft_spelling.words
        spelling = list(takewhile(words.__contains__, drafted))
        data = b"".join(words[token] for token in spelling)
        ids = self._target_writer.written(data, opens=False)
        eos = self._target_writer.spelling.eos
        ends = drafted[len(spelling) :][:1] == [self._draft_spelling.eos]
        if ends and eos is not None:
            ids = [*ids, eos]
        return list(takewhile(lambda token: token < self.vocab_size, ids))
