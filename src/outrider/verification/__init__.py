"""Which drafts are kept, and what follows them: lossless verification as pure functions.

A method is two functions of the drafted tokens, the laws they were drawn from, and the target's
laws: `stop_law`, the law of how many tokens are kept, and `residual`, the law of the token that
follows them. `verify` draws from the one, then from the other: two draws a round, whatever the
method. Nothing here imports a framework; arrays may be of any array-API library.
"""

from .block import BlockVerification
from .chain import Chain, Method
from .token import TokenVerification
from .verify import verify, verify_atoms

METHODS: dict[str, Method] = {"block": BlockVerification(), "token": TokenVerification()}
"""The lossless methods by the name `SpeculativeConfig.verification` gives them."""

__all__ = [
    "METHODS",
    "BlockVerification",
    "Chain",
    "Method",
    "TokenVerification",
    "verify",
    "verify_atoms",
]
