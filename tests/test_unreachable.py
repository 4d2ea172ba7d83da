"""What is drafted where decoding never comes: no processor is asked, and no dead end counts."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from outrider import (
    HybridDrafter,
    NgramDrafter,
    PredictionDrafter,
    SamplingParams,
    SpeculativeConfig,
    SpeculativeDecoder,
    StructuredOutput,
)
from outrider.certify import exact_distribution
from outrider.certify.reference import distance
from outrider.errors import DegenerateDistributionError
from outrider.runtimes.tabular import TabularModel, mock_pair
from outrider.sampling.shaping import Shaper
from outrider.types.records import Distributions
from outrider.verification import METHODS, fused, lazy, verify
from outrider.verification.fused import verify_logits

from .alphabet import alphabet
from .test_fused import Noted, random_case

PROMPT = (0, 1)
FOLLOWS = {0: [1, 2], 1: [0, 3], 2: [0]}
END = 3


def trie(history: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    """Allows what follows in a table, which knows nothing of the end nor of other histories."""
    output = history[2:].tolist()
    for before, after in pairwise(output):
        assert after in FOLLOWS[before], output
    allowed = FOLLOWS[output[-1]] if output else [0, 1, 2]
    kept = torch.full_like(logits, -torch.inf)
    kept[allowed] = logits[allowed]
    return kept


def drafter(kind: str, vocab_size: int = 4) -> Any:
    if kind == "model":
        return mock_pair(vocab_size, 3)[1]
    return NgramDrafter(2) if kind == "ngram" else PredictionDrafter([0, 0, 1, 3, 1, 2])


SPECULATION: dict[str, dict[str, Any]] = {
    "chain": {"num_speculative_tokens": 2},
    "coupled": {"num_speculative_tokens": 2, "verification": "coupled"},
    "tree": {"tree_shape": (2, 2)},
    "wide tree": {"tree_shape": (3, 1), "tree_children": "without_replacement"},
    "drafts otherwise": {"num_speculative_tokens": 2, "draft_params": SamplingParams()},
}


@pytest.mark.parametrize("how", SPECULATION)
@pytest.mark.parametrize("kind", ["model", "prediction", "ngram"])
def test_a_processor_is_asked_about_no_impossible_history(how: str, kind: str) -> None:
    target, _ = mock_pair(4, 3)
    params = SamplingParams(max_tokens=3, stop_token_ids=(END,), logits_processors=(trie,))
    plain = exact_distribution(SpeculativeDecoder(target), PROMPT, params)
    config = SpeculativeConfig(**SPECULATION[how])
    decoder = SpeculativeDecoder(target, drafter(kind), config=config)
    assert distance(exact_distribution(decoder, PROMPT, params), plain) < 1e-12


@pytest.mark.parametrize(
    "forbids",
    [{"bad_words": ((1,),)}, {"structured_output": StructuredOutput(regex="[ac]{2}")}],
    ids=["a ban", "a form"],
)
def test_nor_about_one_that_the_request_forbids(forbids: dict[str, Any]) -> None:
    """Drafts below the letter b."""

    def hears_no_b(history: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        assert 1 not in history[2:], history
        return logits

    target, _ = mock_pair(4, 3)
    params = SamplingParams(
        max_tokens=3, stop_token_ids=(END,), logits_processors=(hears_no_b,), **forbids
    )
    distributions = []
    for source in (None, PredictionDrafter([0, 1, 2, 1, 0])):
        config = SpeculativeConfig(num_speculative_tokens=3, depth="fixed")
        tokenizer = alphabet("abc")
        decoder = SpeculativeDecoder(target, source, config=config, tokenizer=tokenizer)
        distributions.append(exact_distribution(decoder, PROMPT, params))
    assert distance(*distributions) < 1e-12


def test_a_mixture_comes_below_what_is_forbidden() -> None:
    """There the processor's word counts still: it allows the drafted token to be kept, then 0."""

    def only_zero(history: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        kept = torch.full_like(logits, -torch.inf)
        kept[[0, 2] if len(history) == 2 else [0]] = 0.0
        return kept

    target, _ = mock_pair(4, 3)
    params = SamplingParams(max_tokens=2, logits_processors=(only_zero,))
    config = SpeculativeConfig(
        verification="mixture", mixture_budget=0.5, num_speculative_tokens=1, depth="fixed"
    )
    decoder = SpeculativeDecoder(target, PredictionDrafter([1]), config=config)
    distribution = exact_distribution(decoder, PROMPT, params)
    assert distribution.keys() == {(0, 0), (1, 0), (2, 0)}


def test_what_processors_forbid_is_fetched_once_a_level(monkeypatch: pytest.MonkeyPatch) -> None:
    """For every row and node of a depth together, so that a device is seldom waited for."""
    fetched = []
    stack = torch.stack

    def noted(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        if tensors[0].dtype == torch.bool:
            fetched.append(len(tensors))
        return stack(tensors, *args, **kwargs)

    target, _ = mock_pair(4, 3)
    config = SpeculativeConfig(num_speculative_tokens=2, depth="fixed")
    decoder = SpeculativeDecoder(target, PredictionDrafter([0, 1, 0, 1]), config=config)
    params = SamplingParams(temperature=0, logits_processors=(lambda history, logits: logits,))
    states = [decoder.start(PROMPT, params)[0] for _ in range(3)]
    monkeypatch.setattr(torch, "stack", noted)
    decoder.step(decoder.pack(states))
    assert fetched == [3, 3]


def test_a_shaper_that_asks_everywhere_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted fault."""
    monkeypatch.setattr(Shaper, "_reached", lambda self, places: [True] * len(places))
    with pytest.raises((AssertionError, KeyError)):
        test_a_processor_is_asked_about_no_impossible_history("tree", "prediction")


DEAD_END: dict[str, Any] = {"bad_words": ((2,), (2, 0), (2, 1), (2, 2), (2, 3))}
"""2 may not come, and nothing after it."""


@pytest.mark.parametrize("how", [*SPECULATION, "token", "recursive tree", "mixed tree"])
@pytest.mark.parametrize("filters", [{}, {"top_k": 3}, {"temperature": 0}], ids=str)
@pytest.mark.parametrize("kind", ["model", "prediction", "hybrid"])
def test_a_dead_end_that_was_only_drafted_is_no_error(
    how: str, kind: str, filters: dict[str, Any]
) -> None:
    target, draft = mock_pair(4, 3)
    looked_up = PredictionDrafter([2, 0, 1, 2, 1])
    source = {"model": draft, "prediction": looked_up, "hybrid": HybridDrafter(draft, looked_up)}
    more = {
        "token": {"verification": "token", "num_speculative_tokens": 3},
        "recursive tree": {"verification": "recursive", "tree_shape": (3, 2)},
        "mixed tree": {"tree_shape": (4, 1), "tree_children": "greedy"},
    }
    chosen = {"strict": True, "depth": "fixed"} | (SPECULATION | more)[how]
    params = SamplingParams(max_tokens=3, **DEAD_END, **filters)
    plain = exact_distribution(SpeculativeDecoder(target), PROMPT, params)
    decoder = SpeculativeDecoder(target, source[kind], config=SpeculativeConfig(**chosen))
    assert distance(exact_distribution(decoder, PROMPT, params), plain) < 1e-12


def test_one_that_decoding_comes_to_is_an_error() -> None:
    """And only there: 2 may come, and nothing after it. The rest of a seeded text is the same."""
    target, draft = mock_pair(4, 3)
    ended = []
    for source in (None, draft, PredictionDrafter([2, 0, 1, 2, 1])):
        config = SpeculativeConfig(num_speculative_tokens=3, verification="coupled", depth="fixed")
        decoder = SpeculativeDecoder(target, source, config=config)
        texts: list[Any] = []
        for seed in range(40):
            params = SamplingParams(max_tokens=3, bad_words=DEAD_END["bad_words"][1:], seed=seed)
            try:
                texts.append(decoder.generate(PROMPT, params).choices[0].token_ids)
            except DegenerateDistributionError as error:
                texts.append(str(error).split("'s logits")[0])
        ended.append(texts)
    assert 0 < ended[0].count("the target") < 40
    assert ended[0] == ended[1] == ended[2]


class Broken(TabularModel):
    """Says 2 with a chance, and nothing but NaN below it."""

    def __init__(self, chance: float) -> None:
        super().__init__(lambda _: np.array([0.5, 0.3, chance, 0.2 - chance]), 4)

    def _logits(self, prefix: tuple[int, ...]) -> torch.Tensor:
        logits = super()._logits(prefix)
        return logits * torch.nan if 2 in prefix[len(PROMPT) :] else logits


@pytest.mark.parametrize("filters", [{}, {"top_k": 3}], ids=["lazily", "filtered"])
@pytest.mark.parametrize("how", ["block", "token", "coupled", "tree"])
@pytest.mark.parametrize("kind", ["model", "prediction"])
def test_nan_spoils_no_verdict_on_another_path(
    how: str, kind: str, filters: dict[str, Any]
) -> None:
    params = SamplingParams(max_tokens=3, **filters)
    shape: dict[str, Any] = {"num_speculative_tokens": 3, "verification": how}
    shape = {"tree_shape": (3, 2)} if how == "tree" else shape
    config = SpeculativeConfig(depth="fixed", **shape)
    source = mock_pair(4, 3)[1] if kind == "model" else PredictionDrafter([0, 2, 1])
    decoder = SpeculativeDecoder(Broken(0.0), source, config=config)
    plain = exact_distribution(SpeculativeDecoder(Broken(0.0)), PROMPT, params)
    assert distance(exact_distribution(decoder, PROMPT, params), plain) < 1e-12
    reached = SpeculativeDecoder(Broken(0.1), source, config=config)
    with pytest.raises(DegenerateDistributionError):
        exact_distribution(reached, PROMPT, params)


class OneByOne(Noted):
    """The same draws, not known ahead."""

    @property
    def stop_uniforms(self) -> Any:
        return None


def verdicts(seed: int, method: str, draws: type[Noted]) -> list[int]:
    """Rounds with an unsound row for each sequence, against those certain of a token of its own.

    Returns:
        How many rounds differ, of those whose draws are far from an edge, and how many kept nodes
        had an unsound row before them or at them, or not.
    """
    rng = np.random.default_rng(seed)
    found = [0, 0, 0]
    for number in range(60):
        case = random_case(rng, (7, 300))
        batch, width = case.proposal.tokens.shape
        if width == 0:
            continue
        dead = torch.from_numpy(rng.integers(0, width + 1, batch))
        rows = torch.arange(batch)
        target = F.pad(case.target(), (0, 1))
        target[rows, dead] = F.one_hot(torch.tensor(target.shape[-1] - 1)).double()
        case.logits[rows, dead, : 1 + number % 7] = (torch.nan, torch.inf)[number % 2]
        distributions = case.proposal.distributions
        wider = (
            distributions
            if distributions.probs is None
            else Distributions(probs=F.pad(distributions.probs, (0, 1)))
        )
        slow, quick = Noted(batch, width, number), draws(batch, width, number)
        kind = METHODS[method]
        expected = verify(replace(case.proposal, distributions=wider), target, kind, slow)
        verdict, _ = verify_logits(case.proposal, case.logits, case.temperature, kind, quick)
        before = expected.node < dead
        same = (verdict.node == expected.node) | slow.near[0]
        same &= (verdict.next_token == expected.next_token) | ~before | slow.near[0] | slow.near[1]
        found[0] += int((~same).sum())
        found[1] += int((~before).sum())
        found[2] += int(before.sum())
    return found


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("way", ["ahead", "one by one", "as on devices", "rows made again"])
def test_where_a_round_stops_beside_an_unsound_row(
    method: str, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if that row were sure of a token that cannot be drafted: the rest keeps its distribution."""
    if way == "as on devices":
        monkeypatch.setattr(fused, "on_host", lambda array: False)
        monkeypatch.setattr(lazy, "on_host", lambda array: False)
    if way == "rows made again":
        monkeypatch.setattr(lazy, "_NUMPY", 0)
        monkeypatch.setattr(lazy, "_KEPT", 0)
    differing, through, before = verdicts(5, method, OneByOne if way == "one by one" else Noted)
    assert differing == 0
    assert min(through, before) > 20


def test_one_that_counts_for_nothing_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted fault: sums of NaN taken for none, so that the unsound node is never stopped at."""
    monkeypatch.setattr(
        fused, "_sound", lambda target, index: np.ones(np.shape(index), dtype=np.bool_)
    )
    assert verdicts(5, "block", Noted)[0] > 0
