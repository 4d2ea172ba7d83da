"""How often drafted tokens were kept, by confidence and by position."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ..types.records import RowOutcome

BUCKETS = 8
"""Confidences are sorted into so many parts of [0, 1]."""

MEMORY = 128
"""About so many of the latest rounds that drafted count."""

WEIGHT = 16
"""A rate is moved towards the one that it falls back on as if by so many more tokens: a few
failures are no reason to give up."""

PRIOR = 0.5
"""How often a model's tokens are kept as long as nothing is known."""

POSITIONS = 64
"""Tokens further in count as the last of so many."""

_FORGET = 1 - 1 / MEMORY


@dataclass(frozen=True, slots=True)
class Counts:
    """Decayed counts of tokens of which it is known whether they were kept.

    Attributes:
        kept: tokens kept, for each bucket or position.
        tried: tokens in all.
    """

    kept: tuple[float, ...] = ()
    tried: tuple[float, ...] = ()

    def add(self, outcomes: Iterable[tuple[int, bool]]) -> Counts:
        """Return the counts after a round's tokens.

        All counts decay, so that what is not tried any more is forgotten and tried again.

        Args:
            outcomes: of each token the bucket or position, and whether it was kept.
        """
        kept = [_FORGET * count for count in self.kept]
        tried = [_FORGET * count for count in self.tried]
        for index, was_kept in outcomes:
            missing = [0.0] * (index + 1 - len(tried))
            kept += missing
            tried += missing
            kept[index] += was_kept
            tried[index] += 1
        return Counts(tuple(kept), tuple(tried))

    def overall(self) -> float:
        """Return the rate of all together, where little is known near `PRIOR`."""
        return (sum(self.kept) + WEIGHT * PRIOR) / (sum(self.tried) + WEIGHT)


@dataclass(frozen=True, slots=True)
class SourceCounts:
    """What is known of one drafter's tokens.

    Attributes:
        by_confidence: counts for each of `BUCKETS`.
        by_position: counts for each place in a row, the first at 0.
    """

    by_confidence: Counts = field(default_factory=Counts)
    by_position: Counts = field(default_factory=Counts)


@dataclass(frozen=True, slots=True)
class Acceptance:
    """What is known of tokens of each source: of one sequence, or of all.

    Attributes:
        sources: the name and the counts of each source that has drafted.
    """

    sources: tuple[tuple[str, SourceCounts], ...] = ()

    def of(self, source: str) -> SourceCounts:
        """Return a source's counts."""
        return dict(self.sources).get(source, SourceCounts())

    def add(self, outcomes: Iterable[RowOutcome]) -> Acceptance:
        """Return what is known after a round's drafts.

        Tokens behind the first that was not kept say nothing.
        """
        sources = dict(self.sources)
        drafted: dict[str, list[RowOutcome]] = {}
        for outcome in outcomes:
            if outcome.depth:
                drafted.setdefault(outcome.source, []).append(outcome)
        for source, drafts in drafted.items():
            counts = sources.get(source, SourceCounts())
            sources[source] = SourceCounts(
                counts.by_confidence.add(bucket for draft in drafts for bucket in _buckets(draft)),
                counts.by_position.add(place for draft in drafts for place in _places(draft)),
            )
        return Acceptance(tuple(sorted(sources.items())))


def _places(draft: RowOutcome) -> list[tuple[int, bool]]:
    known = min(draft.depth, draft.kept + 1)
    return [(min(i, POSITIONS - 1), i < draft.kept) for i in range(known)]


def _buckets(draft: RowOutcome) -> list[tuple[int, bool]]:
    confidence = draft.confidence[: draft.kept + 1]
    return [
        (min(int(value * BUCKETS), BUCKETS - 1), i < draft.kept)
        for i, value in enumerate(confidence)
        if value == value  # Not NaN.
    ]


def buckets_of(confidence: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the bucket of each confidence in [0, 1], int64 of the same shape; NaN is in 0."""
    # `fmax` takes the number where the other is NaN.
    scaled = np.fmax(np.minimum(confidence * BUCKETS, BUCKETS - 1), 0)
    return scaled.astype(np.int64)


def rates_by_confidence(
    shared: Acceptance | None, own: Sequence[Acceptance], source: str
) -> NDArray[np.float64]:
    """Return the rate at which tokens of each confidence bucket are kept, float64 [B, BUCKETS].

    A sequence's own counts are moved towards those of all, and these towards the confidence.

    Args:
        shared: what is known of all sequences; None leaves each sequence to itself.
        own: what is known of each of B sequences.
        source: of the tokens.
    """
    rates = (np.arange(BUCKETS) + 0.5) / BUCKETS
    if shared is not None:
        rates = _rates([shared.of(source).by_confidence], rates)
    return _rates([each.of(source).by_confidence for each in own], rates)


def rates_by_position(
    shared: Acceptance | None, own: Sequence[Acceptance], source: str, depth: int
) -> NDArray[np.float64]:
    """Return the rate at which the token at each place is kept if those before are, [B, depth].

    A sequence's own counts are moved towards those of all, and each place's of these towards the
    rate of all places.

    Args:
        shared: what is known of all sequences; None leaves each sequence to itself.
        own: what is known of each of B sequences.
        source: of the tokens.
        depth: the number of places.
    """
    counts = [each.of(source).by_position for each in own]
    if shared is None:
        return _rates(counts, np.array([[each.overall()] * depth for each in counts]))
    everywhere = shared.of(source).by_position
    return _rates(counts, _rates([everywhere], np.full(depth, everywhere.overall())))


def _rates(counts: Sequence[Counts], fallback: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the rates [B, n] of counts, where little is known near `fallback` [n] or [B, n]."""
    width = fallback.shape[-1]
    kept, tried = (
        np.array([(each + (0.0,) * width)[:width] for each in tuples]).reshape(-1, width)
        for tuples in ([each.kept for each in counts], [each.tried for each in counts])
    )
    rates: NDArray[np.float64] = (kept + WEIGHT * fallback) / (tried + WEIGHT)
    return rates
