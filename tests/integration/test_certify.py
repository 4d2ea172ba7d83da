"""The certificate: its design covers, its checks pass sound engines, and each of them can fail."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from functools import cache
from itertools import combinations, pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from outrider import (
    ModelDrafter,
    SamplingParams,
    SpeculativeConfig,
    SpeculativeDecoder,
    StructuredOutput,
)
from outrider.certify import cases, ceilings, checks, controls, exact, faults, goodness, toys
from outrider.certify.covering import coverage, covering
from outrider.certify.exact import exact_tier
from outrider.certify.known_costs import KnownCosts
from outrider.certify.modules import load_part
from outrider.certify.reference import allowed, ended, filtered
from outrider.certify.statistics import Cell, fitted_positions, judged, sample
from outrider.cli import main
from outrider.engine import stopping
from outrider.errors import InvalidConfigError
from outrider.random import inverse_cdf, philox4x32
from outrider.runtimes.tabular import mock_pair
from outrider.sampling.shaping import Shaper
from outrider.verification import TokenVerification, Verifier
from outrider.verification.lossy import LenientVerification

from .test_confidence import shortened


def quiet(done: int, total: int, what: str) -> None:
    assert 0 <= done <= total, what


@cache
def designed() -> Any:
    return cases.design()


@cache
def verdict(control: controls.Control) -> controls.Verdict:
    return control.run()


class TestDesign:
    @pytest.mark.parametrize("size", [2, 3])
    def test_every_combination_that_may_occur_does(self, size: int) -> None:
        """Counted anew, from all possible rows of these factors and of those that are not free."""
        stated, made = designed()
        tied = ("drafter", "depth", "replay", "drafting")
        possible: set[Any] = set()
        for some in combinations(cases.FACTORS, size):
            names = [name for name in cases.FACTORS if name in some or name in tied]
            for values in product(*(cases.FACTORS[name] for name in names)):
                row = dict(zip(names, values, strict=True))
                if cases.allowed(row):
                    possible.add(tuple((name, row[name]) for name in some))
        found: set[Any] = set()
        for case in made:
            assert cases.allowed(case.values)
            found.update(combinations(case.values.items(), size))
        assert found == possible
        (coverage,) = (item for item in stated if item.size == size)
        assert coverage.covered == coverage.possible == len(possible)
        assert len(made) < len(possible)

    def test_what_no_row_allows_is_not_counted(self) -> None:
        factors = {"a": ("1", "2"), "b": ("1", "2"), "c": ("1", "2", "3")}

        def allowed(row: Any) -> bool:
            return (row.get("a"), row.get("b")) != ("2", "2")

        rows = covering(factors, allowed, 2)
        assert all(map(allowed, rows))
        found = coverage(rows, factors, allowed, 2)
        assert found.covered == found.possible == 4 + 6 + 6 - 1
        assert coverage(rows[:-1], factors, allowed, 2).covered < found.possible

    def test_it_is_the_same_every_time(self) -> None:
        assert cases.design() == designed()


class TestExactTier:
    def test_every_eleventh_case_is_exact(self) -> None:
        for case in designed()[1][::11]:
            measured = case.measure()
            assert measured.passed, measured

    def test_a_case_whose_engine_raises_is_a_finding(self) -> None:
        part = cases.Part("broken", drafter=lambda _: faults.Drafter(mock_pair(9)[1]))
        measured = cases.design(part)[1][0].measure()
        assert not measured.passed
        assert "VocabMismatchError" in (measured.problem or "")

    def test_a_biased_method_fails_the_tier_and_a_sound_one_does_not(self) -> None:
        for method, passes in ((TokenVerification(), True), (LenientVerification(0.8), False)):
            tier = exact_tier(quiet, cases.Part("own", verifier=Verifier(method, None)))
            assert tier.passed is passes

    def test_the_checks_beside_the_distributions_pass(self) -> None:
        findings = [run() for _, run in exact._checks(None)]
        assert all(finding.passed for finding in findings), findings
        assert {"keys", "batches", "metrics", "perfect draft", "known answers"} <= {
            finding.check for finding in findings
        }


def stale(monkeypatch: pytest.MonkeyPatch) -> None:
    """What looks at earlier tokens does not see the drafted ones."""
    shaper = Shaper.__call__
    monkeypatch.setattr(Shaper, "__call__", lambda self, logits, path: shaper(self, logits, None))


def remembers_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next round goes on from the last call of this one, kept or not."""
    processors = Shaper.processors

    def last_called(self: Shaper, row: int, path: Any) -> Any:
        called = [forks for (owner, _), forks in self._after.items() if owner == row]
        return called[-1] if called else processors(self, row, path)

    monkeypatch.setattr(Shaper, "processors", last_called)


def late_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stop string ends a request with the round's last token."""
    found = stopping._first_completed

    def late(state: Any, tokens: list[int], tokenizer: Any) -> int | None:
        return None if found(state, tokens, tokenizer) is None else len(tokens) - 1

    monkeypatch.setattr(stopping, "_first_completed", late)


def drafts_distribution(monkeypatch: pytest.MonkeyPatch) -> None:
    """The target's distributions are made by the parameters of the draft's."""
    pack = SpeculativeDecoder.pack

    def packed(self: SpeculativeDecoder, states: Any) -> Any:
        batch = pack(self, states)
        return replace(batch, params=batch.drafting)

    monkeypatch.setattr(SpeculativeDecoder, "pack", packed)


class TestLevels:
    """Each level of the design can fail: a fault that it is there for is seen in it."""

    @pytest.mark.parametrize(
        ("factor", "level", "fault"),
        [
            ("shaping", "repetition", stale),
            ("shaping", "penalties", stale),
            ("shaping", "bans", stale),
            ("shaping", "processor", stale),
            ("shaping", "memory", stale),
            ("shaping", "memory", remembers_refused),
            ("shaping", "regex", stale),
            ("shaping", "choice", stale),
            ("stop", "at a string", late_stops),
            ("stop", "not before two", late_stops),
            ("stop", "not before two", stale),
            ("drafting", "otherwise", drafts_distribution),
        ],
    )
    def test_a_fault_is_seen(
        self, monkeypatch: pytest.MonkeyPatch, factor: str, level: str, fault: Any
    ) -> None:
        """In the cases of the level that draft tokens in a row, with no other one beside it."""
        beside = {"shaping": "none", "stop": "never"}
        if factor == "stop":
            del beside["stop"]
        wanted = beside | {factor: level}
        chosen = [
            case
            for case in designed()[1]
            if wanted.items() <= case.values.items()
            and case.values["sampling"] != "greedy"
            and case.values["depth"] != "1"
        ]
        assert all(case.measure().passed for case in chosen)
        fault(monkeypatch)
        assert not all(case.measure().passed for case in chosen)

    def test_measured_costs_decide(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Beside what was kept: as many tokens may be left, and are drafted for or not."""
        planned: dict[str, set[tuple[int, int]]] = {}
        plan = KnownCosts.plan

        def noted(self: KnownCosts, states: Any) -> Any:
            made = plan(self, states)
            left = [min(state.remaining - 1, 3) for state in states]
            planned[kind].update(zip(made.model_steps.tolist(), left, strict=True))
            return made

        monkeypatch.setattr(KnownCosts, "plan", noted)
        usual = {factor: levels[0] for factor, levels in cases.FACTORS.items()}
        for kind in ("model", "hybrid", "early exit", "tree, greedy"):
            planned[kind] = set()
            values = {"drafter": kind, "policy": "adaptive, measured", "depth": "3"}
            measured = cases.Case(5, usual | values).measure()
            assert measured.passed, measured
        assert planned["model"] >= {(1, 1), (2, 2), (3, 3)}
        assert planned["hybrid"] >= {(0, 1), (1, 1), (2, 2), (3, 3)}
        assert planned["tree, greedy"] >= {(1, 1), (1, 2), (1, 3)}

    @pytest.mark.parametrize("level", ["adaptive, measured", "confidence"])
    def test_a_draft_that_ends_by_its_last_token_is_seen(
        self, monkeypatch: pytest.MonkeyPatch, level: str
    ) -> None:
        """Where the draft ends early by the plan: the unlikely token that it ended with is lost."""
        chosen = [
            case
            for case in designed()[1]
            if {"policy": level, "drafter": "model", "replay": "no"}.items() <= case.values.items()
            and case.values["sampling"] != "greedy"
        ]
        assert all(case.measure().passed for case in chosen)
        propose = ModelDrafter.propose

        def loses(self: ModelDrafter, prefixes: Any, plan: Any, ctx: Any) -> Any:
            sound = propose(self, prefixes, plan, ctx)
            if plan.keep_going is None:
                return sound
            return shortened(sound, lambda distribution, token: distribution[token] < 0.3)

        monkeypatch.setattr(ModelDrafter, "propose", loses)
        found = [case.measure() for case in chosen]
        assert any(not each.passed and each.problem is None for each in found)

    def test_every_parameter_is_in_a_case_or_said_to_be_in_none(self) -> None:
        levels = [*cases.SAMPLING.values(), *cases.SHAPING.values(), *cases.STOP.values()]
        asked = {name for level in levels for name in level}
        asked |= {"depths", "max_tokens", "prediction"}
        said = {name for names in cases.LEFT_OUT for name in names.split(", ")}
        assert {field.name for field in fields(SamplingParams)} <= asked | said
        forms = {form.kind for level in levels if (form := level.get("structured_output"))}
        assert {"json_schema", "regex", "grammar", "choice"} <= forms | said


class TestCeilings:
    def test_the_first_pair_reaches_what_it_has_to_and_nothing_above(self) -> None:
        dear = (("tree, drawn", (2, 1)), ("tree, replaced", (2, 1)))
        found = {
            (drafter, shape): ceilings.reached(checks.shipped, drafter, shape, 0)
            for drafter, shape in ceilings.DRAFTS
            if (drafter, shape) not in dear
        }
        assert all(item.passed for item in found.values())
        assert found["model", (1,)].transport is found["tree, drawn", (2,)].block_value is None
        for (drafter, shape), item in found.items():
            assert (item.block_value is not None) is drafter.startswith("model")
            assert (item.oracle is not None) is (drafter in ("model, greedy", "tree, points"))
            assert item.tokens["token"] <= item.tokens["block"] + 1e-12
            drawn = drafter in ("tree, greedy", "tree, drawn", "tree, replaced")
            assert (item.transport is not None) is (drawn and len(shape) == 1)
        # Something is left to reach, so that no row holds for nothing.
        assert found["model", (1, 1, 1)].shares["token"] < 0.99
        assert found["tree, drawn", (2,)].shares["block"] < 0.99
        assert found["tree, points", (2, 1)].cover < (found["tree, points", (2, 1)].oracle or 0)

    @pytest.mark.parametrize(
        ("drafter", "shape", "planted", "above"),
        [
            ("model", (1, 1), controls.method(LenientVerification(0.8)), True),
            ("model", (1, 1), controls.method(TokenVerification()), False),
            ("model, greedy", (1, 1), controls.decoder(faults.NoBonus), False),
            ("tree, greedy", (2,), controls.drafter(faults.SiblingsInAnotherOrder), False),
        ],
        ids=["lenient", "token", "no bonus", "drawn child last"],
    )
    def test_a_fault_is_above_a_bound_or_beside_a_value(
        self, drafter: str, shape: tuple[int, ...], planted: Any, above: bool
    ) -> None:
        found = ceilings.reached(planted, drafter, shape, 0)
        assert not found.passed
        assert (found.excess > 1e-3) is above
        finding = ceilings.finding([found])
        assert not finding.passed
        assert finding.figure > 1e-3
        assert ("nothing above a bound" in finding.said) is not above

    def test_a_fault_fails_the_tier(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(checks, "shipped", controls.method(LenientVerification(0.8)))
        monkeypatch.setattr(ceilings, "CASES", (("model", (1, 1), 0),))
        monkeypatch.setattr(exact, "_checks", lambda part: [])
        monkeypatch.setattr(exact, "design", lambda part: ((), []))
        tier = exact_tier(quiet)
        assert not tier.passed
        assert [item.check for item in tier.findings] == ["ceilings"]
        assert len(tier.reached) == 1


class TestControls:
    @pytest.mark.parametrize("control", controls.CONTROLS, ids=lambda control: control.fault)
    def test_the_named_check_rejects_the_fault_and_not_the_engine(self, control: Any) -> None:
        assert verdict(control).passed, verdict(control)

    def test_there_are_enough_of_them(self) -> None:
        named = [verdict(control).planted.check for control in controls.CONTROLS]
        assert len(named) >= 12
        assert sum(name in ("distribution", "keys") for name in named) >= 8
        assert any("ranked away" in control.fault for control in controls.CONTROLS)
        assert {"known answers", "perfect draft", "metrics", "engine"} <= set(named)

    def test_a_control_without_a_fault_does_not_pass(self) -> None:
        control = replace(controls.CONTROLS[0], planted=checks.shipped)
        assert not control.run().passed


class TestGoodness:
    """Tests on seeded data: deterministic once written."""

    def test_tails_are_those_of_the_tables(self) -> None:
        assert goodness.chi_squared_tail(3.841459, 1) == pytest.approx(0.05, rel=1e-5)
        assert goodness.chi_squared_tail(29.588, 10) == pytest.approx(0.001, rel=1e-3)
        assert goodness.critical_value(0.05, 1) == pytest.approx(3.841459, rel=1e-6)
        # A noncentrality of 10.507 gives one degree of freedom a power of .9 at level .05.
        assert goodness.noncentral_tail(3.841459, 1, 10.507) == pytest.approx(0.9, abs=1e-4)
        assert goodness.noncentral_tail(5, 3, 0) == pytest.approx(goodness.chi_squared_tail(5, 3))

    def test_p_values_of_sound_data_are_uniform(self) -> None:
        """4,000 tests of distributions with rare outcomes: shares within 5 standard errors, 1 in 2e6."""
        rng = np.random.default_rng(1)
        p_values = []
        for _ in range(4000):
            distribution = rng.dirichlet(np.full(9, 0.6))
            counts = np.bincount(rng.choice(9, size=300, p=distribution), minlength=9)
            p_values.append(goodness.fit(counts, distribution).p_value)
        for level in (0.01, 0.05, 0.25, 0.5, 0.75):
            share = float(np.mean(np.array(p_values) < level))
            assert abs(share - level) < 5 * (level * (1 - level) / 4000) ** 0.5

    def test_power_is_what_the_formula_says_at_least(self) -> None:
        """A distribution off by .05 in total variation, 400 times: the share rejected against the bound."""
        rng = np.random.default_rng(2)
        distribution = np.array([0.4, 0.3, 0.2, 0.1])
        off = distribution + np.array([0.05, -0.05, 0, 0])
        fits = [
            goodness.fit(np.bincount(rng.choice(4, size=1500, p=off), minlength=4), distribution)
            for _ in range(400)
        ]
        rejected = float(np.mean([item.p_value < 0.01 for item in fits]))
        assert rejected > fits[0].power(0.05, 0.01) - 0.1
        assert fits[0].power(0.05, 0.01) > 0.5

    def test_what_is_impossible_is_rejected(self) -> None:
        found = goodness.fit(np.array([50, 50, 1]), np.array([0.5, 0.5, 0.0]))
        assert found.p_value == 0

    def test_holm_rejects_step_by_step(self) -> None:
        assert goodness.holm([0.02, 0.001, 0.3, 0.012], 0.05) == [False, False, True, False]
        assert goodness.holm([0.02, 0.04], 0.01) == [True, True]

    @pytest.mark.parametrize(
        ("build", "sound"),
        [
            (checks.shipped, True),
            (controls.method(LenientVerification(0.8)), False),
            (controls.chance(lambda _: faults.SqueezedUniforms()), False),
        ],
        ids=["shipped", "lenient", "squeezed"],
    )
    def test_the_tier_sees_a_bias_and_nothing_else(self, build: Any, sound: bool) -> None:
        target, draft = mock_pair(4, 11)
        config = SpeculativeConfig(depth="fixed", num_speculative_tokens=2, verification="token")
        params = SamplingParams(max_tokens=3, n=1500, seed=2)
        cell = Cell("cell", build(target, draft, config, None), (0, 1), params)

        def probabilities(prefixes: Any) -> Any:
            return np.array([target.probabilities(prefix) for prefix in prefixes])

        positions = judged(fitted_positions(cell, sample(cell), probabilities))
        assert len(positions) == 3
        assert all(position.passed for position in positions) is sound

    def test_later_positions_see_what_the_first_cannot(self) -> None:
        """Planted: the second token of an output is drawn by squeezed uniforms."""
        target, _ = mock_pair(4, 12)
        rng = np.random.default_rng(3)
        params = SamplingParams(max_tokens=2)
        outputs = []
        for _ in range(2000):
            first = int(inverse_cdf(target.probabilities((0,))[None], rng.random(1))[0])
            distribution = target.probabilities((0, first))[None]
            outputs.append((first, int(inverse_cdf(distribution, 0.85 * rng.random(1))[0])))

        def probabilities(prefixes: Any) -> Any:
            return np.array([target.probabilities(prefix) for prefix in prefixes])

        cell = Cell(
            "cell", checks.shipped(target, None, SpeculativeConfig(depth="fixed")), (0,), params
        )
        first, second = judged(fitted_positions(cell, outputs, probabilities))
        assert first.passed
        assert not second.passed


class TestReference:
    def test_forms_and_ends_by_their_definitions(self) -> None:
        """Letters a, b and c at 0, 2 and 3; the token 1 has no text."""
        texts = toys.TEXTS

        def follow(output: tuple[int, ...], **asked: Any) -> list[int]:
            params = SamplingParams(**asked)
            return np.flatnonzero(allowed(output, params, texts)).tolist()

        form = StructuredOutput(choice=("ab", "b", "abc"))
        assert follow(()) == [0, 1, 2, 3]
        assert follow((), structured_output=form) == [0, 2]
        assert follow((0, 2), structured_output=form) == [3]
        assert follow((0, 2), structured_output=form, stop_token_ids=(1,)) == [1, 3]
        regex = StructuredOutput(regex="(ab)+")
        assert follow((0,), structured_output=regex) == [2]
        assert follow((0, 2), structured_output=regex, stop_token_ids=(1,)) == [0, 1]

        def over(output: tuple[int, ...], **asked: Any) -> bool:
            return ended(output, SamplingParams(max_tokens=4, **asked), texts)

        assert not over((0, 2, 3))
        assert over((0, 2, 3, 0))
        assert over((2, 1, 0), stop=("ba",))
        assert not over((2, 0, 1), stop=("ba",))
        assert not over((2,), stop=("b",), min_tokens=2)
        assert over((2, 2), stop=("b",), min_tokens=2)
        assert over((1,), stop_token_ids=(1,))
        assert over((0, 2, 3), structured_output=form)
        assert not over((0, 2, 3), structured_output=form, stop_token_ids=(1,))

    def test_filters_by_their_definitions(self) -> None:
        row = np.array([0.5, 0.3, 0.15, 0.05])
        given = {
            "top_k": (2, [0.625, 0.375, 0, 0]),
            "top_p": (0.6, [0.625, 0.375, 0, 0]),
            "min_p": (0.25, [0.5 / 0.95, 0.3 / 0.95, 0.15 / 0.95, 0]),
            "temperature": (0, [1, 0, 0, 0]),
        }
        for name, (value, expected) in given.items():
            params = SamplingParams(**{name: value})
            assert filtered(row, params) == pytest.approx(expected)


MODULE = """
import torch

from outrider.certify import faults
from outrider.drafters.model import ModelDrafter
from outrider.verification import BlockVerification, TokenVerification, Verifier
from outrider.verification.lossy import LenientVerification

class Own(TokenVerification):
    pass

Biased = LenientVerification(0.8)
BiasedOnTrees = Verifier(BlockVerification(), faults.PlainTraversal())
Drafts = ModelDrafter
FalseDrafts = faults.ArgmaxSaidToBeSampled
nothing = 3

class Shapeless:
    def propose(self, prefixes, plan, ctx):
        raise RuntimeError("never asked")

class Raises(faults.Drafter):
    def propose(self, prefixes, plan, ctx):
        raise RuntimeError("no idea")

class Lists(faults.Drafter):
    def propose(self, prefixes, plan, ctx):
        return [[0]]

class Cached(Lists):
    max_sequences, max_length, eos_token_ids, device = 64, 64, frozenset(), torch.device("cpu")

    def release(self, sequence_ids, *, discard=False):
        pass

class Changed(TokenVerification):
    def distribution(self, found):
        return found

    def last(self, distribution):
        return distribution

    def stop_distribution(self, chain):
        return self.distribution(super().stop_distribution(chain))

    def residual(self, chain, weights, node):
        return self.last(super().residual(chain, weights, node))

class InNumPy(Changed):
    def distribution(self, found):
        return found[0].numpy()

class HalfInNumPy(Changed):
    def distribution(self, found):
        return found[0].numpy(), found[1]

class Short(Changed):
    def distribution(self, found):
        return found[0][:, 1:], found[1]

class Single(Changed):
    def distribution(self, found):
        return found[0].float(), found[1]

class Heavy(Changed):
    def distribution(self, found):
        return found[0] * 2, found[1]

class NaN(Changed):
    def last(self, distribution):
        return distribution / 0 * 0

class Nothing(Changed):
    def last(self, distribution):
        return None

class Narrow(Changed):
    def last(self, distribution):
        return distribution[:, 1:]

class Stumbles(Changed):
    def last(self, distribution):
        return distribution.sum(nowhere=1)

class TooFew(TokenVerification):
    def stop_distribution(self):
        return None

class Needs(TokenVerification):
    def __init__(self, needed):
        self.needed = needed

class FalseTrees(faults.PlainTraversal):
    def residual(self, tree, claims, node):
        return super().residual(tree, claims, node).numpy()

BrokenOnTrees = Verifier(BlockVerification(), FalseTrees())
"""


@pytest.fixture
def module(tmp_path: Path) -> Path:
    path = tmp_path / "own.py"
    path.write_text(MODULE)
    return path


@pytest.fixture
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer cases and controls: what the tiers find is tested above."""
    whole, every = cases.design, exact._checks

    def shortened(part: Any = None) -> Any:
        covered, made = whole(part)
        undrafted = next(case for case in made if case.values["stop"] == "after one token")
        return covered, [*made[:3], undrafted]

    monkeypatch.setattr(exact, "_checks", lambda part: every(part)[-2:])
    monkeypatch.setattr("outrider.certify.exact.design", shortened)
    monkeypatch.setattr(controls, "CONTROLS", controls.CONTROLS[:2])
    monkeypatch.setattr(ceilings, "CASES", ceilings.CASES[:5])


def run(*args: str) -> int:
    try:
        return main(["certify", *args])
    except SystemExit as end:
        return int(end.code or 0)


@pytest.mark.usefixtures("_short")
class TestCommand:
    @pytest.mark.parametrize(
        ("flags", "dtype"), [([], "float32"), (["--dtype", "bfloat16"], "bfloat16")]
    )
    def test_the_statistical_tier_is_as_exact_as_asked(
        self, monkeypatch: pytest.MonkeyPatch, flags: list[str], dtype: str
    ) -> None:
        """On any device: models that are stored in bfloat16 would be loaded in it on CUDA."""
        asked = []

        def load(models: Any, *_: Any, **__: Any) -> None:
            asked.append(models.dtype)
            raise InvalidConfigError("target", models.target, "nothing")

        monkeypatch.setattr("outrider.cli.models.load", load)
        assert run("--tier", "statistical", *flags) == 2
        assert asked == [dtype]

    def test_the_statistical_tier_on_the_demo_pair(self, capsys: Any) -> None:
        """False alarms: one in a thousand, deterministic once written."""
        assert run("--tier", "statistical", "--samples", "100", "--seed", "1", "--json") == 0
        tier = json.loads(capsys.readouterr().out)["statistical"]
        assert tier["samples"] == 100
        assert all(test["degrees_of_freedom"] > 0 for test in tier["tests"])
        assert {test["position"] for test in tier["tests"]} == {1, 2, 3}
        reached = {item["way"]: item for item in tier["speculation"]}
        for way in ("block", "token"):
            low, high = reached[way]["ceiling_share_interval"]
            assert low < reached[way]["ceiling_share"] < high
            assert 0.8 < reached[way]["ceiling_share"] < 1.2
        assert reached["tree"]["ceiling_share"] is None
        assert 0.8 < reached["tree"]["first_ceiling_share"] < 1.2
        assert reached["coupled"]["ceiling"] is reached["coupled"]["first_ceiling"] is None

    @pytest.mark.parametrize(
        ("name", "status"), [("Own", 0), ("Biased", 1), ("Drafts", 0), ("FalseDrafts", 1)]
    )
    def test_a_part_of_the_users_own(
        self, capsys: Any, module: Path, name: str, status: int
    ) -> None:
        assert run("--module", f"{module}:{name}") == status
        verdict = "FAIL: exact failed" if status else "PASS: exact"
        assert capsys.readouterr().out.splitlines()[-1] == verdict

    def test_what_a_part_raises_is_reported_once(self, capsys: Any, module: Path) -> None:
        assert run("--module", f"{module}:Raises") == 1
        report = " ".join(capsys.readouterr().out.split())
        line = MODULE[: MODULE.index('RuntimeError("no idea")')].count("\n") + 1
        said = f"cases: Raises.propose raised RuntimeError: no idea (own.py, line {line})"
        assert said in report
        assert report.count("no idea") == 1
        assert "Traceback" not in report
        assert "3 cases raised an exception" in report

    @pytest.mark.parametrize(
        ("name", "message"),
        [
            (
                "InNumPy",
                "InNumPy.stop_distribution returned a numpy.ndarray; expected two torch tensors: the distribution "
                "[B, N + 1] and weights [B, N + 1], float64",
            ),
            (
                "HalfInNumPy",
                "HalfInNumPy.stop_distribution returned a tuple of a numpy.ndarray and a torch.Tensor;",
            ),
            (
                "Short",
                "Short.stop_distribution returned a distribution of shape [1, 1]; expected [B, N + 1], here",
            ),
            (
                "Single",
                "Single.stop_distribution returned a distribution of torch.float32; expected torch.float64",
            ),
            (
                "Heavy",
                "Heavy.stop_distribution returned a distribution with total mass 2 and least entry",
            ),
            (
                "NaN",
                "NaN.residual returned a distribution with total mass nan and least entry nan;",
            ),
            (
                "Nothing",
                "Nothing.residual returned None; expected a torch tensor: the distribution [B, V]",
            ),
            ("Narrow", "Narrow.residual returned a distribution of shape [1, "),
            ("Stumbles", "Stumbles.residual raised TypeError: sum() "),
            (
                "TooFew",
                "TooFew.stop_distribution raised TypeError: TooFew.stop_distribution() takes 1 positional",
            ),
            ("Lists", "Lists.propose returned a list of a list of an int; expected a Draft"),
            ("Cached", "Cached.propose returned a list"),
        ],
    )
    def test_a_broken_contract_is_named_once(
        self, capsys: Any, module: Path, name: str, message: str
    ) -> None:
        assert run("--module", f"{module}:{name}") == 1
        report = " ".join(capsys.readouterr().out.split())
        assert report.count(message) == 1, report
        everywhere = (
            "An exception was raised in every case: no distribution could be compared." in report
        )
        assert everywhere is (report.count("FAIL 4 cases") == 1)

    def test_a_method_on_trees_is_checked_too(self, module: Path) -> None:
        part = load_part(f"{module}:BrokenOnTrees").checked()
        measured = [case.measure() for case in cases.design(part)[1][::12]]
        found = {item.problem for item in measured}
        assert found == {
            None,
            "FalseTrees.residual returned a numpy.ndarray; expected a torch tensor: the distribution [B, V] "
            "of the token that follows, float64",
        }

    def test_the_report_has_no_loose_space(self, capsys: Any, module: Path) -> None:
        for name in ("Raises", "Biased"):
            assert run("--module", f"{module}:{name}") == 1
            lines = capsys.readouterr().out.splitlines()
            assert not any(one == two == "" for one, two in pairwise(lines))
            prose = [line for line in lines if line.startswith(("The engine", "FAIL"))]
            assert prose
            assert all(line == line.rstrip() for line in prose)

    def test_the_example_of_the_readme(self, capsys: Any, tmp_path: Path) -> None:
        readme = (Path(__file__).parent.parent / "README.md").read_text()
        section = readme.split("### Proof")[1]
        code = section.split("```python\n")[1].split("```")[0]
        wrong = section.split("wrong residual, say\n`")[1].split("`")[0]
        path = tmp_path / "own.py"
        path.write_text(code)
        assert run("--module", f"{path}:Own") == 0
        path.write_text(code.replace("chain.residual_distribution(node, weights[:, 0])", wrong))
        assert run("--module", f"{path}:Own") == 1
        assert "FAIL  error " in capsys.readouterr().out

    def test_the_drafter_of_the_readme(self, capsys: Any, tmp_path: Path) -> None:
        readme = (Path(__file__).parent.parent / "README.md").read_text()
        code = readme.split("### Proof")[1].split("```python\n")[2].split("```")[0]
        path = tmp_path / "own.py"
        path.write_text(code)
        assert run("--module", f"{path}:Again") == 0
        path.write_text(code.replace("[distribution.probs]", "[distribution.probs / 2]"))
        assert run("--module", f"{path}:Again") == 1
        assert "total mass 0.5" in capsys.readouterr().out

    def test_a_control_that_is_not_rejected_fails(self, capsys: Any, monkeypatch: Any) -> None:
        harmless = replace(controls.CONTROLS[0], planted=checks.shipped)
        monkeypatch.setattr(controls, "CONTROLS", (harmless,))
        assert run("--tier", "controls") == 1
        assert capsys.readouterr().out.splitlines()[-1] == "FAIL: controls failed"


def test_an_object_is_taken_as_it_is(module: Path) -> None:
    part = load_part(f"{module}:Biased")
    assert part.verifier is not None
    assert isinstance(part.verifier.chain, LenientVerification)
    assert part.verifier.tree is None
    assert load_part(f"{module}:BiasedOnTrees").verifier is not None
    with pytest.raises(InvalidConfigError, match="neither"):
        load_part(f"{module}:nothing")
    with pytest.raises(InvalidConfigError, match="can be made without arguments"):
        load_part(f"{module}:Needs")
    with pytest.raises(InvalidConfigError, match="with vocab_size, too"):
        load_part(f"{module}:Shapeless")


def test_known_answers_need_the_published_constant() -> None:
    assert checks.known_answers(philox4x32).passed
    assert not checks.known_answers(faults.wrong_philox).passed
