"""Which drafts are kept, and what follows them: verification as pure functions.

A method is two functions of the drafted tokens, the distributions they were drawn from, and the target's
distributions: `stop_distribution`, the distribution of the last node kept, and `residual`, the distribution of the token that follows
it. `verify` draws from the one, then from the other: two draws a round, whatever the method.
Nothing here imports a framework; arrays may be of any array-API library.
"""

from .block import BlockVerification
from .chain import Chain, Method
from .coupled import verify_coupled
from .recursive import RecursiveVerification
from .token import TokenVerification
from .traversal import TraversalVerification
from .tree import Tree
from .verifier import METHODS, TREE_METHODS, Verifier
from .verify import TreeMethod, verify, verify_point_masses, verify_tree
from .walk import Walk

__all__ = [
    "METHODS",
    "TREE_METHODS",
    "BlockVerification",
    "Chain",
    "Method",
    "RecursiveVerification",
    "TokenVerification",
    "TraversalVerification",
    "Tree",
    "TreeMethod",
    "Verifier",
    "Walk",
    "verify",
    "verify_coupled",
    "verify_point_masses",
    "verify_tree",
]
