"""A user's own method, checked at every call: what it raises and returns, by its name.

The engine trusts a verification method, and would report what a broken one returns far from where
it was made. Here each call says which method was called, what came back and what was expected.
"""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..errors import DraftError, OutriderError, kind_of
from ..verification import Method, Tree

_MASS_TOLERANCE = 1e-6
"""How far from one a distribution may sum, as in every draw of an enumeration."""


class BrokenPartError(OutriderError):
    """A user's own part raised, or returned what it may not."""


def described(error: Exception) -> str:
    """Describe an exception in one line, with the place where a user's own part raised it."""
    if isinstance(error, BrokenPartError):
        return str(error)
    cause = error.__cause__
    if isinstance(error, DraftError) and isinstance(cause, Exception):
        if not isinstance(cause, OutriderError):
            return f"the drafter raised {_placed(cause)}"
        error = cause
    return f"{type(error).__name__}: {error}"


class CheckedMethod(Method):
    """A verification method of the user's, on torch tensors as in the engine."""

    def __init__(self, method: Method) -> None:
        self._method = method
        self.trees, self.lossy = method.trees, method.lossy
        self.keeps_forbidden = method.keeps_forbidden

    def stop_distribution(self, tree: Tree) -> tuple[Any, Any]:
        """Find where the round stops, as the method does.

        Raises:
            BrokenPartError: it raised, or returned no distribution with its weights.
        """
        expected = "two torch tensors: the distribution [B, N + 1] and weights [B, N + 1]"
        stop, weights = self._called("stop_distribution", expected, tree.target.shape[:2], tree)
        return stop, weights

    def residual(self, tree: Tree, weights: Any, node: Any) -> Any:
        """Find the distribution of the token that follows, as the method does.

        Raises:
            BrokenPartError: it raised, or returned no distribution of a token.
        """
        expected = "a torch tensor: the distribution [B, V] of the token that follows"
        shape = len(tree.target), tree.target.shape[2]
        return self._called("residual", expected, shape, tree, weights, node)[0]

    def _called(
        self, name: str, expected: str, shape: Sequence[int], tree: Tree, *more: Any
    ) -> Sequence[Any]:
        """Call the method for one or two tensors of a shape; the first holds distributions."""
        where = f"{type(self._method).__name__}.{name}"
        try:
            found = getattr(self._method, name)(tree, *more)
        except Exception as error:
            raise BrokenPartError(f"{where} raised {_placed(error)}") from error
        two = name == "stop_distribution"
        tensors = found if two and isinstance(found, tuple | list) else [found]
        wanted = f"expected {expected}, float64"
        if len(tensors) != 1 + two or not all(isinstance(each, torch.Tensor) for each in tensors):
            raise BrokenPartError(f"{where} returned {kind_of(found)}; {wanted}")
        for each in tensors:
            if list(each.shape) != list(shape) or each.dtype != torch.float64:
                form = f"a torch tensor of shape {list(each.shape)} and {each.dtype}"
                raise BrokenPartError(f"{where} returned {form}; {wanted}, here {list(shape)}")
        rows = np.asarray(tensors[0])
        totals, least = rows.sum(-1), rows.min(-1)
        # NaN fails both.
        wrong = ~((least >= 0) & (np.abs(totals - 1) <= _MASS_TOLERANCE))
        if wrong.any():
            row = int(wrong.argmax())
            raise BrokenPartError(
                f"{where} returned a distribution with total mass {totals[row]:.6g} and least "
                f"entry {least[row]:.6g}; expected finite, non-negative probabilities of sum one"
            )
        return tensors


def _placed(error: Exception) -> str:
    """The error's type, its message and the line that raised it."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({Path(frame.filename).name}, line {frame.lineno})"
