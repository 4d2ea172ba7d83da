"""Models with explicit distributions: small enough to enumerate, and to draft with."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..config.validation import integer, real
from ..errors import DegenerateDistributionError, DistributionWidthError
from ..types.records import DraftProposal, Prefix, TargetScores
from .base import Capabilities, Cursor, Runtime

Path = tuple[int, ...]
"""Token ids from the first on."""

Distribution = Callable[[Path], Sequence[float] | NDArray[np.float64]]


class TabularModel(Runtime):
    """A model given by its distribution.

    Args:
        distribution: maps a prefix, a tuple of token ids, to the probabilities [V] of what follows.
        vocab_size: V.

    Raises:
        InvalidConfigError: `vocab_size` is below 1.
        DistributionWidthError: when asked about a prefix whose distribution is not V wide.
        DegenerateDistributionError: likewise, whose distribution has negative mass or does not sum
            to one.
    """

    def __init__(self, distribution: Distribution, vocab_size: int) -> None:
        self._distribution = distribution
        self._vocab_size = integer("vocab_size", vocab_size, 1)

    @property
    def capabilities(self) -> Capabilities:
        """Any number of sequences of any length, and trees."""
        return Capabilities(self._vocab_size, torch.device("cpu"))

    def probabilities(self, prefix: Path) -> NDArray[np.float64]:
        """Return the distribution [V] of the token after `prefix`, checked."""
        found = np.asarray(self._distribution(prefix), dtype=np.float64)
        if found.shape != (self._vocab_size,):
            raise DistributionWidthError(
                f"the distribution after {prefix} has shape {found.shape}; expected "
                f"({self._vocab_size},), one probability for each token of the vocabulary"
            )
        if not (found >= 0).all() or abs(found.sum() - 1) > 1e-6:
            raise DegenerateDistributionError(
                f"the distribution after {prefix} is {found.tolist()}; expected non-negative "
                "probabilities that sum to one"
            )
        return found

    def logits(self, prefix: Path) -> Tensor:
        """Return the log-probabilities [V] of the token after `prefix`, float64."""
        return torch.from_numpy(self.probabilities(prefix)).log()

    def verify(self, prefixes: Sequence[Prefix], proposal: DraftProposal) -> TargetScores:
        """Compute log-probabilities [B, N + 1, V], float64; zeros beyond a row's drafts."""
        shape = len(prefixes), proposal.width + 1, self._vocab_size
        logits = torch.zeros(shape, dtype=torch.float64)
        drafts = proposal.tokens.tolist(), proposal.structure.tolist(), proposal.lengths.tolist()
        for row, (prefix, tokens, parents, length) in enumerate(
            zip(prefixes, *drafts, strict=True)
        ):
            paths = _extended([tuple(prefix.tokens.tolist())], tokens[:length], parents[:length])
            for node, path in enumerate(paths):
                logits[row, node] = self.logits(path)
        return TargetScores(logits)

    def open(self, prefixes: Sequence[Prefix], depth: int) -> TabularCursor:
        """Open a cursor at the end of the prefixes."""
        return TabularCursor(self, [tuple(prefix.tokens.tolist()) for prefix in prefixes])


class TabularCursor(Cursor):
    """A tabular model in the middle of drafting; log-probabilities are its logits."""

    def __init__(self, model: TabularModel, prefixes: list[Path]) -> None:
        self._model = model
        self._paths = prefixes
        self._nodes = [[path] for path in prefixes]

    @property
    def logits(self) -> Tensor:
        """Log-probabilities [B, V]."""
        return torch.stack([self._model.logits(path) for path in self._paths])

    def step(self, tokens: Tensor) -> Tensor:
        """Feed one token to each row; see `Cursor`."""
        fed = zip(self._paths, tokens.tolist(), strict=True)
        self._paths = [(*path, token) for path, token in fed]
        return self.logits

    def expand(self, tokens: Tensor, parents: Tensor) -> Tensor:
        """Feed nodes of a tree; see `Cursor`."""
        rows = zip(self._nodes, tokens.tolist(), parents.tolist(), strict=True)
        self._nodes = [_extended(*row) for row in rows]
        width = tokens.shape[1]
        new = [[self._model.logits(path) for path in nodes[-width:]] for nodes in self._nodes]
        return torch.stack([torch.stack(row) for row in new])


def _extended(nodes: list[Path], tokens: list[int], parents: list[int]) -> list[Path]:
    """Return paths, and those of tokens that follow them or one another."""
    known = list(nodes)
    for token, parent in zip(tokens, parents, strict=True):
        known.append((*known[parent], token))
    return known


def mock_pair(
    vocab_size: int = 4, seed: int = 0, agreement: float = 0.6
) -> tuple[TabularModel, TabularModel]:
    """Make a random target and a draft that resembles it, which depend on all of a prefix.

    Args:
        vocab_size: V, at least 1.
        seed: names the pair.
        agreement: the weight of the target's distribution in the draft's, in [0, 1]; the rest is
            noise.
    """
    real("agreement", agreement, "a number in [0, 1]", lambda x: 0 <= x <= 1)

    @lru_cache(maxsize=4096)
    def noise(name: str, prefix: Path) -> NDArray[np.float64]:
        text = f"{name} {seed} {prefix}".encode()
        digest = hashlib.blake2b(text, digest_size=8).digest()
        rng = np.random.default_rng(int.from_bytes(digest, "little"))
        return rng.dirichlet(np.full(vocab_size, 0.7))

    def target(prefix: Path) -> NDArray[np.float64]:
        return noise("target", prefix).copy()

    def draft(prefix: Path) -> NDArray[np.float64]:
        return agreement * target(prefix) + (1 - agreement) * noise("draft", prefix)

    return TabularModel(target, vocab_size), TabularModel(draft, vocab_size)
