"""Prompt lookup: draft what followed the same tokens earlier in the sequence.

Method: Saxena 2023, "Prompt Lookup Decoding". The last n tokens are looked for earlier in the
sequence, the longest n first; of several occurrences the most recent is taken, and the tokens that
followed it are proposed, each as a point mass. A match of m tokens is trusted to last i more with
m / (m + i), as a record of earlier matches has it.
"""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral

import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidConfigError
from ..types.protocols import DraftContext
from ..types.records import DraftPlan, Prefix
from .candidate import Candidate, LookupDrafter
from .track_record import TrackRecord

_LEAST_CHANCE = 0.25
"""Less likely tokens are not proposed where the plan asks for what is worth its verification."""


class NgramDrafter(LookupDrafter):
    """Drafts by looking the last few tokens up in the sequence itself. Needs no second model.

    Args:
        prompt_lookup_max: the longest run of last tokens looked for, at least 1.
        prompt_lookup_min: the shortest, from 1 to `prompt_lookup_max`.
    """

    def __init__(self, prompt_lookup_max: int = 5, prompt_lookup_min: int = 1) -> None:
        if not _is_integer(prompt_lookup_max) or prompt_lookup_max < 1:
            raise InvalidConfigError("prompt_lookup_max", prompt_lookup_max, "an integer >= 1")
        if not _is_integer(prompt_lookup_min) or not 1 <= prompt_lookup_min <= prompt_lookup_max:
            raise InvalidConfigError(
                "prompt_lookup_min",
                prompt_lookup_min,
                f"an integer in 1..prompt_lookup_max={prompt_lookup_max}",
            )
        self.prompt_lookup_max = prompt_lookup_max
        self.prompt_lookup_min = prompt_lookup_min
        self._record = TrackRecord()

    def candidates(
        self, prefixes: Sequence[Prefix], plan: DraftPlan, ctx: DraftContext
    ) -> list[Candidate]:
        """What followed the longest and most recent match, cut to the depth; nothing if none.

        A function of the row's own prefix, and unless the row is `ctx.local` of how often such
        tokens were kept so far.
        """
        least = 0.0 if plan.worth is None else _LEAST_CHANCE
        rows = zip(prefixes, plan.depth.tolist(), strict=True)
        found = [self._candidate(prefix.tokens, depth, least) for prefix, depth in rows]
        return self._record.applied(prefixes, found, ctx)

    def lookup(self, tokens: NDArray[np.int64], depth: int) -> NDArray[np.int64]:
        """`depth` tokens that followed an earlier occurrence of the last tokens, or none.

        Args:
            tokens: the sequence so far, int64 [L].
            depth: how many tokens are wanted.
        """
        return self._candidate(tokens, depth, 0.0).tokens

    def _candidate(self, tokens: NDArray[np.int64], depth: int, least: float) -> Candidate:
        start, matched = self._match(tokens) if depth > 0 else (0, 0)
        if matched < self.prompt_lookup_min:
            return Candidate.nothing()
        chances = matched / (matched + np.arange(1.0, depth + 1))
        chances = chances[chances >= least]
        # A match that runs into the end of the sequence repeats itself, as a loop does.
        drafted = np.resize(tokens[start : start + depth], len(chances))
        parents = np.arange(len(chances), dtype=np.int64)
        return Candidate(drafted, parents, chances, matched, float(chances.sum()))

    def _match(self, tokens: NDArray[np.int64]) -> tuple[int, int]:
        """What follows the longest and most recent occurrence of the last tokens of int64 [L].

        Returns:
            Where it begins, and how many tokens matched, 0 if none did.
        """
        last = len(tokens) - 1
        # Positions before the last where the matched run may end, the most recent first.
        ends = np.flatnonzero(tokens[:last] == tokens[last])[::-1]
        best, matched = ends[:0], 0
        for length in range(1, self.prompt_lookup_max + 1):
            if length > 1:
                ends = ends[ends >= length - 1]
                ends = ends[tokens[ends - length + 1] == tokens[last - length + 1]]
            if not len(ends):
                break
            best, matched = ends, length
        return (int(best[0]) + 1, matched) if matched else (0, 0)


def _is_integer(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)
