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

_WIDTH = BUCKETS + POSITIONS
_NOTHING = bytes(2 * 8 * _WIDTH)


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Decayed counts of tokens of which it is known whether they were kept, by source.

    Attributes:
        sources: the name of each source that has drafted, and for each confidence bucket, and then
            for each position, its tokens kept, and those tried: float64 [2, BUCKETS + POSITIONS] as
            bytes, which are frozen, hashable and quickly put together.
    """

    sources: tuple[tuple[str, bytes], ...] = ()

    def add(self, outcomes: Iterable[RowOutcome]) -> Acceptance:
        """Return what is known after a round's drafts.

        Tokens behind the first that was not kept say nothing. The counts of a source that drafted
        decay, so that what is not tried any more is forgotten and tried again.
        """
        drafts = [outcome for outcome in outcomes if outcome.depth]
        if not drafts:
            return self
        known = dict(self.sources)
        for source in {draft.source for draft in drafts}:
            places = [place for draft in drafts if draft.source == source for place in _seen(draft)]
            refused, kept = np.bincount(places, minlength=2 * _WIDTH).reshape(2, _WIDTH)
            counts = np.frombuffer(known.get(source, _NOTHING)) * (1 - 1 / MEMORY)
            counts[:_WIDTH] += kept
            counts[_WIDTH:] += kept + refused
            known[source] = counts.tobytes()
        return Acceptance(tuple(sorted(known.items())))

    def counts(self, source: str) -> bytes:
        """Return a source's counts, as in `sources`."""
        return next((counts for name, counts in self.sources if name == source), _NOTHING)


def _seen(draft: RowOutcome) -> Iterator[int]:
    """Give where each token that says something is counted, `_WIDTH` further if it was kept."""
    for place in range(min(draft.depth, draft.kept + 1)):
        yield BUCKETS + min(place, POSITIONS - 1) + _WIDTH * (place < draft.kept)
    for place, value in enumerate(draft.confidence[: draft.kept + 1]):
        if value == value:  # Not NaN.
            yield min(int(value * BUCKETS), BUCKETS - 1) + _WIDTH * (place < draft.kept)


def buckets_of(confidence: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the bucket of each confidence in [0, 1], int64 of the same shape; NaN is in 0."""
    # `fmax` takes the number where the other is NaN.
    scaled = np.fmax(np.minimum(confidence * BUCKETS, BUCKETS - 1), 0)
    return scaled.astype(np.int64)


def rates(
    shared: Sequence[Acceptance], own: Sequence[Acceptance], source: str, depth: int = 0
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the rate at which a token is kept if those before it are.

    A sequence's own counts are moved towards those of all. These are moved towards the confidence
    itself, or from each position towards the rate of all positions.

    Args:
        shared: what each of B sequences goes by beside itself, or one for all of them.
        own: what is known of each of B sequences.
        source: of the tokens.
        depth: the number of positions.

    Returns:
        For each confidence bucket, float64 [B, BUCKETS], and for each position, float64 [B, depth].
    """
    kept, tried = _stacked(shared, source)
    both = kept[:, BUCKETS:].sum(1, keepdims=True), tried[:, BUCKETS:].sum(1, keepdims=True)
    overall = (both[0] + WEIGHT * PRIOR) / (both[1] + WEIGHT)
    prior = np.empty_like(kept)
    prior[:, :BUCKETS], prior[:, BUCKETS:] = (np.arange(BUCKETS) + 0.5) / BUCKETS, overall
    found = (kept + WEIGHT * prior) / (tried + WEIGHT)
    kept, tried = _stacked(own, source)
    found = (kept + WEIGHT * found) / (tried + WEIGHT)
    positions = np.minimum(np.arange(depth), POSITIONS - 1) + BUCKETS
    return found[:, :BUCKETS], found[:, positions]


def _stacked(known: Sequence[Acceptance], source: str) -> NDArray[np.float64]:
    """Put the counts of a source together, float64 [2, B, BUCKETS + POSITIONS]."""
    joined = np.frombuffer(b"".join([each.counts(source) for each in known]))
    return joined.reshape(-1, 2, _WIDTH).swapaxes(0, 1)
