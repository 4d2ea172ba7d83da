"""What a runtime takes to verify: one row of 1 to 17 tokens, and several rows of 5.

Each model is measured in a process of its own, with `--beside` in one of another checkout as well.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import torch

import outrider
from outrider.runtimes.base import Runtime
from outrider.types.records import Distributions, DraftProposal, Prefix

from .report import Report, Say, Scope

SHAPES = ((1, 1), (1, 4), (1, 5), (1, 9), (1, 17), (4, 5), (16, 5))
"""Rows, and the tokens that each computes in a round."""

LENGTHS = (128, 1000)
ROUNDS = 30
HERE = Path(__file__).parents[1]


def run(scope: Scope, say: Say) -> Report:
    """Time the rounds of each model, in the types asked for."""
    found: list[dict[str, Any]] = []
    for model in scope.models or ("demo",):
        for kind in scope.kinds or ("float32",):
            say(f"{model}, {kind}")
            rows = _measured(HERE, model, kind, scope.rounds or ROUNDS)
            before: list[float | None] = [None] * len(rows)
            if scope.beside is not None:
                others = _measured(Path(scope.beside), model, kind, scope.rounds or ROUNDS)
                before = [row["ms"] for row in others]
            for row, old in zip(rows, before, strict=True):
                found.append(row | {"before_ms": old, "ratio": old and old / row["ms"]})
    note = "Median ms of Runtime.verify where each round goes on by a token and its drafts fail."
    if scope.beside is not None:
        note += " Before: the same by another checkout, in a process just after."
    return Report(note, found)


def _measured(checkout: Path, model: str, kind: str, rounds: int) -> list[dict[str, Any]]:
    """Measure a model with the library of a checkout."""
    paths = [checkout / "src", checkout / "packages" / "outrider-demo" / "src", HERE]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, paths))}
    asked = [sys.executable, "-m", "benchmarks.runtimes", model, kind, str(rounds)]
    done = subprocess.run(asked, env=environment, stdout=subprocess.PIPE, check=True)
    rows: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return rows


def measure(model: str, kind: str, rounds: int) -> list[dict[str, Any]]:
    """Measure a model here: its weights in a type, or rounded to "int8" or "int4"."""
    rounded = kind in ("int8", "int4")
    settings: dict[str, Any] = {"weights": kind} if rounded else {"dtype": kind}
    target = outrider.load(
        model, runtime="openvino", device="cpu", max_sequences=16, **settings
    ).target
    longest = target.max_length or max(LENGTHS)
    found = []
    for length in LENGTHS:
        start = min(length, longest - max(tokens for _, tokens in SHAPES) - rounds)
        for rows, tokens in SHAPES:
            row = {"model": Path(model).stem, "kind": kind, "length": length, "rows": rows}
            found.append(row | {"tokens": tokens, "ms": _ms(target, start, rows, tokens, rounds)})
    return found


def _ms(target: Runtime, length: int, rows: int, tokens: int, rounds: int) -> float:
    """Return the median milliseconds of a round."""
    rng, wide = np.random.default_rng(0), target.vocab_size
    prefixes = [Prefix(row, rng.integers(0, wide, length).tolist()) for row in range(rows)]
    drafts = torch.from_numpy(rng.integers(0, wide, (rows, tokens - 1)))
    made = Distributions(point_masses=drafts) if tokens > 1 else None
    proposal = DraftProposal(drafts, np.full(rows, tokens - 1), made)
    seconds = []
    for _ in range(rounds):
        start = perf_counter()
        target.verify(prefixes, proposal)
        seconds.append(perf_counter() - start)
        prefixes = [each.extended([int(rng.integers(0, wide))]) for each in prefixes]
    target.release(range(rows), discard=True)
    return 1e3 * median(seconds[rounds // 6 :])


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1], sys.argv[2], int(sys.argv[3]))))
