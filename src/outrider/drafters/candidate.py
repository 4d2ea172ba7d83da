"""What a drafter that looks tokens up proposes for one sequence, and how sure it is of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from .. import trees
from ..errors import InvalidConfigError
from ..records import DraftProposal, Laws


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
    """

    tokens: NDArray[np.int64]
    parents: NDArray[np.int64]
    probabilities: NDArray[np.float64]
    matched: int
    expected: float

    @property
    def score(self) -> float:
        """How many of the tokens are kept if the future is as the past: SuffixDecoding's score."""
        return float(self.probabilities.sum())

    def __len__(self) -> int:
        return len(self.tokens)

    @staticmethod
    def nothing() -> Candidate:
        """No tokens."""
        none = np.empty(0, dtype=np.int64)
        return Candidate(none, none, np.empty(0), 0, 0.0)


def as_proposal(
    candidates: Sequence[Candidate], device: torch.device, *, branches: bool
) -> DraftProposal:
    """Candidates, one for each row, as a proposal of chains, or of trees if it `branches`."""
    lengths = np.array([len(candidate) for candidate in candidates], dtype=np.int64)
    shape = (len(candidates), int(lengths.max(initial=0)))
    tokens, parents = np.zeros(shape, dtype=np.int64), trees.chain(*shape)
    for row, candidate in enumerate(candidates):
        tokens[row, : len(candidate)] = candidate.tokens
        parents[row, : len(candidate)] = candidate.parents
    drafted = torch.from_numpy(tokens).to(device)
    return DraftProposal(drafted, lengths, Laws(atoms=drafted), parents if branches else None)


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
