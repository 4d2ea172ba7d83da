"""The OpenVINO runtime passes the runtimes' kit, and keeps its conversions safely."""

from __future__ import annotations

import logging
from functools import wraps
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
import transformers as tf
from transformers import LlamaForCausalLM

from outrider import EarlyExitDrafter, SamplingParams, SpeculativeDecoder, TransformersModel
from outrider.certify.kits.references import FreshRuntime, TransformersReference
from outrider.certify.kits.runtime import check_runtime
from outrider.certify.kits.runtime_case import proposal
from outrider.certify.runtime import runtime_tier
from outrider.config.sources import Weights
from outrider.drafters.base import nothing_drafted
from outrider.errors import InvalidConfigError, ModelError
from outrider.runtimes.base import Runtime, rounding_of
from outrider.runtimes.flat import FlatBatch, Outputs
from outrider.runtimes.loading import LoadOptions, load_model
from outrider.runtimes.openvino import convert
from outrider.runtimes.openvino.model import OpenVinoModel
from outrider.runtimes.openvino.paged import PagedGraph, Precision
from outrider.types import trees
from outrider.types.records import Prefix
from tests.support.families import CONTEXT, FAMILIES, VOCAB, random_model
from tests.support.narrow import REJECTION, CutsNothing

FILES = ("written", "model.bin", "model.xml")

REFUSED = {
    "falcon": "0 of its 3 layers call for attention",
    "falcon_grouped": "0 of its 3 layers call for attention",
    "gemma2": "its attention has soft caps",
    "gpt_oss": "it computes other experts for other texts",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("openvino")


@pytest.mark.slow
@pytest.mark.parametrize("family", sorted({*FAMILIES} - REFUSED.keys()))
def test_every_family_passes(family: str, folder: Path) -> None:
    model = random_model(family).float()
    converted = OpenVinoModel(model, cache_dir=folder)
    found = check_runtime(lambda: converted.fresh(4), TransformersReference(model), tolerance=1e-4)
    assert not {finding.name: finding.detail for finding in found if not finding.passed}


@pytest.mark.slow
@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3", "mistral", "gpt2"])
@pytest.mark.parametrize(
    ("dtype", "weights"),
    [
        (torch.bfloat16, None),
        (torch.float16, None),
        (torch.float32, "int8"),
        (torch.float32, "int4"),
        (torch.bfloat16, "int8"),
    ],
)
def test_narrow_models_and_rounded_weights_pass_within_their_rounding(
    family: str, dtype: torch.dtype, weights: Weights | None, folder: Path
) -> None:
    model = OpenVinoModel(random_model(family).to(dtype), cache_dir=folder, weights=weights)
    found = runtime_tier(lambda *_: None, model)
    assert not {finding.name: finding.detail for finding in found if not finding.passed}


@pytest.mark.slow
@pytest.mark.parametrize("family", ["llama", "gemma3", "gpt2"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_keys_and_values_in_8_bits_pass_within_their_rounding(
    family: str, dtype: torch.dtype, folder: Path
) -> None:
    given = random_model(family).to(dtype)
    model = OpenVinoModel(given, cache_dir=folder, kv_dtype="uint8")
    assert model._block_bytes <= OpenVinoModel(given, cache_dir=folder)._block_bytes
    assert "uint8 keys and values" in model.precision
    found = runtime_tier(lambda *_: None, model)
    assert not {finding.name: finding.detail for finding in found if not finding.passed}


class Narrow(PagedGraph):
    """Imitates a processor that has bfloat16, on any."""

    @property
    def precision(self) -> Precision:
        return "bfloat16"


class OnSuchAProcessor(OpenVinoModel):
    def forward(self, batch: FlatBatch, run: Any = None) -> Outputs:
        return Outputs(super().forward(batch, run).logits.bfloat16().float())


class CutsNothingThere(CutsNothing, OnSuchAProcessor):
    pass


def test_tolerances_go_by_what_the_graph_computes_with(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outrider.runtimes.openvino.model.PagedGraph", Narrow)
    model = random_model("llama").bfloat16()
    narrow = OnSuchAProcessor(model, cache_dir=folder, precision="float32")
    assert (narrow.precision, narrow.rounding) == ("bfloat16", rounding_of(2.0**-7))
    found = check_runtime(lambda: narrow, FreshRuntime(narrow.fresh(1)), names={REJECTION})
    assert all(finding.passed for finding in found)
    with pytest.raises(ModelError, match=r"other logits after (a|one) rejected draft"):
        CutsNothingThere(model, cache_dir=folder, precision="float32")


def test_without_bfloat16_a_model_of_that_type_is_computed_in_float32(folder: Path) -> None:
    """As on a processor that has none."""
    model = OpenVinoModel(random_model("llama").bfloat16(), cache_dir=folder, precision="float32")
    assert (model.precision, model.rounding) == ("float32", rounding_of(2.0**-23))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_a_checkpoint_of_any_dtype_is_left_to_openvino(
    dtype: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the processor rounds to bfloat16 by itself."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    random_model("llama").to(dtype).save_pretrained(tmp_path / "model")
    asked = LoadOptions("auto", torch.device("cpu"), "auto", None, 2)
    assert load_model("target", str(tmp_path / "model"), asked).name == "openvino"


def test_rounded_weights_are_computed_in_float32_unless_asked_otherwise(folder: Path) -> None:
    """What 8 bits bring about is added to what the type of the other numbers does."""
    model = random_model("llama").bfloat16()
    usual, asked = (
        OpenVinoModel(model, cache_dir=folder, weights="int8", precision=each)
        for each in (None, cast(Precision, "bfloat16"))
    )
    assert usual.precision == "float32, int8 weights"
    if asked._graph.quantises:
        own = 2.0**-7 if asked._graph.precision == "bfloat16" else 2.0**-23
        assert asked.rounding == rounding_of(own + 2.0**-7)
        assert usual.rounding == rounding_of(2.0**-23 + 2.0**-7)


@pytest.mark.slow
@pytest.mark.parametrize("family", REFUSED)
def test_what_openvino_cannot_compute_is_refused_with_the_reason(family: str, folder: Path) -> None:
    with pytest.raises(ModelError, match=REFUSED[family]):
        OpenVinoModel(random_model(family).float(), cache_dir=folder)


SMALL: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT,
    "bos_token_id": 0,
    "eos_token_id": None,
    "pad_token_id": None,
}


def made(config: Any) -> Any:
    torch.manual_seed(0)
    model = tf.AutoModelForCausalLM.from_config(config).float().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim >= 2:
                parameter.normal_(0, 0.35)
    return model


@pytest.mark.parametrize("window", [64, 1000])
def test_a_window_that_is_in_a_models_mask_alone_is_refused(window: int, folder: Path) -> None:
    experts = {"num_local_experts": 2, "num_experts_per_tok": 1}
    model = made(tf.PhimoeConfig(**SMALL, **experts, sliding_window=window))
    model.set_experts_implementation("batched_mm")
    if window == 64:
        with pytest.raises(ModelError, match="see 64 tokens by their masks alone"):
            OpenVinoModel(model, cache_dir=folder)
    else:  # no text is as long
        OpenVinoModel(model, cache_dir=folder)


def test_a_window_that_attention_is_given_for_another_layer_is_refused(tmp_path: Path) -> None:
    model = random_model("gemma3", sliding_window=64).float()
    OpenVinoModel(model, cache_dir=tmp_path / "right")
    one, other = (layer.self_attn for layer in model.model.layers[:2])
    one.sliding_window, other.sliding_window = other.sliding_window, one.sliding_window
    with pytest.raises(ModelError, match="see 64 tokens by their masks alone"):
        OpenVinoModel(model, cache_dir=tmp_path / "exchanged")


@pytest.mark.parametrize("rounded", [{}, {"kv_dtype": "uint8"}, {"weights": "int8"}])
def test_masks_of_a_models_own_are_refused_whatever_is_rounded(
    rounded: dict[str, Any], folder: Path
) -> None:
    model = made(tf.DogeConfig(**SMALL | {"num_key_value_heads": 4}, keep_window_size=64))
    with pytest.raises(ModelError, match=r"attention masks of its own|its attention takes"):
        OpenVinoModel(model, cache_dir=folder, **rounded)


def test_the_model_is_left_as_it_is_in_any_dtype(folder: Path) -> None:
    model = random_model("llama").to(torch.bfloat16)
    before = {name: (each.dtype, each.data_ptr()) for name, each in model.named_parameters()}
    runtime = OpenVinoModel(model, cache_dir=folder)
    assert {n: (each.dtype, each.data_ptr()) for n, each in model.named_parameters()} == before
    decoder = SpeculativeDecoder(runtime, runtime)
    greedy = SamplingParams(max_tokens=12, temperature=0)
    plain = SpeculativeDecoder(OpenVinoModel(model, cache_dir=folder))
    assert (
        decoder.generate([1, 2, 3], greedy).token_ids == plain.generate([1, 2, 3], greedy).token_ids
    )


def test_it_drafts_for_another_runtime(folder: Path) -> None:
    model = random_model("llama").float()
    target = TransformersModel(model)
    decoder = SpeculativeDecoder(target, OpenVinoModel(model, cache_dir=folder))
    greedy = SamplingParams(max_tokens=16, temperature=0)
    found = decoder.generate([4, 5], greedy)
    assert found.token_ids == SpeculativeDecoder(target).generate([4, 5], greedy).token_ids
    assert found.metrics.acceptance_rate is not None
    assert found.metrics.acceptance_rate > 0.8


@pytest.mark.parametrize("damage", FILES)
def test_a_damaged_conversion_is_made_anew(
    damage: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = random_model("llama").float()
    OpenVinoModel(model, cache_dir=tmp_path)
    (place,) = tmp_path.iterdir()
    assert {each.name for each in place.iterdir()} == {*FILES}
    whole = (place / damage).read_bytes()
    (place / damage).write_bytes(whole[: len(whole) // 2])
    with caplog.at_level(logging.WARNING):
        OpenVinoModel(model, cache_dir=tmp_path)
    assert "is made anew" in caplog.text
    assert len((place / "written").read_text()) == 40

    def refuse(*_: Any) -> None:
        raise AssertionError("converted again")

    monkeypatch.setattr(convert, "_convert", refuse)
    OpenVinoModel(model, cache_dir=tmp_path)


def test_other_weights_are_another_conversion(tmp_path: Path) -> None:
    model = random_model("llama").float()
    OpenVinoModel(model, cache_dir=tmp_path)
    with torch.no_grad():
        next(iter(model.parameters()))[0, 0] += 1
    OpenVinoModel(model, cache_dir=tmp_path)
    assert len(list(tmp_path.iterdir())) == 2


def test_a_folder_that_cannot_be_written_to_costs_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    OpenVinoModel(random_model("llama").float(), cache_dir=tmp_path / "file")
    assert "is not kept in" in caplog.text


def test_a_disk_without_room_costs_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_model: Any, path: Path, **_: Any) -> None:
        path.write_text("half of it")
        raise RuntimeError("iostream error")

    monkeypatch.setattr("openvino.save_model", full)
    model = OpenVinoModel(random_model("llama").float(), cache_dir=tmp_path)
    assert _logits(model).isfinite().all()
    assert "iostream error" in caplog.text
    assert "MB free" in caplog.text
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("weights", ["int8", "int4"])
def test_rounded_weights_are_another_target(
    weights: Weights, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """But for the reference, which is the rounded model without a cache."""
    model = random_model("llama").float()
    exact = OpenVinoModel(model, cache_dir=folder)
    rounded = OpenVinoModel(model, cache_dir=folder, weights=weights)
    assert (exact.precision, rounded.precision) == ("float32", f"float32, {weights} weights")
    one, other = (_logits(each) for each in (exact, rounded))
    assert 1e-4 < float((one - other).abs().max() / one.abs().max()) < 0.5
    # OpenVINO may round activations to 8 bits where they meet rounded weights.
    steps = 2.0**-7 if rounded._graph.quantises else 0.0
    assert rounded.rounding == rounding_of(2.0**-23 + steps)
    found = runtime_tier(lambda *_: None, rounded)
    assert not {finding.name: finding.detail for finding in found if not finding.passed}
    assert capfd.readouterr() == ("", "")


def _logits(runtime: Runtime) -> torch.Tensor:
    return runtime.verify([Prefix(1, [1, 2, 3])], nothing_drafted(1, runtime.device)).logits


def test_runtimes_of_the_same_graph_know_nothing_of_each_other(folder: Path) -> None:
    model = OpenVinoModel(random_model("llama").float(), max_sequences=2, cache_dir=folder)
    before = _logits(model)
    other = model.fresh(3)
    assert (model.max_sequences, other.max_sequences) == (2, 3)
    assert not other.live_sequences
    assert torch.equal(before, _logits(other))
    other.verify([Prefix(7, [9, 9])], nothing_drafted(1, other.device))
    assert (model.live_sequences, other.live_sequences) == ({1}, {1, 7})
    assert torch.allclose(before, _logits(model), atol=1e-4)


def test_another_class_is_another_conversion(folder: Path) -> None:
    class Negated(LlamaForCausalLM):
        @wraps(LlamaForCausalLM.forward)
        def forward(self, *args: Any, **settings: Any) -> Any:
            found = super().forward(*args, **settings)
            found.logits = -found.logits
            return found

    model = random_model("llama").float()
    other = Negated(model.config).eval()
    other.load_state_dict(model.state_dict())
    one, negated = (_logits(OpenVinoModel(each, cache_dir=folder)) for each in (model, other))
    assert torch.allclose(one, -negated, atol=1e-4)


def test_a_model_with_a_hook_that_no_graph_has_is_refused(folder: Path) -> None:
    model = random_model("llama").float()
    OpenVinoModel(model, cache_dir=folder)
    model.lm_head.register_forward_hook(lambda _module, _given, logits: 3 * logits)
    with pytest.raises(ModelError, match="gives other logits on OpenVINO than by itself"):
        OpenVinoModel(model, cache_dir=folder)


def test_first_layers_draft_for_a_narrow_model(folder: Path) -> None:
    model = random_model("llama").to(torch.bfloat16)
    target = OpenVinoModel(model, cache_dir=folder, precision="float32")
    greedy = SamplingParams(max_tokens=12, temperature=0)
    found = SpeculativeDecoder(target, EarlyExitDrafter(target, 1)).generate([1, 2, 3], greedy)
    assert found.token_ids == SpeculativeDecoder(target).generate([1, 2, 3], greedy).token_ids
    assert found.metrics.drafted > 0


def test_a_long_text_leaves_short_ones_right(folder: Path) -> None:
    model = random_model("llama").float()
    target = OpenVinoModel(model, cache_dir=folder)
    long, short = Prefix(1, [i % 40 for i in range(150)]), Prefix(2, [1, 2, 3])
    before = target.verify([short], nothing_drafted(1, target.device)).logits
    target.verify([long], nothing_drafted(1, target.device))
    target.release([1])
    again = target.verify([short.extended([4])], nothing_drafted(1, target.device)).logits
    fresh = target.fresh(1)
    expected = fresh.verify([short.extended([4])], nothing_drafted(1, target.device)).logits
    assert torch.allclose(again, expected, atol=1e-4)
    assert before.shape == again.shape


def test_a_bad_precision_is_refused() -> None:
    with pytest.raises(InvalidConfigError, match="precision='int2'"):
        OpenVinoModel(random_model("llama").float(), precision=cast(Any, "int2"))


def test_one_sequence_suffices(folder: Path) -> None:
    model = OpenVinoModel(random_model("llama").float(), max_sequences=1, cache_dir=folder)
    assert _logits(model).isfinite().all()


def test_hidden_states_stay_where_a_runtime_is_made_anew(folder: Path) -> None:
    model = OpenVinoModel(random_model("llama").float(), cache_dir=folder)
    other = model.with_hidden((1,)).fresh(2)
    found = other.verify([Prefix(1, [1, 2, 3])], nothing_drafted(1, other.device))
    assert found.hidden is not None


def test_paths_that_find_no_room_are_computed_one_by_one_and_leave_none_taken(
    folder: Path,
) -> None:
    given = random_model("mistral").float()
    roomy = OpenVinoModel(given, cache_dir=folder)
    memory = 4 * roomy._block_bytes
    model = OpenVinoModel(given, max_length=64, kv_cache_memory=memory, cache_dir=folder)
    tree, prefix = ([*range(6)], [0] * 6), Prefix(1, [i % 50 + 1 for i in range(40)])
    found, expected = (each.verify([prefix], proposal([tree])).logits for each in (model, roomy))
    assert torch.allclose(found, expected, atol=1e-3)
    model.check_integrity()
    model.release([1])
    assert model.pool.available == 4


@pytest.mark.parametrize("family", ["mistral", "gemma3"])
def test_trees_reach_past_a_window_while_blocks_are_used_again(family: str, folder: Path) -> None:
    """The window is of 7 tokens, the deepest path of 9; its first token is kept of each tree."""
    given, rng = random_model(family).float(), np.random.default_rng(3)
    memory = 4 * OpenVinoModel(given, cache_dir=folder)._block_bytes
    model, reference = (
        OpenVinoModel(given, kv_cache_memory=memory, cache_dir=folder),
        TransformersReference(given),
    )
    parents = [0, 0, 1, 3, 4, 2, 5, 7, 8, 8, 9, 11]
    below = trees.ancestor_mask(np.array([parents]))[0]
    for name in range(4):
        text = rng.integers(VOCAB, size=90).tolist()
        for end in (40, 44, 30, 62, 71, 66):
            drafts = np.append(text[end], rng.integers(VOCAB, size=len(parents) - 1))
            found = model.verify([Prefix(name, text[:end])], proposal([(drafts.tolist(), parents)]))
            paths = [[], *(drafts[path].tolist() for path in below)]
            for logits, path in zip(found.logits[0], paths, strict=True):
                expected = reference.logits((*text[:end], *path))
                assert float((logits - expected).abs().max() / expected.abs().max()) < 1e-4
            model.check_integrity()
        model.release([name])
    assert model.pool.count == 4
