"""One round's verdict: how many drafts are kept, then what follows them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from array_api_compat import array_namespace

from ..types.records import DraftProposal, Verdict
from .block import reached
from .chain import Chain, Method
from .transport import first_token_optimum
from .tree import Tree
from .walk import Walk


class VerdictDraws(Protocol):
    """The two draws of a verdict."""

    def stop(self, distributions: Any) -> Any:
        """An index int64 [B] for each distribution [B, N + 1]."""
        ...

    def token(self, distributions: Any) -> Any:
        """An index int64 [B] for each distribution [B, V]."""
        ...


def verify(proposal: DraftProposal, target: Any, method: Method, draws: VerdictDraws) -> Verdict:
    """Keep drafts by `method`, and draw the token that follows them.

    Args:
        proposal: drafted tokens and the distributions they were drawn from.
        target: the target's distributions, dense [B, N + 1, V].
        method: how drafts are kept.
        draws: the round's chance.
    """
    xp = array_namespace(target)
    if proposal.width == 0:
        none = xp.zeros(target.shape[0], dtype=xp.int64, device=target.device)
        return Verdict(none, draws.token(target[:, 0, :]))
    return judge(Chain.of(proposal, target), method, draws)


def judge(chain: Chain, method: Method, draws: VerdictDraws) -> Verdict:
    """`verify` for chains that have been set beside the target's distributions."""
    distribution, weights = method.stop_distribution(chain)
    node = draws.stop(distribution)
    token = draws.token(method.residual(chain, weights, node))
    xp = array_namespace(distribution)
    return Verdict(node, token, xp.sum(reached(chain.ratio), axis=-1))


class TreeMethod(Protocol):
    """A verification method on trees: which node is the last one kept, and what follows it."""

    def stop_distribution(self, tree: Tree) -> tuple[Any, Any]:
        """The distribution [B, N + 1] of the last node kept, float64, and the claims `residual` wants."""
        ...

    def residual(self, tree: Tree, claims: Any, node: Any) -> Any:
        """The distribution of the token after `node` [B], float64 [B, V]."""
        ...


def verify_tree(
    proposal: DraftProposal, target: Any, method: TreeMethod, draws: VerdictDraws
) -> Verdict:
    """Keep a path of a drafted tree, and draw the token that follows it.

    Args:
        proposal: drafted trees with N >= 1, and the distributions they were drawn from.
        target: the target's distributions, dense [B, N + 1, V].
        method: how nodes are kept; where every token is a point mass all methods are one.
        draws: the round's chance.
    """
    xp = array_namespace(target)
    first = first_token_optimum(proposal, target[:, 0])
    if proposal.distributions is None or proposal.distributions.probs is None:
        walk = Walk(proposal, target)
        node = draws.stop(walk.stop_distribution())
        ceiling = 1 + xp.sum(walk.reach(), axis=-1)
        return Verdict(node, draws.token(walk.residual(node)), ceiling, first)
    tree = Tree.of(proposal, target)
    distribution, claims = method.stop_distribution(tree)
    node = draws.stop(distribution)
    token = draws.token(method.residual(tree, claims, node))
    return Verdict(node, token, first_ceiling=first)


def verify_point_masses(
    drafted: Sequence[int], point_masses: Sequence[int], parents: Sequence[int] | None = None
) -> tuple[int, int]:
    """Keep the drafts of one row whose target distributions are point_masses: those that equal them.

    Every lossless method keeps drafts up to the first that is not the atom, and the atom there, or
    the one after the last, follows. Nothing is drawn.

    Args:
        drafted: the row's drafted tokens, L of them.
        point_masses: the target's token after each node, L + 1 or more.
        parents: the node that each drafted token follows; None for a chain.

    Returns:
        The last node kept, and the token that follows it.
    """
    node = 0
    for column, token in enumerate(drafted):
        mother = column if parents is None else parents[column]
        if mother == node and token == point_masses[node]:
            node = column + 1
        elif parents is None:
            break
    return node, point_masses[node]
