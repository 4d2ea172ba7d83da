"""Verification from raw logits: the same methods over target laws that are normalised lazily.

The laws of a round need a softmax over every row; a verdict needs far less. `verify_logits` makes
one pass over the logits for the rows' normalisers, reads the probabilities of the drafted tokens,
and writes out one row a sequence, the one a token is drawn from. Block verification also sums some
of the rows in between. Laws are kept as powers of two, which torch raises faster than those of e:
P(x) = 2^(scale * (z(x) - peak)) / mass, with scale = log2(e) / temperature and peak the largest
logit, taken away first so that nothing large is rounded.

Where the logits are on the CPU, arrays of [B, N + 1] numbers are NumPy's: a framework takes longer
to start an operation than to do one that small. On a CUDA device passes over whole rows are
Triton's, where it is installed. `verify` over `sampling.laws` is the readable reference, and both
give the same verdict under the same draws, up to rounding.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from math import e, log2
from typing import Any, Protocol

import numpy as np
import torch
from array_api_compat import array_namespace
from numpy.typing import NDArray
from torch import Tensor

from ..records import DraftProposal, Verdict
from .chain import Chain, Method, target_over_draft
from .verify import VerdictDraws, judge

_NUMPY, _KEPT, _AT_A_TIME = 1 << 16, 1 << 20, 1 << 17
"""Up to how many logits NumPy works on them; up to how many their powers are kept (4 megabytes of
float32); how many numbers a CPU works on at once otherwise, such that they stay in its cache."""


def verify_logits(
    proposal: DraftProposal,
    logits: Tensor,
    temperature: Tensor | float | None,
    method: Method,
    draws: VerdictDraws,
) -> tuple[Verdict, Tensor]:
    """Keep drafts by `method`, and draw the token that follows them, from the target's logits.

    Args:
        proposal: drafted tokens and the laws they were drawn from, on the logits' device.
        logits: the target's, [B, N + 1, V], of any floating dtype; half precision counts as
            float32, as `sampling.laws` takes it.
        temperature: what the logits are divided by: one number, one for each row [B], or None.
        method: how drafts are kept.
        draws: the round's chance.

    Returns:
        The verdict, and a witness [B, N + 1]: finite where a row of logits is sound, and not where
        it has NaN, +inf or no finite entry (or overflows when divided by the temperature), so that
        what rests on it means nothing.
    """
    batch, rows, _ = logits.shape
    with np.errstate(all="ignore"):  # the witness tells of unsound rows
        scale = _scale(logits, temperature)
        flat = logits.flatten(0, 1)
        on_host = _on_host(logits)
        in_numpy = on_host and flat.numel() <= _NUMPY
        target = KeptLaws.of(flat, scale) if in_numpy else LazyLaws.of(flat, scale)
        witness = torch.as_tensor(target.mass).view(batch, rows)
        if proposal.width == 0:
            first = target.weighed(_small(torch.arange(batch, device=logits.device)), 1.0)
            none = torch.zeros(batch, dtype=torch.int64, device=logits.device)
            return Verdict(none, draws.token(torch.as_tensor(first))), witness
        chain = LazyChain.over(proposal, target)
        if not on_host:
            return judge(chain, method, draws), witness
        found = judge(chain, method, _HostDraws(draws))
        assert found.ceiling is not None
        ceiling = torch.as_tensor(found.ceiling)
    return Verdict(torch.from_numpy(found.node), found.next_token, ceiling), witness


def _scale(logits: Tensor, temperature: Tensor | float | None) -> Tensor | float:
    """log2(e) / temperature: one number, or one for each row of logits, [B * (N + 1), 1]."""
    dtype = torch.promote_types(logits.dtype, torch.float32)
    if isinstance(temperature, Tensor):
        each = (log2(e) / temperature.double()).to(dtype)
        return each.repeat_interleave(logits.shape[1])[:, None]
    scale = log2(e) / (1.0 if temperature is None else temperature)
    # The number that rows are multiplied by, wherever it is used.
    return scale if dtype == torch.float64 else float(np.float32(scale))


class _HostDraws:
    """Draws for a chain whose small arrays are NumPy's."""

    def __init__(self, draws: VerdictDraws) -> None:
        self._draws = draws

    def stop(self, laws: Any) -> Any:
        return self._draws.stop(torch.from_numpy(laws)).numpy()

    def token(self, laws: Any) -> Any:
        return self._draws.token(torch.as_tensor(laws))


class RowLaws(Protocol):
    """The laws of R rows of logits, as far as one pass over them has brought them.

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

    def weighed(self, index: Any, weight: Any) -> Any:
        """weight * P, [S, V], for the rows P of `index`; weight float64 [S] or one number."""
        ...

    def above(self, index: Any, weight: Any, draft: Tensor, column: Any) -> Any:
        """(weight * P - Q)+, [S, V], for the rows P of `index` and the rows Q of draft [., V].

        Args:
            index: of the target's rows.
            weight: float64 [S].
            draft: the drafts' laws.
            column: int64 [S], of the draft's rows; where it is negative, Q = 0.
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
        """The laws of logits [R, V] under a scale that is one number or [R, 1]."""
        dtype = torch.promote_types(logits.dtype, torch.float32)
        rows = logits.to(dtype).numpy()
        factor = scale.numpy() if isinstance(scale, Tensor) else rows.dtype.type(scale)
        peak = rows.max(-1, keepdims=True)
        powers = rows - peak
        powers *= factor
        np.exp2(powers, out=powers)
        return KeptLaws(logits, scale, peak, powers.sum(-1, keepdims=True), powers)

    def weighed(self, index: Any, weight: Any) -> Any:
        """As RowLaws says."""
        factor = (weight / self.mass[index, 0]).astype(self.powers.dtype)
        return self.powers[index] * factor[:, None]

    def above(self, index: Any, weight: Any, draft: Tensor, column: Any) -> Any:
        """As RowLaws says."""
        law = self.weighed(index, weight)
        law -= draft.numpy()[column] * (column >= 0)[:, None]
        return np.maximum(law, 0.0, out=law)

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
        """The laws of logits [R, V] under a scale that is one number or [R, 1]."""
        if _has_kernels(logits):
            from . import kernels

            return LazyLaws(logits, scale, *kernels.normalisers(logits, scale))
        if _on_host(logits) and logits.numel() <= _KEPT:
            peak = _peaks(logits)
            powers = _powers(logits, scale, peak)
            return LazyLaws(logits, scale, peak, powers.sum(-1, keepdim=True), powers)
        return LazyLaws(logits, scale, *normalisers(logits, scale))

    def weighed(self, index: Any, weight: Any) -> Tensor:
        """As RowLaws says."""
        return _joined(self._weighed(index, weight))

    def above(self, index: Any, weight: Any, draft: Tensor, column: Any) -> Tensor:
        """As RowLaws says."""
        return _joined(self._above(index, weight, draft, column))

    def excess(self, index: Any, weight: Any, draft: Tensor, column: Any) -> Any:
        """As RowLaws says."""
        if _has_kernels(self.logits):
            from . import kernels

            factor = weight / self.mass[index, 0]
            rows, scale, peak = self.logits, self.scale, self.peak
            return kernels.excess(rows, scale, peak, index, factor, draft, column)
        parts = self._above(index, weight, draft, column)
        return _small(_joined(part.sum(-1) for part in parts).double())

    def _weighed(self, index: Any, weight: Any) -> Iterator[Tensor]:
        """`weighed`, a few rows at a time."""
        factor = weight / _small(self.mass)[index, 0]
        at_once = _rows_at_once(self.logits)
        for start in range(0, len(index), at_once):
            rows = index[start : start + at_once]
            column = _column(factor[start : start + at_once], self.mass.dtype)
            if self.powers is not None:
                yield _take(self.powers, rows) * column
                continue
            scale = self.scale
            scale = _take(scale, rows) if isinstance(scale, Tensor) else scale
            law = _powers(_take(self.logits, rows), scale, _take(self.peak, rows))
            yield law.mul_(column)

    def _above(self, index: Any, weight: Any, draft: Tensor, column: Any) -> Iterator[Tensor]:
        """`above`, a few rows at a time."""
        start = 0
        for law in self._weighed(index, weight):
            columns = column[start : start + len(law)]
            start += len(law)
            removed = _take(draft, columns.clip(0)).to(law.dtype)
            if not isinstance(columns, np.ndarray) or columns.min() < 0:
                removed = removed * torch.as_tensor(columns >= 0)[:, None]
            yield law.sub_(removed).clamp_(min=0)


@dataclass(frozen=True, slots=True)
class LazyChain(Chain):
    """Drafted chains beside lazy target laws. Small arrays are NumPy's if the logits are a CPU's.

    `target` is RowLaws of B * (N + 1) rows, and `draft` a tensor [B, N, V].
    """

    @staticmethod
    def over(proposal: DraftProposal, target: RowLaws) -> LazyChain:
        """The chains of a proposal with N >= 1, beside the laws of B * (N + 1) rows."""
        tokens = proposal.tokens
        batch, width = tokens.shape

        def before_drafts(values: Any) -> Any:
            return _small(values).reshape(batch, width + 1)[:, :width]

        peak, mass = before_drafts(target.peak), before_drafts(target.mass)
        scale = target.scale
        scale = before_drafts(scale) if isinstance(scale, Tensor) else scale
        logits = _at(target.logits.view(batch, width + 1, -1), tokens)
        kept = 2.0 ** ((logits - peak) * scale) / mass
        draft = None if proposal.laws is None else proposal.laws.probs
        drawn = None if draft is None else _at(draft, tokens)
        length: Any = proposal.lengths
        if not _on_host(tokens):
            length = torch.as_tensor(length, device=tokens.device)
        ragged = bool((proposal.lengths < width).any())
        ratio = target_over_draft(kept, drawn, length if ragged else None)
        return LazyChain(_small(tokens), length, target, draft, ragged, ratio)

    def excess(self, weights: Any) -> Any:
        """sum_x (w_i P_i(x) - Q_i(x))+ at the nodes 1..N-1: on a CPU, only where it matters."""
        if self.draft is None:
            return Chain.excess(self, weights)
        xp = array_namespace(weights)
        batch, width = self.ratio.shape
        inner = xp.reshape(weights[:, 1:width], (-1,))
        node = xp.arange(batch * (width - 1), device=self.ratio.device)
        sums = xp.zeros_like(inner)
        if isinstance(weights, np.ndarray):
            certain = np.logical_or.accumulate(weights[:, :0:-1] == 1, axis=1)[:, :0:-1]
            wanted = ~certain & (np.arange(1, width) < self.length[:, None])
            node = node[wanted.ravel()]
        if len(node):
            row, before = node // (width - 1), node % (width - 1)
            index, column = row * (width + 1) + before + 1, row * width + before + 1
            draft = self.draft.flatten(0, 1)
            sums[node] = self.target.excess(index, inner[node], draft, column)
        return xp.reshape(sums, (batch, width - 1))

    def residual_law(self, node: Any, weight: Any) -> Any:
        """As a dense chain's, [B, V] in the laws' own dtype."""
        xp = array_namespace(weight)
        batch, width = self.ratio.shape
        rows = xp.arange(batch, device=self.ratio.device)
        index, drafts = rows * (width + 1) + node, node < self.length
        if self.draft is None:
            law = self.target.weighed(index, 1.0)
            tokens = self.tokens[rows, node.clip(max=width - 1)]
            _small(law)[rows, tokens] *= ~drafts
        else:
            column = xp.where(drafts, rows * width + node, -1)
            draft = self.draft.flatten(0, 1)
            law = self.target.above(index, xp.where(drafts, weight, 1.0), draft, column)
        total = law.sum(-1, keepdims=True)
        if isinstance(node, np.ndarray) and (_small(total) > 0).all():
            law /= total
            return law
        target = self.target.weighed(index, 1.0)
        return array_namespace(law).where(total > 0, law / total, target)


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
    return max(1, _AT_A_TIME // logits.shape[1]) if _on_host(logits) else len(logits)


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
    return values.to(dtype)[:, None]  # type: ignore[no-any-return]


def _joined(parts: Iterator[Tensor]) -> Tensor:
    found = list(parts)
    return found[0] if len(found) == 1 else torch.cat(found)


def _at(rows: Tensor, tokens: Tensor) -> Any:
    """The entry float64 [B, N] of each token [B, N] in the first N of rows [B, M, V]."""
    if _on_host(rows) and rows.dtype != torch.bfloat16:  # which NumPy does not know
        batch, width = tokens.shape
        found = rows.numpy()[np.arange(batch)[:, None], np.arange(width), tokens.numpy()]
        return found.astype(np.float64)
    return _small(rows.gather(2, tokens[:, :, None])[:, :, 0].double())


def _small(array: Any) -> Any:
    """The array as methods compute with it: NumPy's if it is a CPU's, sharing its memory."""
    return array.numpy() if isinstance(array, Tensor) and _on_host(array) else array


def _on_host(array: Tensor) -> bool:
    return array.device.type == "cpu"


def _has_kernels(logits: Tensor) -> bool:
    return logits.is_cuda and find_spec("triton") is not None
