"""Multi-token prediction: the layer is read as it is written, and the output is the target's."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as tf
from safetensors.torch import load_file, save_file
from transformers.modeling_layers import MtpModel

import outrider
from outrider import SamplingParams, SpeculativeConfig, SpeculativeDecoder, TransformersModel
from outrider.certify import exact_distribution
from outrider.certify.reference import distance, target_distribution
from outrider.drafters.heads.loading import load_mtp
from outrider.drafters.heads.mtp import LAYOUTS
from outrider.errors import ModelError
from outrider.types.records import DraftPlan, DraftProposal
from tests.support.families import CONTEXT, VOCAB, Distributions, greedy_reference, random_model
from tests.support.heads import compared, drafted_logits, mtp_checkpoint
from tests.support.hybrids import exact, random_hybrid
from tests.support.tokenizers import toy_tokenizer

pytestmark = pytest.mark.exact

PROMPTS = [[3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8], [2, 7], [7, 7, 7, 1], [4], [9, 8, 7, 6, 5]]

_EXPERTS: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "moe_intermediate_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "max_position_embeddings": CONTEXT,
    "bos_token_id": 0,
    "eos_token_id": None,
    "pad_token_id": None,
    "experts_implementation": "eager",
}


@pytest.fixture(autouse=True)
def exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    for family in FAMILIES[:2]:
        random_hybrid(family)  # its module is there to be patched
    exact(monkeypatch)


def made(family: str) -> tuple[Any, int]:
    """A random model, and the number of its layout."""
    if family.startswith("qwen3"):
        kinds = ["linear_attention", "linear_attention", "full_attention"]
        return random_hybrid(family, layer_types=kinds), 0
    if family == "mimo":  # its layers are Qwen 2's
        return random_model("qwen2"), 2
    torch.manual_seed(0)
    ranks = {"kv_lora_rank": 8, "q_lora_rank": None, "qk_rope_head_dim": 4}
    ranks |= {"qk_nope_head_dim": 8, "v_head_dim": 8}
    config = {
        "deepseek": lambda: tf.DeepseekV3Config(**_EXPERTS | ranks),
        "glm": lambda: tf.Glm4MoeConfig(**_EXPERTS, num_key_value_heads=2, head_dim=8),
    }[family]()
    model = tf.AutoModelForCausalLM.from_config(config).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim >= 2:
                parameter.normal_(0, 0.3)
    model.generation_config.eos_token_id = None
    return model, 1


FAMILIES = ("qwen3_5", "qwen3_next", "deepseek", "glm", "mimo")


def saved(family: str, folder: Path) -> Any:
    """A random model that was loaded from a checkpoint with a layer more."""
    model, layout = made(family)
    place = mtp_checkpoint(folder, model, LAYOUTS[layout])
    loaded = tf.AutoModelForCausalLM.from_pretrained(
        place, dtype=torch.float64, experts_implementation="eager"
    )
    loaded.generation_config.eos_token_id = None
    return loaded.eval()


def decoder_of(
    model: Any, **speculation: Any
) -> tuple[SpeculativeDecoder, Any, list[tuple[Any, DraftProposal]]]:
    """A decoder that drafts by the model's own layer, the drafter, and what it proposes."""
    target = TransformersModel(model, max_sequences=5, prefill_chunk=8, max_length=120)
    drafter: Any = load_mtp(target)
    propose, seen = drafter.propose, list[tuple[Any, DraftProposal]]()

    def watched(prefixes: Any, plan: DraftPlan, ctx: Any) -> DraftProposal:
        seen.append((list(prefixes), propose(prefixes, plan, ctx)))
        return seen[-1][1]

    drafter.propose = watched
    config = SpeculativeConfig(**{"depth": "fixed", "num_speculative_tokens": 3} | speculation)
    return SpeculativeDecoder(target, drafter, config=config), drafter, seen


@pytest.mark.parametrize("family", FAMILIES[:4])
def test_the_layer_is_read_as_transformers_reads_it(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own loader and network, which knows this of some models and can be led to it of others.

    MiMo's it cannot be led to.
    """
    model, text = saved(family, tmp_path), [number * 7 % VOCAB for number in range(1, 20)]
    pattern = re.compile(rf"mtp\.|layers\.{model.config.num_hidden_layers}\.")
    monkeypatch.setattr(MtpModel, "get_mtp_weights_regex", lambda _: pattern)
    decoder, drafter, _ = decoder_of(model)
    if family.startswith("qwen3"):
        model.config.num_mtp_layers, model.config.mtp_layer_types = 1, ["full_attention"]
    with torch.inference_mode():
        theirs: Any = MtpModel.from_pretrained(model).eval()
        states = model(input_ids=torch.tensor([text]), output_hidden_states=True).hidden_states[-1]
        ids, places = torch.tensor([text[1:]]), torch.arange(len(text) - 1)[None]
        expected = theirs.forward_layer(0, states[:, :-1], places, None, input_ids=ids)
        logits = theirs._project_to_logits(expected)[0, -1]
    found = drafted_logits(drafter.model.net, model, text, [])
    torch.testing.assert_close(found, logits, rtol=0, atol=1e-6)
    del decoder


@pytest.mark.parametrize("family", FAMILIES)
def test_drafts_are_drawn_from_what_the_layer_says(family: str, tmp_path: Path) -> None:
    model = saved(family, tmp_path)
    decoder, drafter, seen = decoder_of(model)
    decoder.generate(PROMPTS, SamplingParams(max_tokens=14, seed=1))
    assert compared(seen, drafter, model, 2e-6) > 50


@pytest.mark.parametrize(
    "shape",
    [{"num_speculative_tokens": 4}, {"num_speculative_tokens": 2, "tree_shape": (2, 1)}],
    ids=["chain", "tree"],
)
@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_text_is_plain_and_the_distribution_the_targets(
    family: str, shape: dict[str, Any], tmp_path: Path
) -> None:
    model = saved(family, tmp_path)
    decoder, _, _ = decoder_of(model, **shape)
    for text in (PROMPTS, [[*each, 7, 8, 9] for each in PROMPTS]):
        outputs = decoder.generate(text, SamplingParams(max_tokens=20, temperature=0))
        for prompt, output in zip(text, outputs, strict=True):
            assert tuple(output.token_ids) == greedy_reference(model, prompt, 20)
    assert decoder.metrics.drafted
    params = SamplingParams(max_tokens=3, top_k=3)
    found = exact_distribution(decoder, (5, 9, 2), params)
    expected = target_distribution(Distributions(model), (5, 9, 2), params)
    assert distance(found, expected) < 1e-9


def test_what_is_no_such_layer_is_named(tmp_path: Path) -> None:
    model = saved("mimo", tmp_path)
    with pytest.raises(ModelError, match="not loaded from files"):
        load_mtp(TransformersModel(random_model("qwen2")))
    file = tmp_path / "model.safetensors"
    whole = load_file(file)
    layer = {name: each for name, each in whole.items() if "mtp_layers" in name}
    less = {name: each for name, each in whole.items() if name not in layer}
    for kept, said in (
        ({}, r"no layer for multi-token prediction; expected tensors named model\.mtp_l"),
        (dict(list(layer.items())[1:]), "missing"),
        (layer | {"model.mtp_layers.0.extra.weight": torch.ones(2)}, "has no place for block.ext"),
        (layer | {"model.mtp_layers.0.input_proj.weight": torch.ones(2)}, r"fc.weight is \[2\]"),
    ):
        save_file(less | kept, file, {"format": "pt"})
        with pytest.raises(ModelError, match=said):
            load_mtp(TransformersModel(model))


@pytest.mark.parametrize("part", ["0.gate_proj", "1.up_proj", "2.down_proj"])
def test_weights_of_experts_that_are_missing_or_unlike_are_named(part: str, tmp_path: Path) -> None:
    model, file = saved("glm", tmp_path), tmp_path / "model.safetensors"
    whole = load_file(file)
    lost = whole.pop(f"model.layers.3.mlp.experts.{part}.weight")
    for more, said in (
        ({}, rf"block\.mlp\.experts\.{part}\.weight missing"),
        (
            {f"model.layers.3.mlp.experts.{part}.weight": lost[:, :-1].contiguous()},
            rf"block\.mlp\.experts\.{part}\.weight is \[\d+, \d+\], and by the configuration \[",
        ),
    ):
        save_file(whole | more, file, {"format": "pt"})
        with pytest.raises(ModelError, match=said):
            load_mtp(TransformersModel(model, max_length=120))


def test_a_model_whose_layer_is_not_known_is_named(tmp_path: Path) -> None:
    random_hybrid("nemotron_h").float().save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    layer = {"mtp.layers.0.eh_proj.weight": torch.ones(2)}
    save_file(load_file(file) | layer, file, {"format": "pt"})
    model = tf.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    said = r"NemotronHForCausalLM's model_type is nemotron_h, .*; expected one of qwen3_next, "
    with pytest.raises(ModelError, match=said):
        load_mtp(TransformersModel(model))
    exaone = tf.ExaoneMoeConfig(**_EXPERTS | {"num_key_value_heads": 2, "sliding_window": 8})
    with pytest.raises(ModelError, match="model_type is exaone_moe, "):
        load_mtp(TransformersModel(tf.AutoModelForCausalLM.from_config(exaone)))


def test_the_targets_parameters_are_left_as_they_are(tmp_path: Path) -> None:
    model = saved("mimo", tmp_path).requires_grad_(False)
    drafter = load_mtp(TransformersModel(model))
    assert not any(each.requires_grad for each in model.parameters())
    head = model.get_output_embeddings().weight
    assert drafter.model.net.lm_head.weight.data_ptr() == head.data_ptr()


@pytest.mark.parametrize("family", ["deepseek", "glm"])
def test_what_the_target_keeps_in_float32_is_kept_so(family: str, tmp_path: Path) -> None:
    mtp_checkpoint(tmp_path, made(family)[0].bfloat16(), LAYOUTS[1])
    file, name = tmp_path / "model.safetensors", "mlp.gate.e_score_correction_bias"
    bias = torch.tensor([5.001, 5.003, 5.002, 5.004])
    save_file(load_file(file) | {f"model.layers.3.{name}": bias}, file, {"format": "pt"})
    model = tf.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16)
    assert model.state_dict()[f"model.layers.2.{name}"].dtype == torch.float32
    decoder, drafter, seen = decoder_of(model)
    found = drafter.model.net.state_dict()
    assert torch.equal(found[f"block.{name}"], bias)
    assert found["block.self_attn.o_proj.weight"].dtype == torch.bfloat16
    decoder.generate([5, 9, 2], SamplingParams(max_tokens=4))
    assert seen


@pytest.mark.parametrize(
    ("family", "begins", "head"),
    [("glm", "model.layers.3.", "shared_head.head"), ("qwen3_5", "mtp.", "lm_head")],
)
def test_an_embedding_of_the_layers_own_is_used(
    family: str, begins: str, head: str, tmp_path: Path
) -> None:
    model = saved(family, tmp_path)
    file = tmp_path / "model.safetensors"
    own = model.get_input_embeddings().weight.detach() + 1
    more = {"embed_tokens": own, head: model.get_output_embeddings().weight.detach().clone()}
    more = {f"{begins}{name}.weight": each for name, each in more.items()}
    save_file(load_file(file) | more, file, {"format": "pt"})
    net = load_mtp(TransformersModel(model, max_length=120)).model.net
    assert torch.equal(net.embed_tokens.weight, own)
    assert net.lm_head.weight.data_ptr() == model.get_output_embeddings().weight.data_ptr()


def test_only_further_layers_are_passed_over(tmp_path: Path) -> None:
    model, file = saved("qwen3_5", tmp_path), tmp_path / "model.safetensors"
    whole = load_file(file) | {"mtp.layers.1.input_layernorm.weight": torch.ones(2)}
    save_file(whole, file, {"format": "pt"})
    load_mtp(TransformersModel(model, max_length=120))
    save_file(whole | {"mtp.surprise.weight": torch.ones(2)}, file, {"format": "pt"})
    with pytest.raises(ModelError, match=r"no place for surprise\.weight"):
        load_mtp(TransformersModel(model, max_length=120))


def test_a_pair_is_loaded_by_name(tmp_path: Path) -> None:
    saved("mimo", tmp_path)
    toy_tokenizer().save_pretrained(tmp_path)
    for runtime in ("transformers", "openvino"):
        pair = outrider.load(tmp_path, "mtp", runtime=runtime, dtype="float32")
        assert isinstance(pair.model_drafter, outrider.EagleDrafter)
        plain = SpeculativeDecoder(pair.target, tokenizer=pair.tokenizer)
        config = SpeculativeConfig(num_speculative_tokens=3, depth="fixed")
        drafted = SpeculativeDecoder(pair.target, pair.model_drafter, config=config)
        params = SamplingParams(max_tokens=8, temperature=0)
        expected = plain.generate([5, 9, 2], params).token_ids
        assert drafted.generate([5, 9, 2], params).token_ids == expected
        assert drafted.metrics.drafted
