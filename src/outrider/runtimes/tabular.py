"""Models with explicit distributions: small enough to enumerate, and a drafter or target like any other."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..errors import DegenerateDistributionError, DistributionWidthError, InvalidConfigError
from ..types.records import DraftProposal, Prefix, TargetScores
from .base import Capabilities, Cursor, Runtime

Path = tuple[int, ...]
"""Token ids from the first on."""

Distribution = Callable[[tuple[int, ...]], Sequence[float] | NDArray[np.float64]]


class TabularModel(Runtime):
    """A model given by its distribution.

    Args:
        distribution: maps a prefix, a tuple of token ids, to the probabilities [V] of the next token.
        vocab_size: V.

    Raises:
        InvalidConfigError: `vocab_size` is below 1.
        DistributionWidthError: when asked about a prefix whose distribution is not V wide.
        DegenerateDistributionError: likewise, whose distribution has negative mass or does not sum to one.
    """

    def __init__(self, distribution: Distribution, vocab_size: int) -> None:
        if vocab_size < 1:
            raise InvalidConfigError("vocab_size", vocab_size, "an integer >= 1")
        self._distribution = distribution
        self._vocab_size = vocab_size

    @property
    def capabilities(self) -> Capabilities:
        """Any number of sequences of any length, and trees."""
        return Capabilities(self._vocab_size, torch.device("cpu"))

    def probabilities(self, prefix: tuple[int, ...]) -> NDArray[np.float64]:
        """The distribution [V] of the token after `prefix`, checked."""
        distribution = np.asarray(self._distribution(prefix), dtype=np.float64)
        if distribution.shape != (self._vocab_size,):
            raise DistributionWidthError(
                f"the distribution after {prefix} has shape {distribution.shape}; expected ({self._vocab_size},), "
                "one probability for each token of the vocabulary"
            )
        if not (distribution >= 0).all() or abs(distribution.sum() - 1) > 1e-6:
            raise DegenerateDistributionError(
                f"the distribution after {prefix} is {distribution.tolist()}; expected non-negative probabilities "
                "that sum to one"
            )
        return distribution

    def verify(self, prefixes: Sequence[Prefix], proposal: DraftProposal) -> TargetScores:
        """Log-probabilities [B, N + 1, V], float64; zeros beyond a row's drafts."""
        logits = torch.zeros(
            len(prefixes), proposal.width + 1, self._vocab_size, dtype=torch.float64
        )
        rows = zip(
            prefixes,
            proposal.tokens.tolist(),
            proposal.structure.tolist(),
            proposal.lengths.tolist(),
            strict=True,
        )
        for row, (prefix, drafted, parents, length) in enumerate(rows):
            nodes = [tuple(prefix.tokens.tolist())]
            nodes += _paths(nodes, drafted[:length], parents[:length])
            for node, path in enumerate(nodes):
                logits[row, node] = self._logits(path)
        return TargetScores(logits)

    def open(self, prefixes: Sequence[Prefix], depth: int) -> TabularCursor:
        """A cursor at the end of the prefixes."""
        return TabularCursor(self._logits, [tuple(p.tokens.tolist()) for p in prefixes])

    def _logits(self, prefix: tuple[int, ...]) -> Tensor:
        return torch.from_numpy(self.probabilities(prefix)).log()


class TabularCursor(Cursor):
    """A tabular model in the middle of drafting.

    It is fed either chains, by `step`, or trees, by `expand`.
    """

    def __init__(self, logits: Callable[[Path], Tensor], prefixes: list[Path]) -> None:
        self._logits = logits
        self._paths = prefixes
        self._nodes = [[path] for path in prefixes]

    @property
    def logits(self) -> Tensor:
        """Log-probabilities [B, V] after the prefixes and the tokens that `step` was fed so far."""
        return torch.stack([self._logits(path) for path in self._paths])

    def step(self, tokens: Tensor) -> Tensor:
        """Feed tokens int64 [B] and return the log-probabilities [B, V] after them."""
        self._paths = [
            (*path, token) for path, token in zip(self._paths, tokens.tolist(), strict=True)
        ]
        return self.logits

    def expand(self, tokens: Tensor, parents: Tensor) -> Tensor:
        """Feed nodes of a tree and return the log-probabilities [B, M, V] after them.

        Args:
            tokens: int64 [B, M].
            parents: int64 [B, M]: the node that each token follows, 0 the prefix, j the j-th fed
                before this call.
        """
        rows = zip(self._nodes, tokens.tolist(), parents.tolist(), strict=True)
        new = [_paths(nodes, *row) for nodes, *row in rows]
        for nodes, paths in zip(self._nodes, new, strict=True):
            nodes += paths
        return torch.stack([torch.stack([self._logits(path) for path in row]) for row in new])


def _paths(nodes: list[Path], tokens: list[int], parents: list[int]) -> list[Path]:
    """The paths of tokens that follow `nodes`, or one another."""
    known = list(nodes)
    for token, parent in zip(tokens, parents, strict=True):
        known.append((*known[parent], token))
    return known[len(nodes) :]


def mock_pair(
    vocab_size: int = 4, seed: int = 0, agreement: float = 0.6
) -> tuple[TabularModel, TabularModel]:
    """A random target and a draft that resembles it, both with distributions that depend on all of a prefix.

    Args:
        vocab_size: V, at least 1.
        seed: names the pair.
        agreement: the weight of the target's distribution in the draft's, in [0, 1]; the rest is noise.
    """
    if not 0 <= agreement <= 1:
        raise InvalidConfigError("agreement", agreement, "a number in [0, 1]")

    @lru_cache(maxsize=4096)
    def noise(name: str, prefix: tuple[int, ...]) -> NDArray[np.float64]:
        text = f"{name} {seed} {prefix}".encode()
        digest = hashlib.blake2b(text, digest_size=8).digest()
        rng = np.random.default_rng(int.from_bytes(digest, "little"))
        return rng.dirichlet(np.full(vocab_size, 0.7))

    def target(prefix: tuple[int, ...]) -> NDArray[np.float64]:
        return noise("target", prefix).copy()

    def draft(prefix: tuple[int, ...]) -> NDArray[np.float64]:
        return agreement * target(prefix) + (1 - agreement) * noise("draft", prefix)

    return TabularModel(target, vocab_size), TabularModel(draft, vocab_size)
