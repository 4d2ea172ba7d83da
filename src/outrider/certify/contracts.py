"""A user's own method, checked at every call: what it raises and returns, by its name.

The engine trusts a verification method, and would report what a broken one returns far from where
it was made. Here each call says which method was called, what came back and what was expected.
"""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..errors import DraftError, OutriderError, kind_of
from ..verification import Method, Tree

_MASS_TOLERANCE = 1e-6
"""How far from one a distribution may sum, as in every draw of an enumeration."""


_KINDS: dict[type, str] = {torch.Tensor: "torch tensor", np.ndarray: "NumPy array"}


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
    """A verification method of the user's, on torch tensors or NumPy arrays.

    Args:
        method: the user's.
        masses: whether what it returns also has to be distributions.
    """

    def __init__(self, method: Method, *, masses: bool = True) -> None:
        self._method = method
        self._masses = masses
        self.trees, self.lossy = method.trees, method.lossy
        self.keeps_forbidden = method.keeps_forbidden

    def stop_distribution(self, tree: Tree) -> tuple[Any, Any]:
        """Find where the round stops, as the method does.

        Raises:
            BrokenPartError: it raised, or returned no distribution with its weights.
        """
        where, found = self._called("stop_distribution", tree)
        kind = type(tree.target)
        pair = isinstance(found, tuple | list) and len(found) == 2
        if not pair or not all(isinstance(item, kind) for item in found):
            raise BrokenPartError(
                f"{where} returned {kind_of(found)}; expected two {_KINDS[kind]}s: the "
                "distribution [B, N + 1] and weights [B, N + 1], float64"
            )
        for item in found:
            _check_form(where, item, tree.target.shape[:2], "[B, N + 1]")
        self._check_masses(where, found[0])
        return found[0], found[1]

    def residual(self, tree: Tree, weights: Any, node: Any) -> Any:
        """Find the distribution of the token that follows, as the method does.

        Raises:
            BrokenPartError: it raised, or returned no distribution of a token.
        """
        where, found = self._called("residual", tree, weights, node)
        kind = type(tree.target)
        if not isinstance(found, kind):
            raise BrokenPartError(
                f"{where} returned {kind_of(found)}; expected a {_KINDS[kind]}: the distribution "
                "[B, V] of the token that follows, float64"
            )
        _check_form(where, found, (len(tree.target), tree.target.shape[2]), "[B, V]")
        self._check_masses(where, found)
        return found

    def _check_masses(self, where: str, distributions: Any) -> None:
        """Rows [B, M] have to be probabilities; the first that is not is named."""
        if not self._masses:
            return
        rows = np.asarray(distributions)
        totals, least = rows.sum(-1), rows.min(-1)
        # NaN fails both.
        wrong = ~((least >= 0) & (np.abs(totals - 1) <= _MASS_TOLERANCE))
        for row in np.flatnonzero(wrong)[:1]:
            raise BrokenPartError(
                f"{where} returned a distribution with total mass {totals[row]:.6g} and least "
                f"entry {least[row]:.6g}; expected finite, non-negative probabilities that sum to "
                "one"
            )

    def _called(self, name: str, *arguments: Any) -> tuple[str, Any]:
        where = f"{type(self._method).__name__}.{name}"
        try:
            return where, getattr(self._method, name)(*arguments)
        except Exception as error:
            raise BrokenPartError(f"{where} raised {_placed(error)}") from error


def _placed(error: Exception) -> str:
    """The error's type, its message and the line that raised it."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({Path(frame.filename).name}, line {frame.lineno})"


def _check_form(where: str, array: Any, shape: tuple[int, ...], meaning: str) -> None:
    if tuple(array.shape) != tuple(shape) or array.dtype not in (torch.float64, np.float64):
        raise BrokenPartError(
            f"{where} returned a {_KINDS[type(array)]} of shape {list(array.shape)} and "
            f"{array.dtype}; expected {meaning}, here {list(shape)}, float64"
        )
