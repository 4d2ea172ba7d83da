"""How often drafted tokens were kept, by confidence and by position."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..types.records import RowOutcome

BUCKETS = 8
"""Confidences are sorted into so many parts of [0, 1]."""

POSITIONS = 32
"""Tokens further in count as the last of so many."""

MEMORY = 128
"""About so many of the latest rounds that drafted count."""

WEIGHT = 16
"""A rate is moved towards the one that it falls back on as if by so many more tokens: a few
failures are no reason to give up."""

PRIOR = 0.5
"""How often a model's tokens are kept as long as nothing is known."""

Counts = tuple[float, ...]
"""For each confidence bucket, and then for each position."""

_NOTHING: Counts = (0.0,) * (BUCKETS + POSITIONS)


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Decayed counts of tokens of which it is known whether they were kept, by source.

    Attributes:
        sources: the name of each source that has drafted, its tokens kept, and those in all.
    """

    sources: tuple[tuple[str, Counts, Counts], ...] = ()

    def add(self, outcomes: Iterable[RowOutcome]) -> Acceptance:
        """Return what is known after a round's drafts.

        Tokens behind the first that was not kept say nothing. The counts of a source that drafted
        decay, so that what is not tried any more is forgotten and tried again.
        """
        counts: dict[str, NDArray[np.float64]] = {}
        for outcome in outcomes:
            if outcome.depth:
                if outcome.source not in counts:
                    counts[outcome.source] = self.counts(outcome.source) * (1 - 1 / MEMORY)
                kept, tried = counts[outcome.source]
                for indices in _indices(outcome):
                    np.add.at(kept, indices[: outcome.kept], 1)
                    np.add.at(tried, indices, 1)
        known = {name: (kept, tried) for name, kept, tried in self.sources}
        for name, (kept, tried) in counts.items():
            known[name] = (tuple(kept.tolist()), tuple(tried.tolist()))
        return Acceptance(tuple((name, *known[name]) for name in sorted(known)))

    def counts(self, source: str) -> NDArray[np.float64]:
        """Return how many of a source's tokens were kept, and tried, float64 [2, n]."""
        found = [(kept, tried) for name, kept, tried in self.sources if name == source]
        return np.array(found[0] if found else (_NOTHING, _NOTHING))


def _indices(draft: RowOutcome) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return where a draft's tokens that say something are counted: by bucket, by position."""
    said = min(draft.depth, draft.kept + 1)
    positions = np.minimum(np.arange(said), POSITIONS - 1) + BUCKETS
    return buckets_of(np.array(draft.confidence[:said])), positions


def buckets_of(confidence: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the bucket of each confidence in [0, 1], int64 of the same shape; NaN is in 0."""
    # `fmax` takes the number where the other is NaN.
    scaled = np.fmax(np.minimum(confidence * BUCKETS, BUCKETS - 1), 0)
    return scaled.astype(np.int64)


def rates(
    shared: Acceptance, own: Sequence[Acceptance], source: str, depth: int = 0
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the rate at which a token is kept if those before it are.

    A sequence's own counts are moved towards those of all. These are moved towards the confidence
    itself, or from each position towards the rate of all positions.

    Args:
        shared: what is known of all sequences.
        own: what is known of each of B sequences.
        source: of the tokens.
        depth: the number of positions.

    Returns:
        For each confidence bucket, float64 [B, BUCKETS], and for each position, float64 [B, depth].
    """
    kept, tried = shared.counts(source)
    overall = (kept[BUCKETS:].sum() + WEIGHT * PRIOR) / (tried[BUCKETS:].sum() + WEIGHT)
    confidences = (np.arange(BUCKETS) + 0.5) / BUCKETS
    found = np.concatenate([confidences, np.full(POSITIONS, overall)])
    each = np.array([one.counts(source) for one in own])
    found = (kept + WEIGHT * found) / (tried + WEIGHT)
    found = (each[:, 0] + WEIGHT * found) / (each[:, 1] + WEIGHT)
    positions = np.minimum(np.arange(depth), POSITIONS - 1) + BUCKETS
    return found[:, :BUCKETS], found[:, positions]
