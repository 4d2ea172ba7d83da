"""Measure a pair on the held-out files: cross-entropies and the divergence between its models.

Figures are in nats a token. The full pass predicts every held-out token once, in float32, in
consecutive windows; a model sees no context from before its window. The sampled figure is the one
that training prints: 48 windows at random starts (fixed seed), in bfloat16.
"""

import argparse
import copy
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import LlamaForCausalLM

from training.checkpoint import load_checkpoint
from training.objective import sampled_loss
from training.windows import consecutive_windows, load_corpus, require_length


@dataclass(frozen=True)
class PairLosses:
    """Means over the predicted tokens.

    Attributes:
        tokens: Number of tokens predicted.
        target: Cross-entropy of the target, nats a token.
        draft: Cross-entropy of the draft, nats a token.
        divergence: KL(target || draft), nats a token.
        overlap: Mass common to the two next-token distributions, the sum over tokens of
            min(target, draft): the probability that a drafted token is accepted at
            temperature 1 after this text.
    """

    tokens: int
    target: float
    draft: float
    divergence: float
    overlap: float


@torch.no_grad()
def measure_pair(
    target: LlamaForCausalLM, draft: LlamaForCausalLM, windows: Iterator[Tensor]
) -> PairLosses:
    """Measure both models on each window, shape (batch, tokens), and average over all tokens.

    Sums are kept in float64. Source of the overlap: Leviathan et al. 2023, "Fast Inference from
    Transformers via Speculative Decoding".
    """
    tokens = 0
    sums = torch.zeros(4, dtype=torch.float64)
    for window in windows:
        inputs, labels = window[:, :-1], window[:, 1:, None]
        target_log, draft_log = (
            F.log_softmax(model(inputs, use_cache=False).logits.float(), -1)
            for model in (target, draft)
        )
        per_token = (
            -target_log.gather(-1, labels),
            -draft_log.gather(-1, labels),
            target_log.exp() * (target_log - draft_log),
            torch.minimum(target_log, draft_log).exp(),
        )
        sums += torch.stack([values.sum(dtype=torch.float64) for values in per_token])
        tokens += labels.numel()
    return PairLosses(tokens, *(sums / tokens).tolist())


def with_progress(windows: Sequence[Tensor]) -> Iterator[Tensor]:
    """Yield the windows, writing the time left to standard error every 20 of them."""
    start = time.monotonic()
    for done, window in enumerate(windows):
        if done and done % 20 == 0:
            left = (time.monotonic() - start) / done * (len(windows) - done)
            print(f"window {done} of {len(windows)}, {left:.0f} s left", file=sys.stderr)
        yield window


def build_parser() -> argparse.ArgumentParser:
    """Return the command line's parser."""
    parser = argparse.ArgumentParser(
        prog="python -m training.evaluate",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--data", type=Path, required=True, help="directory written by training.corpus")
    add("--target", type=Path, required=True, help="directory of the target model")
    add("--draft", type=Path, required=True, help="directory of the draft model")
    add("--window", type=int, default=512, help="tokens in a window (default: %(default)s)")
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = build_parser()
    args = parser.parse_args(argv)
    try:
        if args.window < 1:
            raise ValueError(f"--window {args.window}: expected at least 1")
        corpus = load_corpus(args.data)
        require_length(corpus.held, args.window)
        target = load_checkpoint(args.target, corpus).eval()
        draft = load_checkpoint(args.draft, corpus).eval()
    except (ValueError, OSError) as error:
        parser.error(str(error))
    windows = list(consecutive_windows(corpus.held, args.window))
    losses = measure_pair(target, draft, with_progress(windows))
    print(f"full pass: {losses.tokens:,} tokens, {len(windows)} windows of {args.window}, float32")
    print(f"  target cross-entropy  {losses.target:.4f}")
    print(f"  draft cross-entropy   {losses.draft:.4f}")
    print(f"  KL(target || draft)   {losses.divergence:.4f}")
    print(f"  overlap               {losses.overlap:.4f}")
    teacher = copy.deepcopy(target).bfloat16()
    print(f"sampled: 48 windows of {args.window}, bfloat16")
    print(f"  target cross-entropy  {sampled_loss(target, None, corpus.held, args.window):.4f}")
    print(f"  draft cross-entropy   {sampled_loss(draft, None, corpus.held, args.window):.4f}")
    print(f"  KL(target || draft)   {sampled_loss(draft, teacher, corpus.held, args.window):.4f}")


if __name__ == "__main__":
    main()
