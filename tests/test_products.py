"""Products of a few rows: the same as a linear layer's, in layers that are given back."""

from __future__ import annotations

import copy
import pickle
import threading
from dataclasses import replace
from unittest.mock import Mock

import pytest
import torch
from torch import nn
from torch.nn.functional import linear
from torch.nn.utils import prune
from transformers import LlamaConfig, LlamaForCausalLM

from outrider import (
    SamplingParams,
    SpeculativeConfig,
    SpeculativeDecoder,
    TransformersModel,
    generate_with,
)
from outrider.bench.peers import twin
from outrider.errors import InvalidConfigError
from outrider.runtimes.transformers import products, team
from outrider.runtimes.transformers.products import MOST, OTHERWISE, USUAL, FewRows, Packed, Ways

PACKED = Ways(single=True, few=4, packed=3)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rows", [1, 2, 5, MOST, MOST + 1])
@pytest.mark.parametrize("outputs", [48, 50, 51, 1])
def test_products_are_those_of_a_linear_layer(outputs: int, rows: int, bias: bool) -> None:
    """Of matrices that can be cut into slices, and those that cannot."""
    torch.manual_seed(rows)
    layer = nn.Linear(64, outputs, bias=bias)
    given = torch.randn(1, rows, 128)[..., ::2]
    expected = linear(given, layer.weight, layer.bias)
    products.install(layer, OTHERWISE)
    assert type(layer) is FewRows
    found = layer(given)
    assert found.shape == expected.shape
    assert found.is_contiguous()
    if rows <= MOST:
        torch.testing.assert_close(found, expected)
    else:
        assert torch.equal(found, expected)


def test_a_few_rows_in_several_sequences() -> None:
    """Rows are counted over the batch."""
    layer = nn.Linear(16, 8)
    given = torch.randn(3, 2, 16)
    expected = layer(given)
    products.install(layer, OTHERWISE)
    torch.testing.assert_close(layer(given), expected)


class Own(nn.Linear):
    """A layer of somebody's own."""


def test_only_plain_layers_in_float32_are_changed() -> None:
    model = nn.Sequential(nn.Linear(4, 4), Own(4, 4), nn.Linear(4, 4, dtype=torch.float64))
    products.install(model, OTHERWISE)
    assert [type(module) for module in model] == [FewRows, Own, nn.Linear]
    products.remove(model)
    assert [type(module) for module in model] == [nn.Linear, Own, nn.Linear]
    assert not products.installed(model)


@pytest.mark.parametrize("rows", [1, 3])
def test_autocast_decides_the_dtype(rows: int) -> None:
    layer = nn.Linear(64, 48)
    given = torch.randn(rows, 64)
    with torch.autocast("cpu", torch.bfloat16):
        expected = layer(given)
        products.install(layer, OTHERWISE)
        found = layer(given)
    assert found.dtype == expected.dtype == torch.bfloat16
    assert torch.equal(found, expected)


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
def test_no_features_leave_the_bias() -> None:
    layer = nn.Linear(0, 5)
    products.install(layer, OTHERWISE)
    assert torch.equal(layer(torch.zeros(2, 0)), layer.bias.expand(2, 5))


class Wrapped(torch.Tensor):
    """Weights of somebody's own."""


def test_weights_of_another_kind_are_left_alone() -> None:
    layer = nn.Linear(4, 4)
    layer.weight = nn.Parameter(torch.randn(4, 4).as_subclass(Wrapped))
    assert type(layer.weight) is not nn.Parameter
    turned = nn.Linear(4, 4)
    turned.weight = nn.Parameter(torch.randn(4, 4).T)
    model = nn.Sequential(layer, turned)
    products.install(model, OTHERWISE)
    assert not products.installed(model)


def test_layers_that_were_there_before_stay() -> None:
    shared = nn.Linear(4, 4)
    products.install(shared, OTHERWISE)
    model = nn.Sequential(nn.Linear(4, 4), shared)
    before = products.installed(model)
    products.install(model, OTHERWISE)
    assert len(products.installed(model)) == 2
    products.remove(model, but=before)
    assert products.installed(model) == [shared]


@pytest.mark.parametrize("length", [1, 65, 10**6])
def test_a_model_that_is_refused_is_left_as_it_was(length: int) -> None:
    model = small().train()
    model.lm_head.eval()
    model.set_attn_implementation("sdpa")
    with pytest.raises(InvalidConfigError):
        TransformersModel(model, max_length=length)
    assert not products.installed(model)
    assert model.config._attn_implementation == "sdpa"
    assert model.training
    assert not model.lm_head.training


def test_another_dtype_later_takes_the_usual_way() -> None:
    layer = nn.Linear(8, 8)
    products.install(layer, OTHERWISE)
    layer.double()
    given = torch.randn(4, 8, dtype=torch.float64)
    assert torch.equal(layer(given), linear(given, layer.weight, layer.bias))


def test_changed_layers_can_be_copied_and_saved() -> None:
    layer = nn.Linear(8, 8)
    products.install(layer, OTHERWISE)
    given = torch.randn(3, 8)
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert torch.equal(other(given), layer(given))
    assert list(layer.state_dict()) == ["weight", "bias"]


def small() -> LlamaForCausalLM:
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=64,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            max_position_embeddings=64,
        )
    ).eval()


def test_models_get_them_and_are_given_back_without_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that are lent to `generate` and peers of a benchmark, but not an adapter's own."""
    monkeypatch.setattr(products, "faster", lambda weights, packs: PACKED)
    model, draft = small(), small()
    prompt = torch.tensor([[1, 2, 3]])
    speculate = generate_with(draft)
    asked = {"max_new_tokens": 4, "do_sample": False, "custom_generate": speculate}
    for _ in range(2):
        model.generate(prompt, **asked)
        assert not products.installed(model)
    TransformersModel(model)
    assert products.installed(model)
    model.generate(prompt, **asked)
    assert products.installed(model)
    assert not products.installed(twin(model))


def test_a_model_that_is_lent_again_is_not_timed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    timed = []
    monkeypatch.setattr(products, "faster", lambda weights, packs: timed.append(1) or OTHERWISE)
    model, speculate = small(), generate_with(small())
    for _ in range(3):
        model.generate(torch.tensor([[1, 2]]), max_new_tokens=2, custom_generate=speculate)
    assert len(timed) == 2  # the target and the draft


@pytest.mark.parametrize("otherwise", [USUAL, replace(PACKED, packed=0)])
def test_a_model_that_is_lent_is_not_packed(
    otherwise: Ways, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would take longer than a call gains. One that is wrapped, too, is packed anew."""
    monkeypatch.setattr(products, "faster", lambda weights, packs: PACKED if packs else otherwise)
    model, speculate, seen = small(), generate_with(small()), []
    model.lm_head.register_forward_pre_hook(lambda layer, _: seen.append(vars(layer).get("packed")))
    for _ in range(2):
        seen.clear()
        model.generate(torch.tensor([[1, 2]]), max_new_tokens=2, custom_generate=speculate)
        # At first its adapter is made.
        assert seen[-1] is None
    assert not any(seen)
    TransformersModel(model)
    layers = products.installed(model)
    for _ in range(2):
        before = [(layer.packed, layer.joined) for layer in layers]
        model.generate(torch.tensor([[1, 2]]), max_new_tokens=2, custom_generate=speculate)
        assert before[-1][0]
        for layer, (old, joined) in zip(layers, before, strict=True):
            assert bool(layer.packed) == bool(old)
            assert layer.packed is not old or not old
            assert bool(layer.joined) == bool(joined)
            assert layer.joined is not joined or not joined


@pytest.mark.parametrize("ways", [Ways(True, 0), Ways(False, MOST), Ways(False, 4), USUAL])
@pytest.mark.parametrize("rows", [1, 2, 4, 5, MOST, MOST + 1])
def test_what_is_not_faster_is_left_alone(
    ways: Ways, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The usual way is taken to the last bit, and the other one where it was found faster."""
    asked = []
    other_way = products.other_way
    monkeypatch.setattr(
        products, "other_way", lambda given, weight: asked.append(1) or other_way(given, weight)
    )
    layer = nn.Linear(64, 48)
    given = torch.randn(rows, 64)
    expected = layer(given)
    assert products.install(layer, ways) == ways
    assert products.ways_of(layer) == ways
    found = layer(given)
    assert bool(asked) == ways.covers(rows)
    torch.testing.assert_close(found, expected)
    assert asked or torch.equal(found, expected)


@pytest.mark.parametrize("single", [False, True])
@pytest.mark.parametrize("few", [False, True])
def test_ways_are_those_that_a_clock_finds_faster(
    single: bool, few: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a clock that is wound by hand: 10 ticks the usual way, 6 or 9 the other."""
    wind(monkeypatch, {1: 6 if single else 9} | dict.fromkeys(products._FEW, 6 if few else 9))
    layers = nn.Sequential(*(nn.Linear(512, 512) for _ in range(2)))
    assert products.install(layers) == Ways(single, MOST if few else 0)
    assert bool(products.installed(layers)) == (single or few)


@pytest.mark.parametrize(
    ("slower", "few"), [((2,), 0), ((4,), 2), ((6,), 4), ((MOST,), 6), ((4, MOST), 2)]
)
def test_the_other_way_is_taken_for_as_many_rows_as_it_is_not_slower_for(
    slower: tuple[int, ...], few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of them in which the machine was slow costs those below it nothing."""
    wind(monkeypatch, {1: 5} | {rows: 11 if rows in slower else 5 for rows in products._FEW})
    assert products.install(nn.Linear(1024, 512)) == Ways(True, few)


@pytest.mark.parametrize("others", [100, 103])
@pytest.mark.parametrize("faster", products._FEW)
def test_some_number_of_rows_has_to_gain_by_the_other_way(
    faster: int, others: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others do not if one of them does, and a clock's whims do not count."""
    ticks = {1: 50} | {rows: 50 if rows == faster else others for rows in products._FEW}
    wind(monkeypatch, ticks, usual=100)
    assert products.install(nn.Linear(1024, 512)) == Ways(True, MOST)


def test_both_ways_meet_a_slow_stretch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which ends while the first number of rows is timed: the least times of both are after it."""
    clock, calls = Clock(), []

    def wind(ticks: int) -> None:
        calls.append(1)
        clock.wind(ticks * (10 if len(calls) <= 2 * products._REPEATS - 2 else 1))

    monkeypatch.setattr(products, "perf_counter", clock)
    monkeypatch.setattr(products, "_usual_way", lambda given, weight: wind(10))
    monkeypatch.setattr(products, "other_way", lambda given, weight: wind(9))
    monkeypatch.setattr(products, "packable", lambda weight: False)
    assert products.install(nn.Linear(1024, 512)) == USUAL


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
def test_models_of_any_shape_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Empty layers, another default dtype, a clock that stands still, or goes only forwards."""
    model = nn.Sequential(nn.Linear(1024, 512), nn.Linear(512, 0), nn.Linear(0, 16))
    torch.set_default_dtype(torch.float64)
    try:
        products.remove(model)
        products.install(model, PACKED)
        products.remove(model)
        products.install(model)
        products.remove(model)
        monkeypatch.setattr(products, "perf_counter", lambda: 1.0)
        assert products.install(model) == USUAL
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("ways", [OTHERWISE, PACKED])
@pytest.mark.parametrize("joined", [False, True])
def test_a_forward_in_another_thread_finds_its_ways(ways: Ways, joined: bool) -> None:
    """While layers are lent and given back."""
    layer = nn.Linear(64, 48, bias=False)
    groups = [[layer]] if joined else []
    given, failures, over = torch.randn(3, 64), [], threading.Event()

    def decode() -> None:
        while not over.is_set():
            try:
                with torch.inference_mode():
                    products.together(given, layer)
            except Exception as error:
                failures.append(error)

    thread = threading.Thread(target=decode)
    thread.start()
    for _ in range(2000):
        products.install(layer, ways, groups=groups)
        products.remove(layer)
    over.set()
    thread.join()
    assert not failures


def test_texts_are_the_same_whichever_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of transformers' own `generate`, and of a batch with drafts through changed layers."""
    monkeypatch.setattr(products, "faster", lambda weights, packs: OTHERWISE)
    model, draft = small(), small()
    prompts = [[1, 2, 3], [9, 8]]
    expected = [
        model.generate(torch.tensor([prompt]), max_new_tokens=12, do_sample=False, pad_token_id=0)[
            0, len(prompt) :
        ].tolist()
        for prompt in prompts
    ]
    target, drafter = TransformersModel(model), TransformersModel(draft)
    assert products.installed(model)
    decoder = SpeculativeDecoder(target, drafter, config=SpeculativeConfig(depth="fixed"))
    params = SamplingParams(max_tokens=12, temperature=0, ignore_eos=True)
    found = decoder.generate(prompts, params)
    assert [list(output.token_ids) for output in found] == expected


def test_small_models_take_the_usual_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a clock says: it is not asked."""
    monkeypatch.setattr(products, "perf_counter", None)
    layer = nn.Linear(64, 64)
    assert products.install(layer) == USUAL
    assert type(layer) is nn.Linear


def test_layers_of_one_model_take_the_same_ways() -> None:
    """Another adapter over a model does not time it again."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    products.install(model[0], Ways(False, MOST))
    assert products.install(model) == Ways(False, MOST)
    assert len(products.installed(model)) == 2


@pytest.mark.parametrize(
    ("faster", "way"),
    [
        ((), Ways(True, MOST)),
        ((16,), Ways(True, MOST, 16, 16)),
        ((64,), Ways(True, MOST, 64, 64)),
        ((64, 256), Ways(True, MOST, 64)),
        ((9, 16), Ways(True, MOST, 9, 16)),
        ((6, 9, 16, 64, 256), Ways(True, MOST, 6)),
        ((2, 4, 6, 9, 16, 64, 256), Ways(True, MOST, 2)),
        (products._PACKED, Ways(True, MOST, 1)),
        ((2, 9, 16), Ways(True, MOST, 9, 16)),
    ],
)
def test_packed_weights_are_used_around_where_they_gain_most(
    faster: tuple[int, ...], way: Ways, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are compared with the way that is taken otherwise, which for a few is not the usual."""
    ticks = dict.fromkeys((1, *products._FEW), 50)
    packed = {rows: 60 if rows <= MOST else 120 for rows in products._PACKED}
    packed |= {rows: packed[rows] * (0.6 if rows == 16 else 0.7) for rows in faster}
    wind(monkeypatch, ticks, usual=100, packed=packed)
    layer = nn.Linear(1024, 512)
    assert products.install(layer) == way
    assert (layer.packed is not None) == bool(faster)


@pytest.mark.parametrize(
    ("slow", "way"),
    [(6, Ways(True, MOST, 9)), (16, Ways(True, MOST, 64)), (256, Ways(True, MOST, 1, 64))],
)
def test_packed_weights_are_not_used_beyond_where_they_are_slower(
    slow: int, way: Ways, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A number of rows at which they are about as fast is no such place: a clock has whims."""
    ticks = dict.fromkeys((1, *products._FEW), 50)
    packed = {1: 40, 2: 40, 4: 49, 6: 40, 9: 40, 16: 99, 64: 60, 256: 101}
    wind(monkeypatch, ticks, usual=100, packed=packed | {slow: 2 * packed[slow]})
    assert products.install(nn.Linear(1024, 512)) == way


def test_weights_of_which_memory_is_short_are_not_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = dict.fromkeys((1, *products._FEW), 50)
    packed = dict.fromkeys(products._PACKED, 1)
    wind(monkeypatch, ticks, usual=100, packed=packed)
    layers = nn.Sequential(nn.Linear(1024, 512), nn.Linear(1024, 512))
    monkeypatch.setattr(products, "_MOST_BYTES", 2 * layers[0].weight.nbytes - 1)
    assert products.install(layers) == Ways(True, MOST)
    for ways in (PACKED, None):
        # As told, or as for the layers that there were.
        products.remove(layers[1])
        layers[0].ways = PACKED
        products.install(layers, ways)
        assert layers[0].packed is None
        assert layers[1].packed is None
    monkeypatch.setattr(products, "_MOST_BYTES", 2 * layers[0].weight.nbytes)
    products.remove(layers)
    assert products.install(layers) == Ways(True, MOST, 1)


def test_weights_are_not_packed_where_loops_are_wrong_or_cannot_be_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    weight = nn.Parameter(torch.randn(64, 48))
    assert products.packable(weight)
    with torch.autocast("cpu"):
        assert products.packable(weight)
    product = Packed.product
    with monkeypatch.context() as patch:
        patch.setattr(Packed, "product", lambda self, given: 1.001 * product(self, given))
        assert not products.packable(weight)
    monkeypatch.setattr(team, "AVAILABLE", False)
    assert not products.packable(weight)
    assert not products.install(nn.Linear(1024, 512)).packed


@torch.inference_mode()
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 16, 70])
def test_products_with_packed_weights_are_those_of_a_linear_layer(rows: int, bias: bool) -> None:
    with torch.inference_mode(False):
        layer = nn.Linear(64, 50, bias=bias)
    given = torch.randn(2, rows, 128)[..., ::2]
    expected = linear(given, layer.weight, layer.bias)
    products.install(layer, PACKED)
    asked = Mock(wraps=layer.packed.product)
    layer.packed.product = asked
    found = layer(given)
    assert asked.called == (2 * rows >= 3)
    assert found.shape == expected.shape
    assert found.is_contiguous()
    torch.testing.assert_close(found, expected)


def test_who_changes_weights_meets_the_weights() -> None:
    """In training, after a change in place or an exchange; and once they are packed again."""
    layer, given = nn.Linear(64, 50), torch.randn(5, 64)
    products.install(layer, PACKED)
    layer(given).sum().backward()
    assert layer.weight.grad is not None

    def changed() -> bool:
        """Whether the layer takes its packed weights; its products are right in any case."""
        packed = layer.packed.stands_for(layer.weight)
        with torch.inference_mode():
            torch.testing.assert_close(layer(given), linear(given, layer.weight, layer.bias))
        return not packed

    assert not changed()
    with torch.no_grad():
        layer.weight.mul_(2)
    assert changed()
    products.install(layer)
    assert not changed()
    layer.weight.data = layer.weight.data + 1
    assert changed()
    products.install(layer)
    square = nn.Linear(64, 64)
    products.install(square, PACKED)
    square.weight.data = square.weight.data.T
    assert not square.packed.stands_for(square.weight)
    layer.load_state_dict(nn.Linear(64, 50).state_dict())
    assert changed()
    products.install(layer)
    layer.weight = nn.Parameter(torch.randn(50, 64))
    assert changed()
    products.install(layer)
    layer.bfloat16().float()
    assert changed()
    products.install(layer)
    with torch.inference_mode():
        # In the same memory.
        layer.weight = nn.Parameter(torch.from_numpy(layer.weight.numpy()))
    assert changed()


def test_nothing_else_is_found_at_the_address_of_a_packed_weight() -> None:
    layer = nn.Linear(64, 50)
    products.install(layer, PACKED)
    address = layer.weight.data_ptr()
    for _ in range(100):
        layer.weight.data = layer.weight.data.bfloat16()
        layer.weight.data = layer.weight.data.float()
        assert layer.weight.data_ptr() != address


def test_any_bias_is_added() -> None:
    layer, given = nn.Linear(64, 50), torch.randn(5, 64)
    for bias in (torch.randn(100)[::2], torch.randn(1).expand(50)):
        layer.bias = nn.Parameter(bias)
        products.install(layer, PACKED)
        with torch.inference_mode():
            torch.testing.assert_close(layer(given), linear(given, layer.weight, layer.bias))
        products.remove(layer)


def test_a_weight_that_is_made_anew_each_time_is_not_packed() -> None:
    """As by pruning: it is no parameter."""
    model = small()
    for layer in (model.model.layers[0].mlp.up_proj, model.lm_head):
        prune.random_unstructured(layer, "weight", 0.5)
    products.install(model, PACKED)
    assert model.lm_head.packed is None
    assert model.model.layers[0].mlp.down_proj.packed
    TransformersModel(model)


def test_weights_whose_changes_cannot_be_told_are_not_packed() -> None:
    weights = [nn.Parameter(torch.randn(1024, 512))]
    with torch.inference_mode():
        weights.append(nn.Parameter(torch.randn(1024, 512)))
        assert not products.faster([weights]).packed
        assert not products.faster([[weight] for weight in weights]).packed
        layer = nn.Linear(64, 50)
        given = torch.randn(5, 64)
        products.install(layer, PACKED)
        assert layer.packed is None
        torch.testing.assert_close(layer(given), linear(given, layer.weight, layer.bias))


@pytest.mark.parametrize("kept", ["packed", "joined"])
def test_packed_weights_are_neither_copied_nor_left_behind(kept: str) -> None:
    layer = nn.Linear(64, 50, bias=False)
    products.install(layer, PACKED, groups=[[layer]] if kept == "joined" else ())
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert other.packed is None
        assert other.joined is None
        assert other.ways == PACKED
    assert list(layer.state_dict()) == ["weight"]
    assert vars(layer)[kept]
    products.remove(layer)
    # A forward may have come as far as to look for it.
    assert vars(layer)[kept] is None


def joined(sizes: tuple[int, ...] = (50, 64, 48), ways: Ways = PACKED) -> list[nn.Linear]:
    """Layers of one input whose weights are packed as one."""
    layers = [nn.Linear(64, size, bias=False) for size in sizes]
    products.install(nn.ModuleList(layers), ways, groups=[layers])
    return layers


@torch.inference_mode()
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 16, 70])
def test_joined_products_are_those_of_each_layer(rows: int) -> None:
    """In one product where weights are packed for so many rows, and layer by layer elsewhere."""
    with torch.inference_mode(False):
        layers = joined()
    assert not any(layer.packed for layer in layers)
    given = torch.randn(2, rows, 128)[..., ::2]
    asked = Mock(wraps=layers[0].joined.product)
    layers[0].joined.product = asked
    found = products.together(given, *layers)
    assert asked.called == (2 * rows >= 3)
    for layer, product in zip(layers, found, strict=True):
        assert product.shape == (2, rows, layer.out_features)
        torch.testing.assert_close(product, linear(given, layer.weight))
        torch.testing.assert_close(layer(given), product)


@pytest.mark.parametrize(
    "change",
    [
        *("weight", "place", "hook", "before", "forward", "exchanged", "order", "fewer", "bias"),
        *("train", "autocast", "dtype", "removed", "parametrized"),
    ],
)
def test_joined_layers_that_are_changed_are_asked_each(change: str) -> None:
    """By who changes a weight, hooks or exchanges one of them, or trains."""
    layers = joined()
    given, enters = torch.randn(5, 64), torch.inference_mode(change != "train")
    asked = Mock(wraps=layers[0].joined.product)
    layers[0].joined.product = asked
    with torch.no_grad():
        match change:
            case "weight":
                layers[1].weight = nn.Parameter(torch.randn(64, 64))
            case "place":
                layers[2].weight.mul_(2)
            case "hook":
                layers[1].register_forward_hook(lambda *call: 2 * call[-1])
            case "before":
                layers[1].register_forward_pre_hook(lambda _, inputs: (2 * inputs[0],))
            case "forward":
                layers[1].forward = lambda given: 3 * linear(given, layers[1].weight)
            case "exchanged":
                layers[0] = nn.Sequential(layers[0], nn.ReLU())
            case "order":
                layers[1], layers[2] = layers[2], layers[1]
            case "fewer":
                layers.pop()
            case "bias":
                layers[1].bias = nn.Parameter(torch.randn(64))
            case "removed":
                products.remove(layers[2])
            case "dtype":
                nn.ModuleList(layers).double()
                given = given.double()
            case "parametrized":
                nn.utils.parametrizations.spectral_norm(layers[2]).eval()
    with enters, torch.autocast("cpu", enabled=change == "autocast"):
        found = products.together(given, *layers)
        expected = [layer(given) for layer in layers]
    assert not asked.called
    for product, each in zip(found, expected, strict=True):
        assert torch.equal(product, each)
    if change == "train":
        sum(each.sum() for each in found).backward()
        assert all(layer.weight.grad is not None for layer in layers)


def test_only_packed_layers_without_more_are_joined() -> None:
    """Not those with a bias, with a weight of their own kind, of a lent model, or never packed."""
    for bias, ways, packs in ((True, PACKED, True), (False, PACKED, False), (False, USUAL, True)):
        layers = [nn.Linear(64, 50, bias=bias), nn.Linear(64, 50, bias=bias)]
        products.install(nn.ModuleList(layers), ways, packs=packs, groups=[layers])
        assert not any(vars(layer).get("joined") for layer in layers)
    layers = [nn.Linear(64, 50, bias=False), nn.Linear(64, 50, bias=False).bfloat16()]
    products.install(nn.ModuleList(layers), PACKED, groups=[layers])
    assert layers[0].packed
    assert layers[0].joined is None


def test_a_layer_that_is_given_back_while_it_is_asked_keeps_what_it_was_found_with(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    layers, bare = joined(), products._bare

    def given_back(asked: list[nn.Module]) -> bool:
        found = bare(asked)
        products.remove(nn.ModuleList(layers))
        return found

    monkeypatch.setattr(products, "_bare", given_back)
    given = torch.randn(5, 64)
    with torch.inference_mode():
        for layer, product in zip(layers, products.together(given, *layers), strict=True):
            torch.testing.assert_close(product, linear(given, layer.weight))


@pytest.mark.parametrize("packs", [False, True])
def test_joined_weights_that_changed_unseen_are_packed_anew(packs: bool) -> None:
    """When the model is lent, or wrapped again; where one has a hook by then, each by itself."""
    layers, given = joined(), torch.randn(5, 64)
    model = nn.ModuleList(layers)

    def right() -> bool:
        with torch.inference_mode():
            found = products.together(given, *layers)
            return all(
                torch.allclose(product, linear(given, layer.weight), atol=1e-5)
                for layer, product in zip(layers, found, strict=True)
            )

    layers[1].weight.data += 1
    assert not right(), "as is said of changes through .data"
    products.install(model, packs=packs, groups=[layers] if packs else ())
    assert right()
    assert layers[0].joined
    if packs:
        hook = layers[1].register_forward_hook(lambda *call: None)
        products.install(model, groups=[layers])
        hook.remove()
        assert layers[0].joined is None
        assert all(layer.packed for layer in layers)
        layers[2].weight.data += 1
        products.install(model, groups=[layers])
        assert right()
        assert layers[0].joined


def test_groups_are_timed_where_their_first_layer_is() -> None:
    """So that what is timed is like the first layers of a model, not like its head."""
    layers = [nn.Linear(8, size, bias=False) for size in (3, 4, 5, 6, 7)]
    groups = [[layers[1], layers[3]], [layers[2], nn.Linear(8, 8)]]
    found = products._grouped(layers, groups)
    assert [[len(weight) for weight in group] for group in found] == [[3], [4, 6], [5], [7]]


def test_joined_layers_are_joined_anew_with_their_model() -> None:
    layers = joined()
    with torch.no_grad():
        layers[1].weight.add_(1)
    before = layers[0].joined
    assert not before.stands_for(*(layer.weight for layer in layers))
    products.install(nn.ModuleList(layers), groups=[layers])
    assert layers[0].joined.stands_for(*(layer.weight for layer in layers))
    assert not any(layer.packed for layer in layers)


def test_layers_that_are_joined_are_timed_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products of two that take as long as one of them are twice as fast."""
    ticks = dict.fromkeys((1, *products._FEW), 100)
    packed = dict.fromkeys(products._PACKED, 150)
    for groups in (True, False):
        with monkeypatch.context() as patch:
            wind(patch, ticks, usual=100, packed=packed)
            layers = nn.ModuleList(nn.Linear(1024, 512, bias=False) for _ in range(2))
            found = products.install(layers, groups=[list(layers)] if groups else ())
            assert found == (Ways(False, 0, 1) if groups else USUAL)
            assert bool(vars(layers[0]).get("joined")) == groups


def test_a_compiled_layer_takes_the_usual_way(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, given = nn.Linear(64, 50), torch.randn(5, 64)
    products.install(layer, PACKED)
    layer.packed.product = Mock()
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    with torch.inference_mode():
        assert torch.equal(layer(given), linear(given, layer.weight, layer.bias))


def wind(
    monkeypatch: pytest.MonkeyPatch,
    ticks: dict[int, int],
    usual: int = 10,
    packed: dict[int, int] | None = None,
) -> None:
    """Let the usual way take some ticks, and the others so many for each number of rows."""
    clock = Clock()
    monkeypatch.setattr(products, "perf_counter", clock)
    monkeypatch.setattr(products, "_usual_way", lambda given, weight: clock.wind(usual))
    monkeypatch.setattr(products, "other_way", lambda given, weight: clock.wind(ticks[len(given)]))
    monkeypatch.setattr(products, "packable", lambda weight: bool(packed))
    if packed:
        monkeypatch.setattr(Packed, "product", lambda self, given: clock.wind(packed[len(given)]))


class Clock:
    """Ticks when it is told to."""

    def __init__(self) -> None:
        self._now = 0.0

    def __call__(self) -> float:
        return self._now

    def wind(self, ticks: float) -> None:
        """Let time pass."""
        self._now += ticks
