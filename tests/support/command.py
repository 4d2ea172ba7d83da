"""Running the `outrider` command inside a test, on tiny models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from outrider.cli import main

CONTEXT = 64
PROMPT = "def f(x):"

Capture = pytest.CaptureFixture[str]


def save_model(folder: Path, *, characters: int = 256, seed: int = 0, broken: str = "") -> str:
    """Save a tiny random model, and a tokenizer with one token for each of some bytes.

    Args:
        folder: to make.
        characters: how many bytes the tokenizer knows.
        seed: of the weights.
        broken: characters whose embeddings are NaN.

    Returns:
        The path of the folder.
    """
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())[:characters]
    words = Tokenizer(models.BPE({char: i for i, char in enumerate(alphabet)}, []))
    words.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    words.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words)
    config = LlamaConfig(
        vocab_size=len(alphabet),
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=CONTEXT,
        bos_token_id=None,
        eos_token_id=None,
    )
    torch.manual_seed(seed)
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        for token in tokenizer.encode(broken) if broken else ():
            model.model.embed_tokens.weight[token] = torch.nan
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def printed(capsys: Capture, *args: str) -> str:
    """What a command that succeeds prints on standard output."""
    status = main(args)
    captured = capsys.readouterr()
    assert status == 0, captured.err
    return captured.out


def document(capsys: Capture, *args: str) -> Any:
    """The JSON object that a command prints."""
    return json.loads(printed(capsys, *args, "--json"))


def error_of(capsys: Capture, *args: str, status: int = 2) -> str:
    """The one line on standard error with which a command fails."""
    assert main(args) == status
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1, captured.err
    assert captured.err.startswith("outrider: error: ")
    return captured.err
