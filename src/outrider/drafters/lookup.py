"""Drafters that propose tokens which they have seen, each a point mass."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..config.validation import integers
from ..errors import DraftShapeError, InvalidConfigError
from ..types import trees
from ..types.records import Distributions, DraftPlan, DraftProposal, Prefix
from ..types.transfer import sent
from .base import DraftContext, Drafter

HORIZON = 16
"""Chains are chosen for their first so many tokens, however deep a round drafts.

So what a round drafts is the beginning of what a deeper one would, and a replay, which plans as
deep as the run that it repeats has drafted, finds the same.
"""


@dataclass(frozen=True, slots=True)
class Candidate:
    """Tokens that may follow one sequence.

    Attributes:
        tokens: int64 [n].
        confidence: how likely each is kept if those before it are, float64 [n] in [0, 1].
        parents: the node that each follows, int64 [n]: 0 the sequence, i the i-th of these tokens.
            None for a chain.

    Raises:
        DraftShapeError: there is not one confidence for each token.
    """

    tokens: NDArray[np.int64]
    confidence: NDArray[np.float64]
    parents: NDArray[np.int64] | None = None

    def __post_init__(self) -> None:
        if len(self.tokens) != len(self.confidence):
            given = f"{len(self.tokens)} tokens and {len(self.confidence)} confidences"
            raise DraftShapeError(f"a Candidate has {given}; expected a confidence for each token")

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def structure(self) -> NDArray[np.int64]:
        """The parents [n], those of a chain written out."""
        return np.arange(len(self)) if self.parents is None else self.parents

    def reach(self, kept: NDArray[np.float64]) -> NDArray[np.float64]:
        """Multiply along each token's path, float64 [n].

        Args:
            kept: the probability that each token is kept if those before it are, float64 [n].
        """
        reach = [1.0]
        for parent, own in zip(self.structure.tolist(), kept.tolist(), strict=True):
            reach.append(reach[parent] * own)
        return np.array(reach[1:])

    def part(self, chosen: NDArray[np.bool_]) -> Candidate:
        """Return the chosen tokens, bool [n]; with a token all that lead to it are chosen."""
        names = np.concatenate([[0], np.cumsum(chosen)])
        parents = None if self.parents is None else names[self.parents[chosen]]
        return Candidate(self.tokens[chosen], self.confidence[chosen], parents)

    def likeliest(self, reach: NDArray[np.float64], count: int) -> Candidate:
        """Return the `count` tokens that are likeliest to be reached: each with its parents."""
        chosen = np.zeros(len(self), dtype=np.bool_)
        chosen[np.argsort(-reach, kind="stable")[:count]] = True
        return self.part(chosen)

    def until(self, stop_ids: frozenset[int]) -> Candidate:
        """Return what does not lie behind one of these tokens."""
        if stop_ids.isdisjoint(self.tokens.tolist()):
            return self
        goes_on, chosen = [True], []
        for token, parent in zip(self.tokens.tolist(), self.structure.tolist(), strict=True):
            chosen.append(goes_on[parent])
            goes_on.append(goes_on[parent] and token not in stop_ids)
        return self.part(np.array(chosen))


NOTHING = Candidate(np.empty(0, dtype=np.int64), np.empty(0))
"""No tokens."""


@dataclass(frozen=True, slots=True)
class ScoredCandidate:
    """A candidate as a round sees it.

    Attributes:
        candidate: ends where the request would.
        reach: the estimated probability that each token is kept with all before it, float64 [n].
        expected: the number of tokens that are expected to be kept, to compare candidates: of a
            chain among the first `HORIZON`, those beyond the planned depth included.
        source: the drafter that it comes from.
    """

    candidate: Candidate
    reach: NDArray[np.float64]
    expected: float
    source: str

    def chosen(self, plan: DraftPlan, row: int) -> Candidate:
        """Return as much of it as the plan's stop rule asks for; without a rule, all."""
        if plan.stop is None or not len(self.candidate):
            return self.candidate
        count = plan.stop.lookup(row, np.sort(self.reach)[::-1])
        return self.candidate.likeliest(self.reach, count)


class LookupDrafter(Drafter):
    """A drafter that proposes what it has seen or was given, each token a point mass."""

    looks_up = True
    vocab_size = None
    """None: it proposes tokens of any vocabulary."""

    @abstractmethod
    def candidates(
        self, prefixes: Sequence[Prefix], plan: DraftPlan, ctx: DraftContext
    ) -> list[Candidate]:
        """Return what may follow each prefix.

        Chains of at most `plan.depth` tokens; where the plan has a tree, trees of that depth and at
        most `plan.lengths` tokens. Chains may be asked for that are longer than what is proposed.
        """

    def find(
        self, prefixes: Sequence[Prefix], plan: DraftPlan, ctx: DraftContext
    ) -> list[ScoredCandidate]:
        """Return each row's candidate up to the first token that ends its request, or is forbidden.

        A chain is the beginning of what is found for any deeper plan.
        """
        chains, asked = plan.tree is None, plan
        if chains:
            deep = np.where(plan.depth > 0, np.maximum(plan.depth, HORIZON), 0)
            asked = replace(plan, depth=deep)
        made = self.candidates(prefixes, asked, ctx)
        made = [candidate.until(ctx.stop_ids(row)) for row, candidate in enumerate(made)]
        kept = np.zeros((len(made), max(map(len, made))))
        for row, candidate in enumerate(made):
            kept[row, : len(candidate)] = candidate.confidence
        if plan.stop is not None and kept.size:
            kept = plan.stop.kept(self.source, kept)
        found = []
        for row, candidate in enumerate(made):
            reach = candidate.reach(kept[row, : len(candidate)])
            expected = float(reach[: HORIZON if chains else None].sum())
            if chains and len(reach) > plan.depth[row]:
                candidate = candidate.part(np.arange(len(candidate)) < plan.depth[row])
            allowed = ctx.allowed(row, candidate.tokens, candidate.structure)
            reach = reach[: len(candidate)]
            if not allowed.all():
                candidate, reach = candidate.part(allowed), reach[allowed]
            found.append(ScoredCandidate(candidate, reach, expected, self.source))
        return found

    def propose(
        self, prefixes: Sequence[Prefix], plan: DraftPlan, ctx: DraftContext
    ) -> DraftProposal:
        """Propose each row's candidate: a chain, or a tree where the plan has one."""
        found = self.find(prefixes, plan, ctx)
        used = [each.chosen(plan, row) for row, each in enumerate(found)]
        return proposal_of(used, [self.source] * len(used), plan, ctx)


def proposal_of(
    candidates: Sequence[Candidate], sources: Sequence[str], plan: DraftPlan, ctx: DraftContext
) -> DraftProposal:
    """Propose candidates, one a row, as point masses."""
    lengths = np.array([len(candidate) for candidate in candidates], dtype=np.int64)
    shape = (len(candidates), int(lengths.max(initial=0)))
    tokens, parents = np.zeros(shape, dtype=np.int64), trees.chain(*shape)
    confidence = np.zeros(shape)
    for row, candidate in enumerate(candidates):
        tokens[row, : len(candidate)] = candidate.tokens
        parents[row, : len(candidate)] = candidate.structure
        confidence[row, : len(candidate)] = candidate.confidence
    drafted = sent(tokens, ctx.device)
    return DraftProposal(
        drafted,
        lengths,
        Distributions(point_masses=drafted),
        None if plan.tree is None else parents,
        sources=tuple(sources),
        confidence=confidence,
    )


def matches(
    text: NDArray[np.int64], last: NDArray[np.int64]
) -> list[tuple[NDArray[np.int64], int]]:
    """Find where a text contains suffixes of some tokens.

    Args:
        text: int64 [m].
        last: int64 [n].

    Returns:
        The places after each occurrence of a suffix, in their order, and its length: the longest
        suffix first, and of suffixes that occur at the same places the longest alone.
    """
    found = []
    places = np.flatnonzero(text == last[-1]) + 1 if len(last) else np.empty(0, dtype=np.int64)
    for length in range(1, len(last) + 1):
        if not len(places):
            break
        longer = places[:0]
        if length < len(last):
            longer = places[places > length]
            longer = longer[text[longer - length - 1] == last[-length - 1]]
        if len(longer) < len(places):
            found.append((places, length))
        places = longer
    return found[::-1]


def match_confidence(matched: int, place: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the confidence that a match of m tokens which lasted i - 1 more lasts another.

    It is (m + i - 1) / (m + i), so that i tokens are kept with probability m / (m + i).

    Args:
        matched: m, at least 1.
        place: i, at least 1, of any shape.
    """
    confidence: NDArray[np.float64] = (matched + place - 1) / (matched + place)
    return confidence


def token_ids(name: str, given: Any) -> NDArray[np.int64]:
    """Return token ids that a user gave, a list, an array or a tensor, as int64 [n].

    Raises:
        InvalidConfigError: they are no flat sequence of integers from 0 to 2^31 - 1; with `name`.
    """
    expected = "a flat sequence of token ids"
    ids = integers(name, given, expected=expected)
    if max(ids, default=0) >= 2**31:
        raise InvalidConfigError(name, given, expected)
    return np.array(ids, dtype=np.int64)
