"""How well a source of looked-up tokens has estimated so far: kept tokens beside expected ones."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..protocols import DraftContext
from ..records import Prefix
from .candidate import Candidate

_MEMORY = 63 / 64
"""What an observed token weighs beside the next."""

_TRUSTED = 8.0
"""For how many tokens, all as expected, a source counts before it was seen."""

_LEAST, _MOST = 0.1, 1.5
"""The bounds of the ratio."""


class TrackRecord:
    """A decayed ratio of tokens kept to tokens expected, which estimates are scaled with.

    A sequence's next prefix says what followed the last one, whatever was proposed after it. A
    candidate is followed along it: at each node that was reached counts whether one of the node's
    children came, beside how likely that was estimated to be. So a candidate that was not proposed
    counts as well as one that was, and a source that is distrusted has a way back.

    Rows that are `ctx.local` neither count nor are scaled, and a rehearsal leaves no trace.
    """

    def __init__(self) -> None:
        self._kept = self._expected = _TRUSTED
        self._last: dict[int, tuple[int, Candidate]] = {}

    @property
    def ratio(self) -> float:
        """Tokens kept for each that was expected to be, from 0.1 to 1.5."""
        return min(max(self._kept / self._expected, _LEAST), _MOST)

    def applied(
        self, prefixes: Sequence[Prefix], candidates: Sequence[Candidate], ctx: DraftContext
    ) -> list[Candidate]:
        """Candidates for these prefixes with estimates scaled, after the last ones were looked at.

        Only what was estimated for the sequences of the latest call is kept.
        """
        if ctx.remembers:
            for prefix in prefixes:
                length, last = self._last.get(prefix.sequence_id, (prefix.length, None))
                if last is not None:
                    self._observe(last, prefix.tokens[length:].tolist())
        rows = list(zip(prefixes, candidates, ctx.local.tolist(), strict=True))
        if ctx.remembers:
            self._last = {
                prefix.sequence_id: (prefix.length, candidate)
                for prefix, candidate, local in rows
                if len(candidate) and not local
            }
        ratio = self.ratio
        return [candidate if local else candidate.scaled(ratio) for _, candidate, local in rows]

    def _observe(self, candidate: Candidate, followed: list[int]) -> None:
        """Count what became of a candidate after which the tokens `followed` came."""
        chances = candidate.chances
        node, reached = 0, 1.0
        for token in followed:
            children = np.flatnonzero(candidate.parents == node)
            if not len(children):
                return
            expected = min(float(chances[children].sum()) / reached, 1.0)
            same = children[candidate.tokens[children] == token]
            self._kept = self._kept * _MEMORY + len(same[:1])
            self._expected = self._expected * _MEMORY + expected
            if not len(same):
                return
            node, reached = int(same[0]) + 1, float(chances[same[0]])
