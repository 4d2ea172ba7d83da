"""Rows of different lengths verified without padding, and what turns and writes their states."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from outrider import SamplingParams, SpeculativeDecoder, SuffixDrafter, TransformersModel
from outrider.policies import AdaptiveDepth
from outrider.policies.seen import Seen
from outrider.runtimes.transformers import rotary
from outrider.runtimes.transformers.pending import RowTokens
from outrider.runtimes.transformers.ragged import Ragged
from outrider.runtimes.transformers.rotary import HostTurning, TensorTurning, turning_for
from outrider.runtimes.transformers.slot_cache import LayerShape, SlotCache
from outrider.types.records import Distributions, DraftProposal, Prefix, RoundRecord, SequenceState

from .families import VOCAB, random_model, resembling

LENGTHS = [(3, 0), (0, 0, 5, 1), (2, 4, 4, 4, 0), (1, 1), (7, 0, 0, 0, 0, 0)]


def proposal(rng: np.random.Generator, lengths: Sequence[int], width: int = 0) -> DraftProposal:
    """Drafts of so many tokens; what pads them is a token like others."""
    tokens = torch.from_numpy(rng.integers(0, VOCAB, (len(lengths), max(width, *lengths))))
    return DraftProposal(tokens, np.array(lengths), Distributions(point_masses=tokens))


def prefixes(rng: np.random.Generator, rows: int) -> list[Prefix]:
    return [Prefix(row, rng.integers(0, VOCAB, 3 + 5 * row % 11)) for row in range(rows)]


def full(model: Any, tokens: np.ndarray[Any, Any]) -> Tensor:
    """Logits [n, V] of the model's own forward."""
    with torch.no_grad():
        logits: Tensor = model(torch.from_numpy(tokens)[None], use_cache=False).logits[0]
    return logits


def greatest_error(
    target: TransformersModel, model: Any, found: Sequence[Prefix], drafts: DraftProposal
) -> float:
    """How far verified logits are off, where they mean something."""
    logits = target.verify(found, drafts).logits
    off = []
    for row, (prefix, length) in enumerate(zip(found, drafts.lengths.tolist(), strict=True)):
        own = drafts.tokens[row, :length].numpy()
        expected = full(model, np.concatenate([prefix.tokens, own]))[-length - 1 :]
        off.append(float((logits[row, : length + 1] - expected).abs().max()))
    return max(off)


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float64, 1e-11), (torch.float32, 2e-3)])
@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2"])
@pytest.mark.parametrize("lengths", LENGTHS)
def test_logits_are_the_models(
    family: str, dtype: torch.dtype, bound: float, lengths: tuple[int, ...]
) -> None:
    """In rounds that follow each other, of rows whose slots are in another order."""
    rng = np.random.default_rng(len(lengths))
    model = random_model(family).to(dtype)
    target = TransformersModel(resembling(model, 0.0), max_sequences=8)
    assert target.ragged == (family != "qwen2")
    found = prefixes(rng, len(lengths))
    target.verify(found[::-1], proposal(rng, [0] * len(lengths)))
    for _ in range(4):
        drafts = proposal(rng, lengths, max(lengths) + int(rng.integers(2)))
        assert greatest_error(target, model, found, drafts) < bound
        kept = [int(rng.integers(length + 1)) for length in lengths]
        found = [
            Prefix(one.sequence_id, [*one.tokens, *drafts.tokens[row, :n].tolist(), 1 + row])
            for row, (one, n) in enumerate(zip(found, kept, strict=True))
        ]


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float64, 1e-11), (torch.float32, 2e-3)])
@pytest.mark.parametrize("family", ["llama", "mistral"])
def test_rows_that_lie_apart_and_miss_some_tokens_do_not_matter(
    family: str, dtype: torch.dtype, bound: float
) -> None:
    """Others lie between them; and of each several tokens are new, not as many."""
    rng = np.random.default_rng(5)
    model = random_model(family).to(dtype)
    target = TransformersModel(resembling(model, 0.0), max_sequences=6)
    everyone = prefixes(rng, 6)
    target.verify(everyone, proposal(rng, (0,) * 6))
    some = [
        Prefix(everyone[row].sequence_id, [*everyone[row].tokens, *rng.integers(0, VOCAB, more)])
        for row, more in ((4, 2), (0, 4), (2, 3))
    ]
    for lengths in ((2, 0, 5), (0, 3, 1)):
        drafts = proposal(rng, lengths)
        assert greatest_error(target, model, some, drafts) < bound
        some = [Prefix(one.sequence_id, [*one.tokens, *rng.integers(0, VOCAB, 3)]) for one in some]


def wrongly_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RowTokens, "read", lambda self: (self.batch.read()[0][self.row], None))


@pytest.mark.parametrize("faulty", [False, True])
def test_what_pads_a_row_is_not_known_to_its_slot(
    faulty: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next token may be the one that stands there, of which nothing was computed."""
    rng = np.random.default_rng(0)
    model = random_model("llama")
    target = TransformersModel(resembling(model, 0.0), max_sequences=4)
    if faulty:
        wrongly_known(monkeypatch)
    found, drafts = prefixes(rng, 2), proposal(rng, (1, 4))
    target.verify(found, drafts)
    longer = [
        Prefix(one.sequence_id, [*one.tokens, *drafts.tokens[row].tolist(), 9])
        for row, one in enumerate(found)
    ]
    error = greatest_error(target, model, longer, proposal(rng, (0, 0), 1))
    assert (error > 1e-3) == faulty


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_what_would_pad_rows_is_not_computed(family: str) -> None:
    model = random_model(family).float()
    inside = model.model.layers if family == "llama" else model.transformer.h
    inner = inside[1].mlp.down_proj if family == "llama" else inside[1].mlp.c_proj
    target = TransformersModel(model, max_sequences=4)
    given: list[tuple[int, ...]] = []
    for module in (inner, model.lm_head):
        module.register_forward_hook(lambda _, inputs, __: given.append(inputs[0].shape[:2]))
    rng = np.random.default_rng(1)
    found = prefixes(rng, 3)
    target.verify(found, proposal(rng, (0, 0, 0)))
    longer = [Prefix(one.sequence_id, [*one.tokens, 5]) for one in found]
    target.verify(longer, proposal(rng, (0, 6, 1)))
    assert given[-2:] == [(1, 3 + 7) if target.ragged else (3, 7)] * 2


def test_a_model_with_hooks_gives_the_same() -> None:
    """It computes what pads the rows, too."""
    rng = np.random.default_rng(2)
    model = random_model("llama")
    hooked = resembling(model, 0.0)
    target = TransformersModel(hooked, max_sequences=4)
    seen: list[Any] = []
    hooked.model.layers[0].register_forward_hook(lambda *_: seen.append(1))
    assert greatest_error(target, model, prefixes(rng, 3), proposal(rng, (0, 6, 1))) < 1e-11
    assert seen


class Cached:
    """A slot cache of two layers with something in it, aimed."""

    def __init__(self, slots: list[int], starts: list[int], length: int, heads: int) -> None:
        torch.manual_seed(0)
        shape = LayerShape(heads, 8, 8)
        self.cache = SlotCache([shape, shape], 6, torch.float32, torch.device("cpu"))
        self.cache.reserve(32)
        for slot in range(6):
            for part in self.cache.whole(slot):
                for each in part:
                    each.normal_()
        columns = torch.tensor(starts)[:, None] + torch.arange(length)
        self.cache.aim(slots, starts, length, 20, columns)

    def contents(self) -> list[Tensor]:
        return [each.clone() for s in range(6) for part in self.cache.whole(s) for each in part]


def reading_other_angles(make: Callable[..., Any]) -> Callable[..., Any]:
    def made(cos: Tensor, *rest: Any) -> Any:
        return make(cos.flip(1), *rest)

    return made


def writing_a_column_on(make: Callable[..., Any]) -> Callable[..., Any]:
    def made(*given: Any) -> Any:
        turning = make(*given)
        turning._columns = turning._columns + 1
        return turning

    return made


@pytest.mark.parametrize("fault", [None, reading_other_angles, writing_a_column_on])
@pytest.mark.parametrize("shared", [False, True], ids=["own positions", "one row of positions"])
@pytest.mark.parametrize(
    ("slots", "starts"),
    [([2, 3, 4], [7, 7, 7]), ([2, 3, 4], [7, 0, 12]), ([0, 2, 5], [7, 3, 7]), ([1], [4])],
    ids=["abreast", "apart", "scattered", "alone"],
)
def test_the_loop_does_what_tensor_operations_do_to_the_bit(
    slots: list[int],
    starts: list[int],
    shared: bool,
    fault: Callable[..., Any] | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And writes nowhere else."""
    if fault is not None:
        monkeypatch.setattr(rotary, "HostTurning", fault(HostTurning))
    rows, length, heads = len(slots), 3, 2
    ours, theirs = (Cached(slots, starts, length, heads) for _ in range(2))
    angles = torch.randn(1 if shared else rows, length, 4).repeat(1, 1, 2)
    query = torch.randn(rows, length, 2 * heads, 8)
    key, value = torch.randn(rows, length, heads, 8), torch.randn(rows, length, heads, 8)
    with torch.inference_mode():
        turn = turning_for(angles.cos(), angles.sin(), ours.cache, None)
        turned, span = turn(1, query, key, value)
    with torch.no_grad():
        half = torch.cat([-angles.sin()[..., :4], angles.sin()[..., 4:]], -1)
        plain = TensorTurning(angles.cos()[:, None], half[:, None], theirs.cache, None)
        expected, other = plain(1, query, key, value)
    read, wanted = (turned, *span.gathered()), (expected, *other.gathered())
    same = all(map(torch.equal, read, wanted))
    same = same and all(map(torch.equal, ours.contents(), theirs.contents()))
    assert same == (fault is None)


@pytest.mark.parametrize("lengths", [(3, 1, 2), (1, 4, 4), (2, 2, 5)])
def test_ragged_states_are_written_where_each_belongs(lengths: tuple[int, ...]) -> None:
    starts, width = [7, 0, 12], max(lengths)
    ours, theirs = (Cached([2, 3, 4], starts, width, 2) for _ in range(2))
    before = ours.contents()
    ragged = Ragged.of(lengths, width, width, torch.device("cpu"))
    count = sum(lengths)
    angles = torch.randn(1, count, 4).repeat(1, 1, 2)
    query, key, value = torch.randn(1, count, 4, 8), *torch.randn(2, 1, count, 2, 8)
    with torch.inference_mode():
        turned, span = turning_for(angles.cos(), angles.sin(), ours.cache, ragged)(
            0, query, key, value
        )
        # In other dtypes, and elsewhere, by tensor operations.
        half = torch.cat([-angles.sin()[..., :4], angles.sin()[..., 4:]], -1)
        plain = TensorTurning(angles.cos()[:, None], half[:, None], theirs.cache, ragged)
        expected, other = plain(0, query, key, value)
    assert torch.equal(turned, expected)
    for row, (start, length) in enumerate(zip(starts, lengths, strict=True)):
        own = slice(start, start + length)
        assert torch.equal(span.keys[row, :, own], other.keys[row, :, own])
        assert torch.equal(span.values[row, :, own], other.values[row, :, own])
        for found, known in zip(ours.contents(), before, strict=True):
            # Only these columns were written to, if at all.
            differs = (found != known).flatten(0, 1).any(0).any(-1)
            assert not differs[20:].any()
    changed = sum(int((a != b).sum()) for a, b in zip(ours.contents(), before, strict=True))
    assert changed == 2 * count * 2 * 8


def test_the_default_dtype_does_not_matter() -> None:
    ours, before = Cached([0, 1], [3, 5], 2, 2), torch.get_default_dtype()
    angles = torch.zeros(2, 2, 8)
    states = torch.randn(2, 2, 4, 8), torch.randn(2, 2, 2, 8), torch.randn(2, 2, 2, 8)
    torch.set_default_dtype(torch.float64)
    try:
        with torch.inference_mode():
            turned, _ = turning_for(angles.cos(), angles.sin(), ours.cache, None)(0, *states)
    finally:
        torch.set_default_dtype(before)
    assert turned.dtype == torch.float32


def test_states_that_do_not_fit_go_the_usual_way() -> None:
    """Such as those of a layer that a user has wrapped."""
    ours = Cached([0, 1], [3, 5], 2, 2)
    angles = torch.zeros(2, 2, 8)
    with torch.inference_mode():
        turn = turning_for(angles.cos(), angles.sin(), ours.cache, None)
        assert isinstance(turn, HostTurning)
        query, key = torch.randn(2, 2, 4, 8), torch.randn(2, 2, 2, 8)
        turned, span = turn(0, query.double(), key.double(), key.double())
        assert turned.dtype == torch.float64
        assert torch.equal(span.keys[1, :, 5:7], key[1].transpose(0, 1))
    assert isinstance(turning_for(angles.cos(), angles.sin(), ours.cache, None), TensorTurning), (
        "where gradients are asked for"
    )


def record(drafted: tuple[int, ...]) -> RoundRecord:
    count = len(drafted)
    return RoundRecord(
        sequence_ids=tuple(range(count)),
        drafted=drafted,
        depth=drafted,
        accepted=(0,) * count,
        emitted=(1,) * count,
        bonus=(False,) * count,
        ceiling=(None,) * count,
        first_ceiling=(None,) * count,
        draft_failed=False,
        looked_up=(True,) * count,
        ended=(False,) * count,
        entropies=((),) * count,
        cached=(0,) * count,
        draft_s=0.001,
        target_s=0.01,
        total_s=0.012,
    )


@pytest.mark.parametrize(("ragged", "tokens"), [(False, 4 * 9), (True, 4 + 8 + 3)])
def test_what_a_round_costs_is_told_by_what_the_target_was_given(ragged: bool, tokens: int) -> None:
    start = SequenceState(Prefix(0, [1]), 1, SamplingParams(max_tokens=9), frozenset(), 0)
    states = [replace(start, prefix=Prefix(row, [1, 2])) for row in range(4)]
    assert Seen(ragged).round(states, record((8, 0, 3, 0)), True).tokens == tokens


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_a_decoder_knows_what_its_target_does(family: str) -> None:
    target = TransformersModel(random_model(family).float())
    policy = SpeculativeDecoder(target, SuffixDrafter()).policy
    assert isinstance(policy, AdaptiveDepth)
    assert policy._ragged == target.ragged == (family == "llama")
