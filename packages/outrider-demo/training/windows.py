"""Cut token arrays into the windows that models are trained and measured on."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor


@dataclass(frozen=True)
class Corpus:
    """What ``training.corpus`` wrote.

    Attributes:
        train: Training token ids, shape (tokens,), int64.
        held: Held-out token ids, shape (tokens,), int64.
        tokenizer_path: The tokenizer that made them.
        vocab_size: Its number of tokens.
    """

    train: Tensor
    held: Tensor
    tokenizer_path: Path
    vocab_size: int


def load_corpus(directory: Path) -> Corpus:
    """Read a corpus directory.

    Raises:
        FileNotFoundError: If the directory or one of its files is missing.
    """
    for name in ("tokenizer.json", "train.npy", "held.npy"):
        if not (directory / name).is_file():
            raise FileNotFoundError(
                f"--data {directory} holds no {name}; make it with: "
                f"python -m training.corpus --data {directory}"
            )
    train, held = (
        torch.from_numpy(np.load(directory / f"{name}.npy").astype(np.int64))
        for name in ("train", "held")
    )
    tokenizer_path = directory / "tokenizer.json"
    vocab_size = Tokenizer.from_file(str(tokenizer_path)).get_vocab_size()
    return Corpus(train, held, tokenizer_path, vocab_size)


def require_length(tokens: Tensor, window: int) -> None:
    """Refuse an array too short to draw windows from.

    Raises:
        ValueError: If there are fewer than window + 2 tokens.
    """
    if len(tokens) < window + 2:
        raise ValueError(
            f"a window of {window} tokens needs an array of at least {window + 2}, "
            f"this one has {len(tokens)}"
        )


def sample_windows(tokens: Tensor, window: int, count: int, generator: torch.Generator) -> Tensor:
    """Draw windows at uniform starts.

    Args:
        tokens: Shape (tokens,), at least window + 2 of them.
        window: Number of predicted tokens in each window.
        count: Number of windows.
        generator: Source of the starts; advanced by one draw.

    Returns:
        Shape (count, window + 1): the inputs are [:, :-1], the tokens they predict [:, 1:].
    """
    starts = torch.randint(0, len(tokens) - window - 1, (count,), generator=generator)
    return torch.stack([tokens[start : start + window + 1] for start in starts])


def consecutive_windows(tokens: Tensor, window: int) -> Iterator[Tensor]:
    """Yield windows that predict each token but the first exactly once.

    Neighbours share one token: the last one predicted is the next window's first input.

    Yields:
        Shape (1, window + 1); the last one may be shorter.
    """
    for start in range(0, len(tokens) - 1, window):
        yield tokens[None, start : start + window + 1]
