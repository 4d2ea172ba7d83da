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
from ..verification import Verifier

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
    """The verifier with its methods checked at every call.

    A lazy one's method on chains is shipped, and sees distributions that are not normalised: it is left.
    """
    chain, tree = verifier.chain, verifier.tree
    return replace(
        verifier,
        chain=chain if chain is None or verifier.lazy else CheckedMethod(chain, weighs=True),
        tree=None if tree is None else CheckedMethod(tree, weighs=False),
    )


class CheckedMethod:
    """A verification method on chains or on trees.

    Args:
        method: the user's.
        weighs: whether what `residual` wants has to be weights [B, N + 1], as on chains.
    """

    def __init__(self, method: Any, weighs: bool) -> None:
        self._method = method
        self._weighs = weighs
        self._name = type(method).__name__

    def stop_distribution(self, drafts: Any) -> tuple[Any, Any]:
        """As the method's own.

        Raises:
            BrokenPartError: it raised, or returned no distribution with its weights.
        """
        where = f"{self._name}.stop_distribution"
        with _Naming(where):
            found = self._method.stop_distribution(drafts)
        second = "weights [B, N + 1]" if self._weighs else "what residual wants"
        tensors = (
            f"{'two torch tensors' if self._weighs else 'a pair'}: the distribution [B, N + 1] and "
        )
        expected = f"{tensors}{second}, float64"
        if not isinstance(found, tuple | list) or len(found) != 2:
            raise BrokenPartError(f"{where} returned {kind_of(found)}; expected {expected}")
        distribution, weights = found
        wanted = (distribution, weights) if self._weighs else (distribution,)
        if not all(isinstance(item, Tensor) for item in wanted):
            raise BrokenPartError(f"{where} returned {kind_of(found)}; expected {expected}")
        batch, nodes = drafts.target.shape[:2]
        for what, item in zip(("a distribution", "weights"), wanted, strict=False):
            _require_form(where, what, item, (batch, nodes), "[B, N + 1]")
        _require_distribution(where, distribution)
        return distribution, weights

    def residual(self, drafts: Any, weights: Any, node: Any) -> Any:
        """As the method's own.

        Raises:
            BrokenPartError: it raised, or returned no distribution of a token.
        """
        where = f"{self._name}.residual"
        with _Naming(where):
            distribution = self._method.residual(drafts, weights, node)
        if not isinstance(distribution, Tensor):
            raise BrokenPartError(
                f"{where} returned {kind_of(distribution)}; expected a torch tensor: the distribution [B, V] of the "
                "token that follows, float64"
            )
        batch, _, vocabulary = drafts.target.shape
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
