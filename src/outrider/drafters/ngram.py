"""Prompt lookup: draft what followed the same tokens earlier in the sequence.

Method: Saxena 2023, "Prompt Lookup Decoding". The last n tokens are looked for earlier in the
sequence, the longest n first; of several occurrences the most recent is taken, and the tokens that
followed it are proposed.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..config.validation import integer
from ..types.records import DraftPlan, Prefix
from .base import DraftContext
from .lookup import NOTHING, Candidate, LookupDrafter, match_confidence, matches


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
        self.prompt_lookup_max = integer("prompt_lookup_max", prompt_lookup_max, 1)
        expected = f"an integer in 1..prompt_lookup_max={prompt_lookup_max}"
        self.prompt_lookup_min = integer(
            "prompt_lookup_min", prompt_lookup_min, 1, prompt_lookup_max, expected
        )

    def candidates(
        self, prefixes: Sequence[Prefix], plan: DraftPlan, ctx: DraftContext
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
        found = matches(tokens[:-1], tokens[-self.prompt_lookup_max :]) if depth else []
        if not found or found[0][1] < self.prompt_lookup_min:
            return NOTHING
        places, matched = found[0]
        # A match that runs into the end of the sequence repeats itself, as a loop does.
        drafted = np.resize(tokens[places[-1] : places[-1] + depth], depth)
        return Candidate(drafted, match_confidence(matched, np.arange(1, depth + 1)))
