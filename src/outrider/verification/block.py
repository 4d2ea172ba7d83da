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

from typing import Any

from array_api_compat import array_namespace

from .chain import Chain


class BlockVerification:
    """Keep everything up to the last of N + 1 independent heads."""

    def stop_law(self, chain: Chain) -> tuple[Any, Any]:
        """The law [B, N + 1] of the number of tokens kept, and the p_i [B, N + 1]."""
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

    def residual(self, chain: Chain, weights: Any, node: Any) -> Any:
        """norm((p_i P - Q)+) after `node` = i kept tokens, or P after the last, float64 [B, V]."""
        xp = array_namespace(weights)
        rows = xp.arange(node.shape[0], device=node.device)
        return chain.residual_law(node, weights[rows, node])


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
