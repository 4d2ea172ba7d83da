"""Arrays of every library that the array functions take, and random rounds of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import array_api_strict
import numpy as np
import torch
from hypothesis import settings
from numpy.typing import NDArray

import outrider

Floats = NDArray[np.float64]

bounded = settings(max_examples=40, deadline=None, derandomize=True)


def read_only(array: Any) -> Any:
    array = np.array(array)
    array.setflags(write=False)
    return array


def strided(array: Any) -> Any:
    """A tensor of the same values that is not contiguous."""
    tensor = torch.tensor(np.asarray(array))
    return torch.stack([tensor, tensor], dim=-1)[..., 0]


LIBRARIES: dict[str, Callable[[Any], Any]] = {
    "numpy": read_only,
    "torch": lambda array: torch.tensor(np.asarray(array)),
    "torch-strided": strided,
    "strict": lambda array: array_api_strict.asarray(np.array(array)),
}


def host(array: Any) -> Any:
    """A result as NumPy, whatever library it is of."""
    return array.numpy() if isinstance(array, torch.Tensor) else np.asarray(array)


def kind_of(array: Any) -> str:
    return type(array).__module__.split(".")[0]


def distributions(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any = np.float64) -> Any:
    """Random rows, some of their entries zero."""
    rows = rng.dirichlet(np.full(shape[-1], 0.7), shape[:-1]).reshape(shape)
    rows = rows * (rng.random(shape) > 0.2)
    empty = rows.sum(-1, keepdims=True) == 0
    rows = np.where(empty, 1.0, rows)
    return (rows / rows.sum(-1, keepdims=True)).astype(dtype)


def round_of(
    seed: int, batch: int, width: int, vocabulary: int, dtype: Any = np.float64
) -> tuple[Any, Any, Any]:
    """Draft distributions, target distributions, and tokens drawn from the draft distributions."""
    rng = np.random.default_rng(seed)
    draft = distributions(rng, (batch, width, vocabulary), dtype)
    target = distributions(rng, (batch, width + 1, vocabulary), dtype)
    tokens = outrider.sample_index(draft, rng.random((batch, width)))
    return draft, target, tokens


def logs(rows: Any) -> Any:
    with np.errstate(divide="ignore"):
        return np.log(rows)
