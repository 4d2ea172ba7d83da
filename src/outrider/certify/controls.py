"""The negative controls: planted faults, each with the check that must reject it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from copy import copy
from dataclasses import dataclass
from functools import partial
from typing import Any

from ..config.params import SamplingParams, Verification
from ..drafters.early_exit import EarlyExitDrafter
from ..engine.decoder import SpeculativeDecoder
from ..errors import DraftError, InvalidConfigError
from ..policies.base import Policy
from ..random import DRAFT, STOP, TOKEN, philox4x32
from ..runtimes.tabular import mock_pair
from ..types.finding import Finding
from ..types.protocols import Chance
from ..verification import Method, TokenVerification, Verifier
from ..verification.lossy import LenientVerification, TypicalVerification
from . import checks, faults
from .cases import DRAFTERS, Part, configured
from .ceilings import ceilings
from .checks import Build, Report
from .layered import layered
from .spread import spread
from .statistics import weigh

Check = Callable[[Any], Finding]

shipped = Part().build
"""The engine as it ships."""


@dataclass(frozen=True, slots=True)
class Control:
    """A fault, and the check that must reject it.

    Attributes:
        fault: what is wrong, in words.
        source: where it was found.
        check: the check that must reject it, of what it is given.
        planted: what has the fault: a way to build an engine, but for the known answers, where it
            is the generator.
        sound: the same as it ships.
    """

    fault: str
    source: str
    check: Check
    planted: Any
    sound: Any = shipped

    def run(self) -> Verdict:
        """Run the check with the fault, and without it."""
        return Verdict(self.fault, self.source, self.check(self.planted), self.check(self.sound))


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the named check found with the fault, and in the engine as it ships."""

    fault: str
    source: str
    with_fault: Finding
    without: Finding

    @property
    def passed(self) -> bool:
        """Whether the check rejects the fault and nothing else."""
        return not self.with_fault.passed and self.without.passed


def control_tier(pool: Executor | None = None) -> Callable[[Report], list[Verdict]]:
    """Begin every control; see `exact_tier`."""
    return spread([(control.fault, partial(_run, i)) for i, control in enumerate(CONTROLS)], pool)


def _run(index: int) -> Verdict:
    return CONTROLS[index].run()


# Ways to build an engine with a fault in it


def method(faulty: Method) -> Build:
    """Plant a verification method."""
    return Part(verifier=Verifier(faulty)).build


def drafter(faulty: Callable[[Any], Any]) -> Build:
    """Plant a drafter."""
    return Part(drafter=faulty).build


def chance(faulty: Chance) -> Build:
    """Plant a source of chance."""
    return lambda target, draft, config, _: shipped(target, draft, config, faulty)


def keys(fault: tuple[int, Callable[[Any], Any]]) -> Build:
    """Plant a change of one of the five columns of keys."""
    column, change = fault

    def look(keys: faults.Keys) -> None:
        keys[:, column] = change(keys[:, column])

    return lambda target, draft, config, chance: shipped(
        target, draft, config, checks.through(look, chance)
    )


def decoder(faulty: type[SpeculativeDecoder]) -> Build:
    """Plant a decoder."""
    return lambda target, draft, config, chance: faulty(target, draft, config=config, chance=chance)


def policy(faulty: Callable[[Policy], Any]) -> Build:
    """Plant plans, made of the sound policy."""

    def build(target: Any, draft: Any, config: Any, chance: Any) -> SpeculativeDecoder:
        sound = shipped(target, draft, config, chance).policy
        planned: Any = copy(sound)
        planned.plan = faulty(sound)
        return SpeculativeDecoder(target, draft, config=config, chance=chance, policy=planned)

    return build


# The checks, each under one configuration


def distribution(
    method: Verification, kind: str = "model", k: int = 3, vocab_size: int = 3, **filters: Any
) -> Check:
    """The check of the exact distribution."""
    config = configured(method, kind, k)
    params = SamplingParams(max_tokens=max(3, k + 1), **filters)
    pairs = [mock_pair(vocab_size, seed) for seed in range(2)]
    models = [(target, target, draft) for target, draft in pairs]
    return lambda build: checks.distribution(build, config, params, models)


def refused(error: type[Exception], check: Check) -> Check:
    """A check, and that the engine itself refuses nothing."""

    def checked(build: Build) -> Finding:
        try:
            return check(build)
        except error as raised:
            return Finding("engine", False, f"refused, {type(raised.__cause__ or raised).__name__}")

    return checked


def early_exit_distribution(build: Build) -> Finding:
    """The check of the exact distribution where a target of three layers drafts with its own."""
    target, source = layered(3, 1, layers=3)
    config, params = configured("block", "model", 2), SamplingParams(max_tokens=3)
    return checks.distribution(build, config, params, [(target, source, target)])


def draws(build: Build) -> Finding:
    """The statistical tier's own test, on a tabular pair: 1,000 continuations of 3 tokens."""
    target, draft = mock_pair(4, 11)
    made = build(target, draft, configured("block", "model", 2), None)
    prompt, params = (0, 1), SamplingParams(max_tokens=3, n=1000, seed=1)
    outputs = [choice.token_ids for choice in made.generate(prompt, params).choices]
    found = weigh("draws", prompt, params, outputs, target.probabilities)
    return Finding("draws", found.passed, f"log E = {found.highest_log_e:.1f}")


_BLOCK = (configured("block", "model", 3),)
_POLICIES = tuple(
    configured("block", "model", 3, depth=depth, cost_ratio=0.2)
    for depth in ("fixed", "adaptive", "confidence")
)
_metrics = partial(checks.metrics, configs=_BLOCK)
_VARIANT = "a known wrong variant"


_OTHER_VOCABULARY = drafter(DRAFTERS["vocabulary, tokens"][0])


def _with_a_token_more(kind: Any) -> Build:
    return drafter(faults.with_a_token_more(kind))


def _first_layer(kind: Any) -> Build:
    return drafter(partial(kind, layers=1))


def _by(
    check: Check, plant: Callable[[Any], Build], sound: Any = shipped
) -> Callable[..., Iterator[Control]]:
    """Make controls of one check of the fault, where it was found, and what is planted."""
    return lambda *rows: (
        Control(fault, source, check, plant(faulty), sound) for fault, source, faulty in rows
    )


CONTROLS = (
    *_by(distribution("block"), method)(
        ("block: residual (p - q)+ without the weight p_i", _VARIANT, faults.plain_residual()),
        ("block: scan stops at the first refusal", _VARIANT, faults.stops_at_first_refusal()),
    ),
    *_by(partial(ceilings, depths=(2,)), method)(
        ("block: token verification under its name", "less than asked for", TokenVerification()),
        ("more tokens than any lossless method", "lenient acceptance", LenientVerification(0.8)),
    ),
    *_by(distribution("token"), method)(
        ("bonus from the row before the last", "off by one", faults.bonus_from_the_row_before()),
        ("leniency .8 called lossless", "Leviathan et al., A.5", LenientVerification(0.8)),
        ("typical acceptance called lossless", "Medusa's rule", TypicalVerification(0.09, 0.3)),
        ("refused token replaced from the target", _VARIANT, faults.residual_is_the_target()),
    ),
    *_by(distribution("token", top_k=2), method)(
        ("u <= p/q accepts the impossible", "transformers, RLX", faults.accepts_the_impossible()),
    ),
    *_by(distribution("block", "tree, drawn", 2), method)(
        ("traversal: residual without the node's weight", _VARIANT, faults.plain_residual()),
    ),
    *_by(distribution("block"), drafter)(
        ("argmax reported as a softmax", "transformers, EAGLE", faults.argmax_reported_as_sampled),
        ("draft distribution with permuted columns", "transformers", faults.permuted_distribution),
        ("a sampled token dropped as unlikely", "confidence rules", faults.drops_unlikely_tokens),
    ),
    *_by(distribution("block", top_k=2), drafter)(
        ("drawn under top-k, reported without", "boostr", faults.unfiltered_distribution),
    ),
    *_by(refused(DraftError, distribution("block")), drafter)(
        ("draft drawn in float64, verified in bfloat16", "DeepSpec", faults.rounded_distribution),
    ),
    *_by(refused(DraftError, distribution("block")), _with_a_token_more, _OTHER_VOCABULARY)(
        ("other vocabulary: not renormalised", _VARIANT, faults.unfiltered_distribution),
    ),
    *_by(distribution("block"), _with_a_token_more, _OTHER_VOCABULARY)(
        ("other vocabulary: cut after drawing", "unknown tokens mapped", faults.cut_after_drawing),
    ),
    *_by(early_exit_distribution, _first_layer, _first_layer(EarlyExitDrafter))(
        ("early exit: another layer's distribution", _VARIANT, faults.another_layers_distribution),
    ),
    *_by(distribution("block", "tree, drawn", 1, 4), drafter)(
        ("tree: a drawn node ranked away", "EAGLE-2, sampled", faults.ranks_drawn_nodes_away),
        ("tree: siblings share a distribution", _VARIANT, faults.siblings_share_a_distribution),
        ("tree: siblings verified in another order", _VARIANT, faults.siblings_in_another_order),
    ),
    *_by(distribution("block", stop_token_ids=(1,)), decoder)(
        ("stop tokens inside a block are missed", "transformers", faults.stops_only_between_rounds),
    ),
    *_by(partial(checks.keys, configs=_BLOCK), keys)(
        ("stop and next token share a key", "a key used twice", faults.confused(TOKEN, STOP)),
        ("recovery draw uses the draft's noise", "vLLM", faults.confused(TOKEN, DRAFT)),
        ("positions share a uniform", "LLMSpeculativeSampling", faults.fixed(4, 0)),
        ("verification counter stands still", "boostr", faults.fixed(2, 0)),
        ("one seed gives every prompt the same noise", "vLLM", faults.fixed(0, 7)),
        ("n continuations share their noise", "a seed copied n times", faults.fixed(1, 0)),
    ),
    *_by(partial(checks.batches, configs=_BLOCK), keys)(
        ("noise depends on the place in the batch", "boostr", faults.by_place),
    ),
    *_by(partial(checks.coupled, configs=(configured("coupled", "model", 3),)), chance)(
        ("coupled noise depends on the batch", "a shared generator", faults.NoiseByRound()),
    ),
    *_by(checks.known_answers, lambda generator: generator, philox4x32)(
        ("Philox with the multiplier 0xD2561A75", "RLX", faults.wrong_philox),
    ),
    *_by(draws, chance)(
        ("uniforms end at .9", "a biased generator", faults.SqueezedUniforms()),
    ),
    *_by(partial(checks.perfect_draft, configs=_BLOCK), drafter)(
        ("temperature and filters applied twice", "transformers", faults.temperature_twice),
    ),
    *_by(refused(InvalidConfigError, _metrics), policy)(
        ("min(k, remaining): no room for the bonus", "tensorlogic", faults.drafts_too_deep),
    ),
    *_by(partial(checks.policies, configs=_POLICIES), policy)(
        ("a plan depends on the plan before it", _VARIANT, faults.remembers_what_it_planned),
    ),
    *_by(partial(checks.metrics, configs=_BLOCK, perfect=True), decoder)(
        ("accepted counts drafts past a stop", "mlx-vlm, tensorlogic", faults.counts_past_the_stop),
    ),
    *_by(_metrics, decoder)(("no bonus after full acceptance", "RLX", faults.no_bonus)),
)
