"""Faults to plant in an engine: each breaks one thing from outside, and no shipped file.

Most were found in released systems or are variants known to be wrong. A fault takes the place of
one method of a sound part: a verification method, a drafter, a source of chance, a policy or a
decoder.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import replace
from types import FunctionType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..drafters.early_exit import EarlyExitDrafter
from ..drafters.model import ModelDrafter
from ..engine.commit import StepResult
from ..engine.decoder import SpeculativeDecoder
from ..policies.base import Policy
from ..random import Philox4x32, philox4x32
from ..runtimes.tabular import TabularModel
from ..runtimes.transformers.early_exit import first_layers
from ..sampling.batch import Batch
from ..types.records import Distributions, DraftPlan, DraftProposal, Prefix, SequenceState
from ..verification import BlockVerification, TokenVerification, Tree

Keys = NDArray[np.uint64]


def instead(kind: type, method: str) -> Callable[[Callable[..., Any]], Any]:
    """Make a class that is a kind of part, with a function in the place of one method."""
    return lambda function: type(function.__name__, (kind,), {method: function})


# Verification methods


@instead(BlockVerification, "residual")
def plain_residual(_: Any, tree: Tree, weights: Any, node: Any) -> Any:
    """Forget the node's acceptance weight: norm((P - Q)+), what recursive rejection would leave."""
    return tree.remaining_distribution(node, torch.ones_like(weights[:, 0]))


@instead(BlockVerification, "stop_distribution")
def stops_at_first_refusal(method: BlockVerification, tree: Tree) -> tuple[Any, Any]:
    """Draw from the left, and go on while draws say stop; weight by the last of them."""
    last, weights = BlockVerification.stop_distribution(method, tree)
    stops = last / last.cumsum(-1).clamp(min=1e-300)
    one = torch.ones_like(stops[:, :1])
    reached = torch.cat([one, stops[:, 1:].cumprod(-1)], -1)
    return reached * torch.cat([1 - stops[:, 1:], one], -1), weights


@instead(TokenVerification, "residual")
def bonus_from_the_row_before(method: Any, tree: Tree, weights: Any, node: Any) -> Any:
    """Draw the bonus after full acceptance from the row before the last."""
    right = TokenVerification.residual(method, tree, weights, node)
    wrong = tree.target[torch.arange(len(node)), (node - 1).clamp(min=0)].double()
    return torch.where((node == tree.length)[:, None], wrong, right)


@instead(TokenVerification, "stop_distribution")
def accepts_the_impossible(method: TokenVerification, tree: Tree) -> tuple[Any, Any]:
    """Accept if u <= p/q with 24-bit uniforms: u = 0 lets a token of probability zero pass."""
    possible = replace(tree, ratio=tree.ratio.clamp(min=2.0**-24))
    return TokenVerification.stop_distribution(method, possible)


@instead(TokenVerification, "residual")
def residual_is_the_target(_: Any, tree: Tree, _weights: Any, node: Any) -> Any:
    """Replace a refused token by one drawn from the target's distribution itself."""
    return tree.target[torch.arange(len(node)), node].double()


# Drafters, each of which draws its tokens otherwise than it reports


def in_the_round(tamper: Callable[[Any], None]) -> Any:
    """Make a drafter's class: sound, in a round whose context a function changed."""

    @instead(ModelDrafter, "propose")
    def propose(drafter: ModelDrafter, prefixes: Any, plan: DraftPlan, ctx: Any) -> DraftProposal:
        tamper(changed := copy(ctx))
        return ModelDrafter.propose(drafter, prefixes, plan, changed)

    return propose


def afterwards(change: Callable[[Any, Any], dict[str, Any]]) -> Any:
    """Make a drafter's class: sound, but for the fields of its proposals that a function changes.

    The function is given the proposal, and the probabilities [B, R, V] that are reported.
    """

    @instead(ModelDrafter, "propose")
    def propose(*given: Any) -> Any:
        sound: Any = ModelDrafter.propose(*given)
        return replace(sound, **change(sound, sound.distributions.probs))

    return propose


@in_the_round
def argmax_reported_as_sampled(ctx: Any) -> None:
    """Propose the likeliest token, and report the softmax as its distribution."""
    pick = ctx.pick
    ctx.pick = lambda made, n: pick(made, n) if made.probs is None else made.probs.argmax(-1)


@in_the_round
def unfiltered_distribution(ctx: Any) -> None:
    """Draw from the distribution that was asked for, and report the model's probabilities."""
    distribution, pick = ctx.distribution, ctx.pick
    ctx.distribution = lambda logits, _: Distributions(probs=logits.exp())
    ctx.pick = lambda made, place: pick(distribution(made.probs.log()), place)


@in_the_round
def temperature_twice(ctx: Any) -> None:
    """Apply the request's parameters to the draft's distribution twice: lossless, and slow."""
    once = ctx.distribution
    ctx.distribution = lambda logits, path: once(once(logits, path).probs.log(), path)


@in_the_round
def cut_after_drawing(ctx: Any) -> None:
    """Draw from all tokens of `with_a_token_more`, and take the one more for the first."""
    pick = ctx.pick

    def mapped(made: Any, place: int) -> Any:
        whole = made.probs.clone()
        whole[:, 0] *= 1.5
        return pick(Distributions(probs=whole / whole.sum(-1, keepdim=True)), place)

    ctx.pick = mapped


def with_a_token_more(kind: Callable[..., Any]) -> Callable[[TabularModel], Any]:
    """Draft in another vocabulary: all tokens but the last, and one that the target lacks.

    That one is half as likely as the first, and stands in a column of its own.
    """

    def make(model: TabularModel) -> Any:
        def among_all(prefix: tuple[int, ...]) -> list[float]:
            known = model.probabilities(prefix)
            weights = np.array([*known[:-1], 0.0, known[0] / 2])
            return list(weights / weights.sum())

        return kind(TabularModel(among_all, model.vocab_size + 1), model.vocab_size)

    return make


permuted_distribution = afterwards(
    lambda _, probs: {"distributions": Distributions(probs=probs.roll(1, -1))}
)
"""Report the distribution with its columns in another order than they were drawn in."""

rounded_distribution = afterwards(
    lambda _, probs: {"distributions": Distributions(probs=probs.bfloat16().to(probs.dtype))}
)
"""Draw in full precision, and report the distribution rounded to bfloat16."""

siblings_share_a_distribution = afterwards(
    lambda sound, _: {"distribution_rows": sound.distribution_rows[:, [0] * sound.width]}
)
"""Draw siblings without replacement, and report the first one's distribution for all."""

siblings_in_another_order = afterwards(
    lambda sound, _: {
        "tokens": sound.tokens.flip(1),
        "distribution_rows": np.ascontiguousarray(sound.distribution_rows[:, ::-1]),
    }
)
"""Have siblings verified in another order than they were drawn in."""


@afterwards
def drops_unlikely_tokens(sound: Any, probs: Tensor) -> dict[str, Any]:
    """Leave a sampled token out if the draft gave it little probability."""
    likely = probs.gather(-1, sound.tokens[..., None])[..., 0] >= 0.4
    kept = likely.long().cumprod(-1).sum(-1).numpy()
    return {"lengths": np.minimum(sound.lengths, kept)}


@afterwards
def ranks_drawn_nodes_away(sound: Any, probs: Tensor) -> dict[str, Any]:
    """Keep the likelier two of three drawn siblings."""
    likelihood = probs[:, 0].gather(-1, sound.tokens)
    kept = likelihood.argsort(-1, descending=True)[:, :2].sort(-1).values
    return {
        "tokens": sound.tokens.gather(1, kept),
        "lengths": np.minimum(sound.lengths, 2),
        "parents": np.zeros(kept.shape, dtype=np.int64),
        "distribution_rows": np.take_along_axis(sound.distribution_rows, kept.numpy(), 1),
    }


@instead(EarlyExitDrafter, "propose")
def another_layers_distribution(
    drafter: EarlyExitDrafter, prefixes: Sequence[Prefix], plan: DraftPlan, ctx: Any
) -> DraftProposal:
    """Draw from the distribution after the first layer, and report that after the second."""
    sound = EarlyExitDrafter.propose(drafter, prefixes, plan, ctx)
    target = drafter._target
    cursor = target.open(prefixes, plan.width, first_layers(target.hf_model, 2))
    logits = [cursor.logits]
    logits += [cursor.step(sound.tokens[:, place]) for place in range(sound.width - 1)]
    probs = torch.stack([ctx.distribution(row).probs for row in logits], 1)
    return replace(sound, distributions=Distributions(probs=probs))


# Sources of chance; first a column of keys, and what takes the place of its entries [B]


def fixed(column: int, value: int) -> tuple[int, Callable[[Keys], Any]]:
    """Set one of the five entries of keys, for all draws."""
    return column, lambda _: value


def confused(purpose: int, other: int) -> tuple[int, Callable[[Keys], Any]]:
    """Take one purpose of a draw for another."""
    return 3, lambda purposes: np.where(purposes == purpose, other, purposes)


by_place = 0, lambda streams: streams ^ np.arange(len(streams), dtype=np.uint64)
"""Mix the row's place in the batch into the stream key."""


class SqueezedUniforms(Philox4x32):
    """Uniforms end at .9."""

    def race(self, keys: Keys, size: int) -> NDArray[np.float64]:
        """Noise of nine tenths of what Philox gives: minus the logarithm of .9 u."""
        return super().race(keys, size) - math.log(0.9)


class NoiseByRound(Philox4x32):
    """Coupled noise that depends on how many positions a call asks about."""

    def race(self, keys: Keys, size: int) -> NDArray[np.float64]:
        """Noise of another stream for every size of call."""
        return super().race(keys + np.array([0, len(keys), 0, 0, 0], dtype=np.uint64), size)


wrong_philox = FunctionType(
    philox4x32.__code__,
    {**philox4x32.__globals__, "_MULTIPLIERS": (0xD2561A75, 0xCD9E8D57)},
)
"""The shipped generator with a multiplier that differs from the published 0xD2511F53."""

# Policies: what takes the place of a sound policy's `plan`


def drafts_too_deep(_: Policy) -> Any:
    """Draft min(3, remaining), and leave no room for the bonus."""
    return lambda _, states: DraftPlan(np.array([min(3, state.remaining) for state in states]))


def remembers_what_it_planned(policy: Policy) -> Any:
    """Draft one token less after a batch was planned for, until the next plan."""
    sound, rows = policy.plan, 1

    def plan(knowledge: Any, states: Sequence[SequenceState]) -> DraftPlan:
        nonlocal rows
        less, rows = int(rows > 1), len(states)
        planned = sound(knowledge, states)
        return replace(planned, depth=np.maximum(planned.depth - less, 0))

    return plan


# Decoders


@instead(SpeculativeDecoder, "step")
def counts_past_the_stop(decoder: SpeculativeDecoder, batch: Batch, *chance: Any) -> StepResult:
    """Count drafts that stand behind a stop token as accepted: here all of a perfect draft."""
    step = SpeculativeDecoder.step(decoder, batch, *chance)
    return replace(step, record=replace(step.record, accepted=step.record.drafted))


@instead(SpeculativeDecoder, "step")
def stops_only_between_rounds(decoder: Any, batch: Batch, *chance: Any) -> StepResult:
    """Look for stop tokens at the end of a round only, not inside the accepted block."""
    unstopped = [replace(state, stop_ids=frozenset()) for state in batch.states]
    step = SpeculativeDecoder.step(decoder, decoder.pack(unstopped), *chance)
    states = []
    for before, after in zip(batch.states, step.batch.states, strict=True):
        stopped = after.output_ids[-1] in before.stop_ids
        reason: Any = "stop" if stopped else after.finish_reason
        states.append(replace(after, stop_ids=before.stop_ids, finish_reason=reason))
    return replace(step, batch=decoder.pack(states))


@instead(SpeculativeDecoder, "step")
def no_bonus(decoder: SpeculativeDecoder, batch: Batch, *chance: Any) -> StepResult:
    """Emit nothing after a fully accepted block."""
    step = SpeculativeDecoder.step(decoder, batch, *chance)
    states, emitted = list(step.batch.states), list(step.record.emitted)
    for row, state in enumerate(states):
        if step.record.drafted[row] == step.record.accepted[row] > 0:
            prefix = Prefix(state.prefix.sequence_id, state.prefix.tokens[:-1])
            states[row] = replace(state, prefix=prefix, finish_reason=None)
            emitted[row] -= 1
    record = replace(step.record, emitted=tuple(emitted))
    return replace(step, batch=decoder.pack(states), record=record)
