"""What is needed to ask a runtime something, and to know what it should say."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count

import numpy as np
import torch
from torch import Tensor

from ...engine.validation import check_scores
from ...runtimes.base import Runtime, rounding_of, tolerated
from ...types import trees
from ...types.records import Distributions, DraftProposal, Prefix
from .references import Path, Reference
from .runner import require

Row = tuple[Sequence[int], Sequence[int]]
"""The drafted tokens of one row and the node that each follows: 0 the prefix, j the j-th token."""


@dataclass
class Case:
    """A runtime under test, what is needed to ask it something, and the worst relative error."""

    runtime: Runtime
    reference: Reference
    tolerance: float | None
    rng: np.random.Generator
    worst: float = 0.0
    names: Iterator[int] = field(default_factory=lambda: count(1))

    @property
    def room(self) -> int:
        """The longest text that is tried."""
        return min(self.runtime.max_length or 96, 96)

    @property
    def rows(self) -> int:
        """How many sequences a batch has."""
        return min(self.runtime.max_sequences or 3, 3)

    def text(self, length: int) -> Path:
        """A random text, or what fits of it."""
        size = max(1, min(length, self.room - 8))
        return tuple(self.rng.integers(self.runtime.vocab_size, size=size).tolist())

    def batch(self) -> dict[int, Path]:
        """New sequences of one batch, of different lengths."""
        return {next(self.names): self.text(length) for length in (2, 21, 9)[: self.rows]}

    def chain(self, width: int) -> Row:
        """Random drafts in a row."""
        return self.rng.integers(self.runtime.vocab_size, size=width).tolist(), range(width)

    def tree(self, width: int) -> Row:
        """Random drafts that branch."""
        return self.chain(width)[0], self.rng.integers(np.arange(width) + 1).tolist()

    def proposal(self, rows: Sequence[Row]) -> DraftProposal:
        """A proposal of point masses, where the runtime expects it."""
        return proposal(rows, self.runtime.device)

    def prefixes(self, live: Mapping[int, Path]) -> list[Prefix]:
        """The texts of live sequences, as a runtime takes them."""
        return [Prefix(name, path) for name, path in live.items()]

    def verify(self, live: Mapping[int, Path], drafts: int | Sequence[Row]) -> None:
        """Verify drafts, chains of a width or rows, and compare the logits after every node."""
        rows = [self.chain(drafts) for _ in live] if isinstance(drafts, int) else drafts
        asked = self.proposal(rows)
        scores = self.runtime.verify(self.prefixes(live), asked)
        check_scores(scores, asked, self.runtime.vocab_size)
        self.compare(scores.logits, live.values(), rows)

    def compare(
        self, logits: Tensor, paths: Collection[Path], rows: Sequence[Row] = (), start: int = 0
    ) -> None:
        """Compare logits [B, M, V] with those after each row's nodes from `start` on."""
        for after, path, row in zip(logits, paths, rows or [((), ())] * len(paths), strict=True):
            for node in range(start, min(len(row[0]) + 1, start + len(after))):
                self._compare(after[node - start], (*path, *spelled(row, node)))

    def _compare(self, found: Tensor, path: Path) -> None:
        """Compare logits [V] with those after a text."""
        expected = self.reference.logits(path).to("cpu", torch.float64)
        computed = max(self.runtime.rounding, rounding_of(torch.finfo(found.dtype).eps))
        found = found.to("cpu", torch.float64)
        finite = expected[expected.isfinite()]
        scale = float(finite.abs().max().clamp(min=1e-9)) if len(finite) else 1.0
        apart = torch.where(found == expected, 0.0, (found - expected).abs())
        error = float(apart.max()) / scale
        self.worst = max(self.worst, error)
        allowed = tolerated(computed) if self.tolerance is None else self.tolerance
        require(
            error <= allowed,
            f"logits after a text of {len(path)} tokens are off by {error:.2g} of the largest; "
            f"allowed {allowed:.2g}",
        )

    def rounds(self, turns: int, draft: Callable[[int], Row]) -> None:
        """Rounds on a batch: some of each row's drafts are kept, then another token follows."""
        live = self.batch()
        for _ in range(turns):
            rows = [draft(int(self.rng.integers(5))) for _ in live]
            self.verify(live, rows)
            for name, row in zip(live, rows, strict=True):
                kept = spelled(row, int(self.rng.integers(len(row[0]) + 1)))
                live[name] = (*live[name], *kept, *self.text(1))
        self.runtime.check_integrity()
        self.runtime.release(live)

    @property
    def said(self) -> str:
        """The largest error, in words."""
        return f"largest relative error {self.worst:.1e}"


def proposal(rows: Sequence[Row], device: torch.device | None = None) -> DraftProposal:
    """A proposal of point masses: ragged chains, or trees if one of them branches."""
    lengths = np.array([len(tokens) for tokens, _ in rows], dtype=np.int64)
    tokens = torch.zeros(len(rows), int(lengths.max()), dtype=torch.int64)
    parents = trees.chain(*tokens.shape)
    for index, (drafted, follows) in enumerate(rows):
        tokens[index, : len(drafted)] = torch.tensor(drafted, dtype=torch.int64)
        parents[index, : len(drafted)] = list(follows)
    tokens = tokens.to(device)
    branches = not np.array_equal(parents, trees.chain(*tokens.shape))
    masses = Distributions(point_masses=tokens)
    return DraftProposal(tokens, lengths, masses, parents if branches else None)


def spelled(row: Row, node: int) -> list[int]:
    """The drafted tokens down to a node."""
    tokens, parents = row
    return [tokens[step - 1] for step in trees.path(parents, node)]
