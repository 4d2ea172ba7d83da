"""What a drafter that looks tokens up proposes for one sequence, and how sure it is of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..errors import InvalidConfigError
from ..types import trees
from ..types.protocols import DraftContext
from ..types.records import Distributions, DraftPlan, DraftProposal, Prefix


@dataclass(frozen=True, slots=True)
class Candidate:
    """Tokens for one sequence, each proposed outright: a point mass.

    Attributes:
        tokens: int64 [n].
        parents: the node that each follows, int64 [n]: 0 the sequence, i the i-th of these tokens.
        probabilities: how often each followed before, with those that lead to it, float64 [n]; it
            does not grow from a token to those that follow it.
        matched: how many of the last tokens this rests on.
        expected: how many of the tokens are estimated to be kept: what to choose by between this
            and another drafter's tokens.
        estimates: how likely each of them is, float64 [n], where more is known of that than how
            many are `expected`.
    """

    tokens: NDArray[np.int64]
    parents: NDArray[np.int64]
    probabilities: NDArray[np.float64]
    matched: int
    expected: float
    estimates: NDArray[np.float64] | None = None

    @property
    def score(self) -> float:
        """How many of the tokens are kept if the future is as the past: SuffixDecoding's score."""
        return float(self.probabilities.sum())

    @property
    def chances(self) -> NDArray[np.float64]:
        """How likely each token is estimated to be kept, float64 [n].

        The `estimates`, or else the `probabilities`, scaled alike so that they sum to what is
        `expected`, none above one.
        """
        if self.estimates is not None:
            return self.estimates
        if not len(self):
            return self.probabilities
        return np.minimum(self.probabilities * (self.expected / self.score), 1.0)

    def __len__(self) -> int:
        return len(self.tokens)

    def worthwhile(self, plain: float, token: float) -> Candidate:
        """What of it is worth its verification, if anything is; see `outrider.worth.Worth`.

        The best part of it is made of the tokens that are likelier to be kept than what verifying
        one brings elsewhere: the first ones of a chain, and of a tree with each those that lead to
        it, since the chance of a token is no larger than that of the one before.

        Args:
            plain: tokens emitted elsewhere in the time of a round that drafts nothing.
            token: those in the time that one more drafted token takes.
        """
        gains = self.chances - token
        if 1 + gains[gains > 0].sum() <= plain:
            return Candidate.nothing()
        return self._part(gains > 0)

    def within(self, tokens: int, depth: int) -> Candidate:
        """The likeliest `tokens` of it, at most `depth` in a row."""
        depths = trees.node_depths(self.parents[None])[0, 1:]
        order = np.lexsort((np.arange(len(self)), -self.probabilities, depths > depth))
        kept = np.zeros(len(self), dtype=bool)
        kept[order[: max(tokens, 0)]] = True
        return self._part(kept & (depths <= depth))

    def scaled(self, first: float, later: float) -> Candidate:
        """The same tokens with other chances to be kept.

        Args:
            first: how many times as likely those are that follow the sequence.
            later: and each of the others, if the one before it is kept.
        """
        estimates, found = self.chances.tolist(), list[float]()
        for chance, parent in zip(estimates, self.parents.tolist(), strict=True):
            if parent == 0:
                found.append(min(first * chance, 1.0))
            else:
                before = estimates[parent - 1]
                given = min(later * chance / before, 1.0) if before else 0.0
                found.append(found[parent - 1] * given)
        return replace(self, estimates=np.array(found), expected=float(sum(found)))

    def _part(self, kept: NDArray[np.bool_]) -> Candidate:
        """Some of the tokens, each with those that lead to it."""
        if kept.all():
            return self
        names = np.concatenate([[0], np.cumsum(kept)])
        expected = float(self.chances[kept].sum())
        return Candidate(
            self.tokens[kept],
            names[self.parents[kept]],
            self.probabilities[kept],
            self.matched if kept.any() else 0,
            expected,
            None if self.estimates is None else self.estimates[kept],
        )

    @staticmethod
    def nothing() -> Candidate:
        """No tokens."""
        none = np.empty(0, dtype=np.int64)
        return Candidate(none, none, np.empty(0), 0, 0.0)


class LookupDrafter(ABC):
    """A drafter that proposes the candidates it has, each token a point mass."""

    @property
    def vocab_size(self) -> None:
        """None: it only proposes tokens that it has seen, or was given."""
        return None

    @abstractmethod
    def candidates(
        self, prefixes: Sequence[Prefix], plan: DraftPlan, ctx: DraftContext
    ) -> list[Candidate]:
        """What would be proposed for each row, with its score."""

    def propose(
        self, prefixes: Sequence[Prefix], plan: DraftPlan, ctx: DraftContext
    ) -> DraftProposal:
        """The candidate of each row: a chain, or a tree where the plan has levels.

        Without the tokens that are not worth their verification, where the plan says what it is.
        """
        found = [Candidate.nothing()] * len(prefixes)
        if plan.looks:
            found = worth_verifying(self.candidates(prefixes, plan, ctx), plan)
        return as_proposal(found, ctx.device, branches=plan.levels is not None)


def as_proposal(
    candidates: Sequence[Candidate], device: torch.device, *, branches: bool
) -> DraftProposal:
    """Candidates, one for each row, as a proposal of chains, or of trees if it `branches`."""
    looked_up = np.array([len(candidate) > 0 for candidate in candidates], dtype=np.bool_)
    lengths = np.array([len(candidate) for candidate in candidates], dtype=np.int64)
    shape = (len(candidates), int(lengths.max(initial=0)))
    tokens, parents = np.zeros(shape, dtype=np.int64), trees.chain(*shape)
    for row, candidate in enumerate(candidates):
        tokens[row, : len(candidate)] = candidate.tokens
        parents[row, : len(candidate)] = candidate.parents
    drafted = torch.from_numpy(tokens).to(device)
    return DraftProposal(
        drafted,
        lengths,
        Distributions(point_masses=drafted),
        parents if branches else None,
        looked_up=looked_up,
    )


def worth_verifying(candidates: Sequence[Candidate], plan: DraftPlan) -> list[Candidate]:
    """What is to be proposed of each row's candidate where no model is at hand.

    What `plan.worth` compares with is the best decoding with a model, which there is none of here:
    a plain round brings one token, and everything is counted in those.
    """
    if plan.worth is None:
        return [as_asked(candidate, plan, row) for row, candidate in enumerate(candidates)]
    asked = zip(candidates, plan.worth.plain.tolist(), plan.worth.token.tolist(), strict=True)
    return [
        as_asked(candidate.worthwhile(min(plain, 1.0), token / max(plain, 1.0)), plan, row)
        for row, (candidate, plain, token) in enumerate(asked)
    ]


def as_asked(candidate: Candidate, plan: DraftPlan, row: int) -> Candidate:
    """A row's candidate, no deeper than its request's `depths` ask.

    It is cut after it was chosen among others, so that what is chosen is what was chosen in the run
    that the row repeats, and then as deep as asked already.
    """
    if plan.repeated[row] < 0:
        return candidate
    return candidate.within(len(candidate), int(plan.model_steps[row]))


def token_ids(name: str, given: Any) -> NDArray[np.int64]:
    """Token ids as a user gave them, as int64 [n].

    Raises:
        InvalidConfigError: they are no flat sequence of integers from 0 to 2^31 - 1; with `name`.
    """
    try:
        ids = np.asarray(given)
    except (TypeError, ValueError):
        ids = np.empty((0, 0))
    if (
        ids.ndim != 1
        or (ids.size and ids.dtype.kind not in "iu")
        or not 0 <= ids.min(initial=0) <= ids.max(initial=0) < 2**31
    ):
        raise InvalidConfigError(name, given, "a flat sequence of token ids")
    return ids.astype(np.int64)
