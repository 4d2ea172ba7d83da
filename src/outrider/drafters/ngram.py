"""Prompt lookup: draft what followed the same tokens earlier in the sequence.

Method: Saxena 2023, "Prompt Lookup Decoding". The last n tokens are looked for earlier in the
sequence, the longest n first; of several occurrences the most recent is taken, and the tokens that
followed it are proposed, each as a point mass.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from ..errors import InvalidConfigError
from ..protocols import DraftContext
from ..records import DraftPlan, DraftProposal, Laws, Prefix


class NgramDrafter:
    """Drafts by looking the last few tokens up in the sequence itself. Needs no second model.

    Args:
        prompt_lookup_max: the longest run of last tokens looked for, at least 1.
        prompt_lookup_min: the shortest, from 1 to `prompt_lookup_max`.
    """

    def __init__(self, prompt_lookup_max: int = 5, prompt_lookup_min: int = 1) -> None:
        if prompt_lookup_max < 1:
            raise InvalidConfigError("prompt_lookup_max", prompt_lookup_max, "an integer >= 1")
        if not 1 <= prompt_lookup_min <= prompt_lookup_max:
            raise InvalidConfigError(
                "prompt_lookup_min",
                prompt_lookup_min,
                f"an integer in 1..prompt_lookup_max={prompt_lookup_max}",
            )
        self.prompt_lookup_max = prompt_lookup_max
        self.prompt_lookup_min = prompt_lookup_min

    @property
    def vocab_size(self) -> None:
        """None: it only proposes tokens that it has seen."""
        return None

    def propose(
        self, prefixes: Sequence[Prefix], plan: DraftPlan, ctx: DraftContext
    ) -> DraftProposal:
        """What followed the longest and most recent match, cut to the depth; nothing if none."""
        found = [
            self.lookup(prefix.tokens, int(depth))
            for prefix, depth in zip(prefixes, plan.depth, strict=True)
        ]
        lengths = np.array([len(run) for run in found], dtype=np.int64)
        tokens = np.zeros((len(found), int(lengths.max(initial=0))), dtype=np.int64)
        for row, run in enumerate(found):
            tokens[row, : len(run)] = run
        drafted = torch.from_numpy(tokens).to(ctx.device)
        return DraftProposal(drafted, lengths, Laws(atoms=drafted))

    def lookup(self, tokens: NDArray[np.int64], depth: int) -> NDArray[np.int64]:
        """`depth` tokens that followed an earlier occurrence of the last tokens, or none.

        Args:
            tokens: the sequence so far, int64 [L].
            depth: how many tokens are wanted.
        """
        last = len(tokens) - 1
        # Positions before the last where the matched run may end, the most recent first.
        ends = np.flatnonzero(tokens[:last] == tokens[last])[::-1] if depth > 0 else tokens[:0]
        best, matched = ends[:0], 0
        for length in range(1, self.prompt_lookup_max + 1):
            if length > 1:
                ends = ends[ends >= length - 1]
                ends = ends[tokens[ends - length + 1] == tokens[last - length + 1]]
            if not len(ends):
                break
            best, matched = ends, length
        if matched < self.prompt_lookup_min:
            return tokens[:0]
        start = int(best[0]) + 1
        # A match that runs into the end of the sequence repeats itself, as a loop does.
        return np.resize(tokens[start : start + depth], depth)
