"""Block verification: Sun et al., ICLR 2025 (arXiv 2403.10444, algorithm 2).

With p_0 = 1 and p_i = min(1, p_{i-1} P(x_i)/Q(x_i)), every node i of the chain has a coin of its
own, h_i, and the round keeps everything up to the *last* head, so that a refusal early in the
block does not end it::

    h_L = p_L                                        at the leaf
    h_i = A_i / (A_i + 1 - p_i),  A_i = sum_x (p_i P_i(x) - Q_i(x))+    before it; 1 if 0/0
    residual(i) = norm((p_i P_i - Q_i)+),  P at the leaf

No lossless verifier that sees only the drafted path keeps more tokens in expectation.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from array_api_compat import array_namespace

from .chain import Chain
from .plain import PlainChains


class BlockVerification:
    """Keep everything up to the last of N + 1 independent heads."""

    def stop_distribution(self, chain: Chain) -> tuple[Any, Any]:
        """The distribution [B, N + 1] of the number of tokens kept, and the p_i [B, N + 1]."""
        xp = array_namespace(chain.ratio)
        width = chain.ratio.shape[1]
        one = xp.ones_like(chain.ratio[:, :1])
        weights = reached(chain.ratio)

        # Nodes 1..N-1 by the formula, and the leaf wherever a row's drafts end. A node before one
        # that is certainly kept is never stopped at, so that its A_i does not matter.
        inner = weights[:, 1:width]
        mass = chain.excess(weights)
        unsure = mass + (1 - inner)
        certain = xp.astype(unsure == 0, xp.float64)
        head = (mass + certain) / (unsure + certain)
        head = xp.concat([one, head, weights[:, width:]], axis=-1)
        if chain.ragged:
            nodes = xp.arange(width + 1, device=chain.ratio.device)[None, :]
            length = chain.length[:, None]
            head = xp.where(nodes < length, head, xp.where(nodes == length, weights, 0.0))

        none_later = xp.cumulative_prod(xp.flip(1 - head[:, 1:], axis=-1), axis=-1)
        none_later = xp.concat([xp.flip(none_later, axis=-1), one], axis=-1)
        return head * none_later, weights

    def stop_edges(
        self, chains: PlainChains, uniforms: Sequence[float] | None
    ) -> tuple[list[list[float]], list[list[float]]]:
        """As `LazyMethod` says: from the leaf, and no sum where p_i in its place decides as well.

        Since h_i <= p_i, the round stops at node 0 if it does so with every h_i yet unknown at its
        p_i; and edges below one that the uniform is not under do not matter.
        """
        reached = chains.reached()
        edges = [[0.0] * len(row) for row in reached]
        below = [1.0] * len(reached)
        least = [list(accumulate(row[1:], _none, initial=1.0)) for row in reached]

        def open_at(row: int, node: int) -> bool:
            if not (node < len(reached[row]) - 1 and 0 < reached[row][node] < 1 and below[row] > 0):
                return False
            known = below[row]
            return uniforms is None or known * least[row][node] <= uniforms[row] < known

        for node in range(max(map(len, reached), default=1) - 1, 0, -1):
            asked = [row for row in range(len(reached)) if open_at(row, node)]
            weights = [reached[row][node] for row in asked]
            sums = chains.excess(asked, node, weights) if asked else []
            heads = {
                row: mass / (mass + (1 - weight))
                for row, mass, weight in zip(asked, sums, weights, strict=True)
            }
            for row, kept in enumerate(reached):
                if node < len(kept):
                    below[row] *= 1 - heads.get(row, kept[node])
                    edges[row][node] = below[row]
        return edges, reached

    def residual(self, chain: Chain, weights: Any, node: Any) -> Any:
        """norm((p_i P - Q)+) after `node` = i kept tokens, or P after the last, float64 [B, V]."""
        xp = array_namespace(weights)
        rows = xp.arange(node.shape[0], device=node.device)
        return chain.residual_distribution(node, weights[rows, node])


def _none(none: float, head: float) -> float:
    """The probability of no head so far, and none of one more coin."""
    return none * (1 - head)


def reached(ratio: Any) -> Any:
    """The p_i of chains whose tokens have these ratios [B, N], float64 [B, N + 1].

    Their sum, p_0 included, is an unbiased estimate of the most tokens that any verifier which sees
    the chain emits on average.
    """
    xp = array_namespace(ratio)
    one = xp.ones_like(ratio[:, :1])
    kept = [one]
    for column in range(ratio.shape[1]):
        kept.append(xp.minimum(kept[-1] * ratio[:, column : column + 1], one))
    return xp.concat(kept, axis=-1)
