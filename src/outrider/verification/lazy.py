"""The target's distributions of a round, normalised lazily from raw logits.

One pass over the logits gives every row's normaliser; rows are written out where they are asked
for. Distributions are kept as powers of two, which torch raises faster than those of e:
P(x) = 2^(scale * (z(x) - peak)) / mass, with scale = log2(e) / temperature and peak the largest
logit, taken away first so that nothing large is rounded.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_LOG = logging.getLogger(__name__)

_NUMPY, _KEPT, _AT_A_TIME = 1 << 16, 1 << 20, 1 << 17
"""Up to how many logits NumPy works on them; up to how many their powers are kept (4 megabytes of
float32); how many numbers a CPU works on at once otherwise, such that they stay in its cache."""


def row_distributions(logits: Tensor, scale: Tensor | float) -> RowLaws:
    """The distributions of logits [R, V] under a scale that is one number or [R, 1]."""
    in_numpy = on_host(logits) and logits.numel() <= _NUMPY
    return KeptLaws.of(logits, scale) if in_numpy else LazyLaws.of(logits, scale)


class RowLaws(Protocol):
    """The distributions of R rows of logits, as far as one pass over them has brought them.

    P(x) = 2^(scale * (logits(x) - peak)) / mass. An `index` is int64 [S]; what is given and
    returned as [S] or [B, N] is NumPy's if the logits are on the CPU.
    """

    @property
    def logits(self) -> Tensor:
        """[R, V]."""
        ...

    @property
    def scale(self) -> Tensor | float:
        """log2(e) / temperature: one number, or [R, 1]."""
        ...

    @property
    def peak(self) -> Any:
        """[R, 1], the largest logit of each row, in max(float32, the logits' dtype)."""
        ...

    @property
    def mass(self) -> Any:
        """[R, 1], the sum of each row's powers of two; not finite where the row is unsound."""
        ...

    def at(self, index: Any, tokens: Any) -> Any:
        """The probabilities float64 [S] of `tokens` int64 [S] under the rows of `index`."""
        ...

    def weighed(self, index: Any, weight: Any) -> Any:
        """weight * P, [S, V], for the rows P of `index`; weight float64 [S] or one number."""
        ...

    def above(
        self, index: Any, weight: Any, draft: Tensor, column: Any, counts: Any | None = None
    ) -> Any:
        """(weight * P - Q)+, [S, V], for the rows P of `index` and the rows Q of draft [., V].

        Args:
            index: of the target's rows.
            weight: float64 [S].
            draft: the drafts' distributions.
            column: int64 [S], of the draft's rows.
            counts: bool [S], where Q is taken away; None for everywhere.
        """
        ...

    def excess(self, index: Any, weight: Any, draft: Tensor, column: Any) -> Any:
        """The sums float64 [S] of the rows that `above` gives."""
        ...


@dataclass(frozen=True, slots=True)
class KeptLaws:
    """RowLaws in NumPy that keep their powers [R, V]: for few and narrow rows, on the host."""

    logits: Tensor
    scale: Tensor | float
    peak: NDArray[Any]
    mass: NDArray[Any]
    powers: NDArray[Any]

    @staticmethod
    def of(logits: Tensor, scale: Tensor | float) -> KeptLaws:
        """The distributions of logits [R, V] under a scale that is one number or [R, 1]."""
        dtype = torch.promote_types(logits.dtype, torch.float32)
        rows = logits.to(dtype).numpy()
        factor = scale.numpy() if isinstance(scale, Tensor) else rows.dtype.type(scale)
        peak = rows.max(-1, keepdims=True)
        powers = rows - peak
        powers *= factor
        np.exp2(powers, out=powers)
        return KeptLaws(logits, scale, peak, powers.sum(-1, keepdims=True), powers)

    def at(self, index: Any, tokens: Any) -> Any:
        """As RowLaws says."""
        return self.powers[index, tokens] / self.mass[index, 0].astype(np.float64)

    def weighed(self, index: Any, weight: Any) -> Any:
        """As RowLaws says."""
        factor = (weight / self.mass[index, 0]).astype(self.powers.dtype)
        return self.powers[index] * factor[:, None]

    def above(
        self, index: Any, weight: Any, draft: Tensor, column: Any, counts: Any | None = None
    ) -> Any:
        """As RowLaws says."""
        distribution = self.weighed(index, weight)
        removed = draft.numpy()[column]
        distribution -= removed if counts is None else removed * counts[:, None]
        return np.maximum(distribution, 0.0, out=distribution)

    def excess(self, index: Any, weight: Any, draft: Tensor, column: Any) -> Any:
        """As RowLaws says."""
        return self.above(index, weight, draft, column).sum(-1, dtype=np.float64)


@dataclass(frozen=True, slots=True)
class LazyLaws:
    """RowLaws in torch: rows are raised to their powers again when they are asked for, unless kept.

    Attributes:
        powers: [R, V]; None where the rows are too many to keep.
    """

    logits: Tensor
    scale: Tensor | float
    peak: Tensor
    mass: Tensor
    powers: Tensor | None = None

    @staticmethod
    def of(logits: Tensor, scale: Tensor | float) -> LazyLaws:
        """The distributions of logits [R, V] under a scale that is one number or [R, 1]."""
        if _has_kernels(logits):
            from . import kernels

            return LazyLaws(logits, scale, *kernels.normalisers(logits, scale))
        if not on_host(logits) or logits.numel() > _KEPT:
            return LazyLaws(logits, scale, *normalisers(logits, scale))
        peak = _peaks(logits)
        powers = _powers(logits, scale, peak)
        return LazyLaws(logits, scale, peak, powers.sum(-1, keepdim=True), powers)

    def at(self, index: Any, tokens: Any) -> Any:
        """As RowLaws says."""
        mass = small(self.mass)[index, 0]
        if self.powers is not None:
            return entries(self.powers, index, tokens) / mass
        scale = self.scale
        scale = small(scale)[index, 0] if isinstance(scale, Tensor) else scale
        above = entries(self.logits, index, tokens) - small(self.peak)[index, 0]
        return 2.0 ** (above * scale) / mass

    def weighed(self, index: Any, weight: Any) -> Tensor:
        """As RowLaws says."""
        return _joined(self._weighed(index, weight))

    def above(
        self, index: Any, weight: Any, draft: Tensor, column: Any, counts: Any | None = None
    ) -> Tensor:
        """As RowLaws says."""
        return _joined(self._above(index, weight, draft, column, counts))

    def excess(self, index: Any, weight: Any, draft: Tensor, column: Any) -> Any:
        """As RowLaws says."""
        if _has_kernels(self.logits):
            from . import kernels

            factor = weight / self.mass[index, 0]
            rows, scale, peak = self.logits, self.scale, self.peak
            return kernels.excess(rows, scale, peak, index, factor, draft, column)
        parts = self._above(index, weight, draft, column)
        return small(_joined(part.sum(-1) for part in parts).double())

    def _weighed(self, index: Any, weight: Any) -> Iterator[Tensor]:
        """`weighed`, a few rows at a time."""
        factor = weight / small(self.mass)[index, 0]
        at_once = _rows_at_once(self.logits)
        for start in range(0, len(index), at_once):
            rows = index[start : start + at_once]
            column = _column(factor[start : start + at_once], self.mass.dtype)
            if self.powers is not None:
                yield _take(self.powers, rows) * column
                continue
            scale = self.scale
            scale = _take(scale, rows) if isinstance(scale, Tensor) else scale
            distribution = _powers(_take(self.logits, rows), scale, _take(self.peak, rows))
            yield distribution.mul_(column)

    def _above(
        self, index: Any, weight: Any, draft: Tensor, column: Any, counts: Any | None = None
    ) -> Iterator[Tensor]:
        """`above`, a few rows at a time."""
        start = 0
        for distribution in self._weighed(index, weight):
            part = slice(start, start + len(distribution))
            start += len(distribution)
            removed = _take(draft, column[part]).to(distribution.dtype)
            if counts is not None:
                removed = removed * torch.as_tensor(counts[part])[:, None]
            yield distribution.sub_(removed).clamp_(min=0)


def normalisers(logits: Tensor, scale: Tensor | float) -> tuple[Tensor, Tensor]:
    """The largest [R, 1] of each row of logits z, and the sum of 2^(scale * (z - largest)).

    Args:
        logits: [R, V].
        scale: one number, or [R, 1].

    Returns:
        Both in max(float32, the logits' dtype).
    """
    at_once = _rows_at_once(logits)
    peaks, masses = [], []
    for start in range(0, len(logits), at_once):
        part = slice(start, start + at_once)
        rows = logits[part]
        factor = scale[part] if isinstance(scale, Tensor) else scale
        peaks.append(_peaks(rows))
        masses.append(_powers(rows, factor, peaks[-1]).sum(-1, keepdim=True))
    return _joined(iter(peaks)), _joined(iter(masses))


def _peaks(logits: Tensor) -> Tensor:
    """The largest of each row of logits, [r, 1], in max(float32, their dtype)."""
    peak = logits.amax(-1, keepdim=True)
    return peak.to(torch.promote_types(peak.dtype, torch.float32))


def _powers(logits: Tensor, scale: Tensor | float, peak: Tensor) -> Tensor:
    """2^(scale * (logits - peak)), [r, V], new."""
    return (logits - peak).mul_(scale).exp2_()


def _rows_at_once(logits: Tensor) -> int:
    return max(1, _AT_A_TIME // logits.shape[1]) if on_host(logits) else len(logits)


def _take(rows: Tensor, index: Any) -> Tensor:
    """The rows [s, ...] of `index`: as they lie, if it is one on the host."""
    if isinstance(index, np.ndarray):
        if len(index) == 1:
            return rows.narrow(0, int(index[0]), 1)
        index = torch.from_numpy(index)
    return rows.index_select(0, index)


def _column(values: Any, dtype: torch.dtype) -> Tensor | float:
    """Values [s] as something to multiply rows [s, V] by."""
    if isinstance(values, np.ndarray):
        if len(values) == 1:
            return float(values[0])
        values = torch.from_numpy(values)
    column: Tensor = values.to(dtype)[:, None]
    return column


def _joined(parts: Iterator[Tensor]) -> Tensor:
    found = list(parts)
    return found[0] if len(found) == 1 else torch.cat(found)


def entries(rows: Tensor, index: Any, tokens: Any) -> Any:
    """The entries float64 [S] in the columns `tokens` of the rows of `index`."""
    if isinstance(index, np.ndarray):
        if rows.dtype != torch.bfloat16:  # which NumPy does not know
            return rows.numpy()[index, tokens].astype(np.float64)
        index, tokens = torch.from_numpy(index), torch.from_numpy(tokens)
    return small(rows[index, tokens].double())


def small(array: Any) -> Any:
    """The array as NumPy's if it is a CPU's, sharing its memory."""
    return array.numpy() if isinstance(array, Tensor) and on_host(array) else array


def on_host(array: Tensor) -> bool:
    """Whether small arrays beside this one are better made on the host, with NumPy."""
    return array.device.type == "cpu"


def prepare(device: torch.device) -> None:
    """Build the kernels for a device, so that the first rounds wait less for a compiler."""
    _has_kernels(torch.empty(0, device=device))


def _has_kernels(logits: Tensor) -> bool:
    return logits.is_cuda and _builds_kernels(logits.device)


@cache
def _builds_kernels(device: torch.device) -> bool:
    """Whether Triton's kernels run on a device: asked once, since building them takes a while."""
    if find_spec("triton") is None:
        return False
    try:
        from . import kernels

        rows, index = torch.zeros(1, 16, device=device), torch.zeros(1, dtype=torch.int64)
        peak, mass = kernels.normalisers(rows, 1.0)
        index = index.to(device)
        kernels.excess(rows, 1.0, peak, index, 1 / mass[:, 0], rows, index).tolist()
    except Exception as error:
        told = f"{type(error).__name__}: {error}"
        _LOG.warning("Triton's kernels do not run on %s; torch is used: %s", device, told)
        return False
    return True
