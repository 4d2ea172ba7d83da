"""How often drafted tokens were kept, by confidence and by position."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
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
        known = {name: (kept, tried) for name, kept, tried in self.sources}
        drafts = [outcome for outcome in outcomes if outcome.depth]
        for source in {draft.source for draft in drafts}:
            before = known.get(source, (_NOTHING, _NOTHING))
            kept, tried = ([count * (1 - 1 / MEMORY) for count in counts] for counts in before)
            for draft in drafts:
                for index, was_kept in _counted(draft) if draft.source == source else ():
                    kept[index] += was_kept
                    tried[index] += 1
            known[source] = (tuple(kept), tuple(tried))
        return Acceptance(tuple((name, *known[name]) for name in sorted(known)))

    def counts(self, source: str) -> NDArray[np.float64]:
        """Return how many of a source's tokens were kept, and tried, float64 [2, n]."""
        found = [(kept, tried) for name, kept, tried in self.sources if name == source]
        return np.array(found[0] if found else (_NOTHING, _NOTHING))


def _counted(draft: RowOutcome) -> Iterator[tuple[int, bool]]:
    """Give where each token that says something is counted, and whether it was kept."""
    for place in range(min(draft.depth, draft.kept + 1)):
        yield BUCKETS + min(place, POSITIONS - 1), place < draft.kept
    for place, value in enumerate(draft.confidence[: draft.kept + 1]):
        if value == value:  # Not NaN.
            yield min(int(value * BUCKETS), BUCKETS - 1), place < draft.kept


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
