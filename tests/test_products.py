"""Products of a few rows: the same as a linear layer's, in layers that are given back."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.nn.functional import linear
from transformers import LlamaConfig, LlamaForCausalLM

from outrider import TransformersModel, generate_with
from outrider.bench.peers import twin
from outrider.errors import InvalidConfigError
from outrider.models import products
from outrider.models.products import MOST, FewRows


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rows", [1, 2, 5, MOST, MOST + 1])
@pytest.mark.parametrize("outputs", [48, 50, 51, 1])
def test_products_are_those_of_a_linear_layer(outputs: int, rows: int, bias: bool) -> None:
    """Of matrices that can be cut into slices, and those that cannot."""
    torch.manual_seed(rows)
    layer = nn.Linear(64, outputs, bias=bias)
    given = torch.randn(1, rows, 128)[..., ::2]
    expected = linear(given, layer.weight, layer.bias)
    products.install(layer)
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
    products.install(layer)
    torch.testing.assert_close(layer(given), expected)


class Own(nn.Linear):
    """A layer of somebody's own."""


def test_only_plain_layers_in_float32_are_changed() -> None:
    model = nn.Sequential(nn.Linear(4, 4), Own(4, 4), nn.Linear(4, 4, dtype=torch.float64))
    products.install(model)
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
        products.install(layer)
        found = layer(given)
    assert found.dtype == expected.dtype == torch.bfloat16
    assert torch.equal(found, expected)


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
def test_no_features_leave_the_bias() -> None:
    layer = nn.Linear(0, 5)
    products.install(layer)
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
    products.install(model)
    assert not products.installed(model)


def test_layers_that_were_there_before_stay() -> None:
    shared = nn.Linear(4, 4)
    products.install(shared)
    model = nn.Sequential(nn.Linear(4, 4), shared)
    before = products.installed(model)
    products.install(model)
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
    products.install(layer)
    layer.double()
    given = torch.randn(4, 8, dtype=torch.float64)
    assert torch.equal(layer(given), linear(given, layer.weight, layer.bias))


def test_changed_layers_can_be_copied_and_saved() -> None:
    layer = nn.Linear(8, 8)
    products.install(layer)
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


def test_models_get_them_and_are_given_back_without_them() -> None:
    """Those that are lent to `generate` and peers of a benchmark, but not an adapter's own."""
    model, draft = small(), small()
    prompt = torch.tensor([[1, 2, 3]])
    speculate = generate_with(draft)
    asked = {"max_new_tokens": 4, "do_sample": False, "custom_generate": speculate}
    model.generate(prompt, **asked)
    assert not products.installed(model)
    TransformersModel(model)
    assert products.installed(model)
    model.generate(prompt, **asked)
    assert products.installed(model)
    assert not products.installed(twin(model))
