"""Distributions of small models, and optima of their drafts by brute force."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Distribution = Callable[[tuple[int, ...]], Floats]


def table(seed: int, width: int, concentration: float = 0.7) -> Distribution:
    """A distribution [width] for every prefix, of some zeros."""

    def distribution(prefix: tuple[int, ...]) -> Floats:
        rng = np.random.default_rng([seed, len(prefix), *prefix])
        row = rng.dirichlet(np.full(width, concentration)) * (rng.random(width) > 0.2)
        return row / row.sum() if row.sum() > 0 else np.full(width, 1 / width)

    return distribution


def constant(*row: float) -> Distribution:
    return lambda prefix: np.array(row)


def paths(
    target: Distribution, draft: Distribution, depth: int
) -> Iterator[tuple[float, tuple[int, ...], Floats, Floats]]:
    """Every drafted chain with its probability and the distributions on both sides."""
    width = len(draft(()))
    for path in product(range(width), repeat=depth):
        drafts = np.array([draft(path[:i]) for i in range(depth)])
        mass = float(np.prod([drafts[i, token] for i, token in enumerate(path)]))
        if mass > 0:
            yield mass, path, np.array([target(path[:i]) for i in range(depth + 1)]), drafts


def drafted_sets(draft: Floats, num_drafts: int, kind: str) -> dict[frozenset[int], float]:
    """The distribution of the set of drafted tokens, by walking every outcome of every draw."""
    top: frozenset[int] = frozenset()
    draws = num_drafts
    if kind == "greedy":
        top = frozenset(np.argsort(-draft, kind="stable")[: num_drafts - 1].tolist())
        draws = 1
    sets = {top: 1.0}
    for _ in range(draws):
        following: dict[frozenset[int], float] = {}
        for seen, mass in sets.items():
            excluded = frozenset() if kind == "with_replacement" else seen
            rest = {token: draft[token] for token in range(len(draft)) if token not in excluded}
            total = sum(rest.values())
            if total == 0:
                following[seen] = following.get(seen, 0.0) + mass
                continue
            for token, share in rest.items():
                union = seen | {token}
                following[union] = following.get(union, 0.0) + mass * share / total
        sets = following
    return sets


def brute_force(target: Floats, draft: Floats, num_drafts: int, kind: str) -> float:
    """1 + min over every set S of P(S) - Pr[all drafts in S]."""
    sets = drafted_sets(draft, num_drafts, kind)
    width = len(target)
    return 1.0 + min(
        sum(float(target[token]) for token in range(width) if chosen >> token & 1)
        - sum(mass for drawn, mass in sets.items() if all(chosen >> token & 1 for token in drawn))
        for chosen in range(2**width)
    )
