"""Forwards of models shaped like Llama, run directly, beside the models' own: the same numbers."""

from __future__ import annotations

import gc
import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import (
    DynamicCache,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
)
from transformers.models.llama.modeling_llama import (
    LlamaDecoderLayer,
    LlamaMLP,
    LlamaModel,
    LlamaRMSNorm,
)

from outrider import TransformersModel
from outrider.runtimes.transformers import attention, direct, products
from outrider.runtimes.transformers.direct import (
    DirectForward,
    ModuleForward,
    forward_of,
    same_inputs,
)
from outrider.runtimes.transformers.early_exit import EarlyExit

SIZES = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
KINDS: dict[str, Any] = {
    "plain": lambda: LlamaForCausalLM(LlamaConfig(**SIZES, num_key_value_heads=4)),
    "grouped": lambda: LlamaForCausalLM(LlamaConfig(**SIZES, num_key_value_heads=2, head_dim=16)),
    "biases": lambda: LlamaForCausalLM(
        LlamaConfig(**SIZES, num_key_value_heads=1, attention_bias=True, mlp_bias=True)
    ),
    "tied": lambda: LlamaForCausalLM(
        LlamaConfig(**SIZES, tie_word_embeddings=True, hidden_act="gelu")
    ),
    "scaled": lambda: LlamaForCausalLM(LlamaConfig(**SIZES, rope_parameters=LLAMA3)),
    "windowed": lambda: MistralForCausalLM(
        MistralConfig(**SIZES, num_key_value_heads=2, sliding_window=4)
    ),
}


def made(kind: str, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    torch.manual_seed(0)
    model = KINDS[kind]()
    for name, parameter in model.named_parameters():
        if "norm" in name or "bias" in name:
            torch.nn.init.normal_(parameter, 1.0, 0.2)
    model = model.to(dtype).eval()
    attention.register()
    model.set_attn_implementation(attention.NAME)
    return model


def asked(batch: int, count: int, past: int = 0, dtype: torch.dtype = torch.float32) -> Any:
    """Inputs of a forward of `count` tokens after `past` ones, with Outrider's kind of mask."""
    seen = torch.ones(count, past + count, dtype=torch.bool).tril(past)
    mask = torch.zeros(1, 1, count, past + count, dtype=dtype).masked_fill(~seen, -torch.inf)
    return {
        "input_ids": torch.arange(batch * count).reshape(batch, count) * 7 % 61,
        "attention_mask": mask,
        "position_ids": torch.arange(past, past + count)[None],
    }


@pytest.mark.parametrize("kind", KINDS)
@torch.inference_mode()
def test_logits_are_those_of_the_model_to_the_bit(kind: str) -> None:
    model = made(kind)
    ours, theirs = forward_of(model), ModuleForward(model)
    assert isinstance(ours, DirectForward)
    for batch in (1, 3):
        caches = DynamicCache(), DynamicCache()
        past = 0
        for count, keep in ((9, 1), (1, 1), (4, 4), (5, 2)):
            inputs = asked(batch, count, past)
            found, expected = (
                forward(past_key_values=cache, logits_to_keep=keep, **inputs)
                for forward, cache in zip((ours, theirs), caches, strict=True)
            )
            assert found.shape == (batch, keep, 61)
            assert torch.equal(found, expected)
            past += count
        for mine, other in zip(caches[0].layers, caches[1].layers, strict=True):
            assert torch.equal(mine.keys, other.keys)
            assert torch.equal(mine.values, other.values)


@pytest.mark.parametrize("kind", KINDS)
@torch.inference_mode()
def test_a_long_text_is_read_without_what_nobody_asks_for(kind: str) -> None:
    """The last layer's queries, attention and products of columns without logits; in float64."""
    model = made(kind, torch.float64)
    ours, theirs = forward_of(model), ModuleForward(model)
    assert isinstance(ours, DirectForward)
    widths: list[int] = []
    last = model.model.layers[-1]
    last.self_attn.o_proj.register_forward_hook(
        lambda _m, given, _out: widths.append(given[0].shape[1])
    )
    for batch in (1, 3):
        caches = DynamicCache(), DynamicCache()
        past = 0
        for count, keep in ((40, 1), (24, 3), (18, 3)):
            inputs = asked(batch, count, past, torch.float64)
            found, expected = (
                forward(past_key_values=cache, logits_to_keep=keep, **inputs)
                for forward, cache in zip((ours, theirs), caches, strict=True)
            )
            assert widths[-2:] == [keep if count >= keep + 16 else count, count]
            assert found.shape == (batch, keep, 61)
            assert torch.allclose(found, expected, rtol=1e-12, atol=1e-13)
            past += count
        for mine, other in zip(caches[0].layers, caches[1].layers, strict=True):
            assert torch.allclose(mine.keys, other.keys, rtol=1e-12, atol=1e-13)
            assert torch.allclose(mine.values, other.values, rtol=1e-12, atol=1e-13)


@torch.inference_mode()
def test_narrower_dtypes_are_rounded_as_the_model_does() -> None:
    model = made("grouped", torch.bfloat16)
    ours, theirs = forward_of(model), ModuleForward(model)
    assert isinstance(ours, DirectForward)
    inputs = asked(2, 6, dtype=torch.bfloat16)
    found, expected = (
        forward(past_key_values=DynamicCache(), logits_to_keep=6, **inputs)
        for forward in (ours, theirs)
    )
    assert torch.equal(found, expected)


class _Counted(TorchDispatchMode):
    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # as torch calls it
        self.count += 1
        return func(*args, **(kwargs or {}))


@torch.inference_mode()
def test_it_takes_fewer_operations() -> None:
    model, counts = made("plain"), []
    for forward in (forward_of(model), ModuleForward(model)):
        with _Counted() as counted:
            forward(past_key_values=DynamicCache(), logits_to_keep=1, **asked(1, 1))
        counts.append(counted.count)
    assert counts[0] < 0.85 * counts[1]


@torch.inference_mode()
def test_what_it_passes_over_is_left_to_the_model() -> None:
    model = made("plain")
    forward, seen = forward_of(model), list[str]()
    inputs = asked(1, 3)

    def run() -> torch.Tensor:
        return forward(past_key_values=DynamicCache(), logits_to_keep=3, **inputs)

    plain = run()
    first = model.model.layers[1]
    for module in (model, model.model, first, first.mlp, first.self_attn, first.input_layernorm):
        hook = module.register_forward_hook(lambda module, *_: seen.append(type(module).__name__))
        assert torch.equal(run(), plain)
        hook.remove()
    assert seen == [
        "LlamaForCausalLM",
        "LlamaModel",
        "LlamaDecoderLayer",
        "LlamaMLP",
        "LlamaAttention",
        "LlamaRMSNorm",
    ]
    first.mlp.forward = lambda hidden: 2 * hidden
    assert not torch.equal(run(), plain)
    del first.mlp.forward
    # Those of modules that are called are seen without that, and may change what they give.
    hook = first.mlp.down_proj.register_forward_hook(lambda _, __, output: 2 * output)
    assert not torch.equal(run(), plain)
    hook.remove()
    model.set_attn_implementation("eager")
    assert torch.allclose(run(), plain, atol=1e-5)
    assert torch.equal(
        run(), ModuleForward(model)(past_key_values=DynamicCache(), logits_to_keep=3, **inputs)
    )


@torch.inference_mode()
def test_layers_that_are_exchanged_later_are_used() -> None:
    """As adapters are put in the place of projections."""
    model = made("plain")
    forward, inputs = forward_of(model), asked(1, 3)
    assert isinstance(forward, DirectForward)
    model.model.layers[0].self_attn.q_proj = torch.nn.Linear(32, 32)
    model.model.layers[2].mlp.up_proj.weight.data.mul_(3)
    found, expected = (
        each(past_key_values=DynamicCache(), logits_to_keep=3, **inputs)
        for each in (forward, ModuleForward(model))
    )
    assert torch.equal(found, expected)


class Doubled(LlamaDecoderLayer):
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return 2 * super().forward(*args, **kwargs)


class Scaled(LlamaRMSNorm):
    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return 3 * super().forward(hidden_states)


class Noted(LlamaModel):
    """Whose forward is its own, and gives the same until it is told otherwise."""

    shift = 0.0

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        found = super().forward(*args, **kwargs)
        found.last_hidden_state = found.last_hidden_state + self.shift
        return found


def another_base(model: Any) -> None:
    model.model = Noted(model.config).eval()
    model.model.shift = 1.0


def hooks_of_its_own(model: Any) -> None:
    mlp = model.model.layers[1].mlp
    mlp._forward_hooks = OrderedDict()
    mlp.register_forward_hook(lambda _, __, output: 2 * output)


def compiled(model: Any) -> None:
    mlp = model.model.layers[1].mlp
    mlp._compiled_call_impl = lambda hidden: 2 * mlp.forward(hidden)


CHANGES: dict[str, Callable[[Any], object]] = {
    "layer": lambda model: model.model.layers.__setitem__(1, Doubled(model.config, 1)),
    "class": lambda model: setattr(model.model.layers[1], "__class__", Doubled),
    "norm": lambda model: setattr(model.model.layers[1], "input_layernorm", Scaled(32)),
    "last norm": lambda model: setattr(model.model, "norm", torch.nn.Identity()),
    "pruned": lambda model: setattr(model.model.layers[1], "mlp", torch.nn.Identity()),
    "fewer": lambda model: model.model.layers.__delitem__(2),
    "fewer asked for": lambda model: setattr(model.config, "num_hidden_layers", 2),
    "base": another_base,
    "hooks": hooks_of_its_own,
    "compiled": compiled,
}


@pytest.mark.parametrize("change", CHANGES)
@torch.inference_mode()
def test_what_is_changed_is_what_runs(change: str) -> None:
    """After the model was taken into use, and before."""
    later, before = made("plain"), made("plain")
    forward, inputs = forward_of(later), asked(1, 3)
    assert isinstance(forward, DirectForward)
    unchanged = forward(past_key_values=DynamicCache(), logits_to_keep=3, **inputs)
    for model in (later, before):
        torch.manual_seed(1)
        CHANGES[change](model)
    found, expected, first = (
        each(past_key_values=DynamicCache(), logits_to_keep=3, **inputs)
        for each in (forward, ModuleForward(later), forward_of(before))
    )
    assert torch.equal(found, expected)
    assert torch.equal(first, expected)
    assert not torch.equal(found, unchanged)


@torch.inference_mode()
def test_hooks_and_patches_of_all_modules_are_left_to_the_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, seen = made("plain"), set[str]()
    forward, inputs = forward_of(model), asked(1, 3)
    assert isinstance(forward, DirectForward)

    def run() -> torch.Tensor:
        return forward(past_key_values=DynamicCache(), logits_to_keep=3, **inputs)

    plain = run()
    registered = (register_module_forward_hook, register_module_forward_pre_hook)
    for register in registered:
        hook = register(lambda module, *_: seen.add(type(module).__name__))
        assert torch.equal(run(), plain)
        hook.remove()
        assert "LlamaMLP" in seen
        seen.clear()
    before = LlamaMLP.forward
    monkeypatch.setattr(LlamaMLP, "forward", lambda self, hidden: 2 * before(self, hidden))
    assert not torch.equal(run(), plain)
    assert isinstance(forward_of(made("plain")), ModuleForward)


def test_a_model_is_left_to_itself_for_good_where_it_could_not_be_compared() -> None:
    """What a hook hid, and classes that are told later to do something else."""
    hidden, told = made("plain"), made("plain")
    hook = hidden.model.layers[1].mlp.register_forward_hook(lambda _, __, output: output)
    told.model.__class__ = Noted
    for model in (hidden, told):
        assert isinstance(forward_of(model), ModuleForward)
    hook.remove()


def test_what_is_exchanged_is_not_kept() -> None:
    model = made("plain")
    forward = forward_of(model)
    layer = weakref.ref(model.model.layers[1])
    model.model.layers[1] = LlamaDecoderLayer(model.config, 1).eval()
    gc.collect()
    assert isinstance(forward, DirectForward)
    assert layer() is None


def test_other_models_are_run_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    class Own(LlamaForCausalLM):
        """Whose layers may be anything."""

    sizes = {"vocab_size": 61, "n_embd": 16, "n_layer": 1, "n_head": 2}
    other = GPT2LMHeadModel(GPT2Config(**sizes)).eval()
    own = Own(LlamaConfig(**SIZES)).eval()
    patched = made("plain")
    norm = patched.model.layers[0].input_layernorm
    norm.forward = lambda hidden: hidden
    for model in (other, own, patched):
        assert isinstance(forward_of(model), ModuleForward)
    # Where the numbers are others, whatever the reason, the model's count.
    monkeypatch.setattr(direct, "_norm", lambda module, hidden: 1.001 * module(hidden))
    assert isinstance(forward_of(made("plain")), ModuleForward)


def test_a_slot_cache_takes_it() -> None:
    assert isinstance(TransformersModel(made("grouped"), max_sequences=1)._forward, DirectForward)


def test_a_target_that_is_left_early_takes_it() -> None:
    """A model of its first layers, whose config still counts all of them."""
    target = TransformersModel(made("plain"), max_sequences=1)
    forward = EarlyExit(target, layers=2)._forward
    assert isinstance(forward, DirectForward)
    assert forward._applies


@pytest.mark.parametrize("kind", ["grouped", "biases", "windowed"])
def test_projections_of_the_same_input_are_packed_as_one(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But those with a bias; and products that are rounded otherwise do not end the direct way."""
    model, inputs = made(kind), asked(2, 4)
    with torch.inference_mode():
        plain = forward_of(model)(past_key_values=DynamicCache(), logits_to_keep=4, **inputs)
    products.install(model, products.Ways(False, 0, packed=2), groups=same_inputs(model))
    layers = products.installed(model)
    joined = [layer for layer in layers if layer.joined]
    assert len(joined) == (0 if kind == "biases" else 2 * SIZES["num_hidden_layers"])
    # A query's, key's and value's layer for one, and two of the feed-forward network.
    assert sum(layer.packed is None for layer in layers) == 5 * len(joined) // 2
    calls, product = list[int](), products.Packed.product

    def rounded(self: products.Packed, given: torch.Tensor) -> torch.Tensor:
        calls.append(len(self.sizes))
        return (1.001 if len(self.sizes) > 1 else 1) * product(self, given)

    monkeypatch.setattr(products.Packed, "product", rounded)
    forward = forward_of(model)
    assert isinstance(forward, DirectForward)
    monkeypatch.setattr(products.Packed, "product", product)
    with torch.inference_mode():
        found = forward(past_key_values=DynamicCache(), logits_to_keep=4, **inputs)
        torch.testing.assert_close(found, plain, atol=1e-5, rtol=1e-5)
        calls.clear()
        monkeypatch.setattr(products.Packed, "product", rounded)
        forward(past_key_values=DynamicCache(), logits_to_keep=4, **inputs)
    assert sorted(each for each in calls if each > 1) == sorted([2, 3] * (len(joined) // 2))


def test_other_models_have_no_layers_that_are_packed_as_one() -> None:
    tiny = GPT2Config(vocab_size=61, n_positions=64, n_embd=32, n_layer=2, n_head=2)
    assert not same_inputs(GPT2LMHeadModel(tiny))
    model = made("plain")
    model.model.layers[1].mlp = torch.nn.Identity()
    heads = model.model.layers[2].self_attn
    heads.v_proj = heads.k_proj
    assert len(same_inputs(model)) == 2 * SIZES["num_hidden_layers"] - 2


def test_layers_are_packed_by_themselves_for_the_models_own_forward(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Which asks each of them, where the direct one's numbers are not the model's."""
    ways = products.Ways(False, 0, packed=2)
    monkeypatch.setattr(products, "faster", lambda groups, packs: ways)
    for norm, direct_one in ((direct._norm, True), (lambda module, hidden: hidden, False)):
        monkeypatch.setattr(direct, "_norm", norm)
        model = made("plain")
        assert isinstance(TransformersModel(model)._forward, DirectForward) == direct_one
        layers = products.installed(model)
        assert any(layer.joined for layer in layers) == direct_one
        assert all(layer.packed for layer in layers) == (not direct_one)
