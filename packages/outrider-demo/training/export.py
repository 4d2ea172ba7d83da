"""Lay out a trained pair as it is shipped: bfloat16 weights, one tokenizer, the held-out list."""

import argparse
import shutil
from collections.abc import Sequence
from pathlib import Path

from training.checkpoint import load_checkpoint
from training.files import claim_directory, replacing
from training.windows import load_corpus


def build_parser() -> argparse.ArgumentParser:
    """Return the command line's parser."""
    parser = argparse.ArgumentParser(prog="python -m training.export", description=__doc__)
    add = parser.add_argument
    add("--data", type=Path, required=True, help="directory written by training.corpus")
    add("--target", type=Path, required=True, help="directory of the target model")
    add("--draft", type=Path, required=True, help="directory of the draft model")
    add("--out", type=Path, required=True, help="directory for the pair; must be new or empty")
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = build_parser()
    args = parser.parse_args(argv)
    try:
        corpus = load_corpus(args.data)
        models = {
            "target": load_checkpoint(args.target, corpus),
            "draft": load_checkpoint(args.draft, corpus),
        }
        claim_directory(args.out)
    except (ValueError, OSError) as error:
        parser.error(str(error))
    with replacing(args.out) as staged:
        for name, model in models.items():
            model.bfloat16().save_pretrained(staged / name)
        for name in ("tokenizer.json", "held_out.json"):
            shutil.copyfile(args.data / name, staged / name)
    print(f"wrote {args.out}")


if __name__ == "__main__":
    main()
