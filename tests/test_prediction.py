"""The prediction drafter: exact distributions, and how it finds its place again."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider import PredictionDrafter, SamplingParams, SpeculativeConfig, SpeculativeDecoder
from outrider.certify import exact_distribution
from outrider.certify.reference import distance, target_distribution
from outrider.drafters.prediction import Alignment
from outrider.errors import InvalidConfigError, TokenOutOfRangeError
from outrider.runtimes.tabular import TabularModel, mock_pair
from outrider.types.records import DraftPlan, Prefix
from outrider.verification import METHODS

PREDICTION = [*range(10, 60)]


@dataclass
class Context:
    """As much of a round's context as a drafter that looks tokens up reads."""

    prompt_lengths: np.ndarray
    local: np.ndarray = field(default_factory=lambda: np.array([False]))
    remembers: bool = True
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    predictions: tuple[Any, ...] = ()

    def prediction(self, row: int) -> Any:
        return self.predictions[row] if self.predictions else None


def candidate(drafter: PredictionDrafter, prefix: Prefix, prompt_length: int, depth: int = 4):
    ctx: Any = Context(np.array([prompt_length]))
    return drafter.candidates([prefix], DraftPlan(np.array([depth])), ctx)[0]


def aligned(prediction: list[int], output: list[int], min_match: int = 2) -> int | None:
    alignment = Alignment(np.array(prediction, dtype=np.int64), min_match)
    alignment.read(np.array(output, dtype=np.int64))
    return alignment.position


@pytest.mark.parametrize("verification", METHODS)
@pytest.mark.parametrize("tree", [{}, {"tree_shape": (2, 1, 1)}], ids=["chain", "tree"])
def test_the_distribution(verification: Any, tree: dict[str, Any]) -> None:
    if tree and verification in ("block", "token"):
        pytest.skip("checks chains only")
    for seed, prediction in ((1, [2, 1, 0, 1]), (2, [0, 0, 0]), (3, [])):
        target, _ = mock_pair(3, seed)
        config = SpeculativeConfig(
            depth="fixed", num_speculative_tokens=3, verification=verification, **tree
        )
        decoder = SpeculativeDecoder(target, PredictionDrafter(prediction), config=config)
        params = SamplingParams(max_tokens=4, stop_token_ids=(1,), seed=seed)
        distribution = exact_distribution(decoder, (0, 2), params)
        assert distance(distribution, target_distribution(target, (0, 2), params)) < 1e-12


def counting(prefix: tuple[int, ...]) -> np.ndarray:
    distribution = np.zeros(70)
    distribution[prefix[-1] + 1 if prefix[-1] < 69 else 0] = 1
    return distribution


def test_a_right_prediction_is_taken_in_few_rounds_and_a_wrong_one_is_tried_once() -> None:
    target = TabularModel(counting, 70)
    params = SamplingParams(max_tokens=40, temperature=0)
    config = SpeculativeConfig(depth="fixed", num_speculative_tokens=8)
    for prediction, rounds, drafted in ((PREDICTION, 5, 35), ([3] * 50, 40, 8)):
        decoder = SpeculativeDecoder(target, PredictionDrafter(prediction), config=config)
        output = decoder.generate([9], params)
        assert output.token_ids == tuple(range(10, 50))
        assert output.metrics.rounds == rounds
        assert sum(output.depths) == drafted


@pytest.mark.parametrize(
    ("output", "position"),
    [
        ([], 0),
        ([10, 11], 2),
        ([10, 11, 99], None),
        # One token replaced, inserted, left out: found again after one more.
        ([10, 11, 99, 13], 4),
        ([10, 11, 99, 12], 3),
        ([10, 11, 13], 4),
        # Tokens merged or split otherwise at a border.
        ([10, 11, 98, 99, 14], 5),
        # Far ahead, and far back: two equal tokens are asked for.
        ([10, 11, 45], None),
        ([10, 11, 45, 46], 37),
        ([*range(10, 40), 99, 12], None),
        ([*range(10, 40), 99, 12, 13], 4),
        # The start is skipped.
        ([99, 98, 30, 31], 22),
        # Past the end.
        (PREDICTION, 50),
        ([*PREDICTION, 99], None),
    ],
)
def test_the_place_in_the_prediction(output: list[int], position: int | None) -> None:
    assert aligned(PREDICTION, output) == position


def test_of_equal_places_the_next_ahead_is_taken() -> None:
    prediction = [1, 2, 3, 1, 2, 4, 1, 2, 5, 1, 2, 6]
    assert aligned(prediction, [1, 2, 3, 9, 1, 2]) == 5
    # The longer match wins, ahead of where the two last agreed.
    assert aligned(prediction, [1, 2, 3, 9, 5, 1, 2]) == 11
    # Behind, the longest and latest.
    assert aligned(prediction, [*prediction, 9, 3, 1, 2]) == 5


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.integers(0, 5), max_size=30),
    st.lists(st.integers(0, 5), max_size=30),
    st.lists(st.integers(1, 5), max_size=30),
)
def test_the_place_is_a_function_of_the_texts(
    prediction: list[int], output: list[int], cuts: list[int]
) -> None:
    whole, pieces = (Alignment(np.array(prediction, dtype=np.int64), 2) for _ in range(2))
    text = np.array(output, dtype=np.int64)
    whole.read(text)
    for cut in np.cumsum(cuts):
        pieces.read(text[:cut])
        place = pieces.position
        if place is not None and cut <= len(text) and pieces.run:
            run = pieces.run
            assert prediction[place - run : place] == output[cut - run : cut]
    pieces.read(text)
    assert (whole.position, whole.run, whole.trust) == (pieces.position, pieces.run, pieces.trust)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_a_changed_copy_is_found_again_within_two_tokens(data: st.DataObject) -> None:
    """Where every token of the prediction is another, and edits stand apart."""
    output, since, place = [], 99, 0
    prediction = [*range(100)]
    alignment = Alignment(np.array(prediction, dtype=np.int64), 2)
    while place < len(prediction):
        edit = data.draw(st.sampled_from("kkkkkkris")) if since > 3 else "k"
        if edit == "k":
            since += 1
            alignment.read(np.array(output, dtype=np.int64))
            if since > 2:
                assert alignment.position == place
            output.append(prediction[place])
            place += 1
            continue
        since = 0
        if edit in "ri":
            output.append(1000 + place)
        place += edit in "rs"


def test_the_score_follows_how_often_it_agreed() -> None:
    drafter = PredictionDrafter(PREDICTION, min_token_prob=0.3)
    fresh = candidate(drafter, Prefix(1, (1,)), 1, depth=20)
    assert fresh.probabilities.tolist() == pytest.approx([0.8**k for k in range(1, 6)])
    assert fresh.score == pytest.approx(sum(0.8**k for k in range(1, 6)))
    good = candidate(drafter, Prefix(2, (1, *range(10, 40))), 1, depth=20)
    assert len(good) == 20
    assert good.matched == 30
    output = [token for step in range(10, 40, 2) for token in (step, 99)]
    poor = candidate(drafter, Prefix(3, (1, *output, 40)), 1, depth=20)
    assert poor.tokens.tolist() == [], "what followed an agreement was refused 15 times"


def test_each_sequence_has_its_own_prediction() -> None:
    drafter = PredictionDrafter([7, 8])
    own = np.array([5, 6])
    ctx: Any = Context(np.array([1, 1, 1]), np.zeros(3, dtype=bool), predictions=(None, own, None))
    prefixes = [Prefix(1, (0,)), Prefix(2, (0,)), Prefix(3, (0, 7))]
    proposal = drafter.propose(prefixes, DraftPlan(np.array([3, 3, 0])), ctx)
    assert proposal.lengths.tolist() == [2, 2, 0]
    assert proposal.tokens.tolist() == [[7, 8], [5, 6], [0, 0]]
    assert candidate(drafter, Prefix(2, (0,)), 1).tokens.tolist() == [7, 8]
    drafter.release([2, 99])
    silent = PredictionDrafter()
    assert len(candidate(silent, Prefix(1, (0,)), 1)) == 0


class Letters:
    """A tokenizer whose ids are code points."""

    def encode(self, text: str) -> list[int]:
        return [ord(letter) for letter in text]

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool = False) -> str:
        return "".join(map(chr, token_ids))


def test_a_request_says_what_it_expects_as_text_or_ids() -> None:
    target = TabularModel(counting, 70)
    config = SpeculativeConfig(depth="fixed", num_speculative_tokens=8)
    decoder = SpeculativeDecoder(target, PredictionDrafter(), tokenizer=Letters(), config=config)
    plain = SamplingParams(max_tokens=9, temperature=0)
    outputs = decoder.generate(
        [[33]] * 3,
        [plain, replace(plain, prediction='"#$%&'), replace(plain, prediction=[34, 35, 36, 37])],
    )
    assert len({output.token_ids for output in outputs}) == 1
    assert [sum(output.depths) for output in outputs] == [0, 5, 4]


class Framed(Letters):
    """One that puts a token without a text before and after each text."""

    def encode(self, text: str) -> list[int]:
        return [1, *super().encode(text), 2]

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool = False) -> str:
        return super().decode([token for token in token_ids if token > 2])


def test_a_text_is_expected_without_the_tokens_that_a_tokenizer_puts_around_it() -> None:
    target = TabularModel(counting, 70)
    config = SpeculativeConfig(num_speculative_tokens=8)
    decoder = SpeculativeDecoder(target, PredictionDrafter(), tokenizer=Framed(), config=config)
    for text, depths in (('"#$%&', (5, 0)), ("", (0,) * 7)):
        out = decoder.generate([33], SamplingParams(max_tokens=7, temperature=0, prediction=text))
        assert out.depths == depths


def test_bad_predictions_are_refused_at_the_door() -> None:
    decoder = SpeculativeDecoder(TabularModel(counting, 70), PredictionDrafter())
    with pytest.raises(TokenOutOfRangeError, match="prediction has token id 70"):
        decoder.generate([1], SamplingParams(prediction=(3, 70)))
    with pytest.raises(InvalidConfigError, match="prediction="):
        decoder.generate([1], SamplingParams(prediction="text"))
    with pytest.raises(InvalidConfigError, match="prediction="):
        SamplingParams(prediction=3.5)


def test_an_id_may_come_back_as_another_text() -> None:
    drafter = PredictionDrafter(PREDICTION)
    for output, expected in (
        ([10, 11, 12], [13]),
        ([10], [11]),
        ([10, 11, 99], []),
        ([20, 21], [22]),
    ):
        assert candidate(drafter, Prefix(1, (1, *output)), 1, depth=1).tokens.tolist() == expected


def test_looking_for_a_place_compares_few_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """A prediction that agrees nowhere is looked up once a token, and compared with nothing."""
    alignment = Alignment(np.arange(100_000), 2)
    compared = []
    longest = Alignment._longest
    monkeypatch.setattr(
        Alignment,
        "_longest",
        lambda self, output, places: compared.append(len(places)) or longest(self, output, places),
    )
    output = np.arange(200_000, 200_500)
    for end in range(1, len(output) + 1):
        alignment.read(output[:end])
    assert sum(compared) == 0
    alignment.read(np.append(output, np.arange(50_000, 60_000)))
    assert sum(compared) == 2
    assert alignment.position == 60_000


@pytest.mark.parametrize("bad", ["text", [[1]], [1.5], [-1], [None]])
def test_a_prediction_is_token_ids(bad: Any) -> None:
    with pytest.raises(InvalidConfigError, match="prediction"):
        PredictionDrafter(bad)


@pytest.mark.parametrize(
    ("name", "value"),
    [("min_match", 0), ("min_match", True), ("min_token_prob", 0), ("min_token_prob", 2.0)],
)
def test_bad_arguments_are_named(name: str, value: Any) -> None:
    with pytest.raises(InvalidConfigError, match=name):
        PredictionDrafter(**{name: value})
