"""The negative controls: planted faults, each with the check that must reject it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from ..config.params import SamplingParams, SpeculativeConfig, TreeChildren, Verification
from ..drafters.early_exit import EarlyExitDrafter
from ..engine.decoder import SpeculativeDecoder
from ..errors import DraftError, InvalidConfigError
from ..random import DRAFT, STOP, TOKEN, Philox4x32, philox4x32
from ..runtimes.tabular import TabularModel, mock_pair
from ..runtimes.transformers.model import TransformersModel
from ..types.finding import Finding
from ..types.protocols import Chance
from ..verification import Method, TokenVerification, Verifier
from ..verification.lossy import LenientVerification, TypicalVerification
from . import ceilings, checks, draft_faults, faults, toys
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


def control_tier(report: Report, processes: int = 1) -> tuple[Verdict, ...]:
    """Run every control, in so many processes."""
    jobs = [(control.fault, partial(_run, index)) for index, control in enumerate(CONTROLS)]
    return tuple(spread(jobs, report, processes))


def _run(index: int) -> Verdict:
    return CONTROLS[index].run()


# Ways to build an engine with a fault in it


def method(faulty: Method) -> Build:
    """Plant a verification method."""

    def build(target: Any, draft: Any, config: Any, chance: Any) -> SpeculativeDecoder:
        verifier = Verifier(faulty)
        return SpeculativeDecoder(target, draft, config=config, chance=chance, verifier=verifier)

    return build


def drafter(faulty: Callable[[TabularModel], Any]) -> Build:
    """Plant a drafter."""
    return lambda target, draft, config, chance: checks.shipped(
        target, faulty(draft), config, chance
    )


def chance(faulty: Callable[[Chance], Chance]) -> Build:
    """Plant a source of chance in front of the one that is given, or of Philox."""
    return lambda target, draft, config, inner: checks.shipped(
        target, draft, config, faulty(inner or Philox4x32())
    )


def keys(change: Callable[[faults.Keys], faults.Keys]) -> Build:
    """Plant a change of keys."""
    return chance(lambda inner: faults.Rekeyed(inner, change))


def decoder(faulty: type[SpeculativeDecoder]) -> Build:
    """Plant a decoder."""
    return lambda target, draft, config, chance: faulty(target, draft, config=config, chance=chance)


def policy(faulty: Callable[[SpeculativeDecoder], Any]) -> Build:
    """Plant a policy, made of the decoder that would have the sound one."""

    def build(target: Any, draft: Any, config: Any, chance: Any) -> SpeculativeDecoder:
        made = checks.shipped(target, draft, config, chance)
        made.policy = faulty(made)
        return made

    return build


# The checks, each under one configuration


def distribution(verification: Verification, k: int = 3, **filters: Any) -> Check:
    """The check of the exact distribution."""
    config = _config(verification, k)
    params = SamplingParams(max_tokens=k + 1, **filters)
    return lambda build: checks.distribution(build, config, params)


def tree_distribution(shape: tuple[int, ...]) -> Check:
    """The check of the exact distribution on trees whose children are drawn."""
    children: TreeChildren = "without_replacement"
    config = _config("block", len(shape), tree_shape=shape, tree_children=children)
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


def early_exit_distribution(drafts: Callable[[TransformersModel], Any]) -> Finding:
    """The check of the exact distribution where a target of three layers drafts with its own."""
    target, source = layered(3, 1, layers=3)
    made = checks.shipped(target, drafts(target), _config("block", 2))
    prompt, params = (0, 1, 2), SamplingParams(max_tokens=3)
    expected = target_distribution(source, prompt, params)
    return checks.exactness(distance(exact_distribution(made, prompt, params), expected))


def ceiling(build: Build) -> Finding:
    """The check of expected tokens beside their bounds, on chains of two."""
    return ceilings.finding([ceilings.reached(build, "model", (1, 1), 0)])


def goodness(build: Build) -> Finding:
    """The statistical tier's own test, on a tabular pair: 1,000 continuations of 3 tokens."""
    target, draft = mock_pair(4, 11)
    made = build(target, draft, _config("block", 2), None)
    cell = Cell("control", made, (0, 1), SamplingParams(max_tokens=3, n=1000, seed=1))

    def probabilities(prefixes: Any) -> Any:
        return [target.probabilities(prefix) for prefix in prefixes]

    fits = [item.fit for item in fitted_positions(cell, sample(cell), probabilities)]
    p_value = together(fits).p_value
    return Finding("G-test", p_value > FALSE_ALARM_RATE, f"p = {p_value:.1e}")


def _config(verification: Verification, k: int, **more: Any) -> SpeculativeConfig:
    settings = {"depth": "fixed", "validate": "always"} | more
    return SpeculativeConfig(num_speculative_tokens=k, verification=verification, **settings)


_BLOCK = (_config("block", 3),)
_POLICIES = tuple(
    _config("block", 3, depth=depth, cost_ratio=0.2)
    for depth in ("fixed", "adaptive", "confidence")
)
_keys = partial(checks.keys, configs=_BLOCK)
_metrics = partial(checks.metrics, configs=_BLOCK)
_a_variant = "a known wrong variant"


def _other_vocabulary(model: TabularModel) -> Any:
    return toys.of_another_vocabulary(model, ("aa", "", "a"))


CONTROLS = (
    Control(
        "block: residual (p - q)+ without the weight p_i",
        _a_variant,
        distribution("block"),
        method(faults.PlainResidual()),
    ),
    Control(
        "block: scan stops at the first refusal",
        _a_variant,
        distribution("block"),
        method(faults.StopsAtFirstRefusal()),
    ),
    Control(
        "block: token verification under its name",
        "lossless, and less than was asked for",
        ceiling,
        method(TokenVerification()),
    ),
    Control(
        "more tokens than any lossless method emits",
        "lenient acceptance under a lossless name",
        ceiling,
        method(LenientVerification(0.8)),
    ),
    Control(
        "bonus drawn from the row before the last",
        "an off-by-one",
        distribution("token"),
        method(faults.BonusFromTheRowBefore()),
    ),
    Control(
        "u <= p/q accepts tokens of probability zero",
        "transformers, RLX",
        distribution("token", top_k=2),
        method(faults.AcceptsTheImpossible()),
    ),
    Control(
        "leniency .8 called lossless",
        "Leviathan et al., appendix A.5",
        distribution("token"),
        method(LenientVerification(0.8)),
    ),
    Control(
        "typical acceptance called lossless",
        "Medusa's rule",
        distribution("token"),
        method(TypicalVerification(0.09, 0.3)),
    ),
    Control(
        "refused token replaced from the target's own distribution",
        _a_variant,
        distribution("token"),
        method(faults.ResidualIsTheTarget()),
    ),
    Control(
        "argmax draft reported as a softmax",
        "transformers, RLX, EAGLE",
        distribution("block"),
        drafter(draft_faults.ArgmaxReportedAsSampled),
    ),
    Control(
        "draft distribution with permuted columns",
        "transformers, universal assistants",
        distribution("block"),
        drafter(draft_faults.PermutedDistribution),
    ),
    Control(
        "draft drawn under top-k, verified against the raw distribution",
        "boostr",
        distribution("block", top_k=2),
        drafter(draft_faults.UnfilteredDistribution),
    ),
    Control(
        "draft drawn in float64, verified in bfloat16",
        "DeepSpec",
        refused("engine", DraftError, distribution("block")),
        drafter(draft_faults.RoundedDistribution),
    ),
    Control(
        "a sampled token dropped because it was unlikely",
        "confidence thresholds",
        distribution("block"),
        drafter(draft_faults.DropsUnlikelyTokens),
    ),
    Control(
        "other vocabulary: distribution not renormalised over the common tokens",
        _a_variant,
        refused("engine", DraftError, distribution("block")),
        drafter(draft_faults.NotRenormalised),
        drafter(_other_vocabulary),
    ),
    Control(
        "other vocabulary: distribution cut after drawing from it",
        "tokens mapped to an unknown one",
        distribution("block"),
        drafter(draft_faults.CutAfterDrawing),
        drafter(_other_vocabulary),
    ),
    Control(
        "early exit: distribution of another layer than was drawn from",
        _a_variant,
        early_exit_distribution,
        draft_faults.DistributionOfAnotherLayer,
        lambda target: EarlyExitDrafter(target, 1),
    ),
    Control(
        "tree: a drawn node ranked away",
        "EAGLE-2's reranking, sampled",
        tree_distribution((3,)),
        drafter(draft_faults.RanksDrawnNodesAway),
    ),
    Control(
        "tree: siblings drawn without replacement share a distribution",
        _a_variant,
        tree_distribution((3,)),
        drafter(draft_faults.SiblingsShareADistribution),
    ),
    Control(
        "tree: siblings verified in another order than drawn",
        _a_variant,
        tree_distribution((3,)),
        drafter(draft_faults.SiblingsInAnotherOrder),
    ),
    Control(
        "traversal: residual without the claim on the node",
        _a_variant,
        tree_distribution((2, 1)),
        method(faults.PlainResidual()),
    ),
    Control(
        "stop tokens inside an accepted block are missed",
        "transformers",
        distribution("block", stop_token_ids=(1,)),
        decoder(faults.StopsOnlyBetweenRounds),
    ),
    Control(
        "stop and next token share a key",
        "a key used twice",
        _keys,
        keys(faults.confused(TOKEN, STOP)),
    ),
    Control(
        "recovery draw uses the draft's noise", "vLLM", _keys, keys(faults.confused(TOKEN, DRAFT))
    ),
    Control(
        "re-seeded before every draw: positions share a uniform",
        "LLMSpeculativeSampling",
        _keys,
        keys(faults.fixed(4, 0)),
    ),
    Control("verification counter stands still", "boostr", _keys, keys(faults.fixed(2, 0))),
    Control("one seed gives every prompt the same noise", "vLLM", _keys, keys(faults.fixed(0, 7))),
    Control("n continuations share their noise", "a copied seed", _keys, keys(faults.fixed(1, 0))),
    Control(
        "noise depends on the place in the batch",
        "boostr",
        partial(checks.batches, configs=_BLOCK),
        keys(faults.by_place),
    ),
    Control(
        "coupled noise depends on the size of the batch",
        "a generator shared by a batch",
        partial(checks.coupled, configs=(_config("coupled", 3),)),
        chance(lambda _: faults.NoiseByRound()),
    ),
    Control(
        "Philox with the multiplier 0xD2561A75",
        "RLX",
        checks.known_answers,
        faults.wrong_philox,
        philox4x32,
    ),
    Control(
        "uniforms end at .9",
        "a biased generator",
        goodness,
        chance(lambda _: faults.SqueezedUniforms()),
    ),
    Control(
        "draft's temperature and filters applied twice",
        "transformers",
        partial(checks.perfect_draft, configs=_BLOCK),
        drafter(draft_faults.TemperatureTwice),
    ),
    Control(
        "min(k, remaining) drafts, no room for the bonus",
        "tensorlogic",
        refused("engine", InvalidConfigError, _metrics),
        policy(lambda made: faults.DraftsTooDeep(made.config.deepest)),
    ),
    Control(
        "a plan depends on the plan before it",
        "a policy that writes while it plans",
        partial(checks.policies, configs=_POLICIES),
        policy(lambda made: faults.RemembersWhatItPlanned(made.policy)),
    ),
    Control(
        "accepted counts drafts past a stop",
        "mlx-vlm, tensorlogic",
        partial(checks.metrics, configs=_BLOCK, perfect=True),
        decoder(faults.CountsPastTheStop),
    ),
    Control("no bonus token after full acceptance", "RLX", _metrics, decoder(faults.NoBonus)),
)
