"""The negative controls: planted faults, each with the check that must reject it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Any

from ..config.params import SamplingParams, SpeculativeConfig, TreeChildren, Verification
from ..drafters.early_exit import EarlyExitDrafter
from ..engine.decoder import SpeculativeDecoder
from ..errors import DraftError
from ..random import Philox4x32, philox4x32
from ..runtimes.tabular import TabularModel, mock_pair
from ..runtimes.transformers.model import TransformersModel
from ..types.protocols import Chance
from ..verification import Method, TokenVerification, Verifier
from ..verification.lossy import LenientVerification, TypicalVerification
from . import ceilings, checks, draft_faults, faults
from .checks import Build, Finding, Report
from .enumeration import exact_distribution
from .goodness import Fit, together
from .layered import layered
from .reference import distance, target_distribution
from .statistics import FALSE_ALARM_RATE, Cell, fitted_positions, sample


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
    check: Callable[[Any], Finding]
    planted: Any
    sound: Any = checks.shipped

    def run(self) -> Verdict:
        """Run the check with the fault, and without it."""
        return Verdict(self.fault, self.source, self.check(self.planted), self.check(self.sound))


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the named check said of the fault, and of the engine as it ships."""

    fault: str
    source: str
    planted: Finding
    sound: Finding

    @property
    def passed(self) -> bool:
        """Whether the check rejects the fault and nothing else."""
        return not self.planted.passed and self.sound.passed


def control_tier(report: Report) -> tuple[Verdict, ...]:
    """Run every control."""
    verdicts: list[Verdict] = []
    for control in CONTROLS:
        report(len(verdicts), len(CONTROLS), control.fault)
        verdicts.append(control.run())
    report(len(verdicts), len(CONTROLS), "")
    return tuple(verdicts)


def method(faulty: Method) -> Build:
    """Plants a verification method on chains, and perhaps one on trees."""

    def build(target: Any, draft: Any, config: Any, chance: Any) -> SpeculativeDecoder:
        return SpeculativeDecoder(
            target, draft, config=config, chance=chance, verifier=Verifier(faulty, bounds=True)
        )

    return build


def drafter(faulty: Callable[[TabularModel], Any]) -> Build:
    """Plants a drafter."""

    def build(target: Any, draft: Any, config: Any, chance: Any) -> SpeculativeDecoder:
        return checks.shipped(target, faulty(draft), config, chance)

    return build


def chance(faulty: Callable[[Chance], Chance]) -> Build:
    """Plants a change of keys in front of the chance that is given, or of Philox."""

    def build(target: Any, draft: Any, config: Any, inner: Any) -> SpeculativeDecoder:
        return checks.shipped(target, draft, config, faulty(inner or Philox4x32()))

    return build


def decoder(faulty: type[SpeculativeDecoder]) -> Build:
    """Plants a decoder."""

    def build(target: Any, draft: Any, config: Any, chance: Any) -> SpeculativeDecoder:
        return faulty(target, draft, config=config, chance=chance)

    return build


def too_deep(target: Any, draft: Any, config: Any, chance: Any) -> SpeculativeDecoder:
    """Plants a policy that drafts too deep."""
    made = checks.shipped(target, draft, config, chance)
    made.policy = faults.DraftsTooDeep(config.deepest)
    return made


def distribution(
    verification: Verification, k: int = 3, **filters: Any
) -> Callable[[Build], Finding]:
    """The check of the exact distribution, under one configuration."""
    config = _config(verification, k)
    params = SamplingParams(max_tokens=k + 1, **filters)
    return lambda build: checks.distribution(build, config, params)


def refused(verification: Verification) -> Callable[[Build], Finding]:
    """The check that the engine sees nothing wrong with a drafter's distributions, and of the exact distribution."""
    exact = distribution(verification)

    def check(build: Build) -> Finding:
        try:
            return exact(build)
        except DraftError:
            return Finding("engine", "a token that is no draw from its distribution", inf, False)

    return check


def tree_distribution(shape: tuple[int, ...], children: TreeChildren) -> Callable[[Build], Finding]:
    """The check of the exact distribution on trees."""
    config = SpeculativeConfig(
        depth="fixed",
        validate="always",
        num_speculative_tokens=len(shape),
        tree_shape=shape,
        tree_children=children,
    )
    params = SamplingParams(max_tokens=3)
    return lambda build: checks.distribution(build, config, params, vocab_size=4 - len(shape) // 2)


def early_exit_distribution(drafts: Callable[[TransformersModel], Any]) -> Finding:
    """The check of the exact distribution where a target of three layers drafts with its own."""
    target, source = layered(3, 1, layers=3)
    made = checks.shipped(target, drafts(target), _config("block", 2))
    prompt, params = (0, 1, 2), SamplingParams(max_tokens=3)
    error = distance(
        exact_distribution(made, prompt, params), target_distribution(source, prompt, params)
    )
    return Finding("distribution", f"error {error:.1e}", error, error < checks.TOLERANCE)


def ceiling(build: Build) -> Finding:
    """The check of expected tokens beside their bounds, on chains of two."""
    return ceilings.finding([ceilings.reached(build, "model", (1, 1), 0)])


def goodness(build: Build) -> Finding:
    """The statistical tier's own test, on a tabular pair: 3,000 continuations of 3 tokens."""
    target, draft = mock_pair(4, 11)
    made = build(target, draft, _config("block", 2), None)
    params = SamplingParams(max_tokens=3, n=3000, seed=1)
    cell = Cell("control", made, (0, 1), params)

    def probabilities(prefixes: Any) -> Any:
        return [target.probabilities(prefix) for prefix in prefixes]

    fits = [item.fit for item in fitted_positions(cell, sample(cell), probabilities)]
    total: Fit = together(fits)
    passed = total.p_value > FALSE_ALARM_RATE
    return Finding("G-test", f"p = {total.p_value:.1e}", total.p_value, passed)


def _config(verification: Verification, k: int) -> SpeculativeConfig:
    return SpeculativeConfig(
        depth="fixed", num_speculative_tokens=k, verification=verification, validate="always"
    )


_BLOCK = (_config("block", 3),)
_COUPLED = (_config("coupled", 3),)

CONTROLS = (
    Control(
        "block: residual (p - q)+ without the weight p_i",
        "a known wrong variant",
        distribution("block"),
        method(faults.PlainResidual()),
    ),
    Control(
        "block: scan stops at the first refusal",
        "a known wrong variant",
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
        "a known wrong variant",
        distribution("token"),
        method(faults.ResidualIsTheTarget()),
    ),
    Control(
        "argmax draft reported as a softmax",
        "transformers, RLX, EAGLE",
        distribution("block"),
        drafter(faults.ArgmaxSaidToBeSampled),
    ),
    Control(
        "draft distribution with permuted columns",
        "transformers, universal assistants",
        distribution("block"),
        drafter(faults.PermutedDistribution),
    ),
    Control(
        "draft drawn under top-k, verified against the raw distribution",
        "boostr",
        distribution("block", top_k=2),
        drafter(faults.UnfilteredDistribution),
    ),
    Control(
        "draft drawn in float64, verified in bfloat16",
        "DeepSpec",
        refused("block"),
        drafter(faults.RoundedDistribution),
    ),
    Control(
        "a sampled token dropped because it was unlikely",
        "confidence thresholds",
        distribution("block"),
        drafter(faults.DropsUnlikelyTokens),
    ),
    Control(
        "other vocabulary: distribution not renormalised over the common tokens",
        "a known wrong variant",
        refused("block"),
        drafter(draft_faults.NotRenormalised),
        drafter(draft_faults.OtherVocabulary),
    ),
    Control(
        "other vocabulary: distribution cut after drawing from it",
        "tokens mapped to an unknown one",
        distribution("block"),
        drafter(draft_faults.CutAfterDrawing),
        drafter(draft_faults.OtherVocabulary),
    ),
    Control(
        "early exit: distribution of another layer than was drawn from",
        "a known wrong variant",
        early_exit_distribution,
        draft_faults.DistributionOfAnotherLayer,
        lambda target: EarlyExitDrafter(target, 1),
    ),
    Control(
        "tree: a drawn node ranked away",
        "EAGLE-2's reranking, sampled",
        tree_distribution((3,), "without_replacement"),
        drafter(faults.RanksDrawnNodesAway),
    ),
    Control(
        "tree: siblings drawn without replacement share a distribution",
        "a known wrong variant",
        tree_distribution((3,), "without_replacement"),
        drafter(faults.SiblingsShareADistribution),
    ),
    Control(
        "tree: siblings verified in another order than drawn",
        "a known wrong variant",
        tree_distribution((3,), "without_replacement"),
        drafter(faults.SiblingsInAnotherOrder),
    ),
    Control(
        "traversal: residual without the claim on the node",
        "a known wrong variant",
        tree_distribution((2, 1), "without_replacement"),
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
        lambda build: checks.keys(build, _BLOCK),
        chance(faults.VerdictSharesItsKey),
    ),
    Control(
        "recovery draw uses the draft's noise",
        "vLLM",
        lambda build: checks.keys(build, _BLOCK),
        chance(faults.DraftNoiseReused),
    ),
    Control(
        "re-seeded before every draw: positions share a uniform",
        "LLMSpeculativeSampling",
        lambda build: checks.keys(build, _BLOCK),
        chance(faults.PositionsShareNoise),
    ),
    Control(
        "verification counter stands still",
        "boostr",
        lambda build: checks.keys(build, _BLOCK),
        chance(faults.RoundsShareNoise),
    ),
    Control(
        "one seed gives every prompt the same noise",
        "vLLM",
        lambda build: checks.keys(build, _BLOCK),
        chance(faults.PromptsShareNoise),
    ),
    Control(
        "n continuations share their noise",
        "a seed copied n times",
        lambda build: checks.keys(build, _BLOCK),
        chance(faults.ChoicesShareNoise),
    ),
    Control(
        "noise depends on the place in the batch",
        "boostr",
        lambda build: checks.batches(build, _BLOCK),
        chance(faults.NoiseByBatchPosition),
    ),
    Control(
        "coupled noise depends on the size of the batch",
        "a generator shared by a batch",
        lambda build: checks.coupled(build, _COUPLED),
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
        lambda build: checks.perfect_draft(build, _BLOCK),
        drafter(faults.TemperatureTwice),
    ),
    Control(
        "min(k, remaining) drafts, no room for the bonus",
        "tensorlogic",
        lambda build: checks.metrics(build, _BLOCK),
        too_deep,
    ),
    Control(
        "accepted counts drafts past a stop",
        "mlx-vlm, tensorlogic",
        lambda build: checks.metrics(build, _BLOCK, perfect=True),
        decoder(faults.CountsPastTheStop),
    ),
    Control(
        "no bonus token after full acceptance",
        "RLX",
        lambda build: checks.metrics(build, _BLOCK),
        decoder(faults.NoBonus),
    ),
)
