"""A user's own method, checked at every call: what it raises and returns, by its name.

The engine trusts a verification method, and would report what a broken one hands it far from where
it was made. Here each call says which method was called, what came back and what was expected.
"""

from __future__ import annotations

import traceback
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..errors import OutriderError, kind_of
from ..verification import Method, Tree, Verifier

if TYPE_CHECKING:
    pass

MASS_TOLERANCE = 1e-6
"""How far from one a distribution may sum, as in every draw of an enumeration."""


class BrokenPartError(OutriderError):
    """A user's own part raised, or returned what it may not."""


def described(error: Exception) -> str:
    """An exception in one line, with its type unless it names a user's part."""
    return str(error) if isinstance(error, BrokenPartError) else f"{type(error).__name__}: {error}"


def checked_verifier(verifier: Verifier) -> Verifier:
    """The verifier with its method checked at every call."""
    method = verifier.method
    return replace(verifier, method=None if method is None else CheckedMethod(method))


class CheckedMethod(Method):
    """A verification method of the user's.

    Args:
        method: the user's.
    """

    def __init__(self, method: Method) -> None:
        self._method = method
        self._name = type(method).__name__
        self.trees, self.lossy = method.trees, method.lossy
        self.keeps_forbidden = method.keeps_forbidden

    def stop_distribution(self, tree: Tree) -> tuple[Any, Any]:
        """As the method's own.

        Raises:
            BrokenPartError: it raised, or returned no distribution with its claims.
        """
        where = f"{self._name}.stop_distribution"
        with _Naming(where):
            found = self._method.stop_distribution(tree)
        expected = "two torch tensors: the distribution [B, N + 1] and claims [B, N + 1], float64"
        if not isinstance(found, tuple | list) or len(found) != 2:
            raise BrokenPartError(f"{where} returned {kind_of(found)}; expected {expected}")
        distribution, claims = found
        if not (isinstance(distribution, Tensor) and isinstance(claims, Tensor)):
            raise BrokenPartError(f"{where} returned {kind_of(found)}; expected {expected}")
        batch, nodes = tree.target.shape[:2]
        for what, item in (("a distribution", distribution), ("claims", claims)):
            _require_form(where, what, item, (batch, nodes), "[B, N + 1]")
        _require_distribution(where, distribution)
        return distribution, claims

    def residual(self, tree: Tree, claims: Any, node: Any) -> Any:
        """As the method's own.

        Raises:
            BrokenPartError: it raised, or returned no distribution of a token.
        """
        where = f"{self._name}.residual"
        with _Naming(where):
            distribution = self._method.residual(tree, claims, node)
        if not isinstance(distribution, Tensor):
            raise BrokenPartError(
                f"{where} returned {kind_of(distribution)}; expected a torch tensor: the distribution [B, V] of the "
                "token that follows, float64"
            )
        batch, _, vocabulary = tree.target.shape
        _require_form(where, "a distribution", distribution, (batch, vocabulary), "[B, V]")
        _require_distribution(where, distribution)
        return distribution


class _Naming(AbstractContextManager[None]):
    """Raises what a call raises under the name of what was called, with its line there."""

    def __init__(self, where: str) -> None:
        self._where = where

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not isinstance(error, Exception):
            return
        # The first frame is the call; where there is no second, the call itself did not fit.
        frames = traceback.extract_tb(trace)[1:2]
        line = "".join(f" ({Path(frame.filename).name}, line {frame.lineno})" for frame in frames)
        raise BrokenPartError(
            f"{self._where} raised {type(error).__name__}: {error}{line}"
        ) from error


def _require_form(
    where: str, what: str, array: Tensor, shape: tuple[int, int], meaning: str
) -> None:
    if tuple(array.shape) != shape:
        raise BrokenPartError(
            f"{where} returned {what} of shape {list(array.shape)}; expected {meaning}, here "
            f"{list(shape)}"
        )
    if array.dtype != torch.float64:
        raise BrokenPartError(f"{where} returned {what} of {array.dtype}; expected torch.float64")


def _require_distribution(where: str, distributions: Tensor) -> None:
    """Rows [B, M] have to be probabilities; the first that is not is named."""
    totals, least = distributions.sum(-1), distributions.amin(-1)
    # NaN fails both.
    wrong = ~((least >= 0) & ((totals - 1).abs() <= MASS_TOLERANCE))
    for row in wrong.nonzero().flatten().tolist()[:1]:
        raise BrokenPartError(
            f"{where} returned a distribution with total mass {totals[row].item():.6g} and least entry "
            f"{least[row].item():.6g}; expected finite, non-negative probabilities that sum to one"
        )
