"""Faults to plant in an engine: each breaks one thing from outside, and no shipped file.

Most were found in released systems or are variants known to be wrong. A fault is a verification
method, a source of chance, a policy or a decoder that does one thing wrong; see `draft_faults` for
drafters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from types import FunctionType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..engine.batch import Batch, StepResult
from ..engine.decoder import SpeculativeDecoder
from ..policies.base import Policy
from ..random import Philox4x32, inverse_cdf, philox4x32
from ..types.protocols import Chance
from ..types.records import DraftPlan, Prefix, SequenceState
from ..verification import BlockVerification, TokenVerification, Tree

Keys = NDArray[np.uint64]

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
        last, claims = super().stop_distribution(tree)
        heads = last / last.cumsum(-1).clamp(min=1e-300)
        one = torch.ones_like(heads[:, :1])
        reached = torch.cat([one, heads[:, 1:].cumprod(-1)], -1)
        return reached * torch.cat([1 - heads[:, 1:], one], -1), claims


class BonusFromTheRowBefore(TokenVerification):
    """After full acceptance the bonus is drawn from the row before the last."""

    def residual(self, tree: Tree, claims: Any, node: Any) -> Any:
        """The right residual, and the wrong bonus."""
        right = super().residual(tree, claims, node)
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

    def residual(self, tree: Tree, claims: Any, node: Any) -> Any:
        """The target's row."""
        return tree.target[torch.arange(len(node)), node].double()


# Sources of chance


class Rekeyed:
    """A source of chance that draws under changed keys.

    Args:
        inner: what draws.
        change: makes the keys [B, 5] that are used, of a copy that it may write to.
    """

    def __init__(self, inner: Chance, change: Callable[[Keys], Keys]) -> None:
        self._inner = inner
        self._change = change

    def draw(self, distributions: Tensor, keys: Keys) -> Tensor:
        """One index int64 [B] for each distribution [B, M], under changed keys [B, 5]."""
        return self._inner.draw(distributions, self._change(keys.copy()))


def fixed(column: int, value: int) -> Callable[[Keys], Keys]:
    """Make a change of keys that sets one of their five entries, for all draws."""

    def changed(keys: Keys) -> Keys:
        keys[:, column] = value
        return keys

    return changed


def confused(purpose: int, other: int) -> Callable[[Keys], Keys]:
    """Make a change of keys that takes one purpose of a draw for another."""

    def changed(keys: Keys) -> Keys:
        keys[:, 3][keys[:, 3] == purpose] = other
        return keys

    return changed


def by_place(keys: Keys) -> Keys:
    """Mix the row's place in the batch into the stream key."""
    keys[:, 0] ^= np.arange(len(keys), dtype=np.uint64)
    return keys


class NoiseByRound(Philox4x32):
    """Coupled noise that depends on how many positions a call asks about."""

    def race_at(self, keys: Keys, tokens: NDArray[np.int64]) -> NDArray[np.float64]:
        """Noise of another stream for every size of call."""
        return super().race_at(_moved(keys), tokens)

    def race(self, keys: Keys, size: int) -> NDArray[np.float64]:
        """Likewise."""
        return super().race(_moved(keys), size)


def _moved(keys: Keys) -> Keys:
    moved = keys.copy()
    moved[:, 1] += np.uint64(len(keys))
    return moved


class SqueezedUniforms:
    """Philox whose uniforms end at .9."""

    def draw(self, distributions: Tensor, keys: Keys) -> Tensor:
        """One index int64 [B] for each distribution [B, M], under keys [B, 5]."""
        uniforms = torch.from_numpy(0.9 * Philox4x32().uniforms(keys))
        drawn: Tensor = inverse_cdf(distributions, uniforms)
        return drawn


wrong_philox = FunctionType(
    philox4x32.__code__,
    {**philox4x32.__globals__, "_MULTIPLIERS": (0xD2561A75, 0xCD9E8D57)},
)
"""The shipped generator with a multiplier that differs from the published 0xD2511F53."""

# Policies


class DraftsTooDeep(Policy):
    """A policy that drafts min(k, remaining), and leaves no room for the bonus."""

    def __init__(self, depth: int) -> None:
        self._depth = depth

    def plan(self, knowledge: Any, states: Sequence[SequenceState]) -> DraftPlan:
        """Plan one token too many at the end of a request."""
        depths = [min(self._depth, state.remaining) for state in states]
        return DraftPlan(np.array(depths, dtype=np.int64))


class RemembersWhatItPlanned(Policy):
    """A policy that drafts one token less after it planned for a batch, until it plans again.

    Args:
        inner: a sound policy.
    """

    def __init__(self, inner: Policy) -> None:
        self._inner = inner
        self._rows = 1
        self.learns = inner.learns

    def start(self) -> Any:
        """Start as the sound one."""
        return self._inner.start()

    def plan(self, knowledge: Any, states: Sequence[SequenceState]) -> DraftPlan:
        """Plan as the sound one, less what the last plan left behind."""
        less, self._rows = int(self._rows > 1), len(states)
        plan = self._inner.plan(knowledge, states)
        return replace(plan, depth=np.maximum(plan.depth - less, 0))

    def observe(self, knowledge: Any, states: Sequence[SequenceState], record: Any) -> Any:
        """Learn as the sound one."""
        return self._inner.observe(knowledge, states, record)

    def remember(self, history: Any, outcome: Any) -> Any:
        """Remember as the sound one."""
        return self._inner.remember(history, outcome)


# Decoders


class CountsPastTheStop(SpeculativeDecoder):
    """Counts drafts that stand behind a stop token as accepted."""

    def step(self, batch: Batch, chance: Chance | None = None) -> StepResult:
        """A round of a perfect draft, all of whose drafts are counted as accepted."""
        step = super().step(batch, chance)
        return replace(step, record=replace(step.record, accepted=step.record.drafted))


class StopsOnlyBetweenRounds(SpeculativeDecoder):
    """Looks for stop tokens at the end of a round only, not inside the accepted block."""

    def step(self, batch: Batch, chance: Chance | None = None) -> StepResult:
        """A round that nothing but its last token can stop."""
        unstopped = [replace(state, stop_ids=frozenset()) for state in batch.states]
        step = super().step(self.pack(unstopped), chance)
        states = []
        for before, after in zip(batch.states, step.batch.states, strict=True):
            stopped = after.output_ids[-1] in before.stop_ids
            reason: Any = "stop" if stopped else after.finish_reason
            states.append(replace(after, stop_ids=before.stop_ids, finish_reason=reason))
        return replace(step, batch=self.pack(states))


class NoBonus(SpeculativeDecoder):
    """Emits nothing after a fully accepted block."""

    def step(self, batch: Batch, chance: Chance | None = None) -> StepResult:
        """A round without the token that the target's last row gives."""
        step = super().step(batch, chance)
        drafted, accepted, emitted = (
            np.array(getattr(step.record, name)) for name in ("drafted", "accepted", "emitted")
        )
        cut = (drafted == accepted) & (accepted > 0)
        states = []
        for state, shorter in zip(step.batch.states, cut, strict=True):
            prefix = Prefix(state.prefix.sequence_id, state.prefix.tokens[:-1])
            short = replace(state, prefix=prefix, finish_reason=None)
            states.append(short if shorter else state)
        record = replace(step.record, emitted=tuple((emitted - cut).tolist()))
        return replace(step, batch=self.pack(states), record=record)
