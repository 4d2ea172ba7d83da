"""Products and attention by compiled loops: right, and the same whatever is computed beside."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import rms_norm, scaled_dot_product_attention, silu
from transformers import LlamaConfig, LlamaForCausalLM

from outrider import TransformersModel
from outrider.runtimes.transformers import products, rotary, team
from outrider.runtimes.transformers.products import Ways
from outrider.runtimes.transformers.ragged import Ragged
from outrider.runtimes.transformers.slot_cache import SlotCache, Span
from outrider.types.records import Distributions, DraftProposal, Prefix

pytestmark = pytest.mark.skipif(not team.AVAILABLE, reason="torch's threads are not OpenMP's")
if team.AVAILABLE:
    from outrider.runtimes.transformers import host_attention, host_rows, panels

PACKED = Ways(single=False, few=0, packed=1)


def product(given: Tensor, weight: Tensor) -> Tensor:
    return panels.product(given, panels.laid_out(weight), len(weight))


@pytest.mark.parametrize("rows", [1, 2, 7, 8, 9, 17, 66])
@pytest.mark.parametrize(("outputs", "inputs"), [(1, 1), (33, 7), (64, 96), (300, 65)])
def test_products_are_right_and_a_rows_own(outputs: int, inputs: int, rows: int) -> None:
    """Against float64; and to the bit what each row gives by itself, which another order is not."""
    torch.manual_seed(rows)
    weight, given = torch.randn(outputs, inputs), torch.randn(1, rows, 2 * inputs)[..., ::2]
    found = product(given, weight)
    assert found.shape == (1, rows, outputs)
    assert found.is_contiguous()
    exact = given.double() @ weight.double().T
    torch.testing.assert_close(found.double(), exact, rtol=1e-5, atol=1e-4)
    alone = [product(row[None], weight)[0] for row in given[0]]
    assert torch.equal(found[0], torch.stack(alone))


def test_products_of_no_rows_and_of_what_is_not_finite() -> None:
    weight = torch.randn(40, 16)
    assert product(torch.empty(2, 0, 16), weight).shape == (2, 0, 40)
    given = torch.randn(3, 16)
    given[1, 4], given[2, 5] = torch.nan, torch.inf
    found = product(given, weight)
    assert found[0].isfinite().all()
    assert found[1].isnan().all()
    assert not found[2].isfinite().any()


@pytest.fixture(params=[1, 2, 3])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    """As many threads as torch uses in each."""
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def test_as_many_threads_are_started_as_torch_uses(
    threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    weight, given = torch.randn(500, 64), torch.randn(5, 64)
    started: list[int] = []
    start = team._START
    monkeypatch.setattr(team, "_START", lambda *asked: started.append(asked[2]) or start(*asked))
    torch.testing.assert_close(product(given, weight), given @ weight.T)
    assert started == [threads]


def test_several_threads_multiply_at_once() -> None:
    """Each call has a counter of its own."""
    weight = panels.laid_out(torch.randn(600, 64))
    given = [torch.randn(rows, 64) for rows in (1, 3, 8)]
    expected = [panels.product(each, weight, 600) for each in given]
    failures = []

    def multiply(each: Tensor, right: Tensor) -> None:
        found = (panels.product(each, weight, 600) for _ in range(200))
        failures.extend(len(each) for product in found if not torch.equal(product, right))

    pairs = zip(given, expected, strict=True)
    callers = [threading.Thread(target=multiply, args=pair) for pair in pairs]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert not failures


def states(
    rows: int, groups: int, heads: int, columns: int, width: int, span: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Queries, keys, values as they lie in a cache, and the mask of rows that end apart."""
    torch.manual_seed(columns)
    query = torch.randn(rows, columns, groups * heads, width).transpose(1, 2)
    key, value = (torch.randn(rows, heads, span + 64, width)[:, :, :span] for _ in range(2))
    mask = torch.zeros(rows, 1, columns, span)
    for row in range(rows):
        for column in range(columns):
            mask[row, 0, column, span - 45 - 9 * row + column :] = -torch.inf
    return query, key, value, mask


SHAPES = [
    (1, 1, 6, 1, 48, 128),
    (3, 2, 3, 5, 64, 320),
    (2, 1, 2, 9, 128, 64),
    (2, 4, 1, 70, 16, 192),
]


@pytest.mark.parametrize("shape", SHAPES)
def test_attention_is_right(shape: tuple[int, int, int, int, int, int]) -> None:
    """Against float64, also where the mask has come repeated for each query group."""
    groups = shape[1]
    query, key, value, mask = states(*shape)
    wide = [each.double().repeat_interleave(groups, 1) for each in (key, value)]
    exact = scaled_dot_product_attention(query.double(), *wide, attn_mask=mask.double(), scale=0.2)
    exact = exact.transpose(1, 2).flatten(2)
    for given in (mask, torch.cat([mask] * groups, 2)):
        assert host_attention.fits(query, Span(key, value), given)
        found = host_attention.attention(query, Span(key, value), given, 0.2)
        torch.testing.assert_close(found.double(), exact, rtol=0, atol=2e-6)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("shape", SHAPES)
def test_attention_of_a_column_is_its_own(shape: tuple[int, int, int, int, int, int]) -> None:
    """To the bit: beside other rows and columns or not, however far the span reaches, ragged."""
    rows, _, heads, columns, width, _ = shape
    query, key, value, mask = states(*shape)
    whole = host_attention.attention(query, Span(key, value), mask, 0.2)
    for row in range(rows):
        for column in range(columns):
            alone = host_attention.attention(
                query[row : row + 1, :, column : column + 1],
                Span(key[row : row + 1], value[row : row + 1]),
                mask[row : row + 1, :, column : column + 1],
                0.2,
            )
            assert torch.equal(alone[0, 0], whole[row, column])
    longer = [torch.cat([each, torch.randn(rows, heads, 64, width)], 2) for each in (key, value)]
    unseen = torch.full((rows, 1, columns, 64), -torch.inf)
    further = host_attention.attention(query, Span(*longer), torch.cat([mask, unseen], 3), 0.2)
    assert torch.equal(further, whole)
    lengths = [1 + (3 * row) % columns for row in range(rows)]
    ragged = Ragged.of(lengths, columns, columns, torch.device("cpu"))
    found = host_attention.attention(query, Span(key, value), mask, 0.2, ragged)
    expected = [whole[row, :length] for row, length in enumerate(lengths)]
    assert torch.equal(found[0], torch.cat(expected))


@pytest.mark.usefixtures("threads")
def test_rows_read_the_slots_that_they_are_given() -> None:
    """To the bit what keys and values put together for them give, ragged or not."""
    query, key, value, mask = states(3, 2, 3, 5, 64, 320)
    span = Span(*(torch.cat([each, each.neg()]) for each in (key, value)), torch.tensor([4, 0, 5]))
    ragged = Ragged.of([2, 5, 1], 5, 5, torch.device("cpu"))
    for rows in (None, ragged):
        assert host_attention.fits(query, span, mask)
        found = host_attention.attention(query, span, mask, 0.2, rows)
        expected = host_attention.attention(query, Span(*span.gathered()), mask, 0.2, rows)
        assert torch.equal(found, expected)
    assert not host_attention.fits(query[:2], span, mask[:2])


def test_attention_to_what_is_not_finite_is_told() -> None:
    """NaN in a key that is seen, or in its value; not what a mask hides from the scores."""
    query, key, value, mask = states(1, 1, 2, 3, 16, 64)
    expected = host_attention.attention(query, Span(key, value), mask, 1.0)
    key[0, 0, -1] = torch.nan
    assert torch.equal(host_attention.attention(query, Span(key, value), mask, 1.0), expected)
    key[0, 0, 2] = torch.nan
    found = host_attention.attention(query, Span(key, value), mask, 1.0)
    assert found[..., :16].isnan().all()
    assert torch.equal(found[..., 16:], expected[..., 16:])
    value[0, 1, 3, 4] = torch.nan
    assert host_attention.attention(query, Span(key, value), mask, 1.0)[..., 20].isnan().all()


def test_scores_far_apart_leave_the_highest() -> None:
    query, key, value, mask = states(1, 1, 1, 1, 16, 64)
    key[0, 0, 7] = 50 * query[0, 0, 0]
    found = host_attention.attention(query, Span(key, value), mask, 10.0)
    torch.testing.assert_close(found[0, 0], value[0, 0, 7])


@pytest.mark.parametrize("span", [1, 63, 65, 100])
def test_any_span_is_attended_to_and_one_mask_serves_all_rows(span: int) -> None:
    query, key, value, _ = states(3, 2, 2, 4, 16, span)
    mask = torch.zeros(1, 1, 4, span)
    mask[0, 0, 0, 1 + span // 2 :] = -torch.inf
    wide = [each.double().repeat_interleave(2, 1) for each in (key, value)]
    exact = scaled_dot_product_attention(query.double(), *wide, attn_mask=mask.double(), scale=0.2)
    for given in (mask, mask.expand(3, -1, -1, -1)):
        assert host_attention.fits(query, Span(key, value), given)
        found = host_attention.attention(query, Span(key, value), given, 0.2)
        torch.testing.assert_close(
            found.double(), exact.transpose(1, 2).flatten(2), rtol=0, atol=2e-6
        )


def test_a_column_that_sees_nothing_is_nan_and_the_others_are_not() -> None:
    """As by a window that hides all: nothing is raised half-way."""
    query, key, value, mask = states(2, 1, 2, 3, 16, 64)
    expected = host_attention.attention(query, Span(key, value), mask, 1.0)
    mask[0, :, 1] = -torch.inf
    found = host_attention.attention(query, Span(key, value), mask, 1.0)
    assert found[0, 1].isnan().all()
    found[0, 1] = expected[0, 1]
    assert torch.equal(found, expected)


@pytest.mark.parametrize("change", ["dtype", "width", "values", "strided", "mask", "heads"])
def test_other_states_do_not_fit(change: str) -> None:
    query, key, value, mask = states(1, 1, 2, 3, 16, 64)
    match change:
        case "dtype":
            query = query.double()
        case "width":
            query, key, value = (each[..., :15] for each in (query, key, value))
        case "values":
            value = value[..., :8]
        case "strided":
            key = key.transpose(2, 3).contiguous().transpose(2, 3)
        case "mask":
            mask = mask[:, :, :1]
        case "heads":
            query = query.repeat(1, 2, 1, 1)[:, :3]
    assert not host_attention.fits(query, Span(key, value), mask)


def model(biased: bool) -> TransformersModel:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=96,
        hidden_size=64,
        intermediate_size=80,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        initializer_range=0.3,
        mlp_bias=biased,
    )
    return TransformersModel(LlamaForCausalLM(config).eval(), max_sequences=8)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("biased", [False, True])
def test_a_models_logits_are_a_rows_own_to_the_bit(
    biased: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In batches, ragged ones too, with drafts, in a tree: what plain decoding by itself computes.

    So that a seed gives one text whatever its batch mates, and drafts change no near-tie. With
    biases gates lie without gaps, where torch's own SiLU would round by their number.
    """
    monkeypatch.setattr(products, "faster", lambda weights, packs: PACKED)
    rng = np.random.default_rng(0)
    texts = [rng.integers(0, 96, 20 + 30 * row) for row in range(4)]
    drafts = torch.from_numpy(rng.integers(0, 96, (4, 5)))
    asked: list[int] = []
    attention = host_attention.attention
    monkeypatch.setattr(
        host_attention, "attention", lambda *given: asked.append(1) or attention(*given)
    )

    def logits(rows: list[int], lengths: list[int], parents: object = None) -> Tensor:
        target = model(biased)
        width = max(lengths)
        prefixes = [Prefix(row, texts[row]) for row in rows]
        tokens = drafts[rows, :width]
        distribution = Distributions(point_masses=tokens)
        given = np.array(lengths)
        nothing = DraftProposal(tokens[:, :0], 0 * given, Distributions(point_masses=tokens[:, :0]))
        # Prompts are read in forwards of their own, and the next one is a round's.
        target.verify([Prefix(row, texts[row][:-1]) for row in rows], nothing)
        return target.verify(prefixes, DraftProposal(tokens, given, distribution, parents)).logits

    together = logits([0, 1, 2, 3], [5, 0, 2, 5])
    assert asked, "attention goes by the loops"
    for row, length in enumerate([5, 0, 2, 5]):
        alone = logits([row], [length])
        assert torch.equal(alone[0, : length + 1], together[row, : length + 1])
    step = texts[3]
    for place in range(4):
        target = model(biased)
        known = np.concatenate([step, drafts[3, :place].numpy()])
        nothing = DraftProposal(
            drafts[:1, :0], np.zeros(1, dtype=np.int64), Distributions(point_masses=drafts[:1, :0])
        )
        target.verify([Prefix(3, step[:-1])], nothing)
        for end in range(len(step), len(known) + 1):
            plain = target.verify([Prefix(3, known[:end])], nothing).logits
        assert torch.equal(plain[0, 0], together[3, place])
    chain = np.array([[0, 1, 2, 3, 4]])
    assert torch.equal(logits([3], [5], chain)[0], together[3])


@pytest.mark.parametrize("most", [rotary._MOST, 0], ids=["by loops", "by tensor operations"])
def test_slots_are_read_where_they_lie(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows between which others have ended are neither moved nor copied, and compute the same.

    Whichever way their queries and keys are turned.
    """
    monkeypatch.setattr(rotary, "_MOST", most)
    monkeypatch.setattr(products, "faster", lambda weights, packs: PACKED)
    rng = np.random.default_rng(0)
    texts = [rng.integers(0, 96, 20 + 30 * row) for row in range(4)]
    drafts = torch.from_numpy(rng.integers(0, 96, (4, 2)))

    def moved(*given: object) -> None:
        pytest.fail("nothing is to be moved or copied")

    def logits(rows: list[int]) -> Tensor:
        target = model(biased=False)
        nothing = DraftProposal(
            drafts[:, :0], np.zeros(4, dtype=np.int64), Distributions(point_masses=drafts[:, :0])
        )
        target.verify([Prefix(row, texts[row][:-1]) for row in range(4)], nothing)
        target.release([row for row in range(4) if row not in rows])
        proposal = DraftProposal(
            drafts[rows], np.array([2] * len(rows)), Distributions(point_masses=drafts[rows])
        )
        with monkeypatch.context() as patched:
            patched.setattr(SlotCache, "swap", moved)
            patched.setattr(Span, "gathered", moved)
            return target.verify([Prefix(row, texts[row]) for row in rows], proposal).logits

    whole = logits([0, 1, 2, 3])
    for rows in ([0, 2, 3], [1, 3]):
        assert torch.equal(logits(rows), whole[rows])


class Passing(torch.nn.Module):
    """A layer in the place of another, which it calls."""

    def __init__(self, layer: torch.nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, *given: Any, **named: Any) -> Any:
        return self.layer(*given, **named)


def test_a_layer_that_is_exchanged_later_is_left_to_the_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first one, too, of rows that lie apart."""
    monkeypatch.setattr(products, "faster", lambda weights, packs: PACKED)
    target, rng = model(biased=False), np.random.default_rng(0)
    prefixes = [Prefix(row, rng.integers(0, 96, 9)) for row in range(3)]
    none = torch.zeros(3, 0, dtype=torch.int64)
    nothing = DraftProposal(none, np.zeros(3, dtype=np.int64), Distributions(point_masses=none))
    expected = target.verify(prefixes, nothing).logits
    target.release([1])
    layers = target.hf_model.model.layers
    layers[0] = Passing(layers[0])
    apart = DraftProposal(
        none[:2], np.zeros(2, dtype=np.int64), Distributions(point_masses=none[:2])
    )
    found = target.verify([prefixes[0], prefixes[2]], apart).logits
    torch.testing.assert_close(found, expected[[0, 2]])


def test_processors_with_narrower_vectors_compute_the_same(tmp_path: Path) -> None:
    """As one without AVX-512 is thought to have: eight numbers to a vector."""
    program = """
import llvmlite.binding
features = llvmlite.binding.get_host_cpu_features()
features.update((name, False) for name in features if name.startswith("avx512"))
llvmlite.binding.get_host_cpu_features = lambda: features
import torch
from outrider.models import host_attention, panels, simd
from outrider.models.slot_cache import Span
assert simd.LANES == 8
torch.manual_seed(0)
weight, given = torch.randn(50, 33), torch.randn(9, 33)
found = panels.product(given, panels.laid_out(weight), 50)
torch.testing.assert_close(found, given @ weight.T)
query, key, value = torch.randn(2, 4, 5, 40), torch.randn(2, 2, 64, 40), torch.randn(2, 2, 64, 40)
mask = torch.zeros(2, 1, 5, 64)
expected = torch.nn.functional.scaled_dot_product_attention(
    query, key.repeat_interleave(2, 1), value.repeat_interleave(2, 1), scale=0.2
)
assert host_attention.fits(query, Span(key, value), mask)
found = host_attention.attention(query, Span(key, value), mask, 0.2)
torch.testing.assert_close(found, expected.transpose(1, 2).flatten(2))
"""
    ran = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("width", [1, 15, 64, 100])
def test_norms_are_right_and_a_rows_own(width: int, rows: int) -> None:
    torch.manual_seed(width)
    given, weight = torch.randn(2, rows, width), torch.randn(width)
    assert host_rows.norm_fits(given, weight)
    found = host_rows.norm(given, weight, 1e-5)
    exact = rms_norm(given.double(), (width,), weight.double(), 1e-5)
    torch.testing.assert_close(found.double(), exact, rtol=1e-6, atol=1e-6)
    alone = [host_rows.norm(row[None], weight, 1e-5)[0] for row in given.view(-1, width)]
    assert torch.equal(found.view(-1, width), torch.stack(alone))
    given[0, 0, 0] = torch.nan
    assert host_rows.norm(given, weight, 1e-5)[0, 0].isnan().all()
    assert not host_rows.norm_fits(given.double(), weight)
    assert not host_rows.norm_fits(given, weight[:1].expand(width + 1))
    assert not host_rows.norm_fits(torch.randn(2, 2, 2, width)[:, 0], weight)


def test_a_row_of_zeros_without_epsilon_is_nan_as_elsewhere() -> None:
    """And the rows after it are not: nothing is raised half-way."""
    given, weight = torch.randn(3, 16), torch.randn(16)
    given[0] = 0
    found = host_rows.norm(given, weight, 0.0)
    assert found[0].isnan().all()
    torch.testing.assert_close(found[1:], rms_norm(given[1:], (16,), weight, 0.0))


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("width", [1, 15, 64, 100])
def test_gates_are_right_and_a_rows_own(width: int) -> None:
    """Of states that lie beside each other in a joined product, as well."""
    torch.manual_seed(width)
    joined = 5 * torch.randn(2, 20, 2 * width)
    gate, up = joined.split(width, -1)
    exact = silu(gate.double()) * up.double()
    for pair in ((gate, up), (gate.contiguous(), up.contiguous())):
        assert host_rows.gate_fits(*pair)
        found = host_rows.gated(*pair)
        torch.testing.assert_close(found.double(), exact, rtol=3e-6, atol=1e-6)
        alone = host_rows.gated(*(each[1:, 7:8] for each in pair))
        assert torch.equal(alone[0, 0], found[1, 7])
    extremes = torch.tensor([[[-1e4, -90.0, 90.0, 1e4, torch.nan]]])
    found = host_rows.gated(extremes, torch.ones_like(extremes))
    torch.testing.assert_close(found, silu(extremes), equal_nan=True)
    assert not host_rows.gate_fits(gate.double(), up.double())
    assert not host_rows.gate_fits(gate.transpose(1, 2), up.transpose(1, 2))


def test_products_of_many_numbers_are_summed_up_in_parts() -> None:
    """So that rounding does not grow with their number as in one long sum."""
    torch.manual_seed(0)
    weight, given = torch.randn(64, 20_000), torch.randn(9, 20_000)
    exact = given.double() @ weight.double().T
    off = (product(given, weight) - exact).square().mean().sqrt()
    one_sum = torch.zeros(9, 64)
    for k in range(20_000):
        one_sum += given[:, k : k + 1] * weight[:, k]
    assert off < 0.5 * (one_sum - exact).square().mean().sqrt()
