"""Prompt lookup: draft what followed the same tokens earlier in the sequence.

Method: Saxena 2023, "Prompt Lookup Decoding". The last n tokens are looked for earlier in the
sequence, the longest n first; of several occurrences the most recent is taken, and the tokens that
followed it are proposed.
"""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral

import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidConfigError
from ..types.records import DraftPlan, Prefix
from .base import DraftContext
from .lookup import NOTHING, Candidate, LookupDrafter


class NgramDrafter(LookupDrafter):
    """Looks the last few tokens up in the sequence itself. Needs no second model.

    Args:
        prompt_lookup_max: the longest run of last tokens looked for, at least 1.
        prompt_lookup_min: the shortest, from 1 to `prompt_lookup_max`.

    Raises:
        InvalidConfigError: an argument is out of its range.
    """

    source = "ngram"

    def __init__(self, prompt_lookup_max: int = 5, prompt_lookup_min: int = 1) -> None:
        if not _is_integer(prompt_lookup_max) or prompt_lookup_max < 1:
            raise InvalidConfigError("prompt_lookup_max", prompt_lookup_max, "an integer >= 1")
        if not _is_integer(prompt_lookup_min) or not 1 <= prompt_lookup_min <= prompt_lookup_max:
            expected = f"an integer in 1..prompt_lookup_max={prompt_lookup_max}"
            raise InvalidConfigError("prompt_lookup_min", prompt_lookup_min, expected)
        self.prompt_lookup_max = prompt_lookup_max
        self.prompt_lookup_min = prompt_lookup_min

    def candidates(
        self,
        prefixes: Sequence[Prefix],
        plan: DraftPlan,
        ctx: DraftContext,  # noqa: ARG002 - a sequence is looked up in itself
    ) -> list[Candidate]:
        """Return what followed the longest and most recent match; nothing if there is none."""
        rows = zip(prefixes, plan.depth.tolist(), strict=True)
        return [self.lookup(prefix.tokens, depth) for prefix, depth in rows]

    def lookup(self, tokens: NDArray[np.int64], depth: int) -> Candidate:
        """Return `depth` tokens that followed an earlier occurrence of the last tokens, or none.

        Args:
            tokens: the sequence so far, int64 [L].
            depth: how many tokens are wanted.
        """
        start, matched = self._match(tokens) if depth > 0 else (0, 0)
        if matched < self.prompt_lookup_min:
            return NOTHING
        # A match that runs into the end of the sequence repeats itself, as a loop does.
        drafted = np.resize(tokens[start : start + depth], depth)
        return Candidate(drafted, trust(matched, np.arange(1, depth + 1)))

    def _match(self, tokens: NDArray[np.int64]) -> tuple[int, int]:
        """Find the longest and most recent occurrence of the last tokens of int64 [L].

        Returns:
            Where its continuation begins, and how many tokens matched, 0 if none did.
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


def trust(matched: int, place: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the confidence that a match of m tokens which lasted i - 1 more lasts another.

    It is (m + i - 1) / (m + i), so that i tokens are kept with probability m / (m + i).

    Args:
        matched: m, at least 1.
        place: i, at least 1, of any shape.
    """
    confidence: NDArray[np.float64] = (matched + place - 1) / (matched + place)
    return confidence


def _is_integer(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)
