"""What the engine emits in a round, exactly, beside what no lossless verification can exceed.

The engine is enumerated; the bounds are computed from the distributions of the models alone. A method that
emits more than a bound is not lossless, or counts wrongly. Some bounds are attained: block
verification's value on every chain, the cover bound by any method where no draw decides what is
drafted, and the transport optimum of likeliest children beside a drawn one.

Coupled mode is not among the methods: its drafter shares the target's noise, so that its drafts and
the target's tokens are not drawn apart, as the bounds (and an enumeration) have it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..config.params import Verification
from ..runtimes.tabular import TabularModel, mock_pair
from ..types.finding import Finding
from .bounds import (
    Distribution,
    Path,
    cover_bound,
    exact_block_value,
    oracle_bound,
    transport_optimum,
    tree_probabilities,
)
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
        block_value: the most that any verification of these chains emits; None of trees.
        transport: the same of trees of one level, by optimal transport; None of others.
        cover: the cover bound: 1 + the sum over nodes of the lesser of the target's probability
            and that of being drafted.
        oracle: the oracle bound of as many nodes; None where draws decide what is drafted, for it
            does not hold there.
    """

    drafter: str
    shape: tuple[int, ...]
    pair: int
    tokens: Mapping[str, float]
    block_value: float | None
    transport: float | None
    cover: float
    oracle: float | None

    @property
    def bound(self) -> float:
        """The least of the bounds."""
        found = (self.block_value, self.transport, self.cover, self.oracle)
        return min(bound for bound in found if bound is not None)

    @property
    def shares(self) -> dict[str, float]:
        """What each method emits over the least of the bounds."""
        return {method: tokens / self.bound for method, tokens in self.tokens.items()}

    @property
    def excess(self) -> float:
        """How far the best method is above the least of the bounds; negative below it."""
        return max(self.tokens.values()) - self.bound

    @property
    def shortfall(self) -> float:
        """How far a method that has to attain a value is from it, at the most."""
        errors = [0.0]
        if self.block_value is not None:
            errors.append(abs(self.tokens["block"] - self.block_value))
        if self.oracle is not None:
            errors += (abs(tokens - self.cover) for tokens in self.tokens.values())
        if self.transport is not None and self.drafter == "tree, greedy":
            errors += (abs(tokens - self.transport) for tokens in self.tokens.values())
        return max(errors)

    @property
    def passed(self) -> bool:
        """Whether nothing is above a bound, nor beside a value it has to attain."""
        return self.excess <= TOLERANCE and self.shortfall <= TOLERANCE


def reached(build: Build, drafter: str, shape: tuple[int, ...], pair: int) -> Reached:
    """Enumerate the engine's first round under each method, and compute the bounds; see `Reached`."""
    seed, agreement = PAIRS[pair]
    target, draft = mock_pair(VOCABULARY, seed, agreement)
    settings = DRAFTERS[drafter]
    outright = settings.get("draft_sample_method") == "greedy"
    tree = drafter.startswith("tree")
    tokens: dict[str, float] = {}
    for method in METHODS:
        more = {"tree_shape": shape} if tree else {}
        config = configured(method, drafter, len(shape), **more)
        decoder = build(target, draft, config, None)
        tokens[method] = expected(decoder, lambda record, row: record.emitted[row])
    transport: float | None = None
    if outright:
        inclusion = dict.fromkeys(_likeliest(draft, shape, PROMPT), 1.0)
    else:
        kind = settings.get("tree_children", "with_replacement")
        inclusion = tree_probabilities(draft.probabilities, shape, kind, PROMPT)
        if tree and len(shape) == 1:
            first = target.probabilities(PROMPT), draft.probabilities(PROMPT)
            transport = 1 + transport_optimum(*first, *shape, kind)
    distribution: Distribution = _point_masses(draft) if outright else draft.probabilities
    return Reached(
        drafter,
        shape,
        pair,
        tokens,
        None if tree else exact_block_value(target.probabilities, distribution, len(shape), PROMPT),
        transport,
        cover_bound(target.probabilities, inclusion, PROMPT),
        oracle_bound(target.probabilities, len(inclusion), PROMPT) if outright else None,
    )


def finding(found: Sequence[Reached]) -> Finding:
    """Whether the engine emits no more than the bounds allow, and as much as it has to."""
    excess = max(item.excess for item in found)
    shortfall = max(item.shortfall for item in found)
    above = f"{excess:.1e} above a bound" if excess > TOLERANCE else "nothing above a bound"
    detail = f"{above}, {shortfall:.1e} from a value to attain"
    return Finding("ceilings", all(item.passed for item in found), detail)


def _point_masses(draft: TabularModel) -> Distribution:
    """The draft's likeliest token as the point mass that it is when proposed outright."""

    def distribution(path: Path) -> list[float]:
        best = int(draft.probabilities(path).argmax())
        return [float(token == best) for token in range(VOCABULARY)]

    return distribution


def _likeliest(draft: TabularModel, shape: Sequence[int], path: Path) -> list[Path]:
    """The paths of a tree of each node's likeliest tokens, what they follow left out."""
    if not shape:
        return []
    best = (-draft.probabilities(path)).argsort()[: shape[0]].tolist()
    paths: list[Path] = [(token,) for token in best]
    for token in best:
        below = _likeliest(draft, shape[1:], (*path, token))
        paths += [(token, *rest) for rest in below]
    return paths
