"""Drafts from what followed the same tokens before: in the request itself, or in earlier ones."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ...config.validation import integer, real
from ...types.records import DraftPlan, Prefix
from ..base import DraftContext
from ..lookup import Candidate, LookupDrafter, token_ids
from .draft import Limits, best_draft


class SuffixDrafter(LookupDrafter):
    """Drafts what followed the last tokens before. Needs no second model.

    It finds the longest match in the request's own prompt and output, and in the outputs of earlier
    requests: a pool, which is never used for rows whose text must repeat (seeded ones). A drafter
    belongs to one decoder at a time.

    Args:
        max_match: the longest match looked for, in tokens.
        min_match: the shortest, from 1 to `max_match`.
        max_spec_factor: a draft has at most this many tokens for each that matched, above 0,
        max_spec_offset: and this many more, at least 0.
        min_token_prob: tokens estimated to be kept less often are not proposed, in (0, 1].
        max_pool_tokens: how many tokens of earlier requests are kept, the latest; 0 keeps none.
            8 bytes each; a look-up searches through all of them.
        pool_prompts: whether prompts go to the pool as well.

    Raises:
        InvalidConfigError: an argument is out of its range.
    """

    source = "suffix"

    def __init__(
        self,
        *,
        max_match: int = 32,
        min_match: int = 1,
        max_spec_factor: float = 2.0,
        max_spec_offset: float = 0.0,
        min_token_prob: float = 0.1,
        max_pool_tokens: int = 100_000,
        pool_prompts: bool = False,
    ) -> None:
        self._max_match = integer("max_match", max_match, 1)
        expected = f"an integer in 1..max_match={max_match}"
        self._limits = Limits(
            depth=0,
            tokens=0,
            branches=False,
            factor=real("max_spec_factor", max_spec_factor, "a number > 0", lambda x: x > 0),
            offset=real("max_spec_offset", max_spec_offset, "a number >= 0", lambda x: x >= 0),
            least=real(
                "min_token_prob", min_token_prob, "a number in (0, 1]", lambda x: 0 < x <= 1
            ),
            shortest=integer("min_match", min_match, 1, max_match, expected),
        )
        self._max_pool_tokens = integer("max_pool_tokens", max_pool_tokens, 0)
        self._pool_prompts = pool_prompts
        self._pool = np.empty(0, dtype=np.int64)
        # Of each live sequence the longest text that may be learnt from, and its prompt's length.
        self._learnable: dict[int, tuple[Prefix, int]] = {}

    @property
    def pooled_tokens(self) -> int:
        """How many tokens of earlier requests are kept."""
        return int(np.count_nonzero(self._pool >= 0))

    def learn(self, tokens: Sequence[int] | NDArray[np.int64]) -> None:
        """Put a text into the pool: token ids that outputs are expected to resemble.

        Raises:
            InvalidConfigError: they are no flat sequence of token ids.
        """
        ids = token_ids("tokens", tokens)
        if not len(ids):
            return
        pool = np.concatenate([self._pool, ids, [-1]])
        kept = np.flatnonzero(pool >= 0)
        surplus = len(kept) - self._max_pool_tokens
        self._pool = pool[kept[surplus - 1] + 1 :] if surplus > 0 else pool

    def candidates(
        self, prefixes: Sequence[Prefix], plan: DraftPlan, ctx: DraftContext
    ) -> list[Candidate]:
        """Return the best draft for each row, from the sequence itself or from the pool."""
        found = []
        rows = zip(prefixes, plan.depth, plan.lengths, ctx.prompt_lengths, ctx.local, strict=True)
        for prefix, depth, tokens, prompt_length, local in rows:
            if ctx.learning:
                self._learnable[prefix.sequence_id] = prefix, int(prompt_length)
            limits = replace(
                self._limits, depth=depth, tokens=tokens, branches=plan.tree is not None
            )
            last = prefix.tokens[-self._max_match :]
            best = best_draft(prefix.tokens, last, limits)
            if not local:
                best = best_draft(self._pool, last, limits, best)
            found.append(best[1])
        return found

    def observe_output(self, prefixes: Sequence[Prefix]) -> None:
        """Note the whole text of sequences that ended, for the pool."""
        for prefix in prefixes:
            if prefix.sequence_id in self._learnable:
                _, prompt_length = self._learnable[prefix.sequence_id]
                self._learnable[prefix.sequence_id] = prefix, prompt_length

    def release(self, sequence_ids: Iterable[int], *, discard: bool = False) -> None:
        """Forget these sequences; unless discarded, their outputs go to the pool."""
        for sequence_id in sequence_ids:
            prefix, prompt_length = self._learnable.pop(sequence_id, (None, 0))
            if prefix is not None and not discard:
                self.learn(prefix.tokens[0 if self._pool_prompts else prompt_length :])
