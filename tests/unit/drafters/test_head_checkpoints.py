"""Checkpoints of draft heads: what is read, and what is refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from outrider import TransformersModel
from outrider.certify.kits.runtime_case import proposal
from outrider.drafters.heads.checkpoint import KINDS, head_folder, read_config
from outrider.drafters.heads.drafter import BlockDrafter, EagleDrafter
from outrider.drafters.heads.loading import load_head
from outrider.errors import ModelError
from outrider.runtimes.tabular import mock_pair
from outrider.types.records import HiddenStates, Prefix
from tests.support.families import random_model
from tests.support.heads import LAYERS, head_checkpoint


def changed(folder: Path, **fields: Any) -> Path:
    """Change fields of a configuration; None deletes one."""
    given = json.loads((folder / "config.json").read_text()) | fields
    kept = {name: value for name, value in given.items() if value is not None}
    (folder / "config.json").write_text(json.dumps(kept))
    return folder


def tensors(folder: Path, drop: str = "", **more: torch.Tensor) -> Path:
    """Change the tensors of a checkpoint."""
    file = folder / "model.safetensors"
    found = {name: each for name, each in load_file(file).items() if name != drop}
    save_file(found | more, file)
    return folder


@pytest.fixture(scope="module")
def target() -> TransformersModel:
    return TransformersModel(random_model("llama"), max_sequences=2)


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_is_read(kind: str, target: TransformersModel, tmp_path: Path) -> None:
    folder = head_checkpoint(tmp_path, target.hf_model, kind)
    assert head_folder(str(folder)) == folder
    drafter = load_head(folder, target)
    assert isinstance(drafter, EagleDrafter if kind == "eagle3" else BlockDrafter)
    assert drafter.hidden_layers == LAYERS
    assert drafter.steps(4) == (4 if kind == "eagle3" else 1)


def test_the_original_layout_of_eagle3(target: TransformersModel, tmp_path: Path) -> None:
    folder = head_checkpoint(tmp_path, target.hf_model, reduced=23)
    given = json.loads((folder / "config.json").read_text())
    inner = given["transformer_layer_config"]
    kept = {"draft_vocab_size": 23, "architectures": ["LlamaForCausalLMEagle3"]}
    (folder / "config.json").write_text(json.dumps(inner | kept))
    file = folder / "model.safetensors"
    found = load_file(file)
    save_file({name.replace("layers.0.", "midlayer."): x for name, x in found.items()}, file)
    config = read_config(folder)
    assert config.kind == "eagle3"
    assert config.target_layers == ()
    assert load_head(folder, target).hidden_layers == (2, 1, 0)


def test_layers_inside_of_eagle_config_count_from_the_first(
    target: TransformersModel, tmp_path: Path
) -> None:
    folder = head_checkpoint(tmp_path, target.hf_model)
    own = {"eagle_aux_hidden_state_layer_ids": [0, 1, 2]}
    changed(folder, eagle_aux_hidden_state_layer_ids=None, eagle_config=own)
    assert read_config(folder).target_layers == LAYERS


def test_weights_as_torch_saves_them(target: TransformersModel, tmp_path: Path) -> None:
    """The authors of EAGLE-3 publish a plain Llama's configuration, and a .bin file."""
    folder = head_checkpoint(tmp_path, target.hf_model, reduced=23)
    given = json.loads((folder / "config.json").read_text())
    inner = given["transformer_layer_config"]
    kept = {"draft_vocab_size": 23, "architectures": ["LlamaForCausalLM"]}
    (folder / "config.json").write_text(json.dumps(inner | kept))
    file = folder / "model.safetensors"
    torch.save(load_file(file), folder / "pytorch_model.bin")
    file.unlink()
    assert load_head(folder, target).model.config.kind == "eagle3"


def test_the_original_layout_of_dflash(target: TransformersModel, tmp_path: Path) -> None:
    folder = head_checkpoint(tmp_path, target.hf_model, "dflash")
    inner = json.loads((folder / "config.json").read_text())["transformer_layer_config"]
    own = {"mask_token_id": 60, "target_layer_ids": [0, 1, 2], "block_size": 5}
    (folder / "config.json").write_text(json.dumps(inner | {"dflash_config": own}))
    drafter = load_head(folder, target)
    assert drafter.hidden_layers == LAYERS  # here layer 0 is not the embedding
    assert drafter.model.config.number("block_size", 0) == 5


def test_the_original_layout_of_dflash2(target: TransformersModel, tmp_path: Path) -> None:
    folder = head_checkpoint(tmp_path, target.hf_model, "dflash2")
    given = json.loads((folder / "config.json").read_text())
    own = {"mask_token_id": 60, "target_layer_ids": [0, 1, 2], "block_size": 5}
    names = ("selector_rank", "selector_top_k", "conv_group_size")
    own |= {name: given[name] for name in names} | {"conv_kernel_size": 2}
    inner = given["transformer_layer_config"] | {"architectures": ["DFlash2DraftModel"]}
    (folder / "config.json").write_text(json.dumps(inner | {"dflash_config": own}))
    assert load_head(folder, target).model.config.kind == "dflash2"


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"speculators_model_type": "medusa"}, "of kind 'medusa'; expected one of eagle3"),
        ({"speculators_model_type": "new"}, "of kind 'new'"),
        ({"final_logit_softcapping": 30.0}, "final_logit_softcapping 30.0 is not heeded"),
        ({"mask_token_id": 61}, "mask_token_id 61 is no token of 61"),
        ({"quantization_config": {"bits": 4}}, "is a quantised head"),
        ({"aux_hidden_state_layer_ids": [1, 9, 2]}, "layer 9, and the target has 3 layers"),
        ({"aux_hidden_state_layer_ids": [1, 2]}, r"fc.weight is \[32, 96\], .* \[32, 64\]"),
        ({"target_hidden_size": 64}, "states of width 64, and the target's are 32 wide"),
        ({"block_size": None}, "cannot be used as a dflash head: block_size is None; expected an"),
        ({"block_size": 1}, "block_size 1 leaves no token to draft"),
        ({"use_swa": True}, "use_swa True is not heeded"),
        ({"input_embedding_scale": 2.0}, "input_embedding_scale 2.0 is not heeded"),
        ({"causal": True}, "is_causal true beside full layers, as JetSpec's"),
        ({"markov_head_type": "new"}, "markov_head_type 'new' is not known"),
        ({"dflash_config": "x"}, "cannot be used as a dflash head"),
    ],
)
def test_configurations_that_do_not_fit(
    fields: dict[str, Any], said: str, target: TransformersModel, tmp_path: Path
) -> None:
    folder = changed(head_checkpoint(tmp_path, target.hf_model, "dflash"), **fields)
    with pytest.raises(ModelError, match=said):
        load_head(folder, target)


def test_partial_rotary_embeddings_are_refused(target: TransformersModel, tmp_path: Path) -> None:
    folder = head_checkpoint(tmp_path, target.hf_model, "dflash")
    layers = json.loads((folder / "config.json").read_text())["transformer_layer_config"]
    rope = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}
    changed(folder, transformer_layer_config=layers | {"rope_parameters": rope})
    with pytest.raises(ModelError, match=r"partial_rotary_factor 0\.5 is not heeded"):
        load_head(folder, target)


def test_a_flag_that_is_null_is_as_usual(target: TransformersModel, tmp_path: Path) -> None:
    folder = head_checkpoint(tmp_path, target.hf_model, "dspark")
    given = json.loads((folder / "config.json").read_text())
    given |= {"sample_from_anchor": None, "is_causal": None}
    (folder / "config.json").write_text(json.dumps(given))
    config = read_config(folder)
    assert config.anchored
    assert not config.both_ways


def test_tensors_that_do_not_fit(target: TransformersModel, tmp_path: Path) -> None:
    folder = tensors(head_checkpoint(tmp_path, target.hf_model), drop="norm.weight")
    with pytest.raises(ModelError, match=r"does not fit: norm\.weight missing"):
        load_head(folder, target)
    folder = tensors(head_checkpoint(tmp_path, target.hf_model), extra=torch.ones(1))
    with pytest.raises(ModelError, match="no place for extra"):
        load_head(folder, target)
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"has no \*.safetensors or"):
        load_head(folder, target)


def test_a_head_for_another_vocabulary(tmp_path: Path) -> None:
    folder = head_checkpoint(tmp_path, random_model("llama"))
    other = TransformersModel(random_model("llama", vocab_size=99), max_sequences=2)
    with pytest.raises(ModelError, match="is for 61 tokens, and the target has 99"):
        load_head(folder, other)


def test_a_target_without_hidden_states(tmp_path: Path) -> None:
    folder = head_checkpoint(tmp_path, random_model("llama"))
    with pytest.raises(ModelError, match=r"TabularModel gives none.*--runtime"):
        load_head(folder, mock_pair(61, seed=1)[0])


@pytest.mark.parametrize(
    ("layers", "said"),
    [
        ({"model_type": "gemma3_text"}, "layers of 'gemma3_text'; expected those of llama"),
        ({"layer_types": ["chunked_attention"]}, "layers of type chunked_attention"),
        ({"layer_types": ["full_attention"] * 3}, "cannot be used as a dflash head"),
    ],
)
def test_layers_that_a_head_cannot_have(
    layers: dict[str, Any], said: str, target: TransformersModel, tmp_path: Path
) -> None:
    folder = head_checkpoint(tmp_path, target.hf_model, "dflash")
    inner = json.loads((folder / "config.json").read_text())["transformer_layer_config"]
    changed(folder, transformer_layer_config=inner | layers)
    with pytest.raises(ModelError, match=said) as refused:
        load_head(folder, target)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        ({"medusa_num_heads": 4, "medusa_num_layers": 1}, "medusa"),
        ({"architectures": ["JetSpecDraftModel"], "dflash_config": {}}, "jetspec"),
        ({"architectures": ["UnoDraftModel"]}, "uno"),
    ],
)
def test_heads_that_are_not_drafted_with_are_named(
    given: dict[str, Any], kind: str, target: TransformersModel, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(given))
    assert head_folder(str(tmp_path)) == tmp_path
    with pytest.raises(ModelError, match=f"of kind '{kind}'"):
        load_head(tmp_path, target)


def test_a_vocabulary_that_names_a_token_twice(target: TransformersModel, tmp_path: Path) -> None:
    folder = head_checkpoint(tmp_path, target.hf_model, reduced=20)
    found = load_file(folder / "model.safetensors")
    del found["t2d"]
    for shift, said in (
        (-torch.arange(20), "two of its tokens to one id"),
        (torch.zeros(20), "d2t is torch.float32 of 1 dimensions"),
    ):
        save_file(found | {"d2t": shift}, folder / "model.safetensors")
        with pytest.raises(ModelError, match=said):
            load_head(folder, target)


def test_other_models_are_no_heads(tmp_path: Path) -> None:
    for given in ({"architectures": ["BrunoForCausalLM"]}, {"conv_kernel_size": 4}):
        (tmp_path / "config.json").write_text(json.dumps(given))
        assert head_folder(str(tmp_path)) is None
    assert head_folder("model.gguf") is None
    assert head_folder("demo") is None


def test_reduced_vocabularies_that_lead_nowhere(target: TransformersModel, tmp_path: Path) -> None:
    folder = head_checkpoint(tmp_path, target.hf_model, reduced=20)
    found = load_file(folder / "model.safetensors")
    below = tensors(folder, drop="t2d", d2t=found["d2t"] - 30)
    with pytest.raises(ModelError, match=r"d2t leads 20 tokens to ids from -\d+ to \d+ of 61"):
        load_head(below, target)
    folder = head_checkpoint(tmp_path / "selector", target.hf_model, "dflash2", reduced=20)
    with pytest.raises(ModelError, match="d2t beside a selector of candidates is not read"):
        load_head(folder, target)


def test_states_beyond_a_shorter_text_keep_their_places(
    target: TransformersModel, tmp_path: Path
) -> None:
    drafter = load_head(head_checkpoint(tmp_path, target.hf_model), target)
    head, text = drafter.model, list(range(1, 16))
    states = target.with_hidden(drafter.hidden_layers)

    def shown(start: int, end: int) -> None:
        scores = states.verify([Prefix(9, text[:1])], proposal([(text[1:end], range(end - 1))]))
        target.release([9], discard=True)
        assert scores.hidden is not None
        head.receive([HiddenStates(Prefix(0, text[:end]), start, scores.hidden[0, start:end])])

    shown(0, 9)
    head.open([Prefix(0, text[:10])], 2)
    shown(9, 13)
    head.open([Prefix(0, text[:6])], 2)  # of a text that is cut back
    assert head.known(Prefix(0, text[:14])) <= 5
