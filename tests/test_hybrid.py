"""The hybrid drafter: exact distributions from mixed sources, and who is asked for what."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
import torch

from outrider import (
    HybridDrafter,
    ModelDrafter,
    NgramDrafter,
    PredictionDrafter,
    SamplingParams,
    SpeculativeConfig,
    SpeculativeDecoder,
    SuffixDrafter,
    TransformersModel,
)
from outrider.certify import exact_distribution
from outrider.certify.reference import distance, target_distribution
from outrider.drafters import hybrid, merge
from outrider.drafters.candidate import Candidate
from outrider.drafters.together import Together, _beside, decide
from outrider.engine import proposals, rounds
from outrider.errors import DegenerateDistributionError, InvalidConfigError
from outrider.runtimes.tabular import TabularModel, mock_pair
from outrider.types.records import Distributions, DraftPlan, DraftProposal, Prefix, SequenceState
from outrider.types.worth import SharedWorth, Worth
from outrider.verification import METHODS

from .families import greedy_reference, random_model, resembling

TOLERANCE = 1e-12
PROMPT = (0, 1, 2, 0, 1)
TREES = {"shape": {"tree_shape": (2, 1, 1)}, "budget": {"tree_budget": 5}}


class Guess:
    """Looks nothing up: what it proposes, and how sure it is, is a hash of the prefix.

    Args:
        vocab_size: V.
        silent: after how many prefixes in four it has nothing to say: by the sum of their tokens.
        salt: names the guess.
    """

    vocab_size = None

    def __init__(self, vocab_size: int, silent: int = 2, salt: int = 0) -> None:
        self._vocab_size = vocab_size
        self._silent = silent
        self._salt = salt
        self.released: list[int] = []

    def candidates(
        self, prefixes: Sequence[Prefix], plan: DraftPlan, ctx: Any
    ) -> Sequence[Candidate]:
        limits = zip(prefixes, plan.depth.tolist(), plan.lengths.tolist(), strict=True)
        return [self._guess(*row, plan.levels is not None) for row in limits]

    def release(self, sequence_ids: Any, *, discard: bool = False) -> None:
        self.released += list(sequence_ids)

    def _guess(self, prefix: Prefix, depth: int, budget: int, branches: bool) -> Candidate:
        text = f"{self._salt} {prefix.tokens.tolist()}"
        digest = hashlib.blake2b(text.encode()).digest()
        if (self._salt + int(prefix.tokens.sum())) % 4 < self._silent or not depth:
            return Candidate.nothing()
        size = min(1 + digest[1] % 3, budget)
        tokens, parents, depths = [], [], [0]
        for place in range(size if branches else min(size, depth)):
            parent = digest[2 + place] % (place + 1) if branches else place
            parent = parent if depths[parent] < depth else 0
            token = digest[20 + place] % self._vocab_size
            if (parent, token) in zip(parents, tokens, strict=True):
                break
            tokens.append(token)
            parents.append(parent)
            depths.append(depths[parent] + 1)
        chances = 0.9 ** np.array(depths[1:], dtype=np.float64)
        return Candidate(np.array(tokens), np.array(parents), chances, 2, float(chances.sum()))


@dataclass
class Planned:
    """A policy whose steps and worth differ from row to row."""

    depth: int
    levels: tuple[int, ...] | None
    shape: tuple[int, ...] | None
    learns: bool = False
    together: bool = False
    ragged: float | None = None
    weighed: bool = False

    def plan(self, states: Sequence[SequenceState]) -> DraftPlan:
        depth = np.array([max(0, min(self.depth, state.remaining - 1)) for state in states])
        told = [len(state.prefix) + int(state.prefix.tokens[-1]) for state in states]
        steps = np.minimum(depth, [number % (self.depth + 1) for number in told])
        plain = np.array([[1.0, 2.4, 9.0][number % 3] for number in told])
        token = np.array([0.05 * (number % 2) for number in told])
        # Rounds as wide as 0, 1, ... tokens, of all rows: what the mean row has to bring.
        widths = plain.sum() + token.sum() * np.arange(self.depth + 1)
        weights = np.array([0.4 + 0.6 * (number % 2) for number in told]) if self.weighed else None
        shared = SharedWorth(plain + 0.4, widths, widths[1], 0.1, self.ragged, weights)
        shared = replace(shared, reading_on=0.1)
        together = shared if self.together else None
        worth = Worth(plain, token, together)
        looks = not self.together or states[0].round != 1
        return DraftPlan(depth, self.levels, self.shape, steps, worth, looks=looks)

    def observe(self, states: Any, record: Any) -> None: ...


def planned(tree: dict[str, Any], k: int) -> Planned:
    if "tree_shape" in tree:
        shape = tree["tree_shape"]
        return Planned(k, tuple(np.cumprod(shape).tolist()), shape)
    return Planned(k, (2, 2, 1) if tree else None, None)


def configured(verification: str, k: int = 3, **more: Any) -> SpeculativeConfig:
    settings = {"depth": "fixed", "num_speculative_tokens": k, "verification": verification}
    return SpeculativeConfig(**(settings | more))


def error(
    number: int,
    config: SpeculativeConfig,
    policy: Any = None,
    max_tokens: int = 4,
    **sampling: Any,
) -> float:
    target, draft = mock_pair(3, number)
    drafter = HybridDrafter(draft, Guess(3, 1, number), Guess(3, 3, number + 9), min_expected=0)
    decoder = SpeculativeDecoder(target, drafter, config=config, policy=policy)
    params = SamplingParams(max_tokens=max_tokens, stop_token_ids=(1,), **sampling)
    return distance(
        exact_distribution(decoder, PROMPT, params), target_distribution(target, PROMPT, params)
    )


@pytest.fixture
def mixed_rounds(monkeypatch: pytest.MonkeyPatch) -> list[DraftProposal]:
    """The proposals of both sources that are made in a test."""
    made: list[DraftProposal] = []

    def noted(drawn: DraftProposal, candidates: Sequence[Candidate]) -> DraftProposal:
        made.append(merged(drawn, candidates))
        return made[-1]

    monkeypatch.setattr(hybrid, "merged", noted)
    return made


@pytest.mark.parametrize(
    "policy", ["fixed", "planned", "together", "ragged", "weighed", "adaptive"]
)
@pytest.mark.parametrize("verification", [*METHODS, "coupled"])
def test_the_distribution_with_chains(
    verification: str, policy: str, mixed_rounds: list[Any]
) -> None:
    """Branches of an enumeration share batches, so that sources are mixed in them."""
    together = ("together", "ragged", "weighed")
    if verification == "coupled" and policy in (*together, "adaptive"):
        pytest.skip("rows share their depths, so that branches are not to be told apart")
    depth = "adaptive" if policy == "adaptive" else "fixed"
    given = planned({}, 3) if policy in ("planned", *together) else None
    if given is not None:
        given.together = policy in together
        given.ragged = 1.0 if policy in ("ragged", "weighed") else None
        given.weighed = policy == "weighed"
    # What others accept decides with them: a seed makes the depths the sequence's own.
    own = {"seed": 1} if policy == "adaptive" else {}
    for number in range(3):
        config = configured(verification, depth=depth)
        assert error(number, config, given, **own) < TOLERANCE
    assert error(5, config, given, temperature=0.7, top_k=2, **own) < TOLERANCE
    if policy != "adaptive":
        assert error(4, config, given, temperature=0.0) < TOLERANCE
    assert any(made.distribution_rows is not None for made in mixed_rounds)


@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("policy", ["fixed", "planned"])
@pytest.mark.parametrize("verification", ["traversal", "recursive", "coupled"])
def test_the_distribution_with_trees(
    verification: str, policy: str, tree: str, mixed_rounds: list[Any]
) -> None:
    config = configured(verification, **TREES[tree])
    given = planned(TREES[tree], 3) if policy == "planned" else None
    length = 3 if (verification, policy) == ("coupled", "fixed") else 4
    for number in (1, 2, 3):
        assert error(number, config, given, length) < TOLERANCE
    assert error(2, config, given, length, temperature=0.0) < TOLERANCE
    assert mixed_rounds


@pytest.mark.parametrize("verification", ["traversal", "recursive", "coupled"])
def test_the_distribution_where_tokens_stand_twice_in_a_tree(
    monkeypatch: pytest.MonkeyPatch, verification: str, mixed_rounds: list[Any]
) -> None:
    """As on a device, whose tokens are not looked at."""
    monkeypatch.setattr(merge, "_seen", lambda tokens: None)
    for tree in TREES.values():
        config = configured(verification, **tree)
        for given in (None, planned(tree, 3)):
            for number in (1, 2):
                assert error(number, config, given, 3) < TOLERANCE
            assert error(2, config, given, temperature=0.0) < TOLERANCE
    twice = [
        made
        for made in mixed_rounds
        for row, length in enumerate(made.lengths.tolist())
        if len({*zip(made.parents[row, :length], made.tokens[row, :length].tolist(), strict=True)})
        < length
    ]
    assert twice


@pytest.mark.parametrize("children", ["greedy", "without_replacement", "with_replacement"])
def test_the_distribution_with_every_kind_of_children(children: str) -> None:
    for shape in ((2, 2), (3, 1)):
        config = configured("traversal", 2, tree_shape=shape, tree_children=children)
        assert error(6, config, planned({"tree_shape": shape}, 2)) < TOLERANCE


@pytest.mark.parametrize("policy", ["fixed", "adaptive"])
@pytest.mark.parametrize("tree", [{}, {"tree_shape": (2, 1)}], ids=["chain", "tree"])
@pytest.mark.parametrize("verification", ["block", "token"])
def test_the_distribution_with_prompt_lookup(
    verification: str, tree: dict[str, Any], policy: str, mixed_rounds: list[Any]
) -> None:
    """Beside a model, for the rows in which the last tokens stood before."""
    config = configured(verification, 2, depth=policy, cost_ratio=0.3, **tree)
    params = SamplingParams(max_tokens=3, seed=1)
    target, draft = mock_pair(3, 2)
    drafter = HybridDrafter(draft, NgramDrafter(3), min_expected=0.5)
    decoder = SpeculativeDecoder(target, drafter, config=config)
    for prompt in ((0, 1, 0), (0, 1)):
        found = exact_distribution(decoder, prompt, params)
        assert distance(found, target_distribution(target, prompt, params)) < TOLERANCE
    assert mixed_rounds or policy == "adaptive"


def claimed_to_be_drawn(drawn: DraftProposal, candidates: Sequence[Candidate]) -> DraftProposal:
    """The planted fault: looked-up tokens are said to come from a distribution of the model's."""
    right = merged(drawn, candidates)
    if right.distribution_rows is None:
        return right
    return replace(right, distribution_rows=np.maximum(right.distribution_rows, 0))


def chosen_by_value(drawn: DraftProposal, candidates: Sequence[Candidate]) -> DraftProposal:
    """The planted fault: a drawn token is kept only if it is not 0."""
    right = merged(drawn, candidates)
    first = drawn.tokens[:, 0].numpy()
    lengths = np.where((first == 0) & (right.looked_up == 0), 0, right.lengths)
    return replace(right, lengths=lengths)


merged = hybrid.merged


@pytest.mark.parametrize("fault", [claimed_to_be_drawn, chosen_by_value])
@pytest.mark.parametrize("verification", METHODS)
def test_a_faulty_merge_is_seen(
    monkeypatch: pytest.MonkeyPatch, verification: str, fault: Any
) -> None:
    monkeypatch.setattr(hybrid, "merged", fault)
    assert max(error(number, configured(verification)) for number in range(1, 4)) > 1e-4
    if verification in ("traversal", "recursive") and fault is claimed_to_be_drawn:
        tree = configured(verification, tree_shape=(2, 1, 1), strict=True)
        with pytest.raises(DegenerateDistributionError, match="0 of it the token's"):
            error(1, tree)


def no_distributions_after_a_1(
    drawn: DraftProposal, candidates: Sequence[Candidate]
) -> DraftProposal:
    """What is drawn after a drafted 1 comes with something that is no distribution."""
    right = merged(drawn, candidates)
    if (
        right.distributions is None
        or right.distributions.probs is None
        or right.distribution_rows is None
    ):
        return right
    probs, parents = right.distributions.probs.clone(), right.structure
    for row, length in enumerate(right.lengths.tolist()):
        for column in range(length):
            above, at = parents[row, column] - 1, right.distribution_rows[row, column]
            if above >= 0 <= at and right.tokens[row, above] == 1:
                probs[row, at] = 0.05
    return replace(right, distributions=Distributions(probs=probs))


@pytest.mark.filterwarnings("ignore:the drafter failed")
@pytest.mark.parametrize("verification", ["traversal", "recursive"])
def test_the_distribution_where_some_drafts_come_with_no_distributions(
    monkeypatch: pytest.MonkeyPatch, verification: str
) -> None:
    """Looked-up tokens stand in columns after the model's, of all depths."""
    left: list[DraftProposal] = []

    def noted(*args: Any) -> DraftProposal:
        left.append(proposals.without(*args))
        return left[-1]

    def nothing(proposal: DraftProposal, wrong: Any, *_: Any) -> DraftProposal:
        lengths = proposal.lengths.copy()
        lengths[[row for row, _ in wrong]] = 0
        return replace(proposal, lengths=lengths)

    monkeypatch.setattr(hybrid, "merged", no_distributions_after_a_1)
    monkeypatch.setattr(rounds, "without", noted)
    config = configured(verification, tree_shape=(2, 1, 1))
    for number in (3, 5):
        assert error(number, config) < TOLERANCE
    assert any(made.lengths.any() for made in left)
    monkeypatch.setattr(rounds, "without", nothing)
    assert max(error(number, config) for number in (3, 5)) > 1e-4


@pytest.mark.parametrize("mate", [None, [2]], ids=["alone", "beside a deeper mate"])
def test_a_looked_up_node_is_as_sound_as_it_is_alone(mate: list[int] | None) -> None:
    """The draft knows nothing after two tokens, where this row asks it for one; a mate for three.

    What the draft was fed for the row there was none of it, however deep what was looked up is.
    """

    class Short(TabularModel):
        def probabilities(self, prefix: tuple[int, ...]) -> np.ndarray:
            return np.full(3, np.nan if prefix[0] == 1 and len(prefix) > 1 else 1 / 3)

    config = SpeculativeConfig(depth="fixed", tree_shape=(1, 1, 1), strict=True)
    drafter = HybridDrafter(Short(lambda _: [1.0], 3), PredictionDrafter(), min_expected=0.1)
    decoder = SpeculativeDecoder(mock_pair(3, 2)[0], drafter, config=config)
    params = SamplingParams(max_tokens=9, seed=1)
    states = decoder.start([1], replace(params, prediction=[0, 1]))
    states += [] if mate is None else decoder.start(mate, params)
    record = decoder.step(decoder.pack(states)).record
    assert record.drafted[0] == 3
    assert record.depth[0] == 2


# What is proposed


@dataclass
class Context:
    """As much of a round's context as lookups read, and distributions that are uniform."""

    rows: int
    greedy: bool = False
    local: Any = None
    remembers: bool = True
    shaped: bool = False
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    def __post_init__(self) -> None:
        self.prompt_lengths = np.ones(self.rows, dtype=np.int64)
        if self.local is None:
            self.local = np.zeros(self.rows, dtype=bool)

    def prediction(self, row: int) -> None: ...


class Fixed:
    """Candidates that are given."""

    vocab_size = None

    def __init__(self, *found: Candidate) -> None:
        self.found = found

    def candidates(self, prefixes: Any, plan: DraftPlan, ctx: Any) -> Sequence[Candidate]:
        return self.found


class Counting(ModelDrafter):
    """Counts how often it is asked, and keeps the plans."""

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self.plans: list[DraftPlan] = []

    def propose(self, prefixes: Any, plan: DraftPlan, ctx: Any) -> DraftProposal:
        self.plans.append(plan)
        return super().propose(prefixes, plan, ctx)


def chain(*tokens: int, chance: float = 1.0) -> Candidate:
    chances = chance ** np.arange(1, len(tokens) + 1)
    ids = np.array(tokens, dtype=np.int64)
    return Candidate(ids, np.arange(len(tokens)), chances, 9, float(chances.sum()))


def counting(prefix: tuple[int, ...]) -> np.ndarray:
    """The next number, of 50."""
    distribution = np.zeros(50)
    distribution[(prefix[-1] + 1) % 50] = 1
    return distribution


def test_a_candidate_is_cut_to_what_is_worth_its_time() -> None:
    candidate = chain(1, 2, 3, 4, chance=0.5)
    assert candidate.worthwhile(0.0, 0.0) is candidate
    assert candidate.worthwhile(1.0, 0.2).tokens.tolist() == [1, 2]
    # 1 + .5 + .25 - 2 x .2
    assert len(candidate.worthwhile(1.34, 0.2)) == 2
    assert len(candidate.worthwhile(1.36, 0.2)) == 0
    assert len(candidate.worthwhile(1.0, 0.5)) == 0
    assert len(Candidate.nothing().worthwhile(0.0, 0.0)) == 0
    half = candidate.scaled(0.5, 1.0)
    assert half.chances.tolist() == pytest.approx([0.25, 0.125, 0.0625, 0.03125])
    assert half.worthwhile(1.0, 0.1).tokens.tolist() == [1, 2]
    assert half.score == candidate.score
    told = candidate.scaled(0.5, 0.8).worthwhile(1.0, 0.09)
    assert told.chances.tolist() == pytest.approx([0.25, 0.1])
    assert candidate.scaled(9.0, 9.0).expected == 4


def test_a_tree_is_cut_with_all_that_follows() -> None:
    tokens, parents = np.array([5, 6, 7, 8]), np.array([0, 1, 0, 3])
    candidate = Candidate(tokens, parents, np.array([0.2, 0.1, 0.7, 0.6]), 2, 1.6)
    cut = candidate.worthwhile(1.0, 0.15)
    assert cut.tokens.tolist() == [5, 7, 8]
    assert cut.parents.tolist() == [0, 0, 2]
    assert cut.expected == pytest.approx(1.5)
    assert candidate.within(2, 2).tokens.tolist() == [7, 8]
    assert candidate.within(9, 1).tokens.tolist() == [5, 7]
    assert len(candidate.within(0, 2)) == 0


def test_rows_take_from_one_source_each() -> None:
    draft = Counting(TabularModel(counting, 50))
    target = TabularModel(counting, 50)
    lookup = Fixed(chain(11, 12, 13), Candidate.nothing(), chain(31), chain(7))
    drafter = HybridDrafter(draft, lookup, min_expected=1)
    decoder = SpeculativeDecoder(target, drafter, config=configured("block", 3, depth="fixed"))
    params = SamplingParams(max_tokens=9, temperature=0.5)
    states = [decoder.start([start], params)[0] for start in (10, 20, 30, 40)]
    step = decoder.step(decoder.pack(states))
    assert step.emitted == ([11, 12, 13, 14], [21, 22, 23, 24], [31, 32], [41])
    assert step.record.looked_up == (True, False, True, True)
    assert [plan.depth.tolist() for plan in draft.plans] == [[0, 3, 0, 0]]


def test_prompt_lookup_says_how_sure_it_is() -> None:
    """A match of m tokens lasts i more with m / (m + i); short ones are cut where costs decide."""
    drafter = NgramDrafter(4)
    prefixes = [Prefix(1, [5, 6, 7, 8, 9, 1, 2, 3, 5, 6]), Prefix(2, [1, 2, 3])]
    found, nothing = drafter.candidates(prefixes, DraftPlan(np.array([4, 4])), Context(2))
    assert (found.tokens.tolist(), found.parents.tolist()) == ([7, 8, 9, 1], [0, 1, 2, 3])
    assert found.matched == 2
    assert found.chances == pytest.approx([2 / 3, 2 / 4, 2 / 5, 2 / 6])
    assert found.expected == pytest.approx(sum(found.chances))
    assert len(nothing) == 0
    worth = Worth(np.array([1.0]), np.array([0.0]))
    plan = DraftPlan(np.array([9]), None, None, np.array([0]), worth)
    (short,) = drafter.candidates([Prefix(3, [4, 4])], plan, Context(1))
    assert short.tokens.tolist() == [4, 4, 4]


def test_rows_without_a_match_are_left_to_the_model() -> None:
    draft = Counting(TabularModel(counting, 50))
    drafter = HybridDrafter(draft, NgramDrafter(), min_expected=1)
    decoder = SpeculativeDecoder(
        TabularModel(counting, 50), drafter, config=configured("block", 3, depth="fixed")
    )
    params = SamplingParams(max_tokens=9, temperature=0.5)
    states = [decoder.start(prompt, params)[0] for prompt in ([11, 12, 13, 14, 10, 11], [20, 22])]
    step = decoder.step(decoder.pack(states))
    assert step.emitted == ([12, 13, 14, 15], [23, 24, 25, 26])
    assert step.record.looked_up == (True, False)
    assert [plan.depth.tolist() for plan in draft.plans] == [[0, 3]]


def test_a_model_that_nobody_needs_is_not_asked() -> None:
    draft = Counting(TabularModel(counting, 50))
    target = TabularModel(counting, 50)
    lookups = Fixed(chain(11, 12)), Fixed(chain(11, 12, 13), *())
    decoder = SpeculativeDecoder(
        target, HybridDrafter(draft, *lookups), config=configured("block", 3)
    )
    (state,) = decoder.start([10], SamplingParams(max_tokens=9))
    step = decoder.step(decoder.pack([state]))
    assert step.emitted == ([11, 12, 13, 14],), "the candidate of which more is expected"
    assert draft.plans == []


def both(worth: SharedWorth) -> Worth:
    """For rows that decide together."""
    alone = np.ones(len(worth.planned))
    return Worth(alone, alone, worth)


class TestRowsTogether:
    """Four rows, in the time of whose wide rounds 1.6 tokens are emitted without them."""

    SURE, NONE = chain(4, 4, 4, chance=0.9), Candidate.nothing()

    def decided(self, found: list[Candidate], steps: int, planned: float = 1.0) -> Together:
        rows = np.ones(len(found))
        widths = len(found) * (1.6 + 0.05 * np.arange(5))
        worth = Worth(1.6 * rows, 0.05 * rows, SharedWorth(planned * rows, widths, widths[steps]))
        return decide(
            found, DraftPlan(rows.astype(int) * 3, None, None, (rows * steps).astype(int), worth)
        )

    @pytest.mark.parametrize(("sure", "taken"), [(1, 0), (4, 4)])
    def test_one_that_is_sure_does_not_widen_the_round_for_all(self, sure: int, taken: int) -> None:
        """1 + .85 + .76 + .68 of one row and 1 of three are less than 4 x 1.6, of two more."""
        found = [self.SURE] * sure + [self.NONE] * (4 - sure)
        made = self.decided(found, 0)
        assert sum(map(bool, map(len, made.taken.values()))) == taken
        assert made.stepping == (not taken)

    def test_where_the_model_drafts_a_row_takes_what_is_more(self) -> None:
        """The round waits for the steps of the others: nothing is saved, and 3.29 is above 2.4."""
        made = self.decided([self.SURE, self.NONE, self.NONE, self.NONE], 2, planned=2.4)
        assert [len(made.taken[row]) for row in range(4)] == [3, 0, 0, 0]
        assert made.stepping
        made = self.decided([self.SURE, self.NONE, self.NONE, self.NONE], 2, planned=3.4)
        assert not any(map(len, made.taken.values()))

    def test_steps_are_saved_where_few_rows_would_take_them(self) -> None:
        """Three times 3.29 and 1 in 1.6 are more than three times 3.29 and 2.4 in 2.4."""
        made = self.decided([self.SURE] * 3 + [self.NONE], 2, planned=2.4)
        assert [len(made.taken[row]) for row in range(4)] == [3, 3, 3, 0]
        assert not made.stepping

    @pytest.mark.parametrize(("tokens", "covered", "taken"), [(9, 1, 1), (9, 9, 9), (2, 1, 1)])
    def test_what_one_row_widens_is_paid_for_by_all(
        self, tokens: int, covered: int, taken: int
    ) -> None:
        """Sixteen rows draft a token with the model; one has found some more, all but certain.

        A column beyond theirs takes the time of 3.2 tokens, and brings .95 at most.
        """
        found = [chain(*[4] * tokens, chance=0.95)] + [self.NONE] * 15
        worth = SharedWorth(np.full(16, 1.5), 16 + 3.2 * np.arange(10), 16 + 3.2 * covered)
        alone = np.full(16, 1.0)
        plan = DraftPlan(np.full(16, 9), steps=np.full(16, 1), worth=Worth(alone, alone, worth))
        assert len(decide(found, plan).taken[0]) == taken
        narrow = replace(worth, widths=16 + 0.1 * np.arange(10), covered=16.1)
        plan = replace(plan, worth=Worth(alone, alone, narrow))
        assert len(decide(found, plan).taken[0]) == tokens
        # The drafter has to read them later.
        plan = replace(plan, worth=Worth(alone, alone, replace(narrow, backlog=9.0)))
        assert len(decide(found, plan).taken[0]) == 0

    @pytest.mark.parametrize("ragged", [None, 2.0])
    def test_what_reading_on_takes_at_all_is_paid_once(self, ragged: float | None) -> None:
        """More than what one row gains, and less than what two do; nothing where none steps."""
        widths = 6 + 0.01 * np.arange(5)
        worth = SharedWorth(np.full(4, 1.2), widths, widths[2], ragged=ragged)

        def taken(sure: int, steps: int, **paid: float) -> int:
            found = [self.SURE] * sure + [self.NONE] * (4 - sure)
            told = both(replace(worth, **paid))
            plan = DraftPlan(np.full(4, 4), steps=np.full(4, steps), worth=told)
            made = decide(found, plan)
            return sum(map(bool, map(len, made.taken.values()))) * (made.stepping or -1)

        # .9 + .81 + .73, and 1.2 x 1.2 - 1 beforehand: 2 beyond what the model drafts.
        assert taken(1, 2) == 1
        assert taken(1, 2, reading_on=1.5) == 1
        assert taken(1, 2, reading_on=2.5) == 0
        assert taken(2, 2, reading_on=2.5) == 2
        assert taken(2, 2, reading_on=2.5, backlog=1.0) == 0
        # Where the model takes no step, nothing is to be read on in its place.
        assert abs(taken(1, 0, reading_on=2.5)) == abs(taken(1, 0))

    @pytest.mark.parametrize("ragged", [None, 2.0])
    def test_rows_for_which_the_model_rests_have_nothing_to_read_on(
        self, ragged: float | None
    ) -> None:
        """One that does takes what it finds, be there another that is not worth reading on for."""
        steps, widths = np.array([0, 2, 2, 2]), 6 + 0.01 * np.arange(5)
        worth = SharedWorth(np.full(4, 1.2), widths, widths[2], ragged=ragged, reading_on=2.5)
        plan = DraftPlan(np.full(4, 4), steps=steps, worth=both(worth))
        for found, taken in (
            ([self.SURE, self.NONE, self.NONE, self.NONE], [True, False, False, False]),
            ([self.SURE, self.SURE, self.NONE, self.NONE], [True, False, False, False]),
            ([self.SURE, self.SURE, self.SURE, self.NONE], [True, True, True, False]),
            ([self.NONE, self.SURE, self.NONE, self.NONE], [False] * 4),
        ):
            made = decide(found, plan)
            assert made.stepping
            assert [len(made.taken[row]) > 0 for row in range(4)] == taken

    @pytest.mark.parametrize("reading_on", [0.0, 1.0, 3.0])
    def test_what_is_saved_by_no_step_is_less_what_has_to_be_read_on(
        self, reading_on: float
    ) -> None:
        """All rows without a step: 4 + 4 x 2.44 less 4, a fifth of that and what is read on."""
        saved = 4 + 4 * (0.9 + 0.81 + 0.729) - 1.2 * 4.0
        worth = SharedWorth(np.full(4, 9.0), np.full(5, 4.0), 4.0, ragged=2.0)
        for margin in (-0.1, 0.1):
            told = replace(worth, backlog=(saved - reading_on + margin) / 4, reading_on=reading_on)
            plan = DraftPlan(np.full(4, 4), steps=np.full(4, 2), worth=both(told))
            assert decide([self.SURE] * 4, plan).stepping == (margin > 0)

    @staticmethod
    def best(found: list[Candidate], worth: SharedWorth) -> float:
        """The most tokens beyond what their time brings, of all numbers for each row."""
        count = len(found)
        totals = []
        for lengths in itertools.product(*(range(len(one) + 1) for one in found)):
            kept = sum(float(one.chances[:n].sum()) for one, n in zip(found, lengths, strict=True))
            drafted = sum(lengths) / count
            cost = np.interp(drafted, np.arange(len(worth.widths)), worth.widths)
            totals.append(count + kept - 0.2 * worth.widths[0] - cost)
        return max(totals)

    @pytest.mark.parametrize("seed", range(20))
    def test_without_padding_the_likeliest_tokens_of_all_rows_are_taken(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        found = []
        for _ in range(4):
            chances = np.sort(rng.random(int(rng.integers(0, 5))))[::-1]
            tokens = np.arange(len(chances))
            found.append(Candidate(tokens, tokens, chances, 2, float(chances.sum())))
        widths = 3.0 + rng.uniform(0.5, 3) * np.sqrt(np.arange(6) + 0.1)
        worth = SharedWorth(np.ones(4), widths, widths[0], ragged=0.0)
        plan = DraftPlan(np.full(4, 5), steps=np.zeros(4, dtype=int), worth=both(worth))
        made = decide(found, plan)
        lengths = [len(made.taken[row]) for row in range(4)]
        kept = sum(float(one.chances[:n].sum()) for one, n in zip(found, lengths, strict=True))
        cost = np.interp(sum(lengths) / 4, np.arange(6), widths)
        best = self.best(found, worth)
        assert made.stepping == (best <= 0 or not any(lengths))
        if any(lengths):
            assert 4 + kept - 0.2 * widths[0] - cost == pytest.approx(best)
        else:
            assert best <= max(0.0, 4 - 1.2 * widths[0])

    @pytest.mark.parametrize("ragged", [None, 0.0, 2.0])
    @pytest.mark.parametrize("steps", [0, 2])
    def test_tokens_of_a_row_that_ends_last_count_for_more(
        self, steps: int, ragged: float | None
    ) -> None:
        """In both ways, padded or not: those of one that is ahead of the others count next to
        nothing, and of all rows alike as much as if nothing were said."""
        found = [self.SURE] * 4
        widths = 4 + 0.8 * np.arange(5)
        planned = np.full(4, 1 + 0.6 * (steps > 0))
        worth = SharedWorth(planned, widths, widths[steps], ragged=ragged)
        plan = DraftPlan(np.full(4, 4), steps=np.full(4, steps), worth=both(worth))

        def taken(weights: list[float] | None, candidates: list[Candidate]) -> list[int]:
            weighed = replace(worth, weights=None if weights is None else np.array(weights))
            made = decide(list(candidates), replace(plan, worth=both(weighed)))
            return [len(made.taken[row]) for row in range(4)]

        plain = taken(None, found)
        assert min(plain) > 0
        assert taken([1.0] * 4, found) == plain
        # The only row with something is the one that counts, or one that does not.
        one = [self.SURE, self.NONE, self.NONE, self.NONE]
        assert taken([3.7, 0.1, 0.1, 0.1], one)[0] > 0
        if steps:
            # What the model would draft for it counts as little.
            assert taken([0.5, 1.1, 1.2, 1.2], one)[0] > 0
        # Beside a model's steps it takes what is free, or less than the model would draft.
        assert taken([0.1, 1.3, 1.3, 1.3], one)[0] <= (steps and 2)
        if ragged is not None:
            assert taken([0.01, 0.01, 1.98, 2.0], found)[:2] == [0, 0]

    def test_without_padding_one_row_that_is_sure_is_enough(self) -> None:
        """What it drafts is paid for once, and not by the rows that draft nothing."""
        found = [self.SURE, self.NONE, self.NONE, self.NONE]
        for ragged, taken in ((None, 0), (0.0, 3)):
            worth = SharedWorth(np.ones(4), 4 + 1.6 * np.arange(5), 4.0, ragged=ragged)
            plan = DraftPlan(np.full(4, 3), steps=np.zeros(4, dtype=int), worth=both(worth))
            made = decide([replace(one) for one in found], plan)
            assert len(made.taken[0]) == taken, (ragged, made)

    def test_without_padding_a_row_takes_what_is_more_than_the_model_drafts(self) -> None:
        """It is rid of verifying that; tokens that are not worth their own are left out."""
        unsure = chain(4, 4, 4, 4, chance=0.5)
        found = [self.SURE, unsure, self.NONE, self.NONE]
        widths = 5 + 1.0 * np.arange(6)
        worth = SharedWorth(np.full(4, 2.0), widths, widths[2], ragged=2.0)
        plan = DraftPlan(np.full(4, 5), steps=np.full(4, 2), worth=both(worth))
        made = decide(found, plan)
        assert made.stepping
        assert [len(made.taken[row]) for row in range(4)] == [3, 0, 0, 0]
        dear = replace(worth, widths=5 + 3.4 * np.arange(6), covered=5 + 6.8)
        made = decide(found, replace(plan, worth=both(dear)))
        assert [len(made.taken[row]) for row in range(4)] == [1, 0, 0, 0]
        # What the model drafts is worth less than its verification, and so no more than nothing.
        poor = replace(dear, planned=np.full(4, 1.0))
        made = decide([self.NONE, self.NONE, self.NONE, unsure], replace(plan, worth=both(poor)))
        assert [len(made.taken[row]) for row in range(4)] == [0, 0, 0, 1]
        # A row for which it drafts nothing is rid of nothing.
        steps = np.array([2, 2, 2, 0])
        made = decide(
            [self.NONE, self.NONE, self.NONE, unsure],
            replace(plan, steps=steps, worth=both(poor)),
        )
        assert not any(map(len, made.taken.values()))

    def test_rows_without_a_match_gain_nothing(self) -> None:
        """Be it that what the model drafts for them is not worth its verification."""
        worth = SharedWorth(np.ones(2), 4 + 3.4 * np.arange(6), 4 + 6.8, ragged=2.0)
        chances, needed = np.array([[0.5, 0.2], [0.0, 0.0]]), np.full(2, 0.2)
        way = _beside(chances, needed, np.full(2, True), worth)
        assert way.lengths.tolist() == [1, 0]
        assert way.gain == pytest.approx(0.5 - 1.7 + 2 * 1.7 - 0.2)

    @pytest.mark.parametrize("ragged", [3.0, 4.5, 5.0])
    def test_a_token_costs_something_where_the_model_drafts_to_the_full(
        self, ragged: float
    ) -> None:
        hopeless = chain(4, 4, 4, 4, 4, chance=0.3)
        widths = 4 + 3.4 * np.arange(6)
        covered = float(np.interp(ragged, np.arange(6), widths))
        worth = SharedWorth(np.full(4, 1.0), widths, covered, ragged=ragged)
        plan = DraftPlan(np.full(4, 5), steps=np.full(4, 5), worth=both(worth))
        made = decide([hopeless] * 4, plan)
        assert max(len(made.taken[row]) for row in range(4)) <= 1

    def test_rows_for_themselves_are_left_alone(self) -> None:
        together = SharedWorth(np.array([np.nan, 1.0]), np.arange(1.6, 1.9, 0.05), 1.6)
        worth = Worth(np.full(2, 1.6), np.full(2, 0.05), together)
        plan = DraftPlan(np.array([3, 3]), None, None, np.array([0, 0]), worth)
        assert list(decide([self.SURE, self.SURE], plan).taken) == [1]
        assert not decide([self.SURE], DraftPlan(np.array([3]))).taken


@pytest.mark.parametrize(("plain", "steps", "asked"), [(1.3, 2, 0), (1.4, 2, 1), (1.4, 0, 0)])
def test_worth_decides_where_it_is_known(plain: float, steps: int, asked: int) -> None:
    draft = Counting(TabularModel(counting, 50))
    drafter = HybridDrafter(draft, Fixed(chain(4, 4, 4, 4, chance=0.8)), min_expected=0)

    class Policy(Planned):
        def plan(self, states: Any) -> DraftPlan:
            worth = Worth(np.array([plain]), np.array([0.55]))
            return DraftPlan(np.array([4]), None, None, np.array([steps]), worth)

    decoder = SpeculativeDecoder(
        TabularModel(counting, 50),
        drafter,
        config=configured("block", 4),
        policy=Policy(4, None, None),
    )
    (state,) = decoder.start([10], SamplingParams(max_tokens=9))
    record = decoder.step(decoder.pack([state])).record
    assert len(draft.plans) == asked
    # .8 and .64 are more than .55, .51 is not: 1 + .25 + .09.
    assert record.drafted == ((2,) if plain < 1.35 else (steps,))
    assert record.looked_up == (plain < 1.35,)


@pytest.mark.parametrize("looks", [True, False])
def test_nothing_is_looked_up_where_the_plan_says_so(looks: bool) -> None:
    target = TabularModel(counting, 50)
    for drafter in (
        HybridDrafter(
            Counting(TabularModel(counting, 50)), Fixed(chain(11, 12, 13)), min_expected=0
        ),
        SuffixDrafter(max_pool_tokens=0),
    ):

        class Policy(Planned):
            def plan(self, states: Any) -> DraftPlan:
                return DraftPlan(np.array([3]), looks=looks)

        decoder = SpeculativeDecoder(
            target, drafter, config=configured("block"), policy=Policy(3, None, None)
        )
        (state,) = decoder.start([10, 11, 10, 11, 10], SamplingParams(max_tokens=9))
        assert decoder.step(decoder.pack([state])).record.looked_up == (looks,)


def test_what_both_sources_say_stands_in_a_tree_once() -> None:
    """So that the candidate goes on from the model's token."""
    target = draft = TabularModel(counting, 50)
    for temperature in (0.0, 1.0):
        decoder = SpeculativeDecoder(
            target,
            HybridDrafter(draft, Fixed(chain(11, 12, 13, 14))),
            config=configured("traversal", 4, tree_shape=(1, 2, 2, 1)),
        )
        (state,) = decoder.start([10], SamplingParams(max_tokens=9, temperature=temperature))
        step = decoder.step(decoder.pack([state]))
        assert step.emitted == ([11, 12, 13, 14, 15],)
        assert step.record.looked_up == (False,)


def test_a_candidate_below_the_models_gain_is_added_as_deep_as_its_tree() -> None:
    drafter = HybridDrafter(TabularModel(counting, 50), Fixed(chain(3, 2, 1, 0)))
    prefixes = [Prefix(1, (10,))]

    class Policy(Planned):
        def plan(self, states: Any) -> DraftPlan:
            worth = Worth(np.array([9.0]), np.array([0.1]))
            return DraftPlan(np.array([4]), (1, 1, 1, 1), (1, 1, 1, 1), np.array([2]), worth)

    decoder = SpeculativeDecoder(
        TabularModel(counting, 50),
        drafter,
        config=configured("traversal", 4, tree_shape=(1, 1, 1, 1)),
        policy=Policy(4, None, None),
    )
    (state,) = decoder.start(prefixes[0].tokens.tolist(), SamplingParams(max_tokens=9))
    record = decoder.step(decoder.pack([state])).record
    assert (record.drafted, record.depth, record.accepted) == ((4,), (2,), (2,))


# Real models


@pytest.fixture(scope="module")
def models() -> tuple[Any, TransformersModel, TransformersModel]:
    model = random_model("llama")
    return (
        model,
        TransformersModel(model, max_sequences=6),
        TransformersModel(resembling(model), max_sequences=6),
    )


def mixed(draft: Any) -> HybridDrafter:
    return HybridDrafter(
        draft,
        SuffixDrafter(max_spec_offset=2),
        PredictionDrafter(),
        Guess(61, 3),
        min_expected=0.5,
    )


def prompts(count: int) -> list[list[int]]:
    rng = np.random.default_rng(1)
    return [(rng.integers(0, 61, 6).tolist() * 2)[: 7 + row] for row in range(count)]


@pytest.mark.parametrize("depth", ["fixed", "adaptive"])
@pytest.mark.parametrize("k", [0, 1, 3, 8])
def test_greedy_text_is_the_targets(models: Any, k: int, depth: str) -> None:
    """Caches catch up after rounds in which they were not asked."""
    model, target, draft = models
    decoder = SpeculativeDecoder(target, mixed(draft), config=configured("block", k, depth=depth))
    params = SamplingParams(max_tokens=40, temperature=0)
    expected = [greedy_reference(model, prompt, 40) for prompt in prompts(4)]
    given = [params, params, replace(params, prediction=expected[2]), params]
    outputs = decoder.generate(prompts(4), given)
    assert [output.token_ids for output in outputs] == expected
    if k == 8 and depth == "fixed":
        assert len(outputs[2].depths) < len(outputs[0].depths)


def test_greedy_text_with_trees(models: Any) -> None:
    model, target, draft = models
    config = configured("traversal", 4, tree_shape=(2, 2, 1, 1))
    decoder = SpeculativeDecoder(target, mixed(draft), config=config)
    outputs = decoder.generate(prompts(3), SamplingParams(max_tokens=30, temperature=0))
    assert [output.token_ids for output in outputs] == [
        greedy_reference(model, prompt, 30) for prompt in prompts(3)
    ]


def test_coupled_text_is_that_of_plain_decoding(models: Any) -> None:
    _, target, draft = models
    params = [SamplingParams(max_tokens=30, seed=seed) for seed in range(4)]
    plain = SpeculativeDecoder(target, config=configured("coupled"))
    fast = SpeculativeDecoder(target, mixed(draft), config=configured("coupled", 4))
    texts = [
        [output.token_ids for output in decoder.generate(prompts(4), params)]
        for decoder in (plain, fast)
    ]
    assert texts[0] == texts[1]


@pytest.mark.parametrize("depth", ["fixed", "adaptive"])
def test_a_seed_gives_one_text_whatever_was_decoded_before(models: Any, depth: str) -> None:
    _, target, draft = models
    decoder = SpeculativeDecoder(target, mixed(draft), config=configured("block", 4, depth=depth))
    params = [SamplingParams(max_tokens=24, seed=seed, temperature=0.4) for seed in range(4)]
    alone = [decoder.generate(*pair) for pair in zip(prompts(4), params, strict=True)]
    decoder.generate(prompts(6), SamplingParams(max_tokens=40, temperature=0.3))
    others = SamplingParams(max_tokens=24, temperature=0.3)
    together = decoder.generate([*prompts(4), *prompts(2)], [*params, others, others])
    for first, second in zip(alone, together, strict=False):
        assert (first.token_ids, first.depths) == (second.token_ids, second.depths)


def test_a_seed_and_depths_replay_a_run(models: Any) -> None:
    """With the sources that it drafted from, since a row's own history decides between them."""
    _, target, draft = models
    for depth in ("fixed", "adaptive"):
        config = configured("block", 4, depth=depth)
        drafter = HybridDrafter(draft, SuffixDrafter(max_spec_offset=2))
        decoder = SpeculativeDecoder(target, drafter, config=config)
        for seed in range(4):
            params = SamplingParams(max_tokens=30, seed=seed, temperature=0.4)
            first = decoder.generate(prompts(1)[0], params)
            again = decoder.generate(prompts(1)[0], replace(params, depths=first.depths))
            assert (again.token_ids, again.depths) == (first.token_ids, first.depths)


def test_calibration_measures_steps_of_the_model(models: Any) -> None:
    """Though greedy text repeats itself, so that tokens to look up are found."""
    _, target, draft = models

    class Always(Guess):
        def __init__(self) -> None:
            super().__init__(61, silent=0)

    drafter = HybridDrafter(draft, Always())
    decoder = SpeculativeDecoder(target, drafter, config=configured("block", depth="adaptive"))
    assert decoder.policy.calibrated


def test_release_reaches_every_part() -> None:
    target, draft = mock_pair(5, 1)
    lookups = SuffixDrafter(), PredictionDrafter([1, 2, 3]), Guess(5)
    decoder = SpeculativeDecoder(target, HybridDrafter(ModelDrafter(draft), *lookups))
    decoder.generate([0, 1], SamplingParams(max_tokens=12))
    assert lookups[0].pooled_tokens > 0
    assert lookups[1]._alignments == {}
    assert len(lookups[2].released) == 1


def test_a_failing_part_is_the_drafters_failure() -> None:
    class Broken(Fixed):
        def candidates(self, prefixes: Any, plan: DraftPlan, ctx: Any) -> Any:
            raise ValueError("no")

    target, draft = mock_pair(5, 1)
    decoder = SpeculativeDecoder(target, HybridDrafter(draft, Broken()))
    with pytest.warns(RuntimeWarning, match="the drafter failed"):
        output = decoder.generate([0, 1], SamplingParams(max_tokens=5))
    assert len(output.token_ids) == 5


@pytest.mark.parametrize("verification", ["typical", "lenient", "mixture"])
def test_lossy_methods_are_refused_at_once(verification: str) -> None:
    target, draft = mock_pair(5, 1)
    with pytest.raises(InvalidConfigError, match="a lossless method with"):
        SpeculativeDecoder(
            target, HybridDrafter(draft, SuffixDrafter()), config=configured(verification)
        )


@pytest.mark.parametrize(
    ("build", "name"),
    [
        (lambda draft: HybridDrafter(draft), "lookups"),
        (lambda draft: HybridDrafter(draft, draft), "lookups"),
        (lambda draft: HybridDrafter(SuffixDrafter(), SuffixDrafter()), "drafter"),
        (lambda draft: HybridDrafter(None, SuffixDrafter()), "drafter"),
        (lambda draft: HybridDrafter(draft, SuffixDrafter(), min_expected=-1), "min_expected"),
        (lambda draft: HybridDrafter(draft, SuffixDrafter(), min_expected=True), "min_expected"),
    ],
)
def test_bad_arguments_are_named(build: Any, name: str) -> None:
    with pytest.raises(InvalidConfigError, match=name):
        build(mock_pair(5, 1)[1])
