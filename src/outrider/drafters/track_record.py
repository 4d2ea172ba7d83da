"""How well a source of looked-up tokens has estimated so far: kept tokens beside expected ones."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..types.protocols import DraftContext
from ..types.records import Prefix
from .candidate import Candidate

_MEMORY = 63 / 64
"""What an observed token weighs beside the next."""

_TRUSTED = 8.0
"""For how many tokens, all as expected, a source counts before it was seen."""

_LEAST, _MOST = 0.1, 1.5
"""The bounds of the ratio."""


class TrackRecord:
    """Decayed ratios of tokens kept to tokens expected, which estimates are scaled with.

    One of the first tokens, and one of those after them: what followed once is mostly taken for
    certain to follow again, from the second token on, and of sampled texts is not.

    A sequence's next prefix says what followed the last one, whatever was proposed after it. A
    candidate is followed along it: at each node that was reached counts whether one of the node's
    children came, beside how likely that was estimated to be. So a candidate that was not proposed
    counts as well as one that was, and a source that is distrusted has a way back.

    Rows that are `ctx.local` neither count nor are scaled, and a rehearsal leaves no trace.
    """

    def __init__(self) -> None:
        self._kept, self._expected = [_TRUSTED] * 2, [_TRUSTED] * 2
        self._last: dict[int, tuple[int, Candidate]] = {}

    @property
    def ratios(self) -> tuple[float, float]:
        """Tokens kept for each that was expected to be, first ones and later ones: .1 to 1.5."""
        pairs = zip(self._kept, self._expected, strict=True)
        first, later = (min(max(kept / expected, _LEAST), _MOST) for kept, expected in pairs)
        return first, later

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
        ratios = self.ratios
        return [candidate if local else candidate.scaled(*ratios) for _, candidate, local in rows]

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
            later = node > 0
            self._kept[later] = self._kept[later] * _MEMORY + len(same[:1])
            self._expected[later] = self._expected[later] * _MEMORY + expected
            if not len(same):
                return
            node, reached = int(same[0]) + 1, float(chances[same[0]])
