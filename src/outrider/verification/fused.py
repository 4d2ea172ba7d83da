"""Verification from raw logits: the same methods over target distributions that are normalised lazily.

The distributions of a round need a softmax over every row; a verdict needs far less. `verify_logits` makes
one pass over the logits for the rows' normalisers, reads the probabilities of the drafted tokens,
and writes out one row a sequence, the one a token is drawn from. Block verification also sums some
of the rows in between.

Where the logits are on the CPU, the few numbers of a round are Python's, since a framework takes
longer to start an operation than to do one that small, and rows are summed only until the draw is
decided. On a CUDA device nothing is decided on the host, and passes over whole rows are Triton's,
where it is installed. `verify` over `sampling.distributions` is the readable reference, and all give the
same verdict under the same draws, up to rounding.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import e, log2
from typing import Any, Protocol

import numpy as np
import torch
from array_api_compat import array_namespace
from numpy.typing import NDArray
from torch import Tensor

from ..types import trees
from ..types.records import DraftProposal, Verdict
from .chain import Chain, target_over_draft
from .lazy import RowLaws, entries, on_host, row_distributions, small
from .plain import LazyMethod, PlainChains, stop, stop_distribution
from .verify import VerdictDraws, judge


class LazyDraws(VerdictDraws, Protocol):
    """The two draws of a verdict, the first of which may be known ahead."""

    @property
    def stop_uniforms(self) -> Tensor | None:
        """The uniforms float64 [B] by which `stop` inverts distributions; None if only `stop` can draw."""
        ...


def verify_logits(
    proposal: DraftProposal,
    logits: Tensor,
    temperature: Tensor | float | None,
    method: LazyMethod,
    draws: LazyDraws,
) -> tuple[Verdict, Tensor]:
    """Keep drafts by `method`, and draw the token that follows them, from the target's logits.

    Args:
        proposal: drafted tokens and the distributions they were drawn from, on the logits' device.
        logits: the target's, [B, N + 1, V], of any floating dtype; half precision counts as
            float32, as `sampling.distributions` takes it.
        temperature: what the logits are divided by: one number, one for each row [B], or None.
        method: how drafts are kept.
        draws: the round's chance.

    Returns:
        The verdict, and a witness [B, N + 1]: finite where a row of logits is sound, and not where
        it has NaN, +inf or no finite entry (or overflows when divided by the temperature), so that
        what rests on it means nothing. The verdict means something where such rows are not on the
        path that is kept: they count as certain of a token that there is not.
    """
    batch, rows, _ = logits.shape
    with np.errstate(all="ignore"):  # the witness tells of unsound rows
        target = row_distributions(logits.flatten(0, 1), _scale(logits, temperature))
        witness = torch.as_tensor(target.mass).view(batch, rows)
        if proposal.width == 0:
            first = target.weighed(small(torch.arange(batch, device=logits.device)), 1.0)
            none = torch.zeros(batch, dtype=torch.int64, device=logits.device)
            return Verdict(none, draws.token(torch.as_tensor(first))), witness
        if on_host(logits):
            return _verdict_on_host(proposal, target, method, draws), witness
        return judge(LazyChain.over(proposal, target), method, draws), witness


def _scale(logits: Tensor, temperature: Tensor | float | None) -> Tensor | float:
    """log2(e) / temperature: one number, or one for each row of logits, [B * (N + 1), 1]."""
    dtype = torch.promote_types(logits.dtype, torch.float32)
    if isinstance(temperature, Tensor):
        each = (log2(e) / temperature.double()).to(dtype)
        return each.repeat_interleave(logits.shape[1])[:, None]
    scale = log2(e) / (1.0 if temperature is None else temperature)
    # The number that rows are multiplied by, wherever it is used.
    return scale if dtype == torch.float64 else float(np.float32(scale))


def _verdict_on_host(
    proposal: DraftProposal, target: RowLaws, method: LazyMethod, draws: LazyDraws
) -> Verdict:
    """The verdict on chains with N >= 1, beside the distributions of B * (N + 1) rows on the CPU."""
    drafts = HostDrafts.of(proposal, target)
    chains = PlainChains(drafts.ratios, drafts.excess)
    ahead = draws.stop_uniforms
    uniforms = None if ahead is None else ahead.tolist()
    edges, weights = method.stop_edges(chains, uniforms)
    if uniforms is None:
        distributions = [stop_distribution(row, proposal.width) for row in edges]
        node = draws.stop(torch.tensor(distributions, dtype=torch.float64))
        nodes = node.tolist()
    else:
        nodes = [stop(row, uniform) for row, uniform in zip(edges, uniforms, strict=True)]
        node = torch.tensor(nodes)
    distribution = drafts.residual(nodes, [row[at] for row, at in zip(weights, nodes, strict=True)])
    ceiling = torch.tensor([sum(row) for row in chains.reached()], dtype=torch.float64)
    return Verdict(node, draws.token(torch.as_tensor(distribution)), ceiling)


@dataclass(frozen=True, slots=True)
class HostDrafts:
    """Drafted chains beside lazy distributions on the CPU.

    Attributes:
        tokens: int64 [B * N].
        target: distributions of B * (N + 1) rows.
        draft: [B * R, V], distributions that tokens were drawn from; None if all are point masses.
        distribution_rows: int64 [B * N], which of them each token was drawn from, -1 for a point mass.
        ratios: of each row its L numbers, target over draft probability of each token.
    """

    tokens: Any
    target: RowLaws
    draft: Tensor | None
    distribution_rows: NDArray[np.int64]
    width: int
    ratios: list[list[float]]

    @staticmethod
    def of(proposal: DraftProposal, target: RowLaws) -> HostDrafts:
        """The drafts of a proposal with N >= 1."""
        batch, width = proposal.tokens.shape
        tokens = proposal.tokens.flatten().numpy()
        column = np.arange(batch * width)
        index = column + column // width
        ratio = target.at(index, tokens)
        ratio[~_sound(target, index)] = 0
        probs = None if proposal.distributions is None else proposal.distributions.probs
        draft = None if probs is None else probs.flatten(0, 1)
        distribution_rows = np.full(batch * width, -1)
        if probs is not None:
            own = (
                trees.chain(batch, width)
                if proposal.distribution_rows is None
                else proposal.distribution_rows
            )
            first = probs.shape[1] * np.arange(batch)[:, None]
            distribution_rows = np.where(own < 0, -1, own + first).flatten()
        if draft is not None:
            drawn = np.where(
                distribution_rows < 0, 1.0, entries(draft, distribution_rows.clip(0), tokens)
            )
            # None is zero but where nothing was drafted.
            ratio /= drawn + (drawn == 0)
        rows = zip(ratio.reshape(batch, width).tolist(), proposal.lengths.tolist(), strict=True)
        ratios = [row[:length] for row, length in rows]
        return HostDrafts(tokens, target, draft, distribution_rows, width, ratios)

    def excess(self, rows: list[int], node: int, weights: list[float]) -> list[float]:
        """sum_x (w P(x) - Q(x))+ at a node before the leaves of `rows`, for weights w."""
        # Where Q is a point mass on the next token, w P(x) <= 1: all but that token is left.
        pairs = zip(rows, weights, strict=True)
        found = np.array([weight * (1 - self.ratios[row][node]) for row, weight in pairs])
        column = np.array(rows) * self.width + node
        distribution_row = self.distribution_rows[column]
        drawn = distribution_row >= 0
        if self.draft is not None and drawn.any():
            index, weight = (column + rows)[drawn], np.array(weights)[drawn]
            sums = self.target.excess(index, weight, self.draft, distribution_row[drawn])
            found[drawn] = np.where(_sound(self.target, index), sums, weight)
        kept: list[float] = found.tolist()
        return kept

    def residual(self, nodes: list[int], weights: list[float]) -> Any:
        """The distributions [B, V] after those nodes: norm((weight * P - Q)+), or P after a leaf.

        Where no mass is left (rounding alone can bring that about, since the node is then stopped
        at with probability zero) it is the target's row.
        """
        row = np.arange(len(nodes))
        index = row * (self.width + 1) + nodes
        drafts = np.array([at < len(row) for at, row in zip(nodes, self.ratios, strict=True)])
        column = np.where(drafts, index - row, 0)
        distribution_row = np.where(drafts, self.distribution_rows[column], -1)
        drawn = distribution_row >= 0
        if self.draft is None or not drawn.any():
            distribution = self.target.weighed(index, 1.0)
        else:
            weight = np.where(drawn, weights, 1.0)
            counts = None if drawn.all() else drawn
            distribution = self.target.above(
                index, weight, self.draft, distribution_row.clip(0), counts
            )
        sure = drafts & ~drawn
        if sure.any():
            small(distribution)[row[sure], self.tokens[column[sure]]] = 0
        total = distribution.sum(-1, keepdims=True)
        if all(mass > 0 for (mass,) in total.tolist()):
            distribution /= total
            return distribution
        return array_namespace(distribution).where(
            total > 0, distribution / total, self.target.weighed(index, 1.0)
        )


def _sound(target: RowLaws, index: Any) -> Any:
    """Which of the rows of `index` mean something, bool [S]."""
    mass = small(target.mass)[index, 0]
    return array_namespace(mass).isfinite(mass)


@dataclass(frozen=True, slots=True)
class LazyChain(Chain):
    """Drafted chains beside lazy target distributions, on a device where nothing waits for the host.

    `target` is RowLaws of B * (N + 1) rows, and `draft` a tensor [B, N, V].
    """

    @staticmethod
    def over(proposal: DraftProposal, target: RowLaws) -> LazyChain:
        """The chains of a proposal with N >= 1, beside the distributions of B * (N + 1) rows."""
        tokens = proposal.tokens
        batch, width = tokens.shape
        column = torch.arange(batch * width, device=tokens.device)
        index = column + column // width
        kept = target.at(index, tokens.flatten()).where(_sound(target, index), 0)
        kept = kept.view(batch, width)
        draft = None if proposal.distributions is None else proposal.distributions.probs
        drawn = None
        if draft is not None:
            drawn = entries(draft.flatten(0, 1), column, tokens.flatten()).view(batch, width)
        length = torch.as_tensor(proposal.lengths, device=tokens.device)
        ragged = bool((proposal.lengths < width).any())
        ratio = target_over_draft(kept, drawn, length if ragged else None)
        return LazyChain(tokens, length, target, draft, ragged, ratio)

    def excess(self, weights: Tensor) -> Tensor:
        """sum_x (w_i P_i(x) - Q_i(x))+ at the nodes 1..N-1."""
        if self.draft is None:
            found: Tensor = Chain.excess(self, weights)
            return found
        batch, width = self.ratio.shape
        node = torch.arange(batch * (width - 1), device=weights.device)
        if not len(node):
            return weights[:, 1:width]
        row, before = node // (width - 1), node % (width - 1)
        index, column = row * (width + 1) + before + 1, row * width + before + 1
        inner = weights[:, 1:width].flatten()
        sums = self.target.excess(index, inner, self.draft.flatten(0, 1), column)
        return torch.where(_sound(self.target, index), sums, inner).view(batch, width - 1)

    def residual_distribution(self, node: Tensor, weight: Tensor) -> Tensor:
        """As a dense chain's, [B, V] in the distributions' own dtype."""
        batch, width = self.ratio.shape
        rows = torch.arange(batch, device=node.device)
        index, drafts = rows * (width + 1) + node, node < self.length
        if self.draft is None:
            distribution = self.target.weighed(index, 1.0)
            distribution[rows, self.tokens[rows, node.clip(max=width - 1)]] *= ~drafts
        else:
            column = rows * width + node.clip(max=width - 1)
            draft, weight = self.draft.flatten(0, 1), torch.where(drafts, weight, 1.0)
            distribution = self.target.above(index, weight, draft, column, drafts)
        total = distribution.sum(-1, keepdim=True)
        return torch.where(total > 0, distribution / total, self.target.weighed(index, 1.0))
