"""One round's verdict: how many drafts are kept, then what follows them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from array_api_compat import array_namespace

from ..config.params import SpeculativeConfig
from ..errors import DraftShapeError, InvalidConfigError
from ..random import RoundDraws
from ..types import trees
from ..types.records import DraftProposal, Verdict
from .bounds import block_values
from .coupled import verify_coupled
from .lossy import LenientVerification, MixtureVerification, TypicalVerification
from .methods import Method, RecursiveVerification, TraversalVerification, point_mass_stop
from .tree import Tree

METHODS: dict[str, Method] = {
    "block": TraversalVerification(),
    "token": RecursiveVerification(),
    "traversal": TraversalVerification(),
    "recursive": RecursiveVerification(),
}
"""The lossless methods, by the name `SpeculativeConfig.verification` gives them."""


@dataclass(frozen=True, slots=True)
class Verifier:
    """Decides which drafts are kept. A decoder keeps one.

    Attributes:
        method: the verification method; None draws each position's token from coupled noise.

    Raises:
        InvalidConfigError: `method` is none, such as the class of one.
    """

    method: Method | None

    def __post_init__(self) -> None:
        if not isinstance(self.method, Method | None):
            raise InvalidConfigError("method", self.method, "a Method that was made, or None")

    @staticmethod
    def of(config: SpeculativeConfig) -> Verifier:
        """Make the verifier that a configuration asks for."""
        method: Method | None
        match config.verification:
            case "coupled":
                method = None
            case "lenient":
                method = LenientVerification(config.lenience)
            case "mixture":
                method = MixtureVerification(config.mixture_budget)
            case "typical":
                method = TypicalVerification(config.typical_epsilon, config.typical_delta)
            case name:
                method = METHODS[name]
        return Verifier(method)

    @property
    def coupled(self) -> bool:
        """Whether drafts are kept by equality with the target's own keyed draws."""
        return self.method is None

    @property
    def lossy(self) -> bool:
        """Whether it changes the distribution of the output."""
        return self.method is not None and self.method.lossy

    @property
    def keeps_forbidden(self) -> bool:
        """Whether it may keep a token to which the target gives no probability."""
        return self.method is not None and self.method.keeps_forbidden

    def verify(self, proposal: DraftProposal, target: Any, draws: RoundDraws) -> Verdict:
        """Keep drafts, and draw the token that follows them.

        Args:
            proposal: drafted tokens and the distributions they were drawn from.
            target: the target's distributions, dense [B, N + 1, V].
            draws: the round's randomness.

        Raises:
            DraftShapeError: the drafts are a tree, or drawn beside point masses, and the method
                takes chains of one kind only.
        """
        if self.method is None:
            return verify_coupled(proposal, target, draws)
        return verify(proposal, target, self.method, draws)


def verify(proposal: DraftProposal, target: Any, method: Method, draws: RoundDraws) -> Verdict:
    """Keep drafts by a method, as `Verifier.verify`; without drafts, draw the target's token."""
    xp = array_namespace(target)
    if proposal.width == 0:
        none = xp.zeros(target.shape[0], dtype=xp.int64, device=target.device)
        return Verdict(none, draws.token(target[:, 0, :]))
    chain = proposal.parents is None and proposal.distribution_rows is None
    if not (chain or method.trees):
        raise DraftShapeError(
            "the drafter returned a tree, or drawn tokens beside point masses, and the "
            "verification method is for chains of one kind only; use a lossless one"
        )
    tree = Tree.of(proposal, target)
    distribution, weights = method.stop_distribution(tree)
    node = draws.stop(distribution)
    token = draws.token(method.residual(tree, weights, node))
    ceiling = None
    if proposal.parents is None:
        ceiling = block_values(tree.ratio) if chain else None
    elif tree.draft is None:
        depth = trees.node_depths(proposal.structure).astype(np.float64)
        tokens = xp.asarray(depth + 1, device=target.device)
        ceiling = xp.sum(point_mass_stop(tree)[0] * tokens, axis=-1)
    return Verdict(node, token, ceiling)


def verify_point_masses(
    drafted: Sequence[int], point_masses: Sequence[int], parents: Sequence[int]
) -> tuple[int, int]:
    """Keep the drafts of one row that equal the target's tokens, which are point masses.

    Every lossless method keeps drafts up to the first that is not the target's token, and that
    token, or the one after the last, follows. Nothing is drawn.

    Args:
        drafted: the row's drafted tokens, L of them.
        point_masses: the target's token after each node, L + 1 or more.
        parents: the node that each drafted token follows.

    Returns:
        The last node kept, and the token that follows it.
    """
    node = 0
    for column, token in enumerate(drafted):
        if parents[column] == node and token == point_masses[node]:
            node = column + 1
    return node, point_masses[node]
