"""Methods that change the distribution of the output, for more acceptance: off unless asked for by name.

Each states what it gives away. They read whole rows of the target, and are for chains only.
"""

from __future__ import annotations

from typing import Any

from array_api_compat import array_namespace

from .chain import Chain
from .token import TokenVerification


class LenientVerification(TokenVerification):
    """Keep a token with probability min(1, p / (l q)), correct by norm((p - l q)+).

    The lenience l of Leviathan et al. 2023 (arXiv 2211.17192, appendix A.5). No token's probability
    grows beyond p / l.

    Args:
        lenience: l, in (0, 1]; 1 is lossless.
    """

    def __init__(self, lenience: float) -> None:
        self.lenience = lenience

    def keep(self, chain: Chain) -> Any:
        """The probability [B, N] of keeping each token."""
        xp = array_namespace(chain.ratio)
        return xp.clip(chain.ratio / self.lenience, max=1.0)

    def weight(self) -> float:
        """What the target's row is weighed with before the draft's is taken away."""
        return 1 / self.lenience


class MixtureVerification(TokenVerification):
    """Sample from w p + (1 - w) q, with the largest 1 - w that keeps within the budget.

    A mixture of target and draft is kept with probability min(1, w p / q + 1 - w) and corrected by
    norm((p - q)+). Its total variation from the target is (1 - w) TV(p, q): each position takes the
    least w that makes this at most the budget. On the line between acceptance and bias nothing is
    better: acceptance <= 1 - TV + bias. A distribution that is a single atom, as a greedy request's is,
    stays as it is.

    Args:
        budget: the largest total variation of a token's distribution from the target's, in [0, 1]; 0 is
            lossless.
    """

    def __init__(self, budget: float) -> None:
        self.budget = budget

    def keep(self, chain: Chain) -> Any:
        """The probability [B, N] of keeping each token."""
        xp = array_namespace(chain.ratio)
        width = chain.ratio.shape[1]
        distribution = chain.target[:, :width]
        if chain.draft is None:
            distance = 1 - chain.ratio
        else:
            above = xp.clip(distribution - chain.draft, min=0)
            distance = xp.sum(above, axis=-1, dtype=xp.float64)
        within = distance <= self.budget
        share = xp.where(within, 1.0, self.budget / xp.where(within, 1.0, distance))
        columns = xp.arange(width, device=chain.ratio.device)[None, :]
        share = xp.where(xp.max(distribution, axis=-1) == 1, 0.0, share)
        mixed = xp.clip((1 - share) * chain.ratio + share, max=1.0)
        return xp.where(columns < chain.length[:, None], mixed, 0.0)


class TypicalVerification(TokenVerification):
    """Keep a token if the target does not find it untypical; correct by the target's own row.

    Typical acceptance of Cai et al. 2024 (Medusa, arXiv 2401.10774, section 2.3.1): kept if
    p(x) > min(epsilon, delta exp(-H(p))). Nothing about it is random, and nothing bounds how far
    the distribution moves.

    Args:
        epsilon: the threshold where the target is sure.
        delta: scales it down where the target's entropy H, in nats, is high.
    """

    def __init__(self, epsilon: float, delta: float) -> None:
        self.epsilon = epsilon
        self.delta = delta

    def keep(self, chain: Chain) -> Any:
        """Whether each token is kept, 1.0 or 0.0, [B, N]."""
        xp = array_namespace(chain.ratio)
        batch, width = chain.ratio.shape
        device = chain.ratio.device
        distribution = xp.astype(chain.target[:, :width], xp.float64)
        entropy = -xp.sum(
            distribution * xp.log(xp.where(distribution > 0, distribution, 1.0)), axis=-1
        )
        threshold = xp.clip(self.delta * xp.exp(-entropy), max=self.epsilon)
        rows = xp.arange(batch, device=device)[:, None]
        columns = xp.arange(width, device=device)[None, :]
        kept = distribution[rows, columns, chain.tokens] > threshold
        return xp.astype(kept & (columns < chain.length[:, None]), xp.float64)

    def residual(self, chain: Chain, weights: Any, node: Any) -> Any:
        """The target's row after `node` kept tokens, float64 [B, V]."""
        xp = array_namespace(weights)
        rows = xp.arange(node.shape[0], device=node.device)
        return xp.astype(chain.target[rows, node], xp.float64)
