"""What the engine emits in a round, exactly, beside what no lossless verification can exceed.

The engine is enumerated; the bounds are computed from the distributions of the models alone. A
method that emits more than a bound is not lossless, or counts wrongly. Some are attained: the
optimum of every chain by block verification, the cover bound by any method where no draw decides
what is drafted, and the transport optimum of likeliest children beside a drawn one.

Coupled mode is not among the methods: its drafter shares the target's noise, so that its drafts and
the target's tokens are not drawn apart, as the bounds (and an enumeration) have it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..config.params import Verification
from ..runtimes.tabular import mock_pair
from ..types.finding import Finding
from .bounds import Children, cover_bound, exact_block_value, transport_optimum, tree_probabilities
from .cases import DRAFTERS, configured
from .checks import PROMPT, TOLERANCE, Build, expected

METHODS: tuple[Verification, ...] = ("token", "block")
"""On trees they are recursive rejection and traversal."""

DRAFTS: tuple[tuple[str, tuple[int, ...]], ...] = (
    ("model", (1,)),
    ("model", (1, 1)),
    ("model", (1, 1, 1)),
    ("model, greedy", (1, 1, 1)),
    *(
        (kind, shape)
        for kind in ("tree, points", "tree, greedy", "tree, drawn", "tree, replaced")
        for shape in ((2,), (2, 1))
    ),
)
"""A key of `cases.DRAFTERS`, and how many children each node has at each depth."""

PAIRS = ((9, 0.3), (0, 0.0))
"""Seeds of the model pairs, and how far the draft resembles the target."""

CASES = tuple((*drafts, pair) for pair in range(len(PAIRS)) for drafts in DRAFTS)
"""The arguments of `reached`: every draft on every pair."""

VOCABULARY = 3


@dataclass(frozen=True, slots=True)
class Reached:
    """Expected tokens of a round, the last one included.

    Attributes:
        drafter: what drafted; a key of `cases.DRAFTERS`.
        shape: how many children each node has at each depth; ones for a chain.
        pair: the index of the model pair.
        tokens: what the engine emits, by method.
        bound: what no lossless verification exceeds: the chain's optimum; of trees of one level
            that are drawn, the transport optimum; of others, the cover bound.
        attaining: the methods that have to attain it.
    """

    drafter: str
    shape: tuple[int, ...]
    pair: int
    tokens: Mapping[str, float]
    bound: float
    attaining: tuple[str, ...]

    @property
    def shares(self) -> dict[str, float]:
        """What each method emits over the bound."""
        return {method: tokens / self.bound for method, tokens in self.tokens.items()}

    @property
    def excess(self) -> float:
        """How far the best method is above the bound; negative below it."""
        return max(self.tokens.values()) - self.bound

    @property
    def shortfall(self) -> float:
        """How far a method that has to attain the bound is from it, at the most."""
        return max((abs(self.tokens[name] - self.bound) for name in self.attaining), default=0.0)

    @property
    def passed(self) -> bool:
        """Whether nothing is above the bound, nor beside it if it has to attain it."""
        return max(self.excess, self.shortfall) <= TOLERANCE


def reached(build: Build, drafter: str, shape: tuple[int, ...], pair: int) -> Reached:
    """Enumerate the engine's first round under each method, and compute its bound."""
    seed, agreement = PAIRS[pair]
    target, draft = mock_pair(VOCABULARY, seed, agreement)
    settings = DRAFTERS[drafter]
    deterministic = settings.get("draft_sample_method") == "greedy"
    kind: Children = (
        "deterministic" if deterministic else settings.get("tree_children", "with_replacement")
    )
    more = {"tree_shape": shape} if drafter.startswith("tree") else {}
    tokens: dict[str, float] = {}
    for method in METHODS:
        decoder = build(target, draft, configured(method, drafter, len(shape), **more), None)
        tokens[method] = expected(decoder, lambda record, row: record.emitted[row])
    attaining: tuple[str, ...] = ()
    if not more and not deterministic:
        bound = exact_block_value(target.probabilities, draft.probabilities, len(shape), PROMPT)
        attaining = ("block",)
    elif kind != "deterministic" and len(shape) == 1:
        first = target.probabilities(PROMPT), draft.probabilities(PROMPT)
        bound = 1 + transport_optimum(*first, *shape, kind)
        attaining = METHODS if kind == "greedy" else ()
    else:
        drafted = tree_probabilities(draft.probabilities, shape, kind, PROMPT)
        bound = cover_bound(target.probabilities, drafted, PROMPT)
        attaining = METHODS if deterministic else ()
    return Reached(drafter, shape, pair, tokens, bound, attaining)


def finding(found: Sequence[Reached]) -> Finding:
    """Whether the engine emits no more than the bounds allow, and as much as it has to."""
    excess = max(item.excess for item in found)
    shortfall = max(item.shortfall for item in found)
    above = f"{excess:.1e} above a bound" if excess > TOLERANCE else "nothing above a bound"
    detail = f"{above}, {shortfall:.1e} from a value to attain"
    return Finding("ceilings", all(item.passed for item in found), detail)
