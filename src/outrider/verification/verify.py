"""One round's verdict: how many drafts are kept, then what follows them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from array_api_compat import array_namespace

from ..records import DraftProposal, VerificationResult
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
    proposal: DraftProposal, target: Any, method: Method, draws: VerdictDraws
) -> VerificationResult:
    """Keep drafts by `method`, and draw the token that follows them.

    Args:
        proposal: drafted tokens and the laws they were drawn from.
        target: the target's laws, dense [B, N + 1, V].
        method: how drafts are kept.
        draws: the round's chance.
    """
    xp = array_namespace(target)
    if proposal.width == 0:
        none = xp.zeros(target.shape[0], dtype=xp.int64, device=target.device)
        return VerificationResult(none, draws.token(target[:, 0]))
    return judge(Chain.of(proposal, target), method, draws)


def judge(chain: Chain, method: Method, draws: VerdictDraws) -> VerificationResult:
    """`verify` for chains that have been set beside the target's laws."""
    law, weights = method.stop_law(chain)
    node = draws.stop(law)
    return VerificationResult(node, draws.token(method.residual(chain, weights, node)))


def verify_atoms(drafted: Sequence[int], atoms: Sequence[int]) -> tuple[int, int]:
    """Keep the drafts of one row whose target laws are atoms: those that equal them.

    Every lossless method keeps drafts up to the first that is not the atom, and the atom there, or
    the one after the last, follows. Nothing is drawn.

    Args:
        drafted: the row's drafted tokens, L of them.
        atoms: the target's token after the prefix and after each draft, L + 1 or more.

    Returns:
        How many are kept, and the token that follows.
    """
    kept = 0
    while kept < len(drafted) and drafted[kept] == atoms[kept]:
        kept += 1
    return kept, atoms[kept]
