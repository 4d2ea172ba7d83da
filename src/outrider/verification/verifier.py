"""From a method's name to a verdict: one object that a decoder keeps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from ..config.params import SpeculativeConfig
from ..errors import DraftShapeError
from ..types.records import DraftProposal, Verdict
from .block import BlockVerification
from .chain import Method
from .coupled import PositionDraws, verify_coupled
from .lossy import LenientVerification, MixtureVerification, TypicalVerification
from .plain import LazyMethod
from .recursive import RecursiveVerification
from .token import TokenVerification
from .traversal import TraversalVerification
from .verify import TreeMethod, VerdictDraws, verify, verify_tree

METHODS: dict[str, LazyMethod] = {
    "block": BlockVerification(),
    "token": TokenVerification(),
    "traversal": BlockVerification(),
    "recursive": TokenVerification(),
}
"""The lossless methods on chains, by the name `SpeculativeConfig.verification` gives them."""

TREE_METHODS: dict[str, TreeMethod] = {
    "block": TraversalVerification(),
    "token": RecursiveVerification(),
    "traversal": TraversalVerification(),
    "recursive": RecursiveVerification(),
}
"""The same on trees."""


class Draws(VerdictDraws, PositionDraws, Protocol):
    """All draws that a verdict may ask for."""


@dataclass(frozen=True, slots=True)
class Verifier:
    """A verification method for chains and for trees.

    Attributes:
        chain: the method on chains; None draws each position's token from coupled noise.
        tree: the method on trees; None where there is none.
        lossy: whether it changes the distribution of the output.
        lazy: the method on chains, if it makes do with distributions that are normalised lazily.
    """

    chain: Method | None
    tree: TreeMethod | None
    lossy: bool = False
    lazy: LazyMethod | None = None

    @staticmethod
    def of(config: SpeculativeConfig) -> Verifier:
        """The verifier that a configuration asks for."""
        match config.verification:
            case "coupled":
                return Verifier(None, None)
            case "lenient":
                return Verifier(LenientVerification(config.lenience), None, lossy=True)
            case "mixture":
                return Verifier(MixtureVerification(config.mixture_budget), None, lossy=True)
            case "typical":
                typical = TypicalVerification(config.typical_epsilon, config.typical_delta)
                return Verifier(typical, None, lossy=True)
            case name:
                method = METHODS[name]
                # A subclass may change what the edges know nothing of.
                plain = type(method) in (BlockVerification, TokenVerification)
                return Verifier(method, TREE_METHODS[name], lazy=method if plain else None)

    @property
    def keeps_forbidden(self) -> bool:
        """Whether it may keep a token to which the target gives no probability."""
        return self.lossy and not isinstance(self.chain, LenientVerification | TypicalVerification)

    @property
    def coupled(self) -> bool:
        """Whether drafts are kept by equality with the target's own keyed draws."""
        return self.chain is None

    def judge(self, proposal: DraftProposal, target: Any, draws: Draws) -> Verdict:
        """The verdict on drafts beside the target's dense distributions [B, N + 1, V]."""
        if self.chain is None:
            return verify_coupled(proposal, target, draws)
        if proposal.width and (
            proposal.parents is not None or proposal.distribution_rows is not None
        ):
            if self.tree is None:
                raise DraftShapeError(
                    "the drafter returned a tree, or drawn tokens beside point masses, and the "
                    "verification method is for chains of one kind only; use a lossless one"
                )
            return verify_tree(proposal, target, self.tree, draws)
        return verify(proposal, target, self.chain, draws)
