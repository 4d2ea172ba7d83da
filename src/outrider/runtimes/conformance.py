"""The conformance kit of runtimes: what the engine relies on, checked from outside.

Every check makes a runtime of its own, asks it about random texts, and compares its logits with
those of a reference that has no cache, or with those of a fresh runtime.
"""

from __future__ import annotations

import gc
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from types import FrameType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import ContextLengthError, ModelError
from ..types import trees
from ..types.finding import Finding
from ..types.records import Distributions, DraftProposal, Prefix
from .base import Runtime

Path = tuple[int, ...]
"""Token ids from the first on."""

Row = tuple[Sequence[int], Sequence[int]]
"""The drafted tokens of one row and the node that each follows: 0 the prefix, j the j-th token."""


class Reference(ABC):
    """What a runtime's answers are compared with: a model that is run without a cache."""

    @abstractmethod
    def logits(self, tokens: Path) -> Tensor:
        """Logits [V] after some tokens."""

    @abstractmethod
    def greedy(self, prompt: Path, length: int) -> Path:
        """The text of so many tokens that the model's own greedy decoding gives."""


class FreshRuntime(Reference):
    """A runtime as its own reference: it forgets everything before each question.

    Args:
        runtime: of which no sequence is live.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._known: dict[Path, Tensor] = {}

    def logits(self, tokens: Path) -> Tensor:
        """Logits [V] after some tokens."""
        if tokens not in self._known:
            self._runtime.reset()
            scores = self._runtime.verify([Prefix(0, tokens)], proposal([((), ())]))
            self._runtime.release([0], discard=True)
            self._known[tokens] = scores.logits[0, 0].clone()
        return self._known[tokens]

    def greedy(self, prompt: Path, length: int) -> Path:
        """The likeliest token after each text."""
        text = prompt
        for _ in range(length):
            text = (*text, int(self.logits(text).argmax()))
        return text[len(prompt) :]


def check_runtime(
    make: Callable[[], Runtime],
    reference: Reference | None = None,
    *,
    tolerance: float | None = None,
    seed: int = 0,
) -> tuple[Finding, ...]:
    """Check what the engine relies on.

    Args:
        make: makes a runtime of one model; called once for each check. Small models suffice.
        reference: the same model without a cache; None compares with a fresh runtime, which finds
            what depends on the cache and not what is wrong without one.
        tolerance: by how much logits may differ, beside the largest of them; None goes by the
            dtype of the logits.
        seed: of the texts.

    Returns:
        One finding for each property. Nothing that a runtime does wrong is raised.
    """
    return tuple(_finding(name, check, make, reference, tolerance, seed) for name, check in CHECKS)


def _finding(
    name: str,
    check: Callable[[Case], str],
    make: Callable[[], Runtime],
    reference: Reference | None,
    tolerance: float | None,
    seed: int,
) -> Finding:
    try:
        case = Case(make(), reference or FreshRuntime(make()), tolerance, seed)
        return Finding(name, True, check(case))
    except _Broken as broken:
        return Finding(name, False, str(broken))
    except Exception as error:
        return Finding(name, False, f"{type(error).__name__}: {error}")


class _Broken(Exception):
    """A property that does not hold."""


class _Interrupt(Exception):
    """Raised inside a runtime, to see what it leaves behind."""


@dataclass
class Case:
    """A runtime under test, and what is needed to ask it something.

    Attributes:
        runtime: under test.
        reference: what it should say.
        tolerance: see `check_runtime`.
        seed: of the texts.
        worst: the largest relative error seen.
    """

    runtime: Runtime
    reference: Reference
    tolerance: float | None
    seed: int
    worst: float = 0.0
    names: Any = field(default_factory=lambda: count(1))

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)

    @property
    def room(self) -> int:
        """The longest text that is tried."""
        return min(self.runtime.max_length or 96, 96)

    @property
    def rows(self) -> int:
        """How many sequences a batch has."""
        return min(self.runtime.max_sequences or 3, 3)

    def text(self, length: int) -> Path:
        """A random text, or what fits of it."""
        size = max(1, min(length, self.room - 8))
        return tuple(self.rng.integers(self.runtime.vocab_size, size=size).tolist())

    def texts(self) -> list[Path]:
        """Texts of one batch, of different lengths."""
        return [self.text(length) for length in (2, 21, 9)[: self.rows]]

    def chain(self, width: int) -> Row:
        """Random drafts in a row."""
        return self.rng.integers(self.runtime.vocab_size, size=width).tolist(), range(width)

    def tree(self, width: int) -> Row:
        """Random drafts that branch."""
        parents = [int(self.rng.integers(node + 1)) for node in range(width)]
        return self.rng.integers(self.runtime.vocab_size, size=width).tolist(), parents

    def verify(self, names: Sequence[int], paths: Sequence[Path], rows: Sequence[Row]) -> None:
        """Verify drafts, and compare the logits after every node."""
        prefixes = [Prefix(name, path) for name, path in zip(names, paths, strict=True)]
        logits = self.runtime.verify(prefixes, proposal(rows)).logits
        width = 1 + max(len(tokens) for tokens, _ in rows)
        expected = (len(paths), width, self.runtime.vocab_size)
        if tuple(logits.shape) != expected:
            raise _Broken(f"logits of shape {tuple(logits.shape)}; expected {expected}")
        for found, path, row in zip(logits, paths, rows, strict=True):
            for node in range(len(row[0]) + 1):
                self.compare(found[node], (*path, *spelled(row, node)))

    def compare(self, found: Tensor, path: Path) -> None:
        """Compare logits [V] with those after a text."""
        expected = self.reference.logits(path).to("cpu", torch.float64)
        eps = torch.finfo(found.dtype).eps
        found = found.to("cpu", torch.float64)
        finite = expected[expected.isfinite()]
        scale = float(finite.abs().max().clamp(min=1e-9)) if len(finite) else 1.0
        apart = torch.where(found == expected, 0.0, (found - expected).abs())
        error = float(apart.max()) / scale
        self.worst = max(self.worst, error)
        allowed = max(8 * eps, eps**0.75) if self.tolerance is None else self.tolerance
        if not error <= allowed:
            raise _Broken(
                f"logits after a text of {len(path)} tokens are off by {error:.2g} of the largest; "
                f"allowed {allowed:.2g}"
            )

    def rounds(self, turns: int, draft: Callable[[int], Row]) -> None:
        """Rounds on a batch: some of each row's drafts are kept, then another token follows."""
        names, paths = [next(self.names) for _ in range(self.rows)], self.texts()
        for _ in range(turns):
            rows = [draft(int(self.rng.integers(5))) for _ in names]
            self.verify(names, paths, rows)
            paths = [
                (*path, *spelled(row, int(self.rng.integers(len(row[0]) + 1))), *self.text(1))
                for path, row in zip(paths, rows, strict=True)
            ]
        self.runtime.check_integrity()
        self.runtime.release(names)

    @property
    def said(self) -> str:
        """The largest error, in words."""
        return f"largest relative error {self.worst:.1e}"


def proposal(rows: Sequence[Row]) -> DraftProposal:
    """A proposal of point masses: ragged chains, or trees if one of them branches."""
    lengths = np.array([len(tokens) for tokens, _ in rows], dtype=np.int64)
    tokens = torch.zeros(len(rows), int(lengths.max()), dtype=torch.int64)
    parents = trees.chain(*tokens.shape)
    for index, (drafted, follows) in enumerate(rows):
        tokens[index, : len(drafted)] = torch.tensor(drafted, dtype=torch.int64)
        parents[index, : len(drafted)] = list(follows)
    branches = not np.array_equal(parents, trees.chain(*tokens.shape))
    masses = Distributions(point_masses=tokens)
    return DraftProposal(tokens, lengths, masses, parents if branches else None)


def spelled(row: Row, node: int) -> list[int]:
    """The drafted tokens down to a node."""
    tokens, parents = row
    return [tokens[step - 1] for step in trees.path(parents, node)]


def _capabilities(case: Case) -> str:
    told = case.runtime.capabilities
    logits = case.runtime.verify([Prefix(1, [0])], proposal([((), ())])).logits
    if logits.shape[-1] != told.vocab_size:
        raise _Broken(f"logits are {logits.shape[-1]} wide; vocab_size says {told.vocab_size}")
    if logits.device.type != told.device.type:
        raise _Broken(f"logits are on {logits.device}; device says {told.device}")
    if not all(0 <= token < told.vocab_size for token in told.eos_token_ids):
        raise _Broken(f"eos_token_ids {set(told.eos_token_ids)} leave 0..{told.vocab_size - 1}")
    return f"{told.vocab_size} tokens on {told.device}"


def _greedy(case: Case) -> str:
    """Drafts are what the reference says, and wrong from a random place on."""
    prompt, length = case.text(9), min(24, case.room // 3)
    expected = case.reference.greedy(prompt, length)
    name, path = next(case.names), prompt
    while len(path) < len(prompt) + length:
        done = len(path) - len(prompt)
        drafts = list(expected[done : done + 4])[: case.room - len(path)]
        cut = int(case.rng.integers(len(drafts) + 1))
        drafts[cut:] = [(token + 1) % case.runtime.vocab_size for token in drafts[cut:]]
        row = drafts, range(len(drafts))
        logits = case.runtime.verify([Prefix(name, path)], proposal([row])).logits[0]
        for node in range(len(drafts) + 1):
            best = int(logits[node].argmax())
            path = (*path, best)
            if node == len(drafts) or best != drafts[node]:
                break
    found = path[len(prompt) : len(prompt) + length]
    if found == expected:
        return f"{length} tokens"
    place = next(i for i, (a, b) in enumerate(zip(found, expected, strict=True)) if a != b)
    raise _Broken(
        f"token {place} of the greedy text is {found[place]}; the reference says {expected[place]}"
    )


def _rejection(case: Case) -> str:
    """Deep drafts, none of which is kept, and others in their place."""
    name, path = next(case.names), case.text(7)
    for width in (4, 1, 5, 3):
        case.verify([name], [path], [case.chain(width)])
        path = (*path, *case.text(1))
    case.verify([name], [path], [case.chain(0)])
    return case.said


def _ragged(case: Case) -> str:
    case.rounds(5, case.chain)
    case.rounds(2, case.chain)
    return f"{case.rows} rows; {case.said}"


def _rewritten(case: Case) -> str:
    """A runtime is a function of prefixes: the same id with other tokens gets their logits."""
    name, path = next(case.names), case.text(12)
    for other in (path, path[:4], (*path[:4], *case.text(6)), case.text(12), path[:1]):
        case.verify([name], [other], [case.chain(2)])
    return case.said


def _reuse(case: Case) -> str:
    """Twice as many sequences as there are slots, of which one stays throughout."""
    slots = case.runtime.max_sequences or 4
    stays, text = next(case.names), case.text(11)
    for turn in range(2 * min(slots, 8) + 2):
        case.verify([stays], [text], [case.chain(1)])
        text = (*text, *case.text(1))
        if slots > 1:
            case.rounds(1, case.chain) if slots > case.rows else _short(case, discard=turn % 2 == 0)
    case.runtime.check_integrity()
    case.runtime.release([stays])
    # All of them at once, in whatever slots were left.
    few = min(slots, 8)
    names = [next(case.names) for _ in range(few)]
    case.verify(names, [case.text(5) for _ in names], [case.chain(1) for _ in names])
    return case.said


def _short(case: Case, *, discard: bool) -> None:
    name = next(case.names)
    case.verify([name], [case.text(6)], [case.chain(2)])
    case.runtime.release([name], discard=discard)


def _sharing(case: Case) -> str:
    """Texts that begin alike, in one batch and after one another, of live sequences and others."""
    text = case.text(30)
    first = next(case.names)
    case.verify([first], [text], [case.chain(3)])
    for length in (len(text), len(text) // 2, 3):
        if case.rows > 1:
            names = [first, next(case.names)]
            longer = (*text[:length], *case.text(3))
            case.verify(names, [(*text, *case.text(1)), longer], [case.chain(1), case.chain(2)])
            case.runtime.release(names[1:])
    case.runtime.release([first])
    names = [next(case.names) for _ in range(case.rows)]
    case.verify(names, [text] * case.rows, [case.chain(2) for _ in names])
    return case.said


def _overflow(case: Case) -> str:
    most = case.runtime.max_length
    if most is None:
        return "the context has no bound"
    for size, drafts in ((most + 1, 0), (most, 1), (most - 1, 2)):
        name = next(case.names)
        prefix = Prefix(name, np.zeros(size, dtype=np.int64).tolist())
        try:
            case.runtime.verify([prefix], proposal([case.chain(drafts)]))
        except ContextLengthError:
            continue
        raise _Broken(f"{size} tokens and {drafts} drafts were taken; max_length is {most}")
    if most <= 512:
        # To the last token, beside a row whose drafts reach further than that row has room.
        text = tuple(case.rng.integers(case.runtime.vocab_size, size=most - 1).tolist())
        names = [next(case.names) for _ in range(min(2, case.rows))]
        case.verify(
            names, [text, case.text(3)][: case.rows], [case.chain(1), case.chain(4)][: case.rows]
        )
        case.verify(names[:1], [(*text, 0)], [case.chain(0)])
    return f"max_length {most}"


def _crowd(case: Case) -> str:
    most = case.runtime.max_sequences
    if most is None or most > 64:
        return "any number of sequences" if most is None else "not tried: more than 64"
    names = [next(case.names) for _ in range(most)]
    texts = [case.text(4) for _ in names]
    case.verify(names, texts, [case.chain(1) for _ in names])
    try:
        case.verify([next(case.names)], [case.text(3)], [case.chain(1)])
    except ModelError:
        case.verify(names, [(*t, 0) for t in texts], [case.chain(2) for _ in names])
        return f"{most} sequences"
    raise _Broken(f"sequence {most + 1} was taken while {most} were live")


def _trees(case: Case) -> str:
    if not case.runtime.capabilities.trees:
        return "no trees"
    case.rounds(5, lambda width: case.tree(2 * width))
    return case.said


def _drafting(case: Case) -> str:
    """A cursor's logits, and that a target of the same model keeps what was fed."""
    names, paths = [next(case.names) for _ in range(case.rows)], case.texts()
    prefixes = [Prefix(name, path) for name, path in zip(names, paths, strict=True)]
    try:
        cursor = case.runtime.open(prefixes, 4)
    except ModelError as error:
        return f"does not draft: {error}"
    with torch.inference_mode():
        for row, path in enumerate(paths):
            case.compare(cursor.logits[row], path)
        for _ in range(3):
            new = [case.text(1) for _ in paths]
            logits = cursor.step(torch.tensor(new, device=case.runtime.device)[:, 0])
            paths = [(*path, *token) for path, token in zip(paths, new, strict=True)]
            for row, path in enumerate(paths):
                case.compare(logits[row], path)
    case.verify(names, [(*p[:-1], *case.text(1)) for p in paths], [case.chain(1) for _ in paths])
    if case.runtime.capabilities.trees:
        _expanding(case, names, paths)
    return case.said


def _expanding(case: Case, names: list[int], paths: list[Path]) -> None:
    cursor = case.runtime.open([Prefix(n, p) for n, p in zip(names, paths, strict=True)], 4)
    rows: list[Row] = [([], []) for _ in paths]
    device = case.runtime.device
    with torch.inference_mode():
        for width in (2, 3):
            fed = len(rows[0][0])
            new = [case.rng.integers(fed + 1, size=width).tolist() for _ in rows]
            tokens = [list(case.chain(width)[0]) for _ in rows]
            logits = cursor.expand(
                torch.tensor(tokens, device=device), torch.tensor(new, device=device)
            )
            rows = [
                ([*row[0], *drawn], [*row[1], *follows])
                for row, drawn, follows in zip(rows, tokens, new, strict=True)
            ]
            for row, path in enumerate(paths):
                for node in range(width):
                    told = (*path, *spelled(rows[row], fed + node + 1))
                    case.compare(logits[row, node], told)
    case.verify(names, [(*p, 0) for p in paths], [case.chain(1) for _ in paths])


def _exception(case: Case) -> str:
    """An exception at some of the calls inside `verify`, in rounds that prefill and that do not."""
    runtime, name, path = case.runtime, next(case.names), case.text(19)
    other = next(case.names)
    calls = _interrupted(lambda: case.verify([name], [path], [case.chain(2)]), None)
    places = sorted({int(x) for x in np.linspace(1, calls, 12)})
    for place in places:
        path = (*path[:-1], *case.text(2))
        row = case.chain(2)
        prefixes = [Prefix(name, path), Prefix(other, case.text(20))][: case.rows]
        asked = proposal([row] * len(prefixes))
        _interrupted(lambda p=prefixes, a=asked: runtime.verify(p, a), place)
        try:
            runtime.check_integrity()
        except AssertionError as error:
            raise _Broken(f"after an exception: {error}") from None
        texts = [tuple(prefix.tokens.tolist()) for prefix in prefixes]
        case.verify([prefix.sequence_id for prefix in prefixes], texts, [row] * len(texts))
        if case.rows > 1:
            runtime.release([other])
    return f"at {len(places)} of {calls} calls; {case.said}"


def _interrupted(act: Callable[[], object], at: int | None) -> int:
    """Run something, raise at the given call of a Python function in it; how many there were."""
    calls = 0
    before = sys.gettrace()

    def trace(frame: FrameType, event: str, _: object) -> None:
        nonlocal calls
        # What is being left or destroyed belongs to others.
        if event == "call" and frame.f_code.co_name not in ("__exit__", "__del__"):
            calls += 1
            if calls == at:
                sys.settrace(before)
                raise _Interrupt

    sys.settrace(trace)
    try:
        act()
    except _Interrupt:
        pass
    finally:
        sys.settrace(before)
    return calls


def _reset(case: Case) -> str:
    name, path = next(case.names), case.text(14)
    case.verify([name], [path], [case.chain(2)])
    case.runtime.reset()
    case.runtime.check_integrity()
    case.verify([name], [(*path, 0)], [case.chain(2)])
    return case.said


def _memory(case: Case) -> str:
    """Tensors that are held after many sequences, and after three times as many."""
    many = 2 * min(case.runtime.max_sequences or 4, 8)

    def run(times: int) -> int:
        for _ in range(times):
            name = next(case.names)
            case.runtime.verify([Prefix(name, case.text(30))], proposal([case.chain(3)]))
            case.runtime.release([name])
        gc.collect()
        held = [each for each in gc.get_objects() if type(each) is Tensor]
        return sum(
            {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in held}.values()
        )

    before, after = run(many), run(2 * many)
    if after > before + 4096:
        raise _Broken(f"{2 * many} more sequences of the same length took {after - before} bytes")
    return f"{3 * many} sequences"


CHECKS: tuple[tuple[str, Callable[[Case], str]], ...] = (
    ("capabilities are true", _capabilities),
    ("greedy text is the reference's", _greedy),
    ("logits after a rejected draft are those of a fresh forward", _rejection),
    ("rows of different lengths do not disturb each other", _ragged),
    ("a sequence may be rewritten", _rewritten),
    ("slots are used again", _reuse),
    ("sequences may share a prefix", _sharing),
    ("the context is not exceeded", _overflow),
    ("a live sequence keeps its slot", _crowd),
    ("every node of a tree sees its own path", _trees),
    ("a cursor sees what it was fed", _drafting),
    ("an exception leaves nothing wrong behind", _exception),
    ("a reset forgets, and goes on", _reset),
    ("memory is bounded", _memory),
)
"""Every property, by name, in the order in which they are checked."""
