"""Write down what a teacher says about many windows of tokens, for a draft to learn from.

A third of the windows, by default, the teacher writes itself, going on from the beginnings of
others: a draft is asked about the target's text, not about people's. Half of the rest comes from
the training files, and half from files that no model was trained on (the interpreter's tests and
bundled applications), where a teacher is less sure of itself, as it will be of its users' text.

Writes two files: ``windows.npy`` (token ids, uint16, shape (windows, tokens + 1)) and
``states.npy`` (the teacher's last hidden states, bfloat16 held as uint16, shape (windows, tokens,
hidden)). The teacher's distributions follow from its states by its output head alone, so that an
epoch over them costs little more than the draft's own passes.
"""

import argparse
import json
import random
import sys
import sysconfig
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor
from transformers import LlamaForCausalLM

import outrider
from training.checkpoint import load_checkpoint
from training.corpus import SKIPPED_DIRECTORIES, documents, encode
from training.files import claim_directory, replacing
from training.windows import Corpus, load_corpus, require_length, sample_windows

NOT_CODE = frozenset({"site-packages", "__pycache__", "encodings"})
TEMPERATURES = (0.0, 0.8, 0.8, 1.0)
"""What the teacher writes at, in turn."""

WRITTEN_AT_ONCE = 64
LEAST_PROMPT = 32


@dataclass(frozen=True)
class Lessons:
    """Windows and what the teacher says about them.

    Attributes:
        windows: Token ids, shape (windows, tokens + 1), uint16 in an int32 tensor.
        states: The teacher's last hidden states, shape (windows, tokens, hidden), bfloat16.
    """

    windows: Tensor
    states: Tensor


def load_lessons(directories: Sequence[Path], window: int) -> Lessons:
    """Read what this command wrote, in one or more directories.

    Raises:
        FileNotFoundError: If a file is missing.
        ValueError: If the windows have another length.
    """
    windows, states = [], []
    for directory in directories:
        for name in ("windows.npy", "states.npy"):
            if not (directory / name).is_file():
                raise FileNotFoundError(
                    f"--lessons {directory} holds no {name}; make it with: "
                    f"python -m training.lessons --out {directory}"
                )
        found = np.load(directory / "windows.npy")
        if found.shape[1] != window + 1:
            raise ValueError(
                f"--lessons {directory} holds windows of {found.shape[1] - 1} tokens; "
                f"expected --window {window}"
            )
        windows.append(torch.from_numpy(found.astype(np.int32)))
        bits = torch.from_numpy(np.load(directory / "states.npy"))
        states.append(bits.view(torch.bfloat16))
    return Lessons(torch.cat(windows), torch.cat(states))


def unseen_tokens(source: Path, corpus: Corpus) -> Tensor:
    """Return the tokens of files that the corpus leaves out as tests or applications.

    Returns:
        Shape (tokens,), int64.
    """
    every = documents(source, NOT_CODE)
    left_out = [doc for doc in every if not SKIPPED_DIRECTORIES.isdisjoint(Path(doc.name).parts)]
    random.Random(0).shuffle(left_out)
    ids = encode(Tokenizer.from_file(str(corpus.tokenizer_path)), left_out)
    return torch.from_numpy(ids.astype(np.int64))


def write_on(teacher: LlamaForCausalLM, windows: Tensor, generator: torch.Generator) -> Tensor:
    """Let the teacher write the windows on, each from some place in its first half.

    Returns:
        Shape and dtype as given.
    """
    count, length = windows.shape
    starts = torch.randint(LEAST_PROMPT, length // 2, (count,), generator=generator).tolist()
    decoder = outrider.SpeculativeDecoder(
        outrider.OpenVinoModel(teacher, max_sequences=WRITTEN_AT_ONCE)
    )
    written = []
    for first in with_progress(range(0, count, WRITTEN_AT_ONCE), "writing"):
        rows = range(first, min(first + WRITTEN_AT_ONCE, count))
        prompts = [windows[row, : starts[row]].tolist() for row in rows]
        params = [
            outrider.SamplingParams(
                max_tokens=length - starts[row],
                temperature=TEMPERATURES[row % len(TEMPERATURES)],
                ignore_eos=True,
                seed=row,
            )
            for row in rows
        ]
        outputs = decoder.generate(prompts, params)
        written += [
            [*prompt, *output.token_ids] for prompt, output in zip(prompts, outputs, strict=True)
        ]
    return torch.tensor(written)


@torch.inference_mode()
def last_states(teacher: LlamaForCausalLM, windows: Tensor, batch: int = 8) -> Tensor:
    """Return the teacher's last hidden states, shape (windows, tokens, hidden), bfloat16."""
    states = []
    for first in with_progress(range(0, len(windows), batch), "reading"):
        inputs = windows[first : first + batch, :-1]
        with torch.autocast("cpu", torch.bfloat16):
            found = teacher.model(inputs, use_cache=False).last_hidden_state
        states.append(found.bfloat16())
    return torch.cat(states)


def with_progress(items: range, doing: str) -> Iterator[int]:
    """Yield the items, writing the time left to standard error now and then."""
    start = time.monotonic()
    for done, item in enumerate(items):
        if done and done % 2 == 0:
            left = (time.monotonic() - start) / done * (len(items) - done)
            print(f"{doing}: {done} of {len(items)}, {left:.0f} s left", file=sys.stderr)
        yield item


def write_lessons(
    directory: Path, teacher: LlamaForCausalLM, corpus: Corpus, args: argparse.Namespace
) -> None:
    """Choose the windows, let the teacher write and read, and save all of it or nothing."""
    generator = torch.Generator().manual_seed(args.seed)
    unseen = unseen_tokens(args.source, corpus)
    require_length(unseen, args.window)
    sources = (corpus.train, unseen)
    halves = [args.windows - args.windows // 2, args.windows // 2]
    windows = torch.cat(
        [
            sample_windows(tokens, args.window, count, generator)
            for tokens, count in zip(sources, halves, strict=True)
        ]
    )
    windows = windows[torch.randperm(len(windows), generator=generator)]
    if args.written:
        written = write_on(teacher, windows[: args.written], generator)
        windows = torch.cat([written, windows[args.written :]])
    states = last_states(teacher, windows)
    with replacing(directory) as staged:
        np.save(staged / "windows.npy", windows.numpy().astype(np.uint16))
        np.save(staged / "states.npy", states.view(torch.uint16).numpy())
        facts = {"windows": len(windows), "written": args.written, "seed": args.seed}
        (staged / "lessons.json").write_text(json.dumps(facts), "utf-8")
    print(f"{len(windows)} windows, {args.written} of them written by the teacher, in {directory}")


def build_parser() -> argparse.ArgumentParser:
    """Return the command line's parser."""
    parser = argparse.ArgumentParser(
        prog="python -m training.lessons",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--data", type=Path, required=True, help="directory written by training.corpus")
    add("--teacher", type=Path, required=True, help="directory of the model to write down")
    add("--out", type=Path, required=True, help="directory to write; must be new or empty")
    add(
        "--source",
        type=Path,
        default=Path(sysconfig.get_paths()["stdlib"]),
        help="where the files lie (default: this interpreter's standard library)",
    )
    add("--windows", type=int, default=3000, help="how many windows (default: %(default)s)")
    add(
        "--written",
        type=int,
        default=1000,
        help="how many of them the teacher writes on (default: %(default)s)",
    )
    add("--window", type=int, default=512, help="tokens in a window (default: %(default)s)")
    add("--seed", type=int, default=0, help="of starts and orders (default: %(default)s)")
    return parser


def check_arguments(args: argparse.Namespace) -> None:
    """Check the sizes.

    Raises:
        ValueError: With the argument and what is allowed.
    """
    if args.windows < 2:
        raise ValueError(f"--windows {args.windows}: expected at least 2")
    if not 0 <= args.written <= args.windows:
        raise ValueError(f"--written {args.written}: expected 0 to --windows {args.windows}")
    if args.window < 3 * LEAST_PROMPT:
        raise ValueError(f"--window {args.window}: expected at least {3 * LEAST_PROMPT}")


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = build_parser()
    args = parser.parse_args(argv)
    try:
        check_arguments(args)
        corpus = load_corpus(args.data)
        require_length(corpus.train, args.window)
        teacher = load_checkpoint(args.teacher, corpus).eval()
        claim_directory(args.out)
    except (ValueError, OSError) as error:
        parser.error(str(error))
    write_lessons(args.out, teacher, corpus, args)


if __name__ == "__main__":
    main()
