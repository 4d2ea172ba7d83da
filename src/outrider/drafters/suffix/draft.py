"""Drafts of what followed a match before: the best over all of its suffixes.

Method: SuffixDecoding (Oliaro et al. 2024, arXiv 2411.04975). A chain follows the commonest
continuation; a tree takes the likeliest continuation on offer each time. A draft of a match of m
tokens has at most `factor * m + offset` tokens, and counts the number of its tokens that are
expected to be kept; the best draft is proposed, of equals that of the longer match.

Frequencies alone are too sure of themselves, since most contexts were seen once. So a token's
confidence is its share times the trust in a match of m tokens to last (see `lookup.trust`).
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np

from ..lookup import NOTHING, Candidate
from .automaton import ROOT, Match, SuffixAutomaton


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
    automaton: SuffixAutomaton, match: Match, limits: Limits, best: Draft = (0.0, NOTHING)
) -> Draft:
    """Return the best draft over all suffixes of a match, or `best` if none is better."""
    state, length = match
    while state != ROOT and length >= limits.shortest:
        most = int(min(limits.tokens, limits.factor * length + limits.offset))
        places = range(length + 1, length + min(most, limits.depth) + 1)
        if sum(length / place for place in places) <= best[0]:
            break  # What is expected if all followed each time; of a shorter match it is less.
        grow = _tree if limits.branches else _chain
        draft = grow(automaton, (state, length), most, limits)
        if draft[0] > best[0]:
            best = draft
        state, length = automaton.shorter(state)
    return best


def _chain(automaton: SuffixAutomaton, match: Match, most: int, limits: Limits) -> Draft:
    """Follow the commonest continuation, the latest of equals."""
    tokens, confidence = list[int](), list[float]()
    reach, expected, matched = 1.0, 0.0, match[1]
    for place in range(matched, matched + min(most, limits.depth)):
        state, length = automaton.followed(match)
        if state == ROOT:
            break
        found = automaton.continuations(state, limits.least / reach)
        share, _, token, reached = max(found, default=(0.0, 0, 0, ROOT))
        own = share * place / (place + 1)
        reach *= own
        if reach < limits.least:
            break
        tokens.append(token)
        confidence.append(own)
        expected += reach
        match = (reached, length + 1)
    return expected, Candidate(np.array(tokens, dtype=np.int64), np.array(confidence))


def _tree(automaton: SuffixAutomaton, match: Match, most: int, limits: Limits) -> Draft:
    """Take the likeliest continuation on offer, `most` times."""
    tokens, parents, confidence = list[int](), list[int](), list[float]()
    expected, matched = 0.0, match[1]
    offers: list[tuple[float, int, int, float, int, int, int]] = []

    def offer(match: Match, depth: int, parent: int, reach: float) -> None:
        """Offer what followed a node; the latest of equals first, those of nodes in their order."""
        state, length = automaton.followed(match)
        if state == ROOT or depth == limits.depth:
            return
        place = matched + depth
        for share, end, token, reached in automaton.continuations(state, limits.least / reach):
            own = share * place / (place + 1)
            if reach * own >= limits.least:
                heappush(offers, (-reach * own, parent, -end, own, token, reached, length + 1))

    depths = [0]
    offer(match, 0, 0, 1.0)
    while offers and len(tokens) < most:
        reach, parent, _, own, token, reached, length = heappop(offers)
        tokens.append(token)
        parents.append(parent)
        confidence.append(own)
        depths.append(depths[parent] + 1)
        expected -= reach
        offer((reached, length), depths[-1], len(tokens), -reach)
    return expected, Candidate(
        np.array(tokens, dtype=np.int64),
        np.array(confidence),
        np.array(parents, dtype=np.int64),
    )
