"""What a verification method sees of a round: drafted chains, and the laws on both sides."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from array_api_compat import array_namespace

from ..records import DraftProposal, Laws


@dataclass(frozen=True, slots=True)
class Chain:
    """Drafted chains beside the target's laws. Arrays of one array-API library.

    Attributes:
        tokens: int64 [B, N], every entry inside the vocabulary.
        length: int64 [B].
        target: [B, N + 1, V], the target's laws after the prefix and after each token.
        draft: [B, N, V], the laws the tokens were drawn from; None if each was proposed outright,
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
        """The chains of a proposal with N >= 1, beside dense target laws [B, N + 1, V]."""
        xp = array_namespace(target)
        batch, width = proposal.tokens.shape
        device = target.device
        laws = proposal.laws or Laws(atoms=proposal.tokens)
        columns = xp.arange(width, device=device)[None, :]
        rows = xp.arange(batch, device=device)[:, None]
        length = xp.asarray(proposal.lengths, device=device)
        ratio = xp.astype(target[rows, columns, proposal.tokens], xp.float64)
        # A token has positive probability under the law it was drawn from; where nothing was
        # drafted there may be none to divide by.
        if laws.probs is not None:
            drawn = laws.probs[rows, columns, proposal.tokens]
            ratio = ratio / (drawn + xp.astype(drawn == 0, drawn.dtype))
        ragged = bool((proposal.lengths < width).any())
        if ragged:
            ratio = xp.where(columns < length[:, None], ratio, 0.0)
        return Chain(proposal.tokens, length, target, laws.probs, ragged, ratio)

    def residual_law(self, node: Any, weight: Any) -> Any:
        """The law after `node` kept tokens: norm((weight * target - draft)+), target at a leaf.

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
        target = self.target[rows, node]
        # At a leaf nothing was drafted: whichever column is read there is not used.
        column = xp.minimum(node, xp.asarray(width - 1, device=device))
        if self.draft is None:
            vocabulary = xp.arange(target.shape[-1], device=device)[None, :]
            removed = vocabulary == self.tokens[rows, column][:, None]
            residual = xp.where(removed, 0.0, xp.astype(target, xp.float64))
        else:
            residual = xp.clip(weight[:, None] * target - self.draft[rows, column], min=0)
        total = xp.sum(residual, axis=-1, keepdims=True)
        used = (total > 0) & (node < self.length)[:, None]
        return xp.where(used, residual / xp.where(used, total, 1.0), xp.astype(target, xp.float64))


class Method(Protocol):
    """A verification method: what is kept, and what follows it."""

    def stop_law(self, chain: Chain) -> tuple[Any, Any]:
        """How many tokens are kept.

        Returns:
            The law [B, N + 1] of the number of tokens kept, float64, and the weights [B, N + 1]
            that `residual` wants at each node.
        """
        ...

    def residual(self, chain: Chain, weights: Any, node: Any) -> Any:
        """The law of the token after `node` [B] kept tokens, float64 [B, V]."""
        ...
