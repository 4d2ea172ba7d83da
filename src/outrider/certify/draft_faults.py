"""Faulty drafters, to be planted: each draws its tokens otherwise than it reports."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..drafters.early_exit import EarlyExitDrafter
from ..drafters.model import ModelDrafter
from ..runtimes.tabular import TabularModel
from ..runtimes.transformers.early_exit import first_layers
from ..runtimes.transformers.model import TransformersModel
from ..types.records import Distributions, DraftPlan, DraftProposal, Prefix

# Of a model of the target's vocabulary: a sound drafter of chains, with four hooks


class FaultyDrafter(ModelDrafter):
    """A sound drafter of chains, made faulty by one of its hooks."""

    def propose(self, prefixes: Sequence[Prefix], plan: DraftPlan, ctx: Any) -> DraftProposal:
        """Propose a chain for each row, with what it reports of its distributions."""
        cursor = self.model.open(prefixes, plan.width)
        logits = cursor.logits
        tokens: list[Tensor] = []
        reported: list[Tensor] = []
        for position in range(plan.width):
            distribution = self._distribution(logits, ctx)
            tokens.append(self._pick(distribution, position, ctx))
            reported.append(self._reported(distribution, logits, ctx))
            logits = cursor.step(tokens[-1])
        drafted, probs = torch.stack(tokens, 1), torch.stack(reported, 1)
        lengths = self._lengths(plan.depth, drafted, probs)
        return DraftProposal(drafted, lengths, Distributions(probs=probs))

    def _distribution(self, logits: Tensor, ctx: Any) -> Tensor:
        """What tokens are drawn from, [B, V]."""
        probs: Tensor = ctx.distribution(logits).probs
        return probs

    def _pick(self, distribution: Tensor, position: int, ctx: Any) -> Tensor:
        """The drafted tokens, int64 [B]."""
        tokens: Tensor = ctx.pick(Distributions(probs=distribution), position)
        return tokens

    def _reported(self, distribution: Tensor, logits: Tensor, ctx: Any) -> Tensor:
        """What tokens are reported to have been drawn from, [B, V]."""
        return distribution

    def _lengths(self, depth: NDArray[np.int64], tokens: Tensor, probs: Tensor) -> Any:
        """How many tokens are proposed, int64 [B]."""
        return depth


class ArgmaxReportedAsSampled(FaultyDrafter):
    """Proposes the likeliest token and reports the softmax as its distribution."""

    def _pick(self, distribution: Tensor, position: int, ctx: Any) -> Tensor:
        return distribution.argmax(-1)


class PermutedDistribution(FaultyDrafter):
    """Reports the distribution with its columns in another order than they were drawn in."""

    def _reported(self, distribution: Tensor, logits: Tensor, ctx: Any) -> Tensor:
        return distribution.roll(1, -1)


class UnfilteredDistribution(FaultyDrafter):
    """Draws from the filtered distribution and reports the raw one."""

    def _reported(self, distribution: Tensor, logits: Tensor, ctx: Any) -> Tensor:
        return logits.softmax(-1)


class RoundedDistribution(FaultyDrafter):
    """Draws in full precision and reports the distribution rounded to bfloat16."""

    def _reported(self, distribution: Tensor, logits: Tensor, ctx: Any) -> Tensor:
        return distribution.bfloat16().to(distribution.dtype)


class TemperatureTwice(FaultyDrafter):
    """Applies the request's parameters to the draft's distribution twice: lossless, and slow."""

    def _distribution(self, logits: Tensor, ctx: Any) -> Tensor:
        return super()._distribution(super()._distribution(logits, ctx).log(), ctx)


class DropsUnlikelyTokens(FaultyDrafter):
    """Leaves a sampled token out if the draft gave it little probability."""

    def _lengths(self, depth: NDArray[np.int64], tokens: Tensor, probs: Tensor) -> Any:
        likely = probs.gather(-1, tokens[..., None])[..., 0] >= 0.4
        return np.minimum(depth, likely.long().cumprod(-1).sum(-1).numpy())


# Of a model of another vocabulary


class _OtherVocabulary(FaultyDrafter):
    """Has all tokens of a model but the last, and one that the target lacks, in its own column.

    Logits are the logarithms of probabilities among the draft's tokens.
    """

    def __init__(self, model: TabularModel) -> None:
        def among_all(prefix: tuple[int, ...]) -> NDArray[np.float64]:
            known = model.probabilities(prefix)
            weights = np.array([*known[:-1], 0.0, known[0] / 2])
            probabilities: NDArray[np.float64] = weights / weights.sum()
            return probabilities

        super().__init__(TabularModel(among_all, model.vocab_size + 1), model.vocab_size)

    def _distribution(self, logits: Tensor, ctx: Any) -> Tensor:
        return super()._distribution(logits[:, :-1], ctx)


class NotRenormalised(_OtherVocabulary):
    """Draws from the distribution over the common tokens, and reports their share of all tokens."""

    def _reported(self, distribution: Tensor, logits: Tensor, ctx: Any) -> Tensor:
        return logits[:, :-1].exp()


class CutAfterDrawing(_OtherVocabulary):
    """Draws from all tokens, takes the one that the target lacks for its first."""

    def _distribution(self, logits: Tensor, ctx: Any) -> Tensor:
        whole = logits[:, :-1].exp()
        whole[:, 0] += logits[:, -1].exp()
        return whole

    def _reported(self, distribution: Tensor, logits: Tensor, ctx: Any) -> Tensor:
        return super()._distribution(logits, ctx)


# Of the target's own first layers


class DistributionOfAnotherLayer(EarlyExitDrafter):
    """Draws from the distribution after the first layer, and reports that after the second."""

    def __init__(self, target: TransformersModel) -> None:
        super().__init__(target, 1)
        self._deeper = first_layers(target.hf_model, 2)

    def propose(self, prefixes: Sequence[Prefix], plan: DraftPlan, ctx: Any) -> DraftProposal:
        """Propose the sound tokens, with distributions that they were not drawn from."""
        sound = super().propose(prefixes, plan, ctx)
        cursor = self._target.open(prefixes, plan.width, self._deeper)
        logits = [cursor.logits]
        logits += [cursor.step(sound.tokens[:, place]) for place in range(sound.width - 1)]
        probs = torch.stack([ctx.distribution(row).probs for row in logits], 1)
        return replace(sound, distributions=Distributions(probs=probs))


# Of trees whose nodes all follow the prefix: each changes a sound proposal


class ChangedProposal(ModelDrafter, ABC):
    """A sound drafter of trees, whose proposals are changed afterwards."""

    def propose(self, prefixes: Sequence[Prefix], plan: DraftPlan, ctx: Any) -> DraftProposal:
        """Propose what is made of a sound proposal."""
        sound = super().propose(prefixes, plan, ctx)
        assert sound.distribution_rows is not None
        return self._changed(sound, sound.distribution_rows)

    @abstractmethod
    def _changed(self, sound: DraftProposal, rows: NDArray[np.int64]) -> DraftProposal:
        """Return the proposal with the fault."""


class RanksDrawnNodesAway(ChangedProposal):
    """Keeps the likelier two of three drawn siblings."""

    def _changed(self, sound: DraftProposal, rows: NDArray[np.int64]) -> DraftProposal:
        assert sound.distributions is not None
        assert sound.distributions.probs is not None
        first = sound.distributions.probs[:, :1].expand(-1, sound.width, -1)
        likelihood = first.gather(-1, sound.tokens[..., None])[..., 0]
        kept = likelihood.argsort(-1, descending=True)[:, :2].sort(-1).values
        return replace(
            sound,
            tokens=sound.tokens.gather(1, kept),
            lengths=np.minimum(sound.lengths, 2),
            parents=np.zeros(kept.shape, dtype=np.int64),
            distribution_rows=np.take_along_axis(rows, kept.numpy(), 1),
        )


class SiblingsShareADistribution(ChangedProposal):
    """Draws siblings without replacement, and reports the first one's distribution for all."""

    def _changed(self, sound: DraftProposal, rows: NDArray[np.int64]) -> DraftProposal:
        return replace(sound, distribution_rows=np.repeat(rows[:, :1], sound.width, 1))


class SiblingsInAnotherOrder(ChangedProposal):
    """Has siblings verified in another order than they were drawn in."""

    def _changed(self, sound: DraftProposal, rows: NDArray[np.int64]) -> DraftProposal:
        turned = np.ascontiguousarray(rows[:, ::-1])
        return replace(sound, tokens=sound.tokens.flip(1), distribution_rows=turned)
