"""What a verification method sees of a round: drafted chains, and the distributions on both sides."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from array_api_compat import array_namespace

from ..types.records import Distributions, DraftProposal


@dataclass(frozen=True, slots=True)
class Chain:
    """Drafted chains beside the target's distributions. Arrays of one array-API library.

    Attributes:
        tokens: int64 [B, N], every entry inside the vocabulary.
        length: int64 [B].
        target: [B, N + 1, V], the target's distributions after the prefix and after each token.
        draft: [B, N, V], the distributions the tokens were drawn from; None if each was proposed outright,
            a point mass.
        ragged: whether a row has fewer than N drafts, so that entries beyond them mean nothing.
        ratio: float64 [B, N], target over draft probability of each token; 0 where the target
            gives it none, and 0 where nothing was drafted.
    """

    tokens: Any
    length: Any
    target: Any
    draft: Any | None
    ragged: bool
    ratio: Any

    @staticmethod
    def of(proposal: DraftProposal, target: Any) -> Chain:
        """The chains of a proposal with N >= 1, beside dense target distributions [B, N + 1, V]."""
        xp = array_namespace(target)
        batch, width = proposal.tokens.shape
        device = target.device
        distributions = proposal.distributions or Distributions(point_masses=proposal.tokens)
        columns = xp.arange(width, device=device)[None, :]
        rows = xp.arange(batch, device=device)[:, None]
        length = xp.asarray(proposal.lengths, device=device)
        ragged = bool((proposal.lengths < width).any())
        kept = target[rows, columns, proposal.tokens]
        drawn = (
            None
            if distributions.probs is None
            else distributions.probs[rows, columns, proposal.tokens]
        )
        ratio = target_over_draft(kept, drawn, length if ragged else None)
        return Chain(proposal.tokens, length, target, distributions.probs, ragged, ratio)

    def excess(self, weights: Any) -> Any:
        """sum_x (w_i P_i(x) - Q_i(x))+ at the nodes 1..N-1 for weights w [B, N + 1].

        Returns:
            float64 [B, N - 1], without meaning at and beyond a row's leaf. A chain may also leave
            out, as 0, the sum at a node that has a node of weight 1 at or after it.
        """
        xp = array_namespace(weights)
        width = self.ratio.shape[1]
        inner = weights[:, 1:width]
        if self.draft is None:
            # Q is a point mass on the next token and w P(x) <= 1: all but that token is left.
            return inner * (1 - self.ratio[:, 1:])
        above = inner[:, :, None] * self.target[:, 1:width, :] - self.draft[:, 1:, :]
        return xp.sum(xp.clip(above, min=0), axis=-1)

    def residual_distribution(self, node: Any, weight: Any) -> Any:
        """The distribution after `node` kept tokens: norm((weight * target - draft)+), target at a leaf.

        Args:
            node: int64 [B], how many tokens are kept.
            weight: float64 [B], what the target's row is weighed with before the draft's is taken
                away: the probability with which the method keeps the node.

        Returns:
            float64 [B, V]. Where no mass is left (rounding alone can bring that about, since the
            node is then stopped at with probability zero) it is the target's row.
        """
        xp = array_namespace(self.target)
        batch, width = self.tokens.shape
        device = self.target.device
        rows = xp.arange(batch, device=device)
        target = _row(self.target, node)
        # At a leaf nothing was drafted: whichever column is read there is not used.
        column = xp.minimum(node, xp.asarray(width - 1, device=device))
        if self.draft is None:
            vocabulary = xp.arange(target.shape[-1], device=device)[None, :]
            removed = vocabulary == self.tokens[rows, column][:, None]
            residual = xp.where(removed, 0.0, xp.astype(target, xp.float64))
        else:
            residual = xp.clip(weight[:, None] * target - _row(self.draft, column), min=0)
        total = xp.sum(residual, axis=-1, keepdims=True)
        used = (total > 0) & (node < self.length)[:, None]
        return xp.where(used, residual / xp.where(used, total, 1.0), xp.astype(target, xp.float64))


def _row(distributions: Any, position: Any) -> Any:
    """The distribution [B, V] at each row's own position [B] among distributions [B, M, V]."""
    xp = array_namespace(distributions)
    batch, positions, vocabulary = distributions.shape
    flat = xp.reshape(distributions, (batch * positions, vocabulary))
    return xp.take(
        flat, xp.arange(batch, device=distributions.device) * positions + position, axis=0
    )


def target_over_draft(target: Any, draft: Any | None, length: Any | None) -> Any:
    """The ratio of a chain's drafted tokens, float64 [B, N].

    Args:
        target: [B, N], each token's probability under the target's distribution.
        draft: [B, N], under the distribution it was drawn from; None for point masses.
        length: int64 [B], how many tokens of each row are drafted; None if all are.
    """
    xp = array_namespace(target)
    ratio = xp.astype(target, xp.float64)
    # A token has positive probability under the distribution it was drawn from; where nothing was drafted
    # there may be none to divide by.
    if draft is not None:
        ratio = ratio / (draft + xp.astype(draft == 0, draft.dtype))
    if length is not None:
        columns = xp.arange(target.shape[1], device=ratio.device)[None, :]
        ratio = xp.where(columns < length[:, None], ratio, 0.0)
    return ratio


class Method(Protocol):
    """A verification method: what is kept, and what follows it."""

    def stop_distribution(self, chain: Chain) -> tuple[Any, Any]:
        """How many tokens are kept.

        Returns:
            The distribution [B, N + 1] of the number of tokens kept, float64, and the weights [B, N + 1]
            that `residual` wants at each node.
        """
        ...

    def residual(self, chain: Chain, weights: Any, node: Any) -> Any:
        """The distribution of the token after `node` [B] kept tokens, float64 [B, V]."""
        ...
