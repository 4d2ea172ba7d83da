"""Tokenise CPython's standard library into training and held-out token arrays.

Writes four files: ``tokenizer.json``, ``held_out.json`` (names of the held-out files),
``train.npy`` and ``held.npy`` (token ids, uint16, each document preceded by the end-of-text token).
"""

import argparse
import json
import platform
import random
import sysconfig
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from training.files import claim_directory, replacing

END_OF_TEXT = "<|endoftext|>"
END_OF_TEXT_ID = 0
BYTE_VALUES = 256
MAX_VOCAB_SIZE = 2**16
MIN_CHARACTERS = 400
SKIPPED_DIRECTORIES = frozenset(
    {
        "site-packages",
        "test",
        "tests",
        "idlelib",
        "lib2to3",
        "turtledemo",
        "__pycache__",
        "encodings",
    }
)


class Document(NamedTuple):
    """A source file: its path relative to the root, with forward slashes, and its text."""

    name: str
    text: str


def documents(root: Path, skipped: frozenset[str] = SKIPPED_DIRECTORIES) -> Iterator[Document]:
    """Yield the Python files under `root` in path order.

    Left out: files under a skipped directory (tests, data tables, bundled applications), files that
    are not UTF-8, and files of 400 characters or fewer.
    """
    for path in sorted(root.rglob("*.py")):
        relative = path.relative_to(root)
        if not skipped.isdisjoint(relative.parts):
            continue
        try:
            text = path.read_text("utf-8")
        except UnicodeDecodeError:
            continue
        if len(text) > MIN_CHARACTERS:
            yield Document(relative.as_posix(), text)


def shuffled(docs: Sequence[Document]) -> list[Document]:
    """Return the documents in a fixed pseudo-random order (seed 0)."""
    order = list(docs)
    random.Random(0).shuffle(order)
    return order


def split_by_name(
    docs: Sequence[Document], held_out: Sequence[str]
) -> tuple[list[Document], list[Document]]:
    """Split into training documents and the held-out ones, these in the order of `held_out`.

    Raises:
        ValueError: If no held-out name is among the documents.
    """
    by_name = {doc.name: doc for doc in docs}
    held = [by_name[name] for name in held_out if name in by_name]
    if not held:
        raise ValueError(f"none of the {len(held_out)} held-out files is among the documents")
    held_names = {doc.name for doc in held}
    return [doc for doc in docs if doc.name not in held_names], held


def train_tokenizer(texts: Iterator[str], vocab_size: int) -> Tokenizer:
    """Train a byte-level BPE tokenizer; token 0 is the end-of-text token.

    Source: Sennrich et al. 2016 (BPE for subwords); Radford et al. 2019 (over bytes).
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def encode(tokenizer: Tokenizer, docs: Sequence[Document]) -> npt.NDArray[np.uint16]:
    """Concatenate the documents' token ids, an end-of-text token before each.

    Returns:
        Shape (tokens,).
    """
    encodings = tokenizer.encode_batch([doc.text for doc in docs])
    ids = [token for encoding in encodings for token in (END_OF_TEXT_ID, *encoding.ids)]
    return np.array(ids, dtype=np.uint16)


def write_corpus(
    directory: Path, tokenizer: Tokenizer, train: Sequence[Document], held: Sequence[Document]
) -> None:
    """Write the corpus files into `directory`, all of them or none."""
    with replacing(directory) as staged:
        tokenizer.save(str(staged / "tokenizer.json"))
        held_names = json.dumps([doc.name for doc in held])
        (staged / "held_out.json").write_text(held_names, "utf-8")
        for name, docs in (("train", train), ("held", held)):
            ids = encode(tokenizer, docs)
            np.save(staged / f"{name}.npy", ids)
            characters = sum(len(doc.text) for doc in docs)
            print(f"{name}: {len(docs)} files, {len(ids):,} tokens, {characters:,} characters")


def build_parser() -> argparse.ArgumentParser:
    """Return the command line's parser."""
    parser = argparse.ArgumentParser(prog="python -m training.corpus", description=__doc__)
    parser.add_argument(
        "--data", type=Path, required=True, help="directory to write; must be new or empty"
    )
    parser.add_argument(
        "--source",
        type=Path,
        default=Path(sysconfig.get_paths()["stdlib"]),
        help="directory to read Python files from (default: this interpreter's standard library)",
    )
    parser.add_argument(
        "--like",
        type=Path,
        help="take tokenizer.json and held_out.json from this directory instead of making them, "
        "whatever --vocab and --held-out say; "
        "use it with the shipped pair's directory to measure that pair, or distil from it, on any "
        "Python version",
    )
    parser.add_argument(
        "--vocab", type=int, default=4096, help="size of the vocabulary (default: %(default)s)"
    )
    parser.add_argument(
        "--held-out",
        type=int,
        default=24,
        help="number of files kept out of training (default: %(default)s)",
    )
    return parser


def check_arguments(args: argparse.Namespace) -> None:
    """Check the arguments against each other and the file system.

    Raises:
        ValueError, FileNotFoundError: With the argument and what is allowed.
    """
    if not BYTE_VALUES < args.vocab <= MAX_VOCAB_SIZE:
        raise ValueError(
            f"--vocab {args.vocab}: expected {BYTE_VALUES + 1} (every byte and the end-of-text "
            f"token) to {MAX_VOCAB_SIZE} (ids are 16 bits wide)"
        )
    if args.held_out < 1:
        raise ValueError(f"--held-out {args.held_out}: expected at least 1")
    if not args.source.is_dir():
        raise FileNotFoundError(f"--source {args.source} is not a directory")
    for name in ("tokenizer.json", "held_out.json"):
        if args.like and not (args.like / name).is_file():
            raise FileNotFoundError(f"--like {args.like} holds no {name}")


def require_more_than(held_out: int, docs: Sequence[Document], source: Path) -> None:
    """Refuse a source that leaves nothing to train on.

    Raises:
        ValueError: If there are no more documents than files to hold out.
    """
    if len(docs) <= held_out:
        raise ValueError(
            f"--source {source} holds {len(docs)} usable Python files; expected more than the "
            f"{held_out} to hold out"
        )


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = build_parser()
    args = parser.parse_args(argv)
    try:
        check_arguments(args)
        docs = shuffled(list(documents(args.source)))
        if args.like:
            names = json.loads((args.like / "held_out.json").read_text("utf-8"))
            train, held = split_by_name(docs, names)
            tokenizer = Tokenizer.from_file(str(args.like / "tokenizer.json"))
            print(f"held out: {len(held)} of the {len(names)} files named by {args.like}")
        else:
            require_more_than(args.held_out, docs, args.source)
            held, train = docs[: args.held_out], docs[args.held_out :]
            tokenizer = train_tokenizer((doc.text for doc in train), args.vocab)
        claim_directory(args.data)
    except (ValueError, OSError) as error:
        parser.error(str(error))
    print(
        f"Python {platform.python_version()}, a vocabulary of {tokenizer.get_vocab_size()} tokens"
    )
    write_corpus(args.data, tokenizer, train, held)


if __name__ == "__main__":
    main()
