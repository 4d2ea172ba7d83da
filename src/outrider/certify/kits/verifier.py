"""The conformance kit of verification methods: what every lossless one has to satisfy.

Small chains and trees are enumerated: every draft that may be drawn, every node at which the round
may stop, every token that may follow. The tokens that a round emits are compared with the target's
distribution by the probability of every prefix of three tokens, completed by the target itself.
Arrays are torch tensors, as in the engine; smaller cases are given in NumPy as well.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
import torch

from ...config.params import SamplingParams
from ...runtimes.tabular import Path, mock_pair
from ...types import trees
from ...types.finding import Finding
from ...types.records import Distributions, DraftProposal
from ...verification import Method, Tree, Verifier
from ..contracts import CheckedMethod, described
from ..reference import Row, filtered
from .runner import TOLERANCE, require, run

PROPERTIES = (
    "stop distribution sums to one",
    "residuals are distributions",
    "padding is ignored",
    "tokens of probability zero are never emitted",
    "chains are exact",
    "point masses are exact",
    "trees are exact",
    "NumPy arrays give what torch tensors give",
)
_VOCABULARY = 4

Pair = Callable[[int, Path], Row]
"""The distribution [V] of the target (0) or the drafter (1) after a path."""

Draft = tuple[float, Path, tuple[Row, ...]]
"""How likely a draft is, the token of each node but the root, and from what each is drawn.

Point masses have no rows of distributions.
"""


def _pair(seed: int, top_k: int) -> Pair:
    """A target and a drafter; each gives probability to so many tokens alone, or to all with 0."""
    models, params = mock_pair(_VOCABULARY, seed, 0.0), SamplingParams(top_k=top_k)
    return cache(lambda side, path: filtered(models[side].probabilities(path), params))


@dataclass(frozen=True, slots=True)
class _Case:
    """All drafts of one shape, of one pair."""

    name: str
    parents: list[int]
    pair: Pair
    drafts: list[Draft]

    @property
    def chain(self) -> bool:
        return self.parents == [*range(len(self.parents))]

    def tree(self, make: Callable[[Any], Any], padding: int = 0) -> Tree:
        """The drafts beside their target, with columns of NaN behind, as `make` makes arrays."""
        _, tokens, rows = zip(*self.drafts, strict=True)
        batch, width = len(tokens), len(self.parents)
        after = [
            [self.pair(0, _path(self.parents, each, node)) for node in range(width + 1)]
            for each in tokens
        ]

        def padded(rows: Any, entry: float) -> Any:
            behind = [(0, 0), (0, padding), (0, 0)][: np.ndim(rows)]
            return make(np.pad(rows, behind, constant_values=entry))

        drafted = padded(tokens, 0)
        distributions = Distributions(point_masses=drafted)
        if rows[0]:
            distributions = Distributions(probs=padded(rows, np.nan))
        shape: tuple[Any, Any] = None, None
        if not self.chain:
            shape = np.tile(self.parents, (batch, 1)), trees.chain(batch, width)
        proposal = DraftProposal(drafted, np.full(batch, width), distributions, *shape)
        return Tree.of(proposal, padded(after, np.nan))


def check_verifier(verifier: Verifier | Method) -> tuple[Finding, ...]:
    """Check that a verification method is lossless, by enumeration of small drafts.

    Args:
        verifier: the method, or a verifier that has one. Coupled verification has none: its text
            does not depend on drafts, and there is nothing to enumerate.

    Returns:
        A finding for each property. One of which nothing could be measured, because the method
        raises, fails; one that does not concern the method (no method, `trees = False`) passes
        and says so.
    """
    method = verifier.method if isinstance(verifier, Verifier) else verifier
    if method is None:
        return tuple(Finding(name, True, "coupled: nothing to enumerate") for name in PROPERTIES)
    checked = CheckedMethod(method, masses=False)
    errors: dict[str, list[tuple[float, str]]] = defaultdict(list)
    raised: dict[str, str] = {}
    for case in _cases(method.trees):
        on = f"drafts with parents {case.parents}"
        try:
            for name, error in _measured(checked, case).items():
                errors[name].append((error, on))
        except Exception as error:  # a method of somebody's own may raise anything
            raised.setdefault(case.name, f"{described(error)}, on {on}")

    def reported(name: str) -> str:
        """The worst of what was measured of a property."""
        if name == "trees are exact" and not method.trees:
            return "not measured: the method takes chains only"
        require(name not in raised, raised.get(name, ""))
        why = next(iter(raised.values()), "there was no case")
        require(errors[name], f"not measured: {why}")
        error, on = max(errors[name], key=lambda item: (not item[0] <= TOLERANCE, item[0]))
        detail = f"largest error {error:.1e}, {on}"
        require(error <= TOLERANCE, detail)
        return detail

    return run((name, partial(reported, name)) for name in PROPERTIES)


def _cases(with_trees: bool) -> Iterator[_Case]:
    for seed, top_k in itertools.product(range(3), (0, 3)):
        pair = _pair(seed, top_k)
        for depth in (1, 2, 3):
            chain = [*range(depth)]
            yield _Case("chains are exact", chain, pair, [*_drawn(chain, pair, True)])
            tokens = tuple((seed + i) % _VOCABULARY for i in range(depth))
            yield _Case("point masses are exact", chain, pair, [(1.0, tokens, ())])
        shapes = ([0, 0], [0, 0, 1], [0, 1, 1]) if with_trees else ()
        for parents, replaced in itertools.product(shapes, (False, True)):
            drafts = [*_drawn(parents, pair, replaced)]
            yield _Case("trees are exact", parents, pair, drafts)


def _drawn(parents: list[int], pair: Pair, replaced: bool) -> Iterator[Draft]:
    """All drafts of a shape; siblings drawn with replacement, or without while there is another."""
    for tokens in itertools.product(range(_VOCABULARY), repeat=len(parents)):
        probability, rows = 1.0, []
        for column, token in enumerate(tokens):
            row = pair(1, _path(parents, tokens, parents[column]))
            if not replaced:
                left = row.copy()
                left[[tokens[i] for i in range(column) if parents[i] == parents[column]]] = 0.0
                row = left / left.sum() if left.sum() > 0 else row
            rows.append(row)
            probability *= float(row[token])
        if probability > 0:
            yield probability, tokens, tuple(rows)


def _path(parents: Sequence[int], tokens: Sequence[int], node: int) -> Path:
    return tuple(tokens[step - 1] for step in trees.path(parents, node))


def _answers(
    method: Method, case: _Case, make: Callable[[Any], Any], padding: int = 0
) -> tuple[Row, Row]:
    """The stop distribution [B, N + 1], and the residuals after each node [N + 1, B, V]."""
    tree = case.tree(make, padding)
    stop, weights = method.stop_distribution(tree)
    nodes = range(len(case.parents) + 1)
    after = [
        np.asarray(method.residual(tree, weights, make(np.full(len(stop), node)))) for node in nodes
    ]
    return np.asarray(stop), np.stack(after)


def _measured(method: Method, case: _Case) -> dict[str, float]:
    """The errors of one case, by property."""
    stop, residual = _answers(method, case, torch.asarray)
    found = {"stop distribution sums to one": _off(stop)}
    emitted: dict[Path, float] = defaultdict(float)
    worst = 0.0
    for (row, draft), node in itertools.product(enumerate(case.drafts), range(len(residual))):
        reached = draft[0] * float(stop[row, node])
        if not reached > 0:
            continue
        # What rounding alone brings about counts for as much as it is likely.
        worst = max(worst, _off(residual[node, row]) * min(1.0, reached / TOLERANCE))
        for token in range(_VOCABULARY):
            path = (*_path(case.parents, draft[1], node), token)
            emitted[path] += reached * float(residual[node, row, token])
    found["residuals are distributions"] = worst
    found["tokens of probability zero are never emitted"] = sum(
        mass
        for path, mass in emitted.items()
        if any(case.pair(0, path[:i])[token] <= 0 for i, token in enumerate(path))
    )
    found[case.name] = _distance(case.pair, emitted)
    if case.chain:
        padded, after = _answers(method, case, torch.asarray, padding=1)
        moved = padded[:, :-1] - stop, padded[:, -1], after - residual
        error = max(float(np.abs(part).max()) for part in moved)
        found["padding is ignored"] = error if np.isfinite(error) else float("inf")
    if len(case.parents) < 3:
        again = _answers(method, case, np.asarray)
        apart = [np.abs(a - b).max() for a, b in zip(again, (stop, residual), strict=True)]
        found["NumPy arrays give what torch tensors give"] = float(max(apart))
    return found


def _off(distributions: Row) -> float:
    """How far rows [..., M] are from distributions."""
    return float(np.abs(distributions.sum(-1) - 1).max()) + max(0.0, -float(distributions.min()))


def _distance(pair: Pair, emitted: dict[Path, float]) -> float:
    """The largest error in a text's probability, the target completing what was emitted."""
    length = max(map(len, emitted))
    worst = 0.0
    for text in itertools.product(range(_VOCABULARY), repeat=length):
        after = [float(pair(0, text[:i])[token]) for i, token in enumerate(text)]
        got = sum(
            emitted.get(text[:end], 0.0) * float(np.prod(after[end:]))
            for end in range(1, length + 1)
        )
        worst = max(worst, abs(got - float(np.prod(after))))
    return worst
