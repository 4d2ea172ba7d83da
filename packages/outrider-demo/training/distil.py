"""Distil a draft from lessons, which hold what its teacher says about many windows.

Makes a model better at being a draft: the loss weighs the divergence KL(teacher || model) against
the mass that the two distributions do not share, which is the probability that a drafted token is
rejected. Every 300 steps, and at the end, both are printed for held-out text, and the model is
saved (float32).
"""

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import LlamaForCausalLM

from training.checkpoint import load_checkpoint, save_checkpoint
from training.files import claim_directory
from training.lessons import Lessons, last_states, load_lessons
from training.objective import EVALUATION_SEED, imitation
from training.schedule import learning_rate_factor
from training.train import BATCH_SEED, STEPS_PER_REPORT, STEPS_PER_SAVE, build_optimizers
from training.windows import Corpus, load_corpus, require_length, sample_windows

HELD_OUT_WINDOWS = 24


class Epochs:
    """Batches of lessons: all of them in a random order, then again in another."""

    def __init__(self, count: int, batch: int) -> None:
        self._generator = torch.Generator().manual_seed(BATCH_SEED)
        self._count, self._batch = count, batch
        self._left = torch.empty(0, dtype=torch.int64)

    def next(self) -> Tensor:
        """Return the rows of the next batch, shape (batch,)."""
        while len(self._left) < self._batch:
            order = torch.randperm(self._count, generator=self._generator)
            self._left = torch.cat([self._left, order])
        rows, self._left = self._left[: self._batch], self._left[self._batch :]
        return rows


def step_on(
    model: nn.Module, head: nn.Module, lessons: Lessons, rows: Tensor, weight: float
) -> tuple[float, float]:
    """Add the gradient of the loss on some windows to the model's.

    Returns:
        The divergence, in nats a token, and the shared mass, means over the windows.
    """
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(lessons.windows[rows, :-1].long(), use_cache=False).logits
        with torch.no_grad():
            taught = head(lessons.states[rows])
    found = imitation(logits.detach().float(), taught.float(), weight)
    logits.backward(found.gradient.to(logits.dtype))
    return found.divergence, found.overlap


@torch.no_grad()
def held_out(model: nn.Module, head: nn.Module, lessons: Lessons) -> tuple[float, float]:
    """Return the mean divergence and shared mass on held-out windows."""
    sums = torch.zeros(2)
    for row in range(len(lessons.windows)):
        inputs = lessons.windows[row : row + 1, :-1].long()
        with torch.autocast("cpu", torch.bfloat16):
            logits = model(inputs, use_cache=False).logits
            taught = head(lessons.states[row : row + 1])
        found = imitation(logits.float(), taught.float(), 0.0)
        sums += torch.tensor([found.divergence, found.overlap])
    divergence, overlap = (sums / len(lessons.windows)).tolist()
    return divergence, overlap


def distil(
    model: LlamaForCausalLM,
    teacher: LlamaForCausalLM,
    lessons: Lessons,
    corpus: Corpus,
    args: argparse.Namespace,
) -> None:
    """Train `model` in place until the budget is spent, saving it into ``args.out``."""
    windows = sample_windows(
        corpus.held, args.window, HELD_OUT_WINDOWS, torch.Generator().manual_seed(EVALUATION_SEED)
    )
    head = teacher.lm_head
    unseen = Lessons(windows, last_states(teacher, windows))

    def report(step: int) -> None:
        model.eval()
        divergence, overlap = held_out(model, head, unseen)
        model.train()
        print(
            f"step {step}: held-out divergence {divergence:.4f}, shared mass {overlap:.4f}",
            flush=True,
        )

    report(0)
    optimizers = build_optimizers(model, args.lr)
    epochs = Epochs(len(lessons.windows), args.batch)
    start = time.monotonic()
    step = 0
    while (elapsed := (time.monotonic() - start) / args.seconds) < 1:
        for optimizer in optimizers:
            optimizer.param_groups[0]["lr"] = args.lr * learning_rate_factor(step, elapsed)
        divergence, overlap = step_on(model, head, lessons, epochs.next(), args.overlap)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        step += 1
        if step % STEPS_PER_REPORT == 0:
            seconds = time.monotonic() - start
            print(
                f"step {step}: divergence {divergence:.3f}, shared mass {overlap:.3f}, "
                f"{step * args.batch * args.window / seconds:,.0f} tokens/s, "
                f"{max(0.0, args.seconds - seconds):.0f} s left",
                flush=True,
            )
        if step % STEPS_PER_SAVE == 0:
            report(step)
            save_checkpoint(model, args.out, corpus.tokenizer_path)
    save_checkpoint(model, args.out, corpus.tokenizer_path)
    report(step)


def build_parser() -> argparse.ArgumentParser:
    """Return the command line's parser."""
    parser = argparse.ArgumentParser(
        prog="python -m training.distil",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--data", type=Path, required=True, help="directory written by training.corpus")
    add(
        "--lessons",
        type=Path,
        required=True,
        nargs="+",
        help="directories written by training.lessons",
    )
    add("--teacher", type=Path, required=True, help="directory of the model they come from")
    add("--init", type=Path, required=True, help="directory of the draft to go on from")
    add("--out", type=Path, required=True, help="directory for the model; must be new or empty")
    add("--seconds", type=float, required=True, help="wall-clock budget of the training loop")
    add(
        "--overlap",
        type=float,
        default=0.5,
        help="what the mass not shared weighs, against the divergence; 0 to 1 "
        "(default: %(default)s)",
    )
    add("--window", type=int, default=512, help="tokens in a window (default: %(default)s)")
    add("--batch", type=int, default=12, help="windows in a step (default: %(default)s)")
    add("--lr", type=float, default=3e-3, help="peak learning rate (default: %(default)s)")
    return parser


def check_arguments(args: argparse.Namespace) -> None:
    """Check the sizes and rates.

    Raises:
        ValueError: With the argument and what is allowed.
    """
    for name in ("seconds", "lr", "window", "batch"):
        value = getattr(args, name)
        if not value > 0:
            raise ValueError(f"--{name} {value}: expected more than 0")
    if not 0 <= args.overlap <= 1:
        raise ValueError(f"--overlap {args.overlap}: expected 0 to 1")


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = build_parser()
    args = parser.parse_args(argv)
    try:
        check_arguments(args)
        corpus = load_corpus(args.data)
        require_length(corpus.held, args.window)
        lessons = load_lessons(args.lessons, args.window)
        teacher = load_checkpoint(args.teacher, corpus).eval()
        model = load_checkpoint(args.init, corpus).train()
        if lessons.states.shape[-1] != teacher.config.hidden_size:
            raise ValueError(
                f"--lessons hold states of width {lessons.states.shape[-1]}, --teacher "
                f"{args.teacher} has {teacher.config.hidden_size}: they come from another model"
            )
        claim_directory(args.out)
    except (ValueError, OSError) as error:
        parser.error(str(error))
    distil(model, teacher, lessons, corpus, args)


if __name__ == "__main__":
    main()
