"""Predictions are expectations: compared with the shipped verification, outcome by outcome."""

from __future__ import annotations

import itertools
import zlib
from math import prod

import numpy as np
import pytest

import outrider
from outrider.bench.measure import Filler
from outrider.bench.predict import (
    Costs,
    between,
    chain_rounds,
    expected_rounds,
    expected_seconds,
    known_rounds,
    survival,
)
from outrider.bench.replay import Drafted, Kept, draft_ratios, replayed
from outrider.errors import InvalidConfigError
from outrider.runtimes.tabular import TabularModel
from outrider.types.records import Distributions, DraftProposal
from outrider.verification import METHODS, Tree
from outrider.verification.bounds import exact_block_value

SIZE = 3
PROMPT = (0,)


def distribution(name: str, prefix: tuple[int, ...]) -> np.ndarray:
    rng = np.random.default_rng(zlib.crc32(f"{name}{prefix}".encode()))
    return rng.dirichlet(np.full(SIZE, 0.7))


def target_distribution(prefix: tuple[int, ...]) -> np.ndarray:
    return distribution("target", prefix)


def draft_distribution(prefix: tuple[int, ...]) -> np.ndarray:
    return distribution("draft", prefix)


def texts(length: int) -> list[tuple[tuple[int, ...], float]]:
    """Every text of a length with its probability under the target."""
    found = []
    for text in itertools.product(range(SIZE), repeat=length):
        steps = [target_distribution((*PROMPT, *text[:i]))[token] for i, token in enumerate(text)]
        found.append((text, float(prod(steps))))
    return found


def ratios(text: tuple[int, ...]) -> np.ndarray:
    prefixes = [(*PROMPT, *text[:i]) for i in range(len(text) - 1)]
    pairs = zip(prefixes, text, strict=False)
    return np.array(
        [draft_distribution(p)[token] / target_distribution(p)[token] for p, token in pairs]
    )


def rounds_by_enumeration(method: str, length: int, depth: int) -> float:
    """The expected number of rounds, from the stop distributions and residuals of the shipped method."""
    verification = METHODS[method]

    def after(prefix: tuple[int, ...]) -> float:
        remaining = length - (len(prefix) - len(PROMPT))
        if remaining == 0:
            return 0.0
        width = min(depth, remaining - 1)
        if width == 0:
            distribution_of_next = target_distribution(prefix)
            return 1 + sum(distribution_of_next[x] * after((*prefix, x)) for x in range(SIZE))
        total = 1.0
        for path in itertools.product(range(SIZE), repeat=width):
            prefixes = [(*prefix, *path[:i]) for i in range(width + 1)]
            drafts = np.array([[draft_distribution(p) for p in prefixes[:-1]]])
            targets = np.array([[target_distribution(p) for p in prefixes]])
            lengths = np.array([width])
            proposal = DraftProposal(np.array([path]), lengths, Distributions(probs=drafts))
            chain = Tree.of(proposal, targets)
            stops, weights = verification.stop_distribution(chain)
            drawn = prod(drafts[0, i, token] for i, token in enumerate(path))
            for node in range(width + 1):
                if stops[0, node] == 0:
                    continue
                residual = verification.residual(chain, weights, np.array([node]))[0]
                kept = (*prefix, *path[:node])
                beyond = sum(
                    residual[x] * after((*kept, x)) for x in range(SIZE) if residual[x] > 0
                )
                total += drawn * stops[0, node] * beyond
        return float(total)

    return after(PROMPT)


@pytest.mark.parametrize("method", ["token", "block"])
@pytest.mark.parametrize("depth", [0, 1, 2, 3])
def test_rounds_of_whole_texts_are_those_of_the_shipped_verification(
    method: str, depth: int
) -> None:
    """One recording of a text's ratios gives every depth, ends of texts included."""
    length = 4
    predicted = sum(
        share * expected_rounds(chain_rounds(ratios(text), depth, method))
        for text, share in texts(length)
    )
    assert predicted == pytest.approx(rounds_by_enumeration(method, length, depth), abs=1e-12)


@pytest.mark.parametrize("depth", range(1, 6))
def test_block_survival_sums_to_the_ceiling(depth: int) -> None:
    """1 + c_1 + ... + c_L over texts of the target is what block verification emits on average."""
    expected = sum(
        share * (1 + survival(ratios(text), "block").sum()) for text, share in texts(depth + 1)
    )
    assert expected == pytest.approx(
        exact_block_value(target_distribution, draft_distribution, depth, PROMPT), abs=1e-12
    )


@pytest.mark.parametrize("depth", range(1, 6))
def test_token_survival_sums_to_the_products_of_overlaps(depth: int) -> None:
    def kept(prefix: tuple[int, ...], left: int) -> float:
        if left == 0:
            return 0.0
        both = np.minimum(target_distribution(prefix), draft_distribution(prefix))
        return float(sum(both[x] * (1 + kept((*prefix, x), left - 1)) for x in range(SIZE)))

    expected = sum(
        share * survival(ratios(text), "token").sum() for text, share in texts(depth + 1)
    )
    assert expected == pytest.approx(kept(PROMPT, depth), abs=1e-12)


def test_ratios_of_a_text_come_out_of_one_round_of_the_engine() -> None:
    target, draft = TabularModel(target_distribution, SIZE), TabularModel(draft_distribution, SIZE)
    text = (2, 0, 1, 1, 0)
    found = draft_ratios(
        target, outrider.ModelDrafter(draft), PROMPT, text, outrider.SamplingParams()
    )
    assert found is not None
    np.testing.assert_allclose(found, ratios(text), rtol=1e-12)


def test_ratios_know_the_temperature() -> None:
    target, draft = TabularModel(target_distribution, SIZE), TabularModel(draft_distribution, SIZE)
    drafter, text = outrider.ModelDrafter(draft), (2, 0, 1, 1, 0)
    params = outrider.SamplingParams(temperature=0.5)
    found = draft_ratios(target, drafter, PROMPT, text, params)
    expected = []
    for i, token in enumerate(text[:-1]):
        sharp = [f((*PROMPT, *text[:i])) ** 2 for f in (draft_distribution, target_distribution)]
        of_draft, of_target = (powers[token] / powers.sum() for powers in sharp)
        expected.append(of_draft / of_target)
    np.testing.assert_allclose(found, expected, rtol=1e-9)
    greedy = draft_ratios(target, drafter, PROMPT, text, outrider.SamplingParams(temperature=0))
    agrees = [
        draft_distribution((*PROMPT, *text[:i])).argmax() == x for i, x in enumerate(text[:-1])
    ]
    assert greedy is not None
    assert greedy.tolist() == [float(same) for same in agrees]


@pytest.mark.parametrize("depth", [1, 2, 3, 5])
def test_greedy_rounds_are_those_that_the_engine_takes(depth: int) -> None:
    target, draft = TabularModel(target_distribution, SIZE), TabularModel(draft_distribution, SIZE)
    drafter = outrider.ModelDrafter(draft)
    params = outrider.SamplingParams(temperature=0, max_tokens=12)
    config = outrider.SpeculativeConfig(num_speculative_tokens=depth, depth="fixed")
    output = outrider.SpeculativeDecoder(target, drafter, config=config).generate(PROMPT, params)
    found = draft_ratios(target, drafter, PROMPT, output.token_ids, params)
    assert found is not None
    for method in ("block", "token"):
        rounds = chain_rounds(found, depth, method)
        assert expected_rounds(rounds) == output.metrics.rounds
        drafted = [int(row.argmax()) - 1 for row in rounds[: output.metrics.rounds]]
        assert tuple(drafted) == output.depths


@pytest.mark.parametrize("depth", [1, 3, 8])
def test_looked_up_rounds_are_those_that_the_engine_takes(depth: int) -> None:
    """For texts that the target has written, with any sampling."""
    target, drafter = TabularModel(target_distribution, SIZE), outrider.NgramDrafter()
    config = outrider.SpeculativeConfig(num_speculative_tokens=depth, depth="fixed")
    params = outrider.SamplingParams(max_tokens=20, seed=3)
    decoder = outrider.SpeculativeDecoder(target, drafter, config=config)
    outputs = decoder.generate([[0], [1, 2]], params)
    pairs = [((0,), outputs[0].token_ids), ((1, 2), outputs[1].token_ids)]
    (found,) = replayed(target, drafter, [pairs], depth)
    for rounds, output in zip(found, outputs, strict=True):
        assert tuple(drafted.width for drafted in rounds) == output.depths
        assert not any(drafted.stepped for drafted in rounds)


def hybrid(model: outrider.Drafter) -> outrider.HybridDrafter:
    return outrider.HybridDrafter(model, outrider.SuffixDrafter(max_pool_tokens=0))


@pytest.mark.parametrize("depth", [1, 3, 8])
@pytest.mark.parametrize("together", [1, 2])
def test_greedy_rounds_of_a_hybrid_are_those_that_the_engine_takes(
    depth: int, together: int
) -> None:
    """One drafter goes through all batches, so that its record of the last ones counts alike."""
    target, draft = TabularModel(target_distribution, SIZE), TabularModel(draft_distribution, SIZE)
    params = outrider.SamplingParams(temperature=0, max_tokens=40)
    config = outrider.SpeculativeConfig(num_speculative_tokens=depth, depth="fixed")
    model = outrider.ModelDrafter(draft)
    decoder = outrider.SpeculativeDecoder(target, hybrid(model), config=config)
    prompts = [[0], [1, 2], [2, 2, 1], [0, 1]]
    batches = [prompts[i : i + together] for i in range(0, 4, together)]
    outputs = [decoder.generate(batch, params) for batch in batches]
    texts = [
        [(tuple(prompt), output.token_ids) for prompt, output in zip(batch, found, strict=True)]
        for batch, found in zip(batches, outputs, strict=True)
    ]
    known = [[draft_ratios(target, model, *pair, params) for pair in batch] for batch in texts]
    kept = Kept("block", [[row for row in batch if row is not None] for batch in known])
    replay = replayed(target, hybrid(Filler(SIZE)), texts, depth, kept)
    for found, rows in zip(outputs, replay, strict=True):
        for output, rounds in zip(found, rows, strict=True):
            assert tuple(drafted.width for drafted in rounds) == output.depths
    sources = {drafted.stepped for rows in replay for rounds in rows for drafted in rounds}
    assert sources == ({True, False} if depth > 1 else sources)


def test_a_stand_in_keeps_what_the_text_leaves_to_chance() -> None:
    """The mean over 400 texts of the same ratios; the standard error is near 0.04 rounds."""
    target = TabularModel(target_distribution, SIZE)
    text = (2, 0, 1, 1, 0, 2)
    count = 400
    kept = Kept("token", [[np.full(len(text) - 1, 0.5)] for _ in range(count)])
    batches = [[(PROMPT, text)]] * count
    found = replayed(target, Filler(SIZE), batches, 2, kept)
    mean = sum(len(rounds) for (rounds,) in found) / count
    expected = expected_rounds(chain_rounds(np.full(len(text) - 1, 0.5), 2, "token"))
    assert mean == pytest.approx(expected, abs=0.15)
    assert found[0][0][0] == Drafted(2, stepped=True)


def test_a_lone_sequence_takes_the_sum_of_its_rounds() -> None:
    costs = Costs({(1, 0): 1.0, (1, 2): 3.0})
    assert expected_seconds([known_rounds([2, 0, 1])], costs) == pytest.approx(3.0 + 1.0 + 2.0)


def test_rows_of_a_batch_end_at_their_own_times() -> None:
    costs = Costs({(1, 0): 1.0, (1, 2): 3.0, (2, 0): 10.0, (2, 2): 30.0})
    both = [known_rounds([2, 0]), known_rounds([0, 0, 1])]
    assert expected_seconds(both, costs) == pytest.approx(30.0 + 10.0 + 2.0)


def test_a_batch_costs_the_mean_over_what_its_rows_may_do() -> None:
    """Two rows of two tokens: each is over after a round or two, with a half each."""
    costs = Costs({(1, 0): 1.0, (1, 1): 5.0, (2, 0): 2.0, (2, 1): 7.0})
    row = chain_rounds(np.array([0.5]), 1, "token")
    np.testing.assert_allclose(row, [[0, 0, 1], [0.5, 0.5, 0]])
    expected = 7.0 + 0.25 * 2.0 + 0.5 * 1.0
    assert expected_seconds([row, row], costs) == pytest.approx(expected)


def test_costs_lie_on_lines_between_what_was_measured() -> None:
    costs = Costs({(1, 0): 1.0, (1, 4): 3.0, (3, 0): 5.0, (3, 4): 7.0})
    assert costs(1, 2) == 2.0
    assert costs(2, 2) == 4.0
    assert costs(9, 9) == 7.0
    assert costs.shifted(1.0)(1, 0) == 2.0
    assert between([(1, 2.0), (3, 4.0)], 0) == 2.0


def test_other_methods_have_no_formula() -> None:
    with pytest.raises(InvalidConfigError, match="coupled"):
        survival(np.ones(2), "coupled")
