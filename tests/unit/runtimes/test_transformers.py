"""The transformers runtime: what it leaves alone, refuses, and computes once."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
import transformers as tf

from outrider import EarlyExitDrafter, SpeculativeDecoder, TransformersModel
from outrider.certify.kits import check_runtime
from outrider.certify.kits.references import TransformersReference
from outrider.certify.kits.runtime_case import Row, proposal
from outrider.config.params import SamplingParams
from outrider.errors import ContextLengthError, EmptyPrefixError, InvalidConfigError, ModelError
from outrider.types.records import Prefix
from tests.support.families import CONTEXT, FAMILIES, random_model

NOTHING: Row = ([], [])


def chain(*tokens: int) -> Row:
    return tokens, range(len(tokens))


@contextmanager
def computed(runtime: TransformersModel) -> Iterator[list[int]]:
    """How many columns each forward computes meanwhile, rows times tokens."""
    counts: list[int] = []

    def note(_: Any, __: Any, inputs: dict[str, Any]) -> None:
        counts.append(inputs["input_ids"].numel())

    hook = runtime.hf_model.register_forward_pre_hook(note, with_kwargs=True)
    yield counts
    hook.remove()


def described(model: Any) -> dict[str, Any]:
    """All that a user can see of a model, besides its weights."""
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks")
    return {
        name: (
            id(module),
            type(module),
            module.training,
            [dict(vars(module)[kind]) for kind in hooks],
            sorted(vars(module)),
            [id(each) for each in module.parameters(recurse=False)],
            [id(each) for each in module.children()],
        )
        for name, module in model.named_modules()
    } | {"config": model.config.to_dict(), "attention": model.config._attn_implementation}


@pytest.mark.parametrize("family", FAMILIES)
def test_the_users_model_is_left_as_it_was(family: str) -> None:
    model = random_model(family).train()
    before = described(model)
    runtime = TransformersModel(model, max_sequences=2)
    assert described(model) == before
    decoder = (
        SpeculativeDecoder(runtime, EarlyExitDrafter(runtime, 1))
        if family == "llama"
        else (SpeculativeDecoder(runtime, runtime))
    )
    decoder.generate([1, 2, 3], SamplingParams(max_tokens=5))
    assert described(model) == before


def test_a_model_that_is_refused_is_left_as_it_was() -> None:
    model = random_model("llama").train()
    model.lm_head.weight.data[3] = torch.nan
    before = described(model)
    with pytest.raises(ModelError, match="NaN or infinite logits for a few tokens"):
        TransformersModel(model)
    assert described(model) == before


def test_new_weights_are_seen_after_a_reset() -> None:
    model = random_model("llama")
    runtime = TransformersModel(model)
    asked = [Prefix(1, [1, 2, 3, 4])]
    old = runtime.verify(asked, proposal([NOTHING])).logits
    with torch.no_grad():
        model.model.layers[0].mlp.up_proj.weight.mul_(1.5)
    model.lm_head = copy.deepcopy(model.lm_head)
    runtime.reset()
    new = runtime.verify(asked, proposal([NOTHING])).logits[0, 0]
    assert not torch.allclose(new, old[0, 0])
    torch.testing.assert_close(new, TransformersReference(model).logits((1, 2, 3, 4)))


RAGGED = {"rows of different lengths do not disturb each other"}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.slow
def test_modules_that_their_user_compiled_run_compiled() -> None:
    """By a backend that only traces, which every machine has."""
    model = random_model("llama")
    reference = TransformersReference(copy.deepcopy(model))
    graphs: list[Any] = []

    def backend(graph: Any, _: Any) -> Any:
        graphs.append(graph)
        return graph

    for layer in model.model.layers:
        layer.mlp.compile(backend=backend, dynamic=True)
    found = check_runtime(
        lambda: TransformersModel(model, max_sequences=3), reference, names=RAGGED
    )
    assert found[0].passed, found
    assert graphs


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.slow
def test_a_model_that_its_user_compiled_is_called_as_it_is() -> None:
    model = random_model("llama")
    compiled = torch.compile(model)
    with torch.compiler.set_stance("force_eager"):
        runtime = TransformersModel(compiled, max_sequences=3)
        found = check_runtime(lambda: runtime, TransformersReference(model), names=RAGGED)
    assert found[0].passed, found
    assert runtime.run is compiled
    assert runtime.hf_model is model


def test_each_column_is_computed_once() -> None:
    """A prompt in one forward; then one token and the drafts; of a tree what stands in line."""
    runtime = TransformersModel(random_model("llama"), max_sequences=2)
    path = [5, 6, 7, 8, 9]
    fork: Row = ([7, 8, 9, 10], [0, 0, 1, 2])
    with computed(runtime) as counts:
        runtime.verify([Prefix(1, path)], proposal([chain(1, 2, 3)]))
        runtime.verify([Prefix(1, [*path, 1, 4])], proposal([fork]))
        runtime.verify([Prefix(1, [*path, 1, 4, 8, 10, 3])], proposal([NOTHING]))
        # Another sequence shares it all, and so does the first again.
        runtime.verify([Prefix(2, [*path, 1, 4, 8, 2])], proposal([chain(1)]))
        cursor = runtime.open([Prefix(1, [*path, 1, 4, 8, 10, 3, 6])], 3)
        cursor.step(torch.tensor([4]))
        cursor.step(torch.tensor([5]))
        runtime.verify([Prefix(1, [*path, 1, 4, 8, 10, 3, 6, 4, 5, 2])], proposal([NOTHING]))
    assert counts == [8, 5, 3, 2, 1, 1, 1, 1]


def test_what_of_a_new_prefix_was_computed_already_is_reported() -> None:
    runtime = TransformersModel(random_model("llama"), max_sequences=3)
    rng = np.random.default_rng(0)
    shared, other = rng.integers(61, size=40).tolist(), rng.integers(61, size=30).tolist()
    one, two = proposal([NOTHING]), proposal([NOTHING] * 2)
    assert runtime.verify([Prefix(0, shared)], one).cached == (0,)
    assert runtime.verify([Prefix(0, [*shared, 1])], one).cached == (0,)
    found = runtime.verify([Prefix(2, other), Prefix(1, [*shared, 5, 7])], two)
    assert found.cached == (0, 40)
    runtime.release([0, 1, 2])
    assert runtime.verify([Prefix(3, [*other, 3])], one).cached == (30,)
    runtime.release([3], discard=True)
    assert runtime.verify([Prefix(4, [*other, 3])], one).cached == (0,)


def test_a_cursor_says_where_its_context_ends_and_when_it_is_stale() -> None:
    runtime = TransformersModel(random_model("llama"), max_sequences=2)
    one = torch.tensor([4])
    cursor = runtime.open([Prefix(1, [1] * (CONTEXT - 1))], 8)
    cursor.step(one)
    with pytest.raises(ContextLengthError, match=r"context is 160: draft no further"):
        cursor.step(one)
    cursor = runtime.open([Prefix(2, [1, 2])], 3)
    cursor.step(one)
    with pytest.raises(ModelError, match="by step or by expand"):
        cursor.expand(one[None], one[None] * 0)
    runtime.release([2])
    with pytest.raises(ModelError, match="verified, opened or released since"):
        cursor.step(one)


def test_prefixes_that_do_not_fit_are_refused() -> None:
    runtime = TransformersModel(random_model("llama"))
    with pytest.raises(ContextLengthError, match=r"161 tokens and 1 drafts.*context is 160"):
        runtime.verify([Prefix(1, [1] * 161)], proposal([chain(1)]))
    with pytest.raises(EmptyPrefixError, match="sequence 1 has no tokens"):
        runtime.open([Prefix(1, [])], 2)


def tiny(config: Any) -> Any:
    torch.manual_seed(0)
    return tf.AutoModelForCausalLM.from_config(config)


SMALL = {"vocab_size": 31, "hidden_size": 16, "num_hidden_layers": 1}
UNFIT = {
    "bloom": (lambda: tf.BloomConfig(vocab_size=31, hidden_size=16, n_layer=1, n_head=2), "ALiBi"),
    "falcon": (lambda: tf.FalconConfig(**SMALL, num_attention_heads=2, alibi=True), "ALiBi"),
    "rwkv": (
        lambda: tf.RwkvConfig(**SMALL | {"num_hidden_layers": 2}, attention_hidden_size=16),
        "recurrent state",
    ),
    # Its local window is wider than what is compared when a runtime is made.
    "gpt_neo": (
        lambda: tf.GPTNeoConfig(
            vocab_size=31,
            hidden_size=16,
            num_layers=2,
            num_heads=2,
            attention_types=[[["global", "local"], 1]],
        ),
        "local layers",
    ),
}


@pytest.mark.parametrize("family", UNFIT)
@pytest.mark.filterwarnings("ignore")
def test_architectures_that_cannot_be_cut_back_are_refused(family: str) -> None:
    config, reason = UNFIT[family]
    with pytest.raises(ModelError, match=reason):
        TransformersModel(tiny(config()))


def test_a_model_that_looks_ahead_is_refused() -> None:
    torch.manual_seed(0)
    small = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = tf.BertConfig(**small, vocab_size=61, intermediate_size=48, is_decoder=False)
    model = tf.BertLMHeadModel(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim >= 2:
                parameter.normal_(0, 0.35)
    with pytest.raises(ModelError, match="it looks ahead, as encoders do"):
        TransformersModel(model)
    model.config.is_decoder = True
    for layer in model.bert.encoder.layer:
        layer.attention.self.is_causal = True
    TransformersModel(tf.BertLMHeadModel(tf.BertConfig(**config.to_diff_dict())).eval())


def test_a_cache_that_a_model_does_not_keep_to_is_described() -> None:
    model = random_model("llama")

    def several(_: Any, given: tuple[Any, ...]) -> None:
        if given[0].shape[1] > 3:
            raise IndexError("list index out of range")

    model.model.layers[0].self_attn.k_proj.register_forward_pre_hook(several)
    with pytest.raises(ModelError, match=r"from outside .IndexError: list index out of range"):
        TransformersModel(model)


@pytest.mark.parametrize("ignores", ["positions", "branches"])
def test_a_model_whose_cache_disagrees_with_its_forward_is_refused(ignores: str) -> None:
    """The check at construction, of models that take no notice of positions, or of a tree."""
    model = random_model("llama")
    forward = model.forward

    def careless(
        *args: Any, position_ids: Any = None, attention_mask: Any = None, **kw: Any
    ) -> Any:
        if ignores == "positions" and position_ids is not None:
            position_ids = position_ids * 0
        if ignores == "branches" and attention_mask is not None:
            own = attention_mask.shape[-1] - 1 - (attention_mask.flip(-1) == 0).int().argmax(-1)
            seen = torch.arange(attention_mask.shape[-1]) <= own[..., None]
            attention_mask = torch.zeros_like(attention_mask).masked_fill(~seen, -torch.inf)
        return forward(*args, position_ids=position_ids, attention_mask=attention_mask, **kw)

    model.forward = careless
    careless.__signature__ = inspect.signature(forward)  # type: ignore[attr-defined]  # as wrappers do
    with pytest.raises(ModelError, match="other logits after a rejected draft"):
        TransformersModel(model)


@pytest.mark.parametrize(
    ("field", "value"), [("max_sequences", 0), ("prefill_chunk", 0), ("max_length", 161)]
)
def test_bad_sizes_are_refused_by_name(field: str, value: int) -> None:
    with pytest.raises(InvalidConfigError, match=f"{field}={value}"):
        TransformersModel(random_model("llama"), **{field: value})
    with pytest.raises(InvalidConfigError, match="a transformers model"):
        TransformersModel(torch.nn.Linear(1, 1))


class TakesItsCacheAs(tf.LlamaForCausalLM):
    """A model as those of transformers 5.24, whose argument for a cache has another name."""

    def forward(
        self,
        input_ids: Any = None,
        attention_mask: Any = None,
        position_ids: Any = None,
        cache: Any = None,
        use_cache: Any = None,
        logits_to_keep: Any = 0,
    ) -> Any:
        return super().forward(
            input_ids,
            attention_mask,
            position_ids,
            cache,
            use_cache=use_cache,
            logits_to_keep=logits_to_keep,
        )


def test_a_cache_is_given_by_the_name_that_a_model_has_for_it() -> None:
    model = random_model("llama")
    other = TakesItsCacheAs(model.config).eval().double()
    other.load_state_dict(model.state_dict())
    found = check_runtime(
        lambda: TransformersModel(other, max_sequences=4), TransformersReference(model)
    )
    assert all(finding.passed for finding in found)
