"""Drafts of what followed some tokens before in a text: the best over all suffixes of the tokens.

Method: SuffixDecoding (Oliaro et al. 2024, arXiv 2411.04975), with a search in place of a suffix
tree. A chain follows the commonest continuation; a tree takes the likeliest continuation on offer
each time. A draft of a match of m tokens has at most `factor * m + offset` tokens, and counts the
number of its tokens that are expected to be kept; the best draft is proposed, of equals that of the
longer match. Of chains only the first `HORIZON` tokens count, so that which one is best does not
depend on how deep a round drafts.

Frequencies alone are too sure of themselves, since most contexts were seen once. So a token's
confidence is its share times the trust in a match of m tokens to last (see `lookup.trust`).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np
from numpy.typing import NDArray

from ..lookup import HORIZON, NOTHING, Candidate, matches

_LATEST = 1000
"""How many occurrences of a context are counted, the latest."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How large a draft may be.

    Attributes:
        depth: the most tokens in a row.
        tokens: the most tokens.
        branches: whether a tree is wanted.
        factor: the most tokens for each that matched,
        offset: and this many more.
        least: the least probability of a token, with all before it.
        shortest: the shortest match.
    """

    depth: int
    tokens: int
    branches: bool
    factor: float = 2.0
    offset: float = 0.0
    least: float = 0.1
    shortest: int = 1


Draft = tuple[float, Candidate]
"""How many tokens are expected to be kept, and the tokens."""


def best_draft(
    text: NDArray[np.int64],
    last: NDArray[np.int64],
    limits: Limits,
    best: Draft = (0.0, NOTHING),
) -> Draft:
    """Return the best draft over all suffixes of some tokens, or `best` if none is better.

    Args:
        text: where they are looked for, int64 [n]. Several texts are each ended by a -1.
        last: the tokens, int64 [m].
        limits: of the draft.
        best: what it has to exceed.
    """
    for places, length in matches(text[:-1], last):
        most = int(min(limits.tokens, limits.factor * length + limits.offset))
        levels = min(most, limits.depth, limits.depth if limits.branches else HORIZON)
        # What is expected if all followed each time; of a shorter match it is less.
        ceiling = sum(length / place for place in range(length + 1, length + levels + 1))
        if length < limits.shortest or ceiling <= best[0]:
            break
        draft = _grown(text, last[len(last) - length :].tolist(), places, most, limits)
        if draft[0] > best[0]:
            best = draft
    return best


def _grown(
    text: NDArray[np.int64],
    matched: list[int],
    places: NDArray[np.int64],
    most: int,
    limits: Limits,
) -> Draft:
    """Take the likeliest continuation on offer, `most` times; on a chain of the last token's."""
    tokens, parents, confidence, reached = list[int](), list[int](), list[float](), list[float]()
    offers: list[tuple[float, int, int, float, list[int], NDArray[np.int64]]] = []

    def offer(path: list[int], places: NDArray[np.int64], parent: int, reach: float) -> None:
        """Offer what followed a node; the latest of equals first, those of nodes in their order."""
        places = places[-_LATEST:]
        followed = text[places].tolist()
        counts, latest = Counter(followed), dict(zip(followed, places.tolist(), strict=True))
        counts.pop(-1, None)
        found = sorted(counts, key=lambda token: (counts[token], latest[token]), reverse=True)
        for token in found if limits.branches else found[:1]:
            own = counts[token] / len(followed) * len(path) / (len(path) + 1)
            if reach * own >= limits.least:
                item = -reach * own, parent, -latest[token], own, [*path, token], places
                heappush(offers, item)

    offer(matched, places, 0, 1.0)
    while offers and len(tokens) < most:
        reach, parent, _, own, path, places = heappop(offers)
        tokens.append(path[-1])
        parents.append(parent)
        confidence.append(own)
        reached.append(-reach)
        if len(path) == len(matched) + limits.depth:
            continue
        places = places[text[places] == path[-1]] + 1
        places = places[places < len(text)]
        if not len(places):  # All of it has been at the end of the text alone: a shorter context.
            places, _ = next(iter(matches(text[:-1], np.array(path))), (places, 0))
        offer(path, places, len(tokens), -reach)
    counted = reached if limits.branches else reached[:HORIZON]
    return sum(counted), Candidate(
        np.array(tokens, dtype=np.int64),
        np.array(confidence),
        np.array(parents, dtype=np.int64) if limits.branches else None,
    )
