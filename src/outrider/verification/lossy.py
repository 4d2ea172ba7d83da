"""Methods that change the distribution of the output, for more acceptance: only if asked for.

Each states what it gives away. They are recursive rejection with another ratio, for chains only.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from typing import Any

from array_api_compat import array_namespace

from .methods import RecursiveVerification
from .tree import Tree, rows_at


class LossyVerification(RecursiveVerification):
    """Token-wise verification that keeps tokens with a probability of its own."""

    lossy: bool = True
    trees: bool = False

    @abstractmethod
    def keep(self, tree: Tree) -> Any:
        """Say how each token is kept: with probability min(1, .), float64 [B, N]."""

    def stop_distribution(self, tree: Tree) -> tuple[Any, Any]:
        """As `Method` says; all weights are one."""
        return super().stop_distribution(replace(tree, ratio=self.keep(tree)))


class LenientVerification(LossyVerification):
    """Keep a token with probability min(1, p / (l q)), correct by norm((p - q)+).

    The lenience l of Leviathan et al. 2023 (arXiv 2211.17192, appendix A.5). No token's probability
    grows beyond p / l. The paper corrects by norm((p - l q)+); this correction keeps the acceptance
    and the bound, and is never further from the target.

    Args:
        lenience: l, in (0, 1]; 1 is lossless.
    """

    def __init__(self, lenience: float) -> None:
        self.lenience = lenience

    def keep(self, tree: Tree) -> Any:
        """As `LossyVerification` says."""
        return tree.ratio / self.lenience


class MixtureVerification(LossyVerification):
    """Sample from w p + (1 - w) q, with the largest 1 - w that keeps within the budget.

    A mixture of target and draft is kept with probability min(1, w p / q + 1 - w) and corrected by
    norm((p - q)+). Its total variation from the target is (1 - w) TV(p, q): each position takes the
    least w that makes this at most the budget. On the line between acceptance and bias nothing is
    better: acceptance <= 1 - TV + bias. A distribution that is a single point mass, as a greedy
    request's is, stays as it is.

    Args:
        budget: the largest total variation of a token's distribution from the target's, in [0, 1];
            0 is lossless.
    """

    keeps_forbidden: bool = True

    def __init__(self, budget: float) -> None:
        self.budget = budget

    def keep(self, tree: Tree) -> Any:
        """As `LossyVerification` says."""
        xp = array_namespace(tree.target)
        width = tree.ratio.shape[1]
        target = tree.target[:, :width, :]
        distance = 1 - tree.ratio
        if tree.draft is not None:
            distance = xp.sum(xp.clip(target - tree.draft, min=0), axis=-1, dtype=xp.float64)
        within = distance <= self.budget
        share = xp.where(within, 1.0, self.budget / xp.where(within, 1.0, distance))
        share = xp.where(xp.max(target, axis=-1) == 1, 0.0, share)
        return (1 - share) * tree.ratio + share


class TypicalVerification(LossyVerification):
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

    def keep(self, tree: Tree) -> Any:
        """As `LossyVerification` says: 1.0 or 0.0."""
        xp = array_namespace(tree.target)
        target = xp.astype(tree.target[:, : tree.ratio.shape[1], :], xp.float64)
        logs = xp.log(xp.where(target > 0, target, 1.0))
        entropy = -xp.sum(target * logs, axis=-1)
        threshold = xp.clip(self.delta * xp.exp(-entropy), max=self.epsilon)
        return xp.astype(tree.ratio * tree.share > threshold, xp.float64)

    def residual(self, tree: Tree, weights: Any, node: Any) -> Any:
        """Find the target's row after `node` [B] kept tokens, [B, V]."""
        return rows_at(tree.target, node)
