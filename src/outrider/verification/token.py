"""Token-wise verification: Leviathan et al. 2023 (arXiv 2211.17192, section 2.3), Chen et al. 2023.

Drafts are kept from left to right while coins of probability min(1, p/q) come up heads. The first
token not kept is replaced by one drawn from norm((p - q)+); if all are kept, one from p follows.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from operator import mul
from typing import Any

from array_api_compat import array_namespace

from .chain import Chain
from .plain import PlainChains


class TokenVerification:
    """Keep each token with probability min(1, p/q), independently, up to the first refusal."""

    def keep(self, chain: Chain) -> Any:
        """The probability [B, N] of keeping each token, 0 where none was drafted."""
        xp = array_namespace(chain.ratio)
        return xp.minimum(chain.ratio, xp.ones_like(chain.ratio))

    def weight(self) -> float:
        """What the target's row is weighed with before the draft's is taken away."""
        return 1.0

    def stop_distribution(self, chain: Chain) -> tuple[Any, Any]:
        """The distribution [B, N + 1] of the number of tokens kept, and constant weights."""
        xp = array_namespace(chain.ratio)
        keep = self.keep(chain)
        one = xp.ones_like(keep[:, :1])
        reached = xp.concat([one, xp.cumulative_prod(keep, axis=-1)], axis=-1)
        refused = xp.concat([1 - keep, one], axis=-1)
        return reached * refused, xp.full_like(reached, self.weight())

    def stop_edges(
        self,
        chains: PlainChains,
        uniforms: Sequence[float] | None,
    ) -> tuple[list[list[float]], list[list[float]]]:
        """As `LazyMethod` says; the distribution is known without a sum over a row."""
        edges = []
        for row in chains.ratios:
            reached = accumulate((min(ratio, 1.0) for ratio in row), mul, initial=1.0)
            edges.append([1 - kept for kept in reached])
        return edges, [[1.0] * len(row) for row in edges]

    def residual(self, chain: Chain, weights: Any, node: Any) -> Any:
        """norm((p - q)+) after `node` kept tokens, or p after the last, float64 [B, V]."""
        return chain.residual_distribution(node, weights[:, 0])
