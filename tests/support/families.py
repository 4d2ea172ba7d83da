"""Small random models of the families the adapter is tested on, in float64."""

from __future__ import annotations

import copy
from typing import Any

import torch
import transformers as tf

VOCAB = 61
PAD = VOCAB - 1
CONTEXT = 160

_COMMON = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": CONTEXT,
    "bos_token_id": 0,
    "eos_token_id": None,
    "pad_token_id": None,
    "tie_word_embeddings": False,
}
_GROUPED = {"num_key_value_heads": 2, "intermediate_size": 48}
_SLIDING = {"sliding_window": 7}


def _configs() -> dict[str, Any]:
    return {
        "llama": tf.LlamaConfig(**_COMMON, **_GROUPED),
        "qwen2": tf.Qwen2Config(**_COMMON, **_GROUPED),
        "qwen2_sliding": tf.Qwen2Config(
            **_COMMON, **_GROUPED, **_SLIDING, use_sliding_window=True, max_window_layers=1
        ),
        "qwen3": tf.Qwen3Config(**_COMMON, **_GROUPED, head_dim=16),
        "gpt2": tf.GPT2Config(
            vocab_size=VOCAB,
            n_positions=CONTEXT,
            n_embd=32,
            n_layer=3,
            n_head=4,
            bos_token_id=0,
            eos_token_id=None,
            tie_word_embeddings=False,
        ),
        "gpt_neox": tf.GPTNeoXConfig(**_COMMON, intermediate_size=48),
        "mistral": tf.MistralConfig(**_COMMON, **_GROUPED, **_SLIDING),
        "gemma2": tf.Gemma2Config(**_COMMON, **_GROUPED, **_SLIDING, head_dim=16),
        "gemma3": tf.Gemma3TextConfig(
            **_COMMON,
            **_GROUPED,
            **_SLIDING,
            head_dim=16,
            layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        ),
        "phi": tf.PhiConfig(**_COMMON, intermediate_size=48),
        "phi3": tf.Phi3Config(**_COMMON, **_GROUPED),
        "opt": tf.OPTConfig(
            **_COMMON, ffn_dim=48, word_embed_proj_dim=32, do_layer_norm_before=True
        ),
        "falcon": tf.FalconConfig(**_COMMON, multi_query=True, alibi=False),
        "falcon_grouped": tf.FalconConfig(
            **_COMMON, new_decoder_architecture=True, num_kv_heads=2, alibi=False
        ),
        "gpt_oss": tf.GptOssConfig(
            **_COMMON,
            **_GROUPED,
            **_SLIDING,
            head_dim=16,
            num_local_experts=2,
            num_experts_per_tok=1,
            experts_implementation="eager",
        ),
    }


FAMILIES = tuple(_configs())


def random_model(family: str, seed: int = 0, **changes: Any) -> Any:
    """A random model of a family, float64, with weights wide enough that its text is varied."""
    torch.manual_seed(seed)
    config = _configs()[family]
    config.update(changes)
    model = tf.AutoModelForCausalLM.from_config(config).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim >= 2:
                parameter.normal_(0, 0.35)
    model.generation_config.eos_token_id = None
    return model


def resembling(model: Any, noise: float = 0.03, seed: int = 1) -> Any:
    """A copy of a model with noise on its weights: a draft that is often, not always, right."""
    torch.manual_seed(seed)
    near = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in near.parameters():
            if parameter.ndim >= 2:
                parameter.add_(torch.randn_like(parameter) * noise)
    return near


def greedy_reference(model: Any, prompt: list[int], length: int) -> tuple[int, ...]:
    """What transformers' own generate gives, token by token."""
    ids = torch.tensor([prompt])
    out = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=length,
        do_sample=False,
        pad_token_id=0,
    )
    return tuple(out[0, len(prompt) :].tolist())


class Distributions:
    """What a model of transformers says without a cache, as a distribution."""

    def __init__(self, hf_model: Any) -> None:
        self._hf_model = hf_model
        self.vocab_size = hf_model.config.vocab_size

    def probabilities(self, prefix: tuple[int, ...]) -> Any:
        with torch.no_grad():
            return self._hf_model(torch.tensor([prefix])).logits[0, -1].softmax(-1).numpy()


def padded(lengths: tuple[int, ...], seed: int = 5) -> dict[str, torch.Tensor]:
    """Prompts of these lengths, padded on the left."""
    drawn = torch.Generator().manual_seed(seed)
    width = max(lengths)
    ids = torch.randint(VOCAB - 1, (len(lengths), width), generator=drawn)
    mask = torch.tensor([[0] * (width - n) + [1] * n for n in lengths])
    return {"input_ids": ids.where(mask == 1, PAD), "attention_mask": mask}
