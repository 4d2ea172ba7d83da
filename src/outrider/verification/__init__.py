"""Which drafts are kept, and what follows them: verification as pure functions.

A method is two functions of the drafted tokens, the distributions they were drawn from, and the
target's distributions: `stop_distribution`, the distribution of the last node kept, and `residual`,
the distribution of the token that follows it. `verify` draws from the one, then from the other: two
draws a round, whatever the method. A chain is the tree with one path.
Nothing here imports a framework; arrays may be of any array-API library.
"""

from .coupled import verify_coupled
from .methods import Method, RecursiveVerification, TraversalVerification
from .tree import Tree
from .verifier import METHODS, Verifier, verify, verify_point_masses

TokenVerification = RecursiveVerification
"""Token-wise verification is recursive rejection on a chain."""

BlockVerification = TraversalVerification
"""Block verification is traversal verification on a chain."""

__all__ = [
    "METHODS",
    "BlockVerification",
    "Method",
    "RecursiveVerification",
    "TokenVerification",
    "TraversalVerification",
    "Tree",
    "Verifier",
    "verify",
    "verify_coupled",
    "verify_point_masses",
]
