"""Models on disk: a directory in the transformers layout, with the tokenizer beside them."""

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaForCausalLM

from training.files import replacing
from training.windows import Corpus


def save_checkpoint(model: LlamaForCausalLM, directory: Path, tokenizer_path: Path) -> None:
    """Write a model and its tokenizer, replacing what `directory` held, whole or not at all."""
    with replacing(directory) as staged:
        model.save_pretrained(staged)
        shutil.copyfile(tokenizer_path, staged / "tokenizer.json")


def load_checkpoint(directory: Path, corpus: Corpus) -> LlamaForCausalLM:
    """Read a model, in float32, that was trained with the corpus's tokenizer.

    The model's tokenizer is looked for in its own directory, then in the one above (where a pair
    keeps the one its models share).

    Raises:
        FileNotFoundError: If the directory holds no model, or no tokenizer is found.
        ValueError: If its tokenizer or its vocabulary size differs from the corpus's.
    """
    if not (directory / "config.json").is_file():
        raise FileNotFoundError(f"{directory} holds no model (no config.json)")
    tokenizer_path = find_tokenizer(directory)
    if token_mapping(tokenizer_path) != token_mapping(corpus.tokenizer_path):
        raise ValueError(
            f"{tokenizer_path} and {corpus.tokenizer_path} give different token ids; make the "
            f"corpus with: python -m training.corpus --data DIR --like {tokenizer_path.parent}"
        )
    model = LlamaForCausalLM.from_pretrained(directory, dtype=torch.float32, local_files_only=True)
    if model.config.vocab_size != corpus.vocab_size:
        raise ValueError(
            f"the model in {directory} has a vocabulary of {model.config.vocab_size} tokens, "
            f"the corpus one of {corpus.vocab_size}"
        )
    return model


def find_tokenizer(directory: Path) -> Path:
    """Return the path of the tokenizer of the model in `directory`.

    Raises:
        FileNotFoundError: If there is none in it or in its parent.
    """
    candidates = [directory / "tokenizer.json", directory.resolve().parent / "tokenizer.json"]
    for path in candidates:
        if path.is_file():
            return path
    raise FileNotFoundError(f"no tokenizer.json in {directory} or in the directory above it")


def token_mapping(tokenizer_path: Path) -> dict[str, Any]:
    """Return the parts of a tokenizer file that decide the ids of a text."""
    parts = json.loads(tokenizer_path.read_text("utf-8"))
    return {name: parts[name] for name in ("normalizer", "pre_tokenizer", "model", "added_tokens")}
