"""Faults to plant in an engine: each breaks one thing from outside, and no shipped file.

Most were found in released systems or are variants known to be wrong. A fault is a verification
method, a drafter, a chance, or a decoder that does one thing wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import FunctionType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..drafters.base import Drafter
from ..drafters.model import ModelDrafter
from ..engine.batch import Batch, StepResult
from ..engine.decoder import SpeculativeDecoder
from ..policies.base import Policy
from ..random import DRAFT, STOP, TOKEN, Philox4x32, inverse_cdf, philox4x32
from ..runtimes.tabular import TabularModel
from ..types.protocols import Chance
from ..types.records import Distributions, DraftPlan, DraftProposal, Prefix, SequenceState
from ..verification import BlockVerification, TokenVerification, Tree

# Verification methods


class PlainResidual(BlockVerification):
    """Block or traversal verification whose residual forgets the claim on the node."""

    def residual(self, tree: Tree, claims: Any, node: Any) -> Any:
        """norm((P - Q)+): what recursive rejection would leave."""
        return tree.remaining_distribution(node, torch.ones_like(claims[:, 0]))


class StopsAtFirstRefusal(BlockVerification):
    """Block verification that scans its coins from the left and stops at the first tail."""

    def stop_distribution(self, tree: Tree) -> tuple[Any, Any]:
        """The distribution of the first tail, with the coins of the last head."""
        last, weights = super().stop_distribution(tree)
        heads = last / last.cumsum(-1).clamp(min=1e-300)
        one = torch.ones_like(heads[:, :1])
        reached = torch.cat([one, heads[:, 1:].cumprod(-1)], -1)
        return reached * torch.cat([1 - heads[:, 1:], one], -1), weights


class BonusFromTheRowBefore(TokenVerification):
    """After full acceptance the bonus is drawn from the row before the last."""

    def residual(self, tree: Tree, weights: Any, node: Any) -> Any:
        """The right residual, and the wrong bonus."""
        right = super().residual(tree, weights, node)
        rows = torch.arange(len(node))
        wrong = tree.target[rows, (node - 1).clamp(min=0)].double()
        return torch.where((node == tree.length)[:, None], wrong, right)


class AcceptsTheImpossible(TokenVerification):
    """Accepts if u <= p/q with 24-bit uniforms: u = 0 lets a token of probability zero pass."""

    def stop_distribution(self, tree: Tree) -> tuple[Any, Any]:
        """The distribution with every ratio at least 2**-24."""
        return super().stop_distribution(replace(tree, ratio=tree.ratio.clamp(min=2.0**-24)))


class ResidualIsTheTarget(TokenVerification):
    """Replaces a refused token by one drawn from the target's distribution itself."""

    def residual(self, tree: Tree, weights: Any, node: Any) -> Any:
        """The target's row."""
        return tree.target[torch.arange(len(node)), node].double()


# Drafters


class FaultyDrafter(Drafter):
    """A sound drafter of a model, made faulty by one of its three hooks."""

    def __init__(self, model: TabularModel) -> None:
        self.model = model
        self.models = (model,)

    @property
    def vocab_size(self) -> int:
        """The model's width, V."""
        return self.model.vocab_size

    def propose(self, prefixes: Sequence[Prefix], plan: DraftPlan, ctx: Any) -> DraftProposal:
        """A chain for each row, and its reported distributions."""
        cursor = self.model.open(prefixes, plan.width)
        logits = cursor.logits
        tokens: list[Tensor] = []
        distributions: list[Tensor] = []
        for position in range(plan.width):
            distribution = self.distribution(logits, ctx)
            tokens.append(self.pick(distribution, position, ctx))
            distributions.append(self.reported(distribution, logits))
            logits = cursor.step(tokens[-1])
        lengths = self.lengths(plan.depth, torch.stack(tokens, 1), torch.stack(distributions, 1))
        return DraftProposal(
            torch.stack(tokens, 1), lengths, Distributions(probs=torch.stack(distributions, 1))
        )

    def distribution(self, logits: Tensor, ctx: Any) -> Tensor:
        """What tokens are drawn from, [B, V]."""
        distribution: Tensor = ctx.distribution(logits).probs
        return distribution

    def pick(self, distribution: Tensor, position: int, ctx: Any) -> Tensor:
        """The drafted tokens, int64 [B]."""
        tokens: Tensor = ctx.pick(Distributions(probs=distribution), position)
        return tokens

    def reported(self, distribution: Tensor, logits: Tensor) -> Tensor:
        """What tokens are said to have been drawn from, [B, V]."""
        return distribution

    def lengths(
        self,
        depth: NDArray[np.int64],
        tokens: Tensor,
        distributions: Tensor,
    ) -> NDArray[np.int64]:
        """How many tokens are proposed, int64 [B]."""
        return depth


class ArgmaxSaidToBeSampled(FaultyDrafter):
    """Proposes the likeliest token and reports the softmax as its distribution."""

    def pick(self, distribution: Tensor, position: int, ctx: Any) -> Tensor:
        """The likeliest tokens."""
        return distribution.argmax(-1)


class PermutedDistribution(FaultyDrafter):
    """Reports the distribution with its columns in another order than they were drawn in."""

    def reported(self, distribution: Tensor, logits: Tensor) -> Tensor:
        """The distribution, moved by one column."""
        return distribution.roll(1, -1)


class UnfilteredDistribution(FaultyDrafter):
    """Draws from the filtered distribution and reports the raw one."""

    def reported(self, distribution: Tensor, logits: Tensor) -> Tensor:
        """The distribution before any filter."""
        return logits.softmax(-1)


class RoundedDistribution(FaultyDrafter):
    """Draws in full precision and reports the distribution rounded to bfloat16."""

    def reported(self, distribution: Tensor, logits: Tensor) -> Tensor:
        """The distribution in 8 bits of precision."""
        return distribution.bfloat16().to(distribution.dtype)


class TemperatureTwice(FaultyDrafter):
    """Applies the request's parameters to the draft's distribution twice: lossless, and slow."""

    def distribution(self, logits: Tensor, ctx: Any) -> Tensor:
        """The distribution of the distribution."""
        return super().distribution(super().distribution(logits, ctx).log(), ctx)


class DropsUnlikelyTokens(FaultyDrafter):
    """Leaves a sampled token out if the draft gave it little probability."""

    def lengths(
        self, depth: NDArray[np.int64], tokens: Tensor, distributions: Tensor
    ) -> NDArray[np.int64]:
        """Up to the first token drawn against the odds."""
        likely = distributions.gather(-1, tokens[..., None])[..., 0] >= 0.4
        leading: NDArray[np.int64] = likely.long().cumprod(-1).sum(-1).numpy()
        return np.minimum(depth, leading)


# Drafters of trees: each changes a sound proposal whose nodes all follow the prefix


class Stars(ModelDrafter):
    """A sound drafter of trees of depth one, made faulty by its hook."""

    def propose(self, prefixes: Sequence[Prefix], plan: DraftPlan, ctx: Any) -> DraftProposal:
        """The faulty proposal."""
        sound = super().propose(prefixes, plan, ctx)
        assert plan.deepest <= 1, "stars only"
        return self.changed(sound)

    def changed(self, sound: DraftProposal) -> DraftProposal:
        """The proposal that is made of a sound one."""
        return sound


class RanksDrawnNodesAway(Stars):
    """Keeps the likelier two of three drawn siblings."""

    def changed(self, sound: DraftProposal) -> DraftProposal:
        """Without the node that the draft found least likely."""
        assert sound.distributions is not None
        assert sound.distributions.probs is not None
        assert sound.distribution_rows is not None
        first = sound.distributions.probs[:, :1].expand(-1, sound.width, -1)
        worth = first.gather(-1, sound.tokens[..., None])[..., 0]
        kept = worth.argsort(-1, descending=True)[:, :2].sort(-1).values
        return replace(
            sound,
            tokens=sound.tokens.gather(1, kept),
            lengths=np.minimum(sound.lengths, 2),
            parents=np.zeros(kept.shape, dtype=np.int64),
            distribution_rows=np.take_along_axis(sound.distribution_rows, kept.numpy(), 1),
        )


class SiblingsShareADistribution(Stars):
    """Draws siblings without replacement, and reports the first one's distribution for all."""

    def changed(self, sound: DraftProposal) -> DraftProposal:
        """With one row of distributions for all."""
        assert sound.distribution_rows is not None
        return replace(
            sound, distribution_rows=np.repeat(sound.distribution_rows[:, :1], sound.width, 1)
        )


class SiblingsInAnotherOrder(Stars):
    """Has siblings verified in another order than they were drawn in."""

    def changed(self, sound: DraftProposal) -> DraftProposal:
        """The last first."""
        assert sound.distribution_rows is not None
        distribution_rows = np.ascontiguousarray(sound.distribution_rows[:, ::-1])
        return replace(sound, tokens=sound.tokens.flip(1), distribution_rows=distribution_rows)


# Chances: each changes keys on their way to another chance


class Rekeyed:
    """A chance that draws under changed keys."""

    def __init__(self, inner: Chance) -> None:
        self._inner = inner

    def draw(self, distributions: Tensor, keys: NDArray[np.uint64]) -> Tensor:
        """One index int64 [B] for each distribution [B, M], under keys [B, 5] as they are changed."""
        return self._inner.draw(distributions, self.changed(keys.copy()))

    def changed(self, keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """The keys that are used in the place of `keys`, which may be written to."""
        return keys


class VerdictSharesItsKey(Rekeyed):
    """The stop and the token after it are drawn under one key."""

    def changed(self, keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """The purpose TOKEN becomes STOP."""
        keys[:, 3][keys[:, 3] == TOKEN] = STOP
        return keys


class DraftNoiseReused(Rekeyed):
    """The recovery token is drawn with the noise of the first draft."""

    def changed(self, keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """The purpose TOKEN becomes DRAFT."""
        keys[:, 3][keys[:, 3] == TOKEN] = DRAFT
        return keys


class PositionsShareNoise(Rekeyed):
    """The generator is seeded anew before each draft, so that all share one uniform."""

    def changed(self, keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """The slot becomes 0."""
        keys[:, 4] = 0
        return keys


class RoundsShareNoise(Rekeyed):
    """The counter of rounds stands still."""

    def changed(self, keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """The round becomes 0."""
        keys[:, 2] = 0
        return keys


class PromptsShareNoise(Rekeyed):
    """One seed gives every prompt the same noise."""

    def changed(self, keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """The stream key becomes the seed alone."""
        keys[:, 0] = 7
        return keys


class ChoicesShareNoise(Rekeyed):
    """The n continuations of a prompt are drawn with the same noise."""

    def changed(self, keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """The choice becomes 0."""
        keys[:, 1] = 0
        return keys


class NoiseByRound(Philox4x32):
    """Coupled noise that depends on how many positions a call asks about."""

    def race_at(self, keys: NDArray[np.uint64], tokens: NDArray[np.int64]) -> NDArray[np.float64]:
        """Noise of another stream for every size of call."""
        moved = keys.copy()
        moved[:, 1] += np.uint64(len(tokens))
        return super().race_at(moved, tokens)

    def race(self, keys: NDArray[np.uint64], size: int) -> NDArray[np.float64]:
        """Likewise."""
        moved = keys.copy()
        moved[:, 1] += np.uint64(len(keys))
        return super().race(moved, size)


class NoiseByBatchPosition(Rekeyed):
    """Noise depends on where in the batch a request sits."""

    def changed(self, keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """The row is mixed into the stream key."""
        keys[:, 0] ^= np.arange(len(keys), dtype=np.uint64)
        return keys


class SqueezedUniforms:
    """Philox whose uniforms end at .9."""

    def draw(self, distributions: Tensor, keys: NDArray[np.uint64]) -> Tensor:
        """One index int64 [B] for each distribution [B, M], under keys [B, 5]."""
        drawn: Tensor = inverse_cdf(
            distributions, torch.from_numpy(0.9 * Philox4x32().uniforms(keys))
        )
        return drawn


# Decoders


class DraftsTooDeep(Policy):
    """A policy that drafts min(k, remaining), and leaves no room for the bonus."""

    def __init__(self, depth: int) -> None:
        self._depth = depth

    def plan(self, knowledge: Any, states: Sequence[SequenceState]) -> DraftPlan:
        """Plan one token too many at the end of a request."""
        depths = [min(self._depth, state.remaining) for state in states]
        return DraftPlan(np.array(depths, dtype=np.int64))


class CountsPastTheStop(SpeculativeDecoder):
    """Counts drafts that stand behind a stop token as accepted."""

    def step(self, batch: Batch, chance: Chance | None = None) -> StepResult:
        """A round of a perfect draft, all of whose drafts are said to be accepted."""
        step = super().step(batch, chance)
        return replace(step, record=replace(step.record, accepted=step.record.drafted))


class StopsOnlyBetweenRounds(SpeculativeDecoder):
    """Looks for stop tokens at the end of a round only, not inside the accepted block."""

    def step(self, batch: Batch, chance: Chance | None = None) -> StepResult:
        """A round that nothing but its last token can stop."""
        deaf = [replace(state, stop_ids=frozenset()) for state in batch.states]
        step = super().step(self.pack(deaf), chance)
        states = tuple(
            replace(after, stop_ids=before.stop_ids, finish_reason=_reason(before, after))
            for before, after in zip(batch.states, step.batch.states, strict=True)
        )
        return replace(step, batch=self.pack(states))


class NoBonus(SpeculativeDecoder):
    """Emits nothing after a fully accepted block."""

    def step(self, batch: Batch, chance: Chance | None = None) -> StepResult:
        """A round without the token that the target's last row gives."""
        step = super().step(batch, chance)
        record = step.record
        full = [
            drafted == kept > 0
            for drafted, kept in zip(record.drafted, record.accepted, strict=True)
        ]
        states = tuple(
            _shortened(state) if cut else state
            for state, cut in zip(step.batch.states, full, strict=True)
        )
        emitted = tuple(e - cut for e, cut in zip(record.emitted, full, strict=True))
        return replace(step, batch=self.pack(states), record=replace(record, emitted=emitted))


def _reason(before: SequenceState, after: SequenceState) -> Any:
    return "stop" if after.output_ids[-1] in before.stop_ids else after.finish_reason


def _shortened(state: SequenceState) -> SequenceState:
    prefix = Prefix(state.prefix.sequence_id, state.prefix.tokens[:-1])
    return replace(state, prefix=prefix, finish_reason=None)


wrong_philox = FunctionType(
    philox4x32.__code__,
    {**philox4x32.__globals__, "_MULTIPLIERS": (0xD2561A75, 0xCD9E8D57)},
)
"""The shipped generator with a multiplier that differs from the published 0xD2511F53."""
