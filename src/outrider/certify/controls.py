"""The negative controls: planted faults, each with the check that must reject it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

from ..config.params import SamplingParams, TreeChildren, Verification
from ..drafters.early_exit import EarlyExitDrafter
from ..engine.decoder import SpeculativeDecoder
from ..errors import DraftError, InvalidConfigError
from ..policies.base import Policy
from ..random import DRAFT, STOP, TOKEN, Philox4x32, philox4x32
from ..runtimes.tabular import TabularModel, mock_pair
from ..runtimes.transformers.model import TransformersModel
from ..types.finding import Finding
from ..types.protocols import Chance
from ..types.records import DraftPlan, RoundRecord, RowOutcome, SequenceState
from ..verification import Method, TokenVerification, Verifier
from ..verification.lossy import LenientVerification, TypicalVerification
from . import checks, faults, toys
from .cases import configured
from .ceilings import ceilings
from .checks import Build, Report
from .enumeration import exact_distribution
from .goodness import together
from .layered import layered
from .reference import distance, target_distribution
from .spread import spread
from .statistics import FALSE_ALARM_RATE, Cell, fitted_positions, sample

Check = Callable[[Any], Finding]


@dataclass(frozen=True, slots=True)
class Control:
    """A fault, and the check that must reject it.

    Attributes:
        fault: what is wrong, in words.
        source: where it was found.
        check: the check that must reject it, of what it is given.
        planted: what has the fault: a way to build an engine, but for the known answers and for
            early exits, where it is the generator and a way to build a drafter.
        sound: the same as it ships.
    """

    fault: str
    source: str
    check: Check
    planted: Any
    sound: Any = checks.shipped

    def run(self) -> Verdict:
        """Run the check with the fault, and without it."""
        return Verdict(self.fault, self.source, self.check(self.planted), self.check(self.sound))


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the named check found with the fault, and in the engine as it ships."""

    fault: str
    source: str
    planted: Finding
    sound: Finding

    @property
    def passed(self) -> bool:
        """Whether the check rejects the fault and nothing else."""
        return not self.planted.passed and self.sound.passed


def control_tier(pool: Executor | None = None) -> Callable[[Report], tuple[Verdict, ...]]:
    """Begin every control; see `exact_tier`."""
    finish = spread([(control.fault, partial(_run, i)) for i, control in enumerate(CONTROLS)], pool)
    return lambda report: tuple(finish(report))


def _run(index: int) -> Verdict:
    return CONTROLS[index].run()


# Ways to build an engine with a fault in it


def method(faulty: Method) -> Build:
    """Plant a verification method."""
    return lambda target, draft, config, chance: SpeculativeDecoder(
        target, draft, config=config, chance=chance, verifier=Verifier(faulty)
    )


def drafter(faulty: Callable[[TabularModel], Any]) -> Build:
    """Plant a drafter."""
    return lambda target, draft, *more: checks.shipped(target, faulty(draft), *more)


def chance(faulty: Chance) -> Build:
    """Plant a source of chance."""
    return lambda target, draft, config, _: checks.shipped(target, draft, config, faulty)


def keys(change: Callable[[faults.Keys], None]) -> Build:
    """Plant a change of keys."""

    def build(target: Any, draft: Any, config: Any, chance: Any) -> SpeculativeDecoder:
        inner = chance or Philox4x32()

        def draw(distributions: Any, keys: faults.Keys) -> Any:
            changed = keys.copy()
            change(changed)
            return inner.draw(distributions, changed)

        return checks.shipped(target, draft, config, SimpleNamespace(draw=draw))

    return build


def decoder(faulty: type[SpeculativeDecoder]) -> Build:
    """Plant a decoder."""
    return lambda target, draft, config, chance: faulty(target, draft, config=config, chance=chance)


class _Replanned(Policy):
    """A policy with other plans."""

    def __init__(self, sound: Policy, plan: Callable[..., DraftPlan]) -> None:
        self.learns = sound.learns
        self._sound, self._plan = sound, plan

    def start(self) -> Any:
        return self._sound.start()

    def plan(self, knowledge: Any, states: Sequence[SequenceState]) -> DraftPlan:
        return self._plan(knowledge, states)

    def observe(self, knowledge: Any, states: Sequence[SequenceState], record: RoundRecord) -> Any:
        return self._sound.observe(knowledge, states, record)

    def remember(self, history: Any, outcome: RowOutcome) -> Any:
        return self._sound.remember(history, outcome)


def policy(faulty: Callable[[Policy], Any]) -> Build:
    """Plant plans, made of the sound policy."""

    def build(target: Any, draft: Any, config: Any, chance: Any) -> SpeculativeDecoder:
        made = checks.shipped(target, draft, config, chance)
        planned = _Replanned(made.policy, faulty(made.policy))
        return SpeculativeDecoder(
            made.target, made.drafter, config=config, chance=chance, policy=planned
        )

    return build


# The checks, each under one configuration


def distribution(verification: Verification, k: int = 3, **filters: Any) -> Check:
    """The check of the exact distribution."""
    config = configured(verification, "model", k)
    params = SamplingParams(max_tokens=k + 1, **filters)
    return lambda build: checks.distribution(build, config, params)


def tree_distribution(shape: tuple[int, ...]) -> Check:
    """The check of the exact distribution on trees whose children are drawn."""
    children: TreeChildren = "without_replacement"
    config = configured("block", "model", len(shape), tree_shape=shape, tree_children=children)
    params = SamplingParams(max_tokens=3)
    return lambda build: checks.distribution(build, config, params, vocab_size=4 - len(shape) // 2)


def refused(name: str, error: type[Exception], check: Check) -> Check:
    """A check, and that the engine itself refuses nothing."""

    def checked(build: Build) -> Finding:
        try:
            return check(build)
        except error as raised:
            return Finding(name, False, f"refused, {type(raised.__cause__ or raised).__name__}")

    return checked


def early_exit_distribution(make: Callable[[TransformersModel], Any]) -> Finding:
    """The check of the exact distribution where a target of three layers drafts with its own."""
    target, source = layered(3, 1, layers=3)
    made = checks.shipped(target, make(target), configured("block", "model", 2))
    prompt, params = (0, 1, 2), SamplingParams(max_tokens=3)
    expected = target_distribution(source, prompt, params)
    return checks.exactness(distance(exact_distribution(made, prompt, params), expected))


def goodness(build: Build) -> Finding:
    """The statistical tier's own test, on a tabular pair: 1,000 continuations of 3 tokens."""
    target, draft = mock_pair(4, 11)
    made = build(target, draft, configured("block", "model", 2), None)
    cell = Cell("control", made, (0, 1), SamplingParams(max_tokens=3, n=1000, seed=1))

    def probabilities(prefixes: Any) -> Any:
        return [target.probabilities(prefix) for prefix in prefixes]

    fits = [item.fit for item in fitted_positions(cell, sample(cell), probabilities)]
    p_value = together(fits).p_value
    return Finding("G-test", p_value > FALSE_ALARM_RATE, f"p = {p_value:.1e}")


_BLOCK = (configured("block", "model", 3),)
_POLICIES = tuple(
    configured("block", "model", 3, depth=depth, cost_ratio=0.2)
    for depth in ("fixed", "adaptive", "confidence")
)
_keys = partial(checks.keys, configs=_BLOCK)
_metrics = partial(checks.metrics, configs=_BLOCK)
_VARIANT = "a known wrong variant"


def _more(kind: Callable[..., Any]) -> Callable[[TabularModel], Any]:
    """Make a drafter of that kind with `faults.with_a_token_more`."""
    return lambda model: kind(faults.with_a_token_more(model), model.vocab_size)


def _other_vocabulary(model: TabularModel) -> Any:
    return toys.of_another_vocabulary(model, ("aa", "", "a"))


def _group(
    check: Check, plant: Callable[[Any], Build], *rows: tuple[str, str, Any], sound: Any = None
) -> tuple[Control, ...]:
    """Controls of one check: the fault, where it was found, and what is planted."""
    shipped = sound or checks.shipped
    return tuple(Control(*row[:2], check, plant(row[2]), shipped) for row in rows)


CONTROLS = (
    *_group(
        distribution("block"),
        method,
        ("block: residual (p - q)+ without the weight p_i", _VARIANT, faults.plain_residual()),
        ("block: scan stops at the first refusal", _VARIANT, faults.stops_at_first_refusal()),
    ),
    *_group(
        partial(ceilings, depths=(2,)),
        method,
        ("block: token verification under its name", "less than asked for", TokenVerification()),
        ("more tokens than any lossless method", "lenient acceptance", LenientVerification(0.8)),
    ),
    *_group(
        distribution("token"),
        method,
        ("bonus from the row before the last", "off by one", faults.bonus_from_the_row_before()),
        ("leniency .8 called lossless", "Leviathan et al., A.5", LenientVerification(0.8)),
        ("typical acceptance called lossless", "Medusa's rule", TypicalVerification(0.09, 0.3)),
        ("refused token replaced from the target", _VARIANT, faults.residual_is_the_target()),
    ),
    *_group(
        distribution("token", top_k=2),
        method,
        ("u <= p/q accepts the impossible", "transformers, RLX", faults.accepts_the_impossible()),
    ),
    *_group(
        tree_distribution((2, 1)),
        method,
        ("traversal: residual without the node's weight", _VARIANT, faults.plain_residual()),
    ),
    *_group(
        distribution("block"),
        drafter,
        ("argmax reported as a softmax", "transformers, EAGLE", faults.argmax_reported_as_sampled),
        ("draft distribution with permuted columns", "transformers", faults.permuted_distribution),
        ("a sampled token dropped as unlikely", "confidence rules", faults.drops_unlikely_tokens),
    ),
    *_group(
        distribution("block", top_k=2),
        drafter,
        ("drawn under top-k, reported without", "boostr", faults.unfiltered_distribution),
    ),
    *_group(
        refused("engine", DraftError, distribution("block")),
        drafter,
        ("draft drawn in float64, verified in bfloat16", "DeepSpec", faults.rounded_distribution),
    ),
    *_group(
        refused("engine", DraftError, distribution("block")),
        drafter,
        (
            "other vocabulary: distribution not renormalised",
            _VARIANT,
            _more(faults.unfiltered_distribution),
        ),
        sound=drafter(_other_vocabulary),
    ),
    *_group(
        distribution("block"),
        drafter,
        (
            "other vocabulary: cut after drawing",
            "unknown tokens mapped",
            _more(faults.cut_after_drawing),
        ),
        sound=drafter(_other_vocabulary),
    ),
    Control(
        "early exit: distribution of another layer than was drawn from",
        _VARIANT,
        early_exit_distribution,
        partial(faults.distribution_of_another_layer, layers=1),
        partial(EarlyExitDrafter, layers=1),
    ),
    *_group(
        tree_distribution((3,)),
        drafter,
        ("tree: a drawn node ranked away", "EAGLE-2, sampled", faults.ranks_drawn_nodes_away),
        ("tree: siblings share a distribution", _VARIANT, faults.siblings_share_a_distribution),
        ("tree: siblings verified in another order", _VARIANT, faults.siblings_in_another_order),
    ),
    *_group(
        distribution("block", stop_token_ids=(1,)),
        decoder,
        ("stop tokens inside a block are missed", "transformers", faults.stops_only_between_rounds),
    ),
    *_group(
        _keys,
        keys,
        ("stop and next token share a key", "a key used twice", faults.confused(TOKEN, STOP)),
        ("recovery draw uses the draft's noise", "vLLM", faults.confused(TOKEN, DRAFT)),
        ("positions share a uniform", "LLMSpeculativeSampling", faults.fixed(4, 0)),
        ("verification counter stands still", "boostr", faults.fixed(2, 0)),
        ("one seed gives every prompt the same noise", "vLLM", faults.fixed(0, 7)),
        ("n continuations share their noise", "a seed copied n times", faults.fixed(1, 0)),
    ),
    *_group(
        partial(checks.batches, configs=_BLOCK),
        keys,
        ("noise depends on the place in the batch", "boostr", faults.by_place),
    ),
    *_group(
        partial(checks.coupled, configs=(configured("coupled", "model", 3),)),
        chance,
        ("coupled noise depends on the batch", "a shared generator", faults.NoiseByRound()),
    ),
    *_group(
        checks.known_answers,
        lambda generator: generator,
        ("Philox with the multiplier 0xD2561A75", "RLX", faults.wrong_philox),
        sound=philox4x32,
    ),
    *_group(
        goodness,
        chance,
        ("uniforms end at .9", "a biased generator", faults.SqueezedUniforms()),
    ),
    *_group(
        partial(checks.perfect_draft, configs=_BLOCK),
        drafter,
        ("temperature and filters applied twice", "transformers", faults.temperature_twice),
    ),
    *_group(
        refused("engine", InvalidConfigError, _metrics),
        policy,
        ("min(k, remaining): no room for the bonus", "tensorlogic", faults.drafts_too_deep),
    ),
    *_group(
        partial(checks.policies, configs=_POLICIES),
        policy,
        ("a plan depends on the plan before it", _VARIANT, faults.remembers_what_it_planned),
    ),
    *_group(
        partial(checks.metrics, configs=_BLOCK, perfect=True),
        decoder,
        ("accepted counts drafts past a stop", "mlx-vlm, tensorlogic", faults.counts_past_the_stop),
    ),
    *_group(_metrics, decoder, ("no bonus after full acceptance", "RLX", faults.no_bonus)),
)
