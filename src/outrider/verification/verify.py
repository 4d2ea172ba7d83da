"""One round's verdict: how many drafts are kept, then what follows them."""

from __future__ import annotations

from typing import Any, Protocol

from array_api_compat import array_namespace

from ..records import DraftProposal, Laws, VerificationResult
from .chain import Chain, Method


class VerdictDraws(Protocol):
    """The two draws of a verdict."""

    def stop(self, laws: Any) -> Any:
        """An index int64 [B] for each law [B, N + 1]."""
        ...

    def token(self, laws: Any) -> Any:
        """An index int64 [B] for each law [B, V]."""
        ...


def verify(
    proposal: DraftProposal, target: Laws, method: Method, draws: VerdictDraws
) -> VerificationResult:
    """Keep drafts by `method`, and draw the token that follows them.

    Args:
        proposal: drafted tokens and the laws they were drawn from.
        target: the target's laws for [B, N + 1]. Where they are atoms nothing is drawn: every
            lossless method keeps the drafts that equal the atoms, up to the first that does not.
        method: how drafts are kept.
        draws: the round's chance.
    """
    if target.atoms is not None:
        return _verify_atoms(proposal, target.atoms)
    probs: Any = target.probs
    xp = array_namespace(probs)
    if proposal.width == 0:
        none = xp.zeros(probs.shape[0], dtype=xp.int64, device=probs.device)
        return VerificationResult(none, draws.token(probs[:, 0]))
    chain = Chain.of(proposal, probs)
    law, weights = method.stop_law(chain)
    node = draws.stop(law)
    return VerificationResult(node, draws.token(method.residual(chain, weights, node)))


def _verify_atoms(proposal: DraftProposal, atoms: Any) -> VerificationResult:
    xp = array_namespace(atoms)
    batch, width = proposal.tokens.shape
    equal = proposal.tokens == atoms[:, :width]
    if (proposal.lengths < width).any():
        lengths = xp.asarray(proposal.lengths, device=atoms.device)
        equal = equal & (xp.arange(width, device=atoms.device) < lengths[:, None])
    kept = xp.sum(xp.cumulative_prod(xp.astype(equal, xp.int64), axis=-1), axis=-1)
    return VerificationResult(kept, atoms[xp.arange(batch, device=atoms.device), kept])
