"""Distributions of small models, and every chain drafted from them."""

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
