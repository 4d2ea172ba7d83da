"""Faults that users reported, each with its right value; those of one package are in its tests."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers as tf

from outrider import (
    HybridDrafter,
    NgramDrafter,
    SamplingParams,
    SpeculativeConfig,
    SpeculativeDecoder,
    SuffixDrafter,
    TransformersModel,
    load,
)
from outrider.errors import ContextLengthError

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def pair() -> Any:
    return load("demo")


def wide(context: int, seed: int = 0) -> TransformersModel:
    """A random float64 Llama whose greedy text is varied."""
    torch.manual_seed(seed)
    config = tf.LlamaConfig(
        vocab_size=61,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=context,
        eos_token_id=None,
    )
    model = tf.LlamaForCausalLM(config).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim >= 2:
                parameter.normal_(0, 0.5)
    model.generation_config.eos_token_id = None
    return TransformersModel(model, max_sequences=2)


@pytest.mark.parametrize("drafting", ["none", "model", "lookup", "both"])
def test_a_processor_is_not_asked_behind_the_stop_string(pair: Any, drafting: str) -> None:
    drafter = {
        "none": None,
        "model": pair.model_drafter,
        "lookup": NgramDrafter(),
        "both": pair.drafter,
    }[drafting]
    decoder = SpeculativeDecoder(
        pair.target,
        drafter,
        tokenizer=pair.tokenizer,
        config=SpeculativeConfig(depth="fixed", num_speculative_tokens=8),
    )
    prompt = "def fib(n):"
    given = len(pair.tokenizer.encode(prompt))

    def wary(tokens: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        assert "loor" not in pair.tokenizer.decode(tokens[given:].tolist())
        return logits

    params = SamplingParams(max_tokens=64, temperature=0, stop="loor", logits_processors=(wary,))
    assert decoder.generate(prompt, params).text == '\n    """Return the f'


@pytest.mark.parametrize("k", [0, 4])
def test_the_drafts_context_ends_drafting_and_not_the_request(k: int) -> None:
    target, draft = wide(64), wide(16, seed=1)
    prompt = [3 * i % 61 for i in range(20)]
    config = SpeculativeConfig(depth="fixed", num_speculative_tokens=k)
    params = SamplingParams(max_tokens=44, temperature=0)
    plain = SpeculativeDecoder(wide(64)).generate(prompt, params).token_ids
    assert (
        SpeculativeDecoder(target, draft, config=config).generate(prompt, params).token_ids == plain
    )
    both = HybridDrafter(draft, SuffixDrafter())
    assert (
        SpeculativeDecoder(target, both, config=config).generate(prompt, params).token_ids == plain
    )
    short = SpeculativeDecoder(target, draft, config=config).generate(
        [1, 2], SamplingParams(max_tokens=60, temperature=0)
    )
    assert (short.metrics.drafted > 0) == (k > 0)
    with pytest.raises(ContextLengthError, match="64"):
        SpeculativeDecoder(target, draft).generate(prompt, SamplingParams(max_tokens=45))
