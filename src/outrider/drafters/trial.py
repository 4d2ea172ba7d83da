"""A round without an engine: what tests and the conformance kit hand to drafters."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..random import DRAFT
from ..types.protocols import Chance
from ..types.records import Children, Distributions, DraftPlan
from .base import DraftContext

_SCALE = 0.2
"""Of the confidence 1 - sqrt(scale * entropy)."""


class TrialContext(DraftContext):
    """A round of requests without sampling filters, on the CPU.

    Children of a tree's node are drawn without replacement.

    Args:
        plan: of the round; with B rows.
        chance: draws for row b under the stream key b.
        prompt_lengths: the number of prompt tokens of each row; None for 1.
        greedy: whether all requests are greedy.
        local: whether all rows are drafted from their own sequence alone.
        learning: whether a drafter may learn from the round.
        predictions: of the rows; empty for none.
        stop_ids: the tokens that end the requests.
        shaped: whether distributions depend on the tokens drafted before; here they never do.

    Attributes:
        confidence: of the tokens drawn so far, where the plan has a stop rule: [B] each.
        picked: the tokens drawn at each position, [B] each.
        paths: the paths that distributions were made for.
    """

    def __init__(
        self,
        plan: DraftPlan,
        chance: Chance,
        *,
        prompt_lengths: Sequence[int] | None = None,
        greedy: bool = False,
        local: bool = False,
        learning: bool = False,
        predictions: Sequence[NDArray[np.int64] | None] = (),
        stop_ids: frozenset[int] = frozenset(),
        shaped: bool = False,
    ) -> None:
        batch = len(plan.depth)
        self._plan = plan
        self._chance = chance
        self._prompt_lengths = np.array(prompt_lengths or [1] * batch, dtype=np.int64)
        self._greedy = greedy
        self._local = np.full(batch, local)
        self._learning = learning
        self._predictions = predictions
        self._stop_ids = stop_ids
        self._shaped = shaped
        self._depth = plan.depth
        self._latest: Tensor | None = None
        self.confidence: list[NDArray[np.float64]] = []
        self.picked: list[Tensor] = []
        self.paths: list[Tensor | None] = []

    @property
    def device(self) -> torch.device:
        """The CPU."""
        return torch.device("cpu")

    @property
    def shaped(self) -> bool:
        """Whether `distribution` needs a path."""
        return self._shaped

    @property
    def local(self) -> NDArray[np.bool_]:
        """Rows to be drafted from their own sequence alone, bool [B]."""
        return self._local

    @property
    def prompt_lengths(self) -> NDArray[np.int64]:
        """The number of prompt tokens of each row, int64 [B]."""
        return self._prompt_lengths

    @property
    def learning(self) -> bool:
        """Whether a drafter may learn from this round."""
        return self._learning

    def prediction(self, row: int) -> NDArray[np.int64] | None:
        """Return the row's expected output."""
        return self._predictions[row] if self._predictions else None

    def stop_ids(self, row: int) -> frozenset[int]:
        """Return the tokens that end the row's request."""
        del row
        return self._stop_ids

    def limit_depths(self, depth: NDArray[np.int64]) -> None:
        """Draw nothing from now on for rows beyond these depths."""
        assert (depth <= self._plan.depth).all(), "rows are limited to at most the plan's depths"
        self._depth = depth

    def distribution(self, logits: Tensor, path: Tensor | None = None) -> Distributions:
        """Make the softmax of logits, or point masses for the chains of greedy requests."""
        self.paths.append(path)
        probs = logits.softmax(-1)
        self._latest = probs
        if self._greedy and self._plan.tree is None:
            return Distributions(point_masses=logits.argmax(-1))
        return Distributions(probs=probs)

    def pick(self, distributions: Distributions, position: int) -> Tensor:
        """Draw tokens int64 [B]; 0 for rows that are not drafted this far."""
        if distributions.probs is None:
            assert distributions.point_masses is not None
            return distributions.point_masses
        used = self._depth > position
        tokens = self._draw(distributions.probs, used, np.full(len(used), position))
        self.picked.append(tokens)
        return tokens

    def depths(self) -> NDArray[np.int64]:
        """Return how deep each row is drafted after the tokens drawn so far."""
        stop, drawn = self._plan.stop, len(self.confidence) + 1
        if stop is None or self._latest is None:
            return self._depth
        entropy = torch.special.entr(self._latest).sum(-1, dtype=torch.float64).numpy()
        self.confidence.append((1 - np.sqrt(_SCALE * entropy)).clip(min=0))
        drafting = self._depth > drawn
        ending = drafting & ~stop.continues(np.stack(self.confidence, 1), drafting)
        self._depth = np.where(ending, drawn, self._depth)
        return self._depth

    def children(
        self, distributions: Distributions, counts: Tensor, most: int, first: int, level: int
    ) -> Children:
        """Draw tokens that follow the same node, without replacement."""
        probs = distributions.probs
        assert probs is not None
        batch, nodes, _ = probs.shape
        if self._greedy:
            outright = np.full((batch, most), -1)
            return Children(probs.topk(most, -1).indices, None, outright)
        tokens, made, left = [], [], probs
        for place in range(most):
            total = left.sum(-1, keepdim=True)
            made.append(torch.where(total > 0, left / total, probs))
            used = (self._depth > level)[:, None] & (counts.numpy() > place)
            slots = (first + np.arange(nodes)) * probs.shape[2] + place
            drawn = self._draw(made[-1], used, np.broadcast_to(slots, (batch, nodes)))
            tokens.append(drawn)
            left = left.scatter(-1, drawn[..., None], 0)
        rows = np.tile(np.arange(most), (batch, 1))
        return Children(torch.stack(tokens, -1), Distributions(probs=torch.stack(made, 2)), rows)

    def estimate_acceptance(self, distributions: Distributions, most: int) -> Tensor:
        """Estimate that the first child is kept, and the next as often as the likeliest tokens."""
        assert distributions.probs is not None
        best = distributions.probs.topk(most, -1).values.double()
        return torch.cat([torch.ones_like(best[..., :1]), best[..., :-1]], -1)

    def _draw(self, probs: Tensor, used: NDArray[np.bool_], slots: NDArray[np.int64]) -> Tensor:
        """Draw from distributions [..., V] where `used` [...], under slots [...]; 0 elsewhere."""
        places = np.nonzero(used)
        keys = np.zeros((len(places[0]), 5), dtype=np.uint64)
        keys[:, 0], keys[:, 3], keys[:, 4] = places[0], DRAFT, slots[places]
        tokens = torch.zeros(used.shape, dtype=torch.int64)
        if len(keys):
            tokens[places] = self._chance.draw(probs[places], keys)
        return tokens
