"""The suffix drafter: exact distributions, what it may show to whom, what it keeps and forgets."""

from __future__ import annotations

import pickle
import subprocess
import sys
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from dataclasses import dataclass, field
from threading import Event
from typing import Any

import numpy as np
import pytest
import torch

from outrider import (
    HybridDrafter,
    SamplingParams,
    SpeculativeConfig,
    SpeculativeDecoder,
    SuffixDrafter,
)
from outrider.certify import exact_distribution
from outrider.certify.reference import distance, target_distribution
from outrider.errors import InvalidConfigError
from outrider.runtimes.tabular import TabularModel, mock_pair
from outrider.types.records import DraftPlan, Prefix
from outrider.verification import METHODS

TOLERANCE = 1e-12
PROMPT = (0, 1, 2, 0, 1, 2, 0)


@dataclass
class Context:
    """As much of a round's context as a drafter that looks tokens up reads."""

    prompt_lengths: np.ndarray
    local: np.ndarray
    remembers: bool = True
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))


def asked(
    drafter: Any, prefix: Prefix, prompt_length: int, depth: int = 4, **more: Any
) -> list[int]:
    """The chain proposed for one row."""
    local = np.array([more.pop("local", False)])
    ctx: Any = Context(np.array([prompt_length]), local, **more)
    proposal = drafter.propose([prefix], DraftPlan(np.array([depth])), ctx)
    return proposal.tokens[0, : proposal.lengths[0]].tolist()


def configured(verification: str, k: int, **more: Any) -> SpeculativeConfig:
    return SpeculativeConfig(
        depth="fixed", num_speculative_tokens=k, verification=verification, **more
    )


def eager(**more: Any) -> SuffixDrafter:
    """A drafter that proposes whatever it can."""
    return SuffixDrafter(max_spec_offset=3, min_token_prob=0.01, **more)


@pytest.mark.parametrize("warm", [False, True], ids=["cold", "warm"])
@pytest.mark.parametrize("local", [False, True], ids=["pool", "local"])
@pytest.mark.parametrize("verification", METHODS)
def test_the_distribution_with_chains(verification: str, local: bool, warm: bool) -> None:
    target, _ = mock_pair(3, 9)
    drafter = eager()
    if warm:
        drafter.learn([1, 0, 2, 2, 0, 1, 1, 0, 2, 0])
    held = drafter.pooled_tokens
    params = SamplingParams(max_tokens=4, stop_token_ids=(1,), seed=3 if local else None)
    decoder = SpeculativeDecoder(target, drafter, config=configured(verification, 3))
    distribution = exact_distribution(decoder, PROMPT, params)
    assert distance(distribution, target_distribution(target, PROMPT, params)) < TOLERANCE
    assert drafter.pooled_tokens == held, "a rehearsal is nothing to learn from"


@pytest.mark.parametrize(
    "tree", [{"tree_shape": (2, 2)}, {"tree_budget": 5}, {"tree_shape": (3,)}], ids=str
)
@pytest.mark.parametrize("verification", ["traversal", "recursive", "coupled"])
def test_the_distribution_with_trees(verification: str, tree: dict[str, Any]) -> None:
    for seed, temperature in ((1, 1.0), (2, 0.0)):
        target, _ = mock_pair(3, seed)
        drafter = eager()
        drafter.learn([2, 0, 1, 2, 0, 2, 1, 0, 0, 1, 0])
        decoder = SpeculativeDecoder(target, drafter, config=configured(verification, 3, **tree))
        params = SamplingParams(max_tokens=4, temperature=temperature)
        distribution = exact_distribution(decoder, PROMPT, params)
        assert distance(distribution, target_distribution(target, PROMPT, params)) < TOLERANCE
        assert decoder.metrics.rounds == 0


def test_a_tree_keeps_to_its_budget_and_branches() -> None:
    drafter = eager()
    drafter.learn([5, 6, 7, 1, 5, 6, 8, 1, 5, 6, 7, 2])
    ctx: Any = Context(np.array([2, 2, 2]), np.zeros(3, dtype=bool))
    plan = DraftPlan(np.array([2, 1, 0]), levels=(3, 2), shape=None)
    prefixes = [Prefix(row, (5, 6)) for row in range(3)]
    proposal = drafter.propose(prefixes, plan, ctx)
    assert proposal.parents is not None
    assert (proposal.lengths <= plan.lengths).all()
    assert proposal.lengths.tolist() == [5, 2, 0]
    edges = set(zip(proposal.parents[0].tolist(), proposal.tokens[0].tolist(), strict=True))
    assert edges == {(0, 7), (0, 8), (1, 1), (1, 2), (2, 1)}
    assert proposal.tokens[1, :2].tolist() == [7, 8]


def loops(prefix: tuple[int, ...]) -> np.ndarray:
    """A distribution that prefers to count upwards, so that texts resemble one another."""
    distribution = np.full(6, 0.06)
    distribution[(prefix[-1] + 1) % 6] = 0.7
    return distribution


class Shown(SuffixDrafter):
    """The planted fault: what was learnt of others is shown to every row."""

    def candidates(self, prefixes, plan, ctx):
        open_ctx: Any = Context(ctx.prompt_lengths, np.zeros(len(prefixes), dtype=bool))
        return super().candidates(prefixes, plan, open_ctx)


@pytest.mark.parametrize(("kind", "repeats"), [(SuffixDrafter, True), (Shown, False)])
def test_a_seed_gives_one_text_whatever_was_decoded_before(kind: Any, repeats: bool) -> None:
    """With seeds of a sampled row the text depends on what is drafted."""
    target = TabularModel(loops, 6)
    texts = []
    for learnt in ([], [0, 3, 1, 4, 0, 3, 2, 5, 1, 0, 4] * 20):
        drafter = kind(max_spec_offset=3)
        drafter.learn(learnt)
        decoder = SpeculativeDecoder(target, drafter, config=configured("block", 4))
        params = [SamplingParams(max_tokens=24, seed=seed) for seed in range(8)]
        outputs = decoder.generate([[0, seed % 6] for seed in range(8)], params)
        texts.append([(output.token_ids, output.depths) for output in outputs])
    assert (texts[0] == texts[1]) is repeats


def test_a_finished_output_helps_the_next_request_but_its_prompt_does_not() -> None:
    drafter = SuffixDrafter(max_spec_factor=4)
    text = Prefix(1, (9, 8, 7, 1, 2, 3, 4, 5))
    asked(drafter, text, 3)
    assert drafter.pooled_tokens == 0
    drafter.release([1, 77])
    assert drafter.pooled_tokens == 6
    assert asked(drafter, Prefix(2, (6, 1, 2)), 1) == [3, 4, 5]
    assert asked(drafter, Prefix(3, (9, 8)), 1) == []
    assert asked(drafter, Prefix(4, (6, 1, 2)), 1, local=True) == []
    whole = SuffixDrafter(max_spec_factor=4, pool_prompts=True)
    asked(whole, text, 3)
    whole.release([1])
    assert asked(whole, Prefix(3, (9, 8)), 1) == [7, 1, 2, 3]


def test_the_tokens_of_the_last_round_are_learnt_too() -> None:
    """The text up to its end is in the pool, be the drafter alone or in a hybrid."""
    target, draft = mock_pair(6, 3)
    for hybrid in (False, True):
        drafter = SuffixDrafter()
        whole = HybridDrafter(draft, drafter) if hybrid else drafter
        decoder = SpeculativeDecoder(target, whole, config=configured("block", 3))
        output = decoder.generate([0, 1, 2], SamplingParams(max_tokens=24, seed=1))
        assert drafter.pooled_tokens == len(output.token_ids) + 1
    drafter = SuffixDrafter()
    decoder = SpeculativeDecoder(target, drafter, config=configured("block", 3))
    (state,) = decoder.start([0, 1, 2], SamplingParams(max_tokens=24, seed=1))
    step = decoder.step(decoder.pack([state]))
    decoder.release(step.batch.states, discard=True)
    assert drafter.pooled_tokens == 0


def test_what_is_discarded_or_rehearsed_is_not_learnt() -> None:
    drafter = SuffixDrafter()
    asked(drafter, Prefix(1, (1, 2, 3)), 1)
    drafter.release([1], discard=True)
    asked(drafter, Prefix(2, (1, 2, 3)), 1, remembers=False)
    drafter.release([2])
    assert drafter.pooled_tokens == 0
    known = Prefix(3, (1, 2, 3))
    asked(drafter, known, 1)
    asked(drafter, Prefix(3, (1, 2, 5, 5)), 1, remembers=False)
    drafter.release([3])
    assert drafter.pooled_tokens == 3


def test_drafts_are_a_function_of_the_prefix() -> None:
    """The same id may come back longer, shorter, or as another text."""
    rng = np.random.default_rng(4)
    used = SuffixDrafter(max_spec_factor=2, max_pool_tokens=0, max_request_tokens=20)
    prefix = Prefix(1, (0,))
    for _ in range(300):
        if rng.random() < 0.2:
            cut = int(rng.integers(1, len(prefix) + 1))
            prefix = Prefix(1, prefix.tokens[:cut].tolist())
        prefix = prefix.extended(rng.integers(0, 2, int(rng.integers(0, 5))).tolist())
        fresh = SuffixDrafter(max_spec_factor=2, max_pool_tokens=0, max_request_tokens=20)
        assert asked(used, prefix, 1) == asked(fresh, prefix, 1)


def test_memory_is_bounded_by_requests_and_tokens() -> None:
    rng = np.random.default_rng(5)
    bounds = {"max_pool_tokens": 400, "max_request_tokens": 100, "max_requests": 3}
    drafter = SuffixDrafter(**bounds)
    held = []
    for number in range(300):
        length = int(rng.integers(1, 250))
        asked(drafter, Prefix(number, rng.integers(0, 9, length).tolist()), 1)
        if rng.random() < 0.5:
            drafter.release([number])
        held.append(drafter.nbytes)
        assert drafter.pooled_tokens <= 400
    assert max(held) <= 128 * (400 + 3 * 100) + 64 * 5
    many: Any = Context(np.ones(5, dtype=np.int64), np.ones(5, dtype=bool))
    prefixes = [Prefix(1000 + row, (1, 2, 1)) for row in range(5)]
    plan = DraftPlan(np.full(5, 2))
    for _ in range(2):
        proposal = drafter.propose(prefixes, plan, many)
        assert proposal.tokens[:, 0].tolist() == [2] * 5


def test_memory_is_bounded_under_a_soak() -> None:
    """2.5 million tokens go through one with its usual bounds, and the pool turns over three times.

    What numpy and Python hold is traced, and at most half as much again where arrays grow.
    """
    rng, bound = np.random.default_rng(6), 128 * 1_000_000
    drafter, held = SuffixDrafter(), []
    tracemalloc.start()
    try:
        for number in range(2500):
            text = rng.integers(0, 500, 1001).tolist()
            for length in (900, 1001):
                asked(drafter, Prefix(number, text[:length]), 1)
            if number % 5:
                drafter.release([number])
            held.append(drafter.nbytes)
            assert drafter.pooled_tokens <= 1_000_000
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert max(held) <= bound + 256 * 128 * 1001
    assert most <= 1.5 * (bound + 256 * 128 * 1001)
    assert drafter.pooled_tokens > 400_000


def test_the_score_is_the_number_kept_if_the_future_is_as_the_past() -> None:
    drafter = SuffixDrafter(max_spec_factor=4)
    ctx: Any = Context(np.array([0]), np.array([False]))
    text = (1, 2, 3, 1, 2, 3, 1, 2, 4, 1, 2)
    (found,) = drafter.candidates([Prefix(1, text)], DraftPlan(np.array([2])), ctx)
    # "1 2" was followed by 3 twice of three times, and "2 3" by 1 always.
    assert found.tokens.tolist() == [3, 1]
    assert found.probabilities.tolist() == pytest.approx([2 / 3, 2 / 3])
    assert found.score == pytest.approx(4 / 3)
    assert found.matched == 2
    # A match of two tokens is trusted to last one more with 2/3, two more with 2/4.
    assert found.expected == pytest.approx(2 / 3 * (2 / 3 + 2 / 4))


def test_the_longer_match_wins_between_the_request_and_the_pool() -> None:
    for learnt, expected in (([5, 6, 7, 8, 9], [8, 9]), ([1, 7, 8, 9], [4, 6])):
        drafter = SuffixDrafter()
        drafter.learn(learnt)
        assert asked(drafter, Prefix(1, (6, 7, 4, 6, 5, 6, 7)), 1, depth=2) == expected


@pytest.mark.parametrize(
    ("field_name", "value"),
    [
        ("max_match", 0),
        ("max_match", 2.0),
        ("max_match", True),
        ("min_match", 0),
        ("min_match", 33),
        ("max_spec_factor", 0),
        ("max_spec_factor", float("nan")),
        ("max_spec_factor", "1"),
        ("max_spec_offset", -1),
        ("max_spec_offset", float("inf")),
        ("min_token_prob", 0.0),
        ("min_token_prob", 1.5),
        ("min_token_prob", None),
        ("max_pool_tokens", 3),
        ("max_pool_tokens", -1),
        ("max_request_tokens", 3),
        ("max_requests", 0),
    ],
)
def test_bad_arguments_are_named(field_name: str, value: Any) -> None:
    with pytest.raises(InvalidConfigError, match=field_name) as raised:
        SuffixDrafter(**{field_name: value})
    assert raised.value.field == field_name


@pytest.mark.parametrize("bad", ["text", [[1, 2]], [0.5], [-1], [None]])
def test_a_text_to_learn_from_is_token_ids(bad: Any) -> None:
    with pytest.raises(InvalidConfigError, match="tokens"):
        SuffixDrafter().learn(bad)


_PROGRAM = """
import sys
import numpy as np
from outrider import SuffixDrafter
from outrider.drafters import suffix_kernels as kernels
from outrider.records import DraftPlan, Prefix
from tests.test_suffix import Context

drafter = SuffixDrafter()
names = [name for name, value in vars(kernels).items() if hasattr(value, "signatures")]
known = {name: list(getattr(kernels, name).signatures) for name in names}
drafter.learn(range(300))
ctx = Context(np.array([1]), np.array([False]))
for row, levels in ((0, None), (1, (2, 2))):
    drafter.propose([Prefix(row, (1, 2, 3, 1, 2))], DraftPlan(np.array([2]), levels), ctx)
drafter.release([0, 1])
late = [name for name in names if list(getattr(kernels, name).signatures) != known[name]]
sys.exit(f"compiled late: {late}" if late or not names else 0)
"""


def test_nothing_is_left_to_compile_once_a_drafter_is_made() -> None:
    pytest.importorskip("numba")
    subprocess.run([sys.executable, "-c", _PROGRAM], check=True, timeout=120)


def uniform(prefix: tuple[int, ...]) -> np.ndarray:
    return np.full(9, 1 / 9)


@pytest.mark.parametrize("copied", [deepcopy, lambda drafter: pickle.loads(pickle.dumps(drafter))])
def test_copies_know_what_the_drafter_knew_and_learn_by_themselves(copied: Any) -> None:
    drafter = SuffixDrafter()
    drafter.learn([1, 2, 3, 4, 5])
    asked(drafter, Prefix(1, [1, 2]), 1)
    for original in (drafter, HybridDrafter.usual(TabularModel(uniform, 9), drafter)):
        copy = copied(original)
        copy = copy.lookups[0] if isinstance(copy, HybridDrafter) else copy
        assert asked(copy, Prefix(2, [1, 2]), 1) == [3, 4, 5]
        copy.learn([1, 2, 0, 1, 2, 0])
        assert asked(copy, Prefix(3, [1, 2]), 1)[0] == 0
        assert asked(drafter, Prefix(3, [1, 2]), 1) == [3, 4, 5]


def test_bytes_are_counted_while_others_decode() -> None:
    """Requests come and go in one thread, and their bytes are summed in another."""
    drafter = SuffixDrafter(max_requests=64)
    done = Event()

    def asks() -> None:
        for sequence_id in range(2_000):
            asked(drafter, Prefix(sequence_id, [1, 2]), 1)
        done.set()

    with ThreadPoolExecutor(1) as threads:
        asking = threads.submit(asks)
        while not done.is_set():
            assert drafter.nbytes > 0
        asking.result()
