"""What the suffix drafter costs a token: reading, matching, drafting, and a round at its door."""

from __future__ import annotations

import resource
import sys
import sysconfig
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer

import outrider_demo as demo
from outrider import SuffixDrafter
from outrider.drafters.suffix import kernels as kernels
from outrider.drafters.suffix.automaton import SuffixAutomaton
from outrider.drafters.suffix.jit import compiled
from outrider.types.records import DraftPlan, Prefix

from .report import Report, Spread, add_row, columns

TOKENS, ORDER, DEPTH = 1_000_000, 32, 16
_GOAL_US = 2.0
_LIMITS = (DEPTH, DEPTH, 1.0, 0.0, 0.1, 1)
_DOOR = "a call for a row and its 4 tokens"
_TEXT_TOKENS, _ROUND_TOKENS, _CALLS = 1000, 4, 2000
_SOAK = "pool, ten times over"


class _Round:
    """A round of one row that may be shown the pool."""

    device = torch.device("cpu")
    local = np.array([False])
    prompt_lengths = np.array([0])
    remembers = True


@compiled
def _own(nodes: Any, table: Any, meta: Any, text: Any, branches: bool, out: Any) -> float:
    """Read each token, find the longest match, and draft. The sum of the scores."""
    total = 0.0
    for index in range(len(text)):
        kernels.extend(nodes, table, meta, text[index : index + 1], ORDER)
        state, length = kernels.own_match(nodes, meta, ORDER)
        total += kernels.draft((nodes, table, meta), state, length, ORDER, _LIMITS, branches, out)[
            2
        ]
    return total


@compiled
def _other(nodes: Any, table: Any, meta: Any, text: Any, branches: bool, out: Any) -> float:
    """Move the match in another text's automaton by each token, and draft."""
    total = 0.0
    state, length = kernels.ROOT, 0
    for index in range(len(text)):
        token = text[index : index + 1]
        state, length = kernels.follow(nodes, table, state, length, token, ORDER)
        total += kernels.draft((nodes, table, meta), state, length, ORDER, _LIMITS, branches, out)[
            2
        ]
    return total


def run(rounds: int) -> Report:
    """Time `rounds` passes over a million tokens each."""
    known, asked = np.split(_code(2 * TOKENS), 2)
    soak_s, soaked = _soak(known)
    rng = np.random.default_rng(0)
    texts = {
        "Python code": known,
        "random, 150,000 ids": rng.integers(0, 150_000, TOKENS),
        "random, 2 ids": rng.integers(0, 2, TOKENS),
        "one id": np.zeros(TOKENS, dtype=np.int64),
    }
    out = np.empty(DEPTH, dtype=np.int64), np.empty(DEPTH, dtype=np.int64), np.empty(DEPTH)
    timings: dict[str, list[float]] = {}
    facts: dict[str, str] = {_SOAK: soaked}

    def timed(name: str, work: Callable[[], object]) -> None:
        start = perf_counter()
        work()
        timings.setdefault(name, []).append((perf_counter() - start) / TOKENS)

    for branches in (False, True):
        for loop in (_own, _other):
            loop(*SuffixAutomaton(ORDER, 100).arrays, known[:90], branches, out)
    for _ in range(rounds):
        for name, text in texts.items():
            automaton = SuffixAutomaton(ORDER, TOKENS)
            timed(f"read {name}", partial(automaton.extend, text))
            steps = sum(automaton.operations) / TOKENS
            facts[f"read {name}"] = f"{automaton.states / TOKENS:.2f} states, {steps:.1f} steps"
        pooled = SuffixAutomaton(ORDER, TOKENS)
        pooled.extend(known)
        for shape, branches in (("chain", False), ("tree", True)):
            own = partial(_own, *_roomy().arrays, known, branches, out)
            timed(f"read, match, draft a {shape}", own)
            other = partial(_other, *pooled.arrays, asked, branches, out)
            timed(f"match in others, draft a {shape}", other)
        timed("pool: read texts of 1,000", partial(_learn, known))
        spent = _door(_learn(known), asked)
        timings.setdefault(_DOOR, []).append(spent)
    timings[_SOAK] = [soak_s]
    return _report(timings, facts)


def _soak(tokens: NDArray[np.int64]) -> tuple[float, str]:
    """Seconds a token takes a pool that forgets, and what more is held once it is full.

    First in the run: the most that a process ever held says nothing of what comes after more.
    """
    drafter, most = SuffixDrafter(max_match=ORDER, max_pool_tokens=TOKENS), 0
    fill, whole = 2 * TOKENS, 10 * TOKENS
    full, start = 0, perf_counter()
    for first in range(0, whole, _TEXT_TOKENS):
        place = first % len(tokens)
        drafter.learn(tokens[place : place + _TEXT_TOKENS])
        most = max(most, drafter.nbytes)
        full = _resident() if first + _TEXT_TOKENS == fill else full
    seconds = (perf_counter() - start) / whole
    grown = (_resident() - full) / 1e6
    return seconds, f"{most / 1e6:.0f} MB; {grown:+.0f} MB after {fill // TOKENS} pools"


def _resident() -> int:
    """The most bytes that the process ever held."""
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else 1024 * most


def _roomy() -> SuffixAutomaton:
    automaton = SuffixAutomaton(ORDER, TOKENS)
    automaton.reserve(TOKENS)
    return automaton


def _learn(tokens: NDArray[np.int64]) -> SuffixDrafter:
    drafter = SuffixDrafter(max_match=ORDER, max_pool_tokens=2 * TOKENS + 10_000)
    for first in range(0, len(tokens), _TEXT_TOKENS):
        drafter.learn(tokens[first : first + _TEXT_TOKENS])
    return drafter


def _door(drafter: SuffixDrafter, tokens: NDArray[np.int64]) -> float:
    """Seconds a call of `candidates` takes, for one row that grows by a few tokens a call."""
    plan = DraftPlan(np.array([DEPTH]))
    ctx: Any = _Round()
    prefix = Prefix(1, tokens[:_TEXT_TOKENS].tolist())
    steps = tokens[_TEXT_TOKENS : _TEXT_TOKENS + _CALLS * _ROUND_TOKENS].reshape(_CALLS, -1)
    spent = 0.0
    for step in steps.tolist():
        prefix = prefix.extended(step)
        start = perf_counter()
        drafter.candidates([prefix], plan, ctx)
        spent += perf_counter() - start
    return spent / _CALLS


def _code(count: int) -> NDArray[np.int64]:
    """The standard library's sources as the demo tokenizer cuts them, repeated where they end."""
    tokenizer = Tokenizer.from_file(str(demo.ROOT / "tokenizer.json"))
    ids: list[int] = []
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).rglob("*.py")):
        if "site-packages" in path.parts or len(ids) >= count:
            continue
        ids += tokenizer.encode(path.read_text(errors="replace")).ids
    return np.resize(np.array(ids, dtype=np.int64), count)


def _report(timings: dict[str, list[float]], facts: dict[str, str]) -> Report:
    table = columns(
        "a token, microseconds: median (and quartiles)", "", "", "goal", "beside it, a token"
    )
    rows = []
    for name, found in timings.items():
        # Given thousandfold, milliseconds are microseconds.
        spread = Spread.of([seconds * 1e3 for seconds in found])
        goal = None if name in (_DOOR, _SOAK) or "tree" in name else _GOAL_US
        add_row(table, name, str(spread), "" if goal is None else f"< {goal}", facts.get(name, ""))
        row = {"what": name, "median_us": round(spread.median, 4), "goal_us": goal}
        rows.append(row | {"beside": facts.get(name)})
    regime = (
        f"{TOKENS:,} tokens each, contexts of at most {ORDER}, drafts of at most {DEPTH} tokens, "
        "one thread, compiled by numba (compiling not timed); matched and drafted after every "
        "token, memory handed out on the way; unless named otherwise the text is Python code: the "
        "standard library, as the demo tokenizer cuts it; ten times over: that many tokens through "
        "a pool of the usual size, the most that it held, and how much more the process held after "
        "it was full"
    )
    return Report("suffix", regime, table, {"regime": regime, "rows": rows})
