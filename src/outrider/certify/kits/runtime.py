"""The conformance kit of runtimes: caches answer as a model without a cache does.

Every check makes a runtime of its own, asks it about random texts, and compares its logits with
those of a reference that has no cache, or with those of a fresh runtime.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Collection
from functools import partial
from inspect import CO_GENERATOR
from types import FrameType

import numpy as np
import torch
from torch import Tensor

from ...errors import ContextLengthError, ModelError
from ...runtimes.base import Runtime
from ...types.finding import Finding
from ...types.records import Prefix
from .references import FreshRuntime, Path, Reference
from .runner import Broken, require, run
from .runtime_case import Case, Row


def check_runtime(
    make: Callable[[], Runtime],
    reference: Reference | None = None,
    *,
    tolerance: float | None = None,
    names: Collection[str] | None = None,
) -> tuple[Finding, ...]:
    """Check what the engine relies on.

    Args:
        make: makes a runtime of one model; called once for each check. Small models suffice.
        reference: the same model without a cache; None compares with a fresh runtime, which finds
            what depends on the cache and not what is wrong without one.
        tolerance: by how much logits may differ, beside the largest of them; None goes by the
            runtime's `rounding`, and by the dtype of the logits.
        names: of the properties that are checked; None for all.

    Returns:
        One finding for each property. Nothing that a runtime does wrong is raised.
    """

    def checked(check: Callable[[Case], str | None]) -> str:
        rng = np.random.default_rng(0)
        case = Case(make(), reference or FreshRuntime(make()), tolerance, rng)
        return check(case) or case.said

    chosen = [(name, check) for name, check in CHECKS if names is None or name in names]
    return run((name, partial(checked, check)) for name, check in chosen)


class _Interrupt(Exception):
    """Raised inside a runtime, to see what it leaves behind."""


def _capabilities(case: Case) -> str:
    stated = case.runtime.capabilities
    logits = case.runtime.verify([Prefix(1, [0])], case.proposal([((), ())])).logits
    width, most = logits.shape[-1], stated.vocab_size - 1
    require(width == most + 1, f"logits are {width} wide; vocab_size says {most + 1}")
    same = logits.device.type == stated.device.type
    require(same, f"logits are on {logits.device}; device says {stated.device}")
    known = all(0 <= token <= most for token in stated.eos_token_ids)
    require(known, f"eos_token_ids {set(stated.eos_token_ids)} leave 0..{most}")
    return f"a vocabulary of {width} on {stated.device}"


def _greedy(case: Case) -> str:
    """Drafts are what the reference says, and wrong from a random place on."""
    prompt, length = case.text(9), min(24, case.room // 3)
    expected, name, done = case.reference.greedy(prompt, length), next(case.names), 0
    while done < length:
        drafts = list(expected[done : done + 4])
        kept = int(case.rng.integers(len(drafts) + 1))
        drafts[kept:] = [(token + 1) % case.runtime.vocab_size for token in drafts[kept:]]
        prefix = Prefix(name, (*prompt, *expected[:done]))
        asked = case.proposal([(drafts, range(len(drafts)))])
        logits = case.runtime.verify([prefix], asked).logits[0, : kept + 1]
        for token, said in zip(logits.argmax(-1).tolist(), expected[done:], strict=False):
            wrong = f"token {done} of the greedy text is {token}; the reference says {said}"
            require(token == said, wrong)
            done += 1
    return f"{length} tokens"


def _rejection(case: Case) -> None:
    """Deep drafts, none of which is kept, and others in their place."""
    name, path = next(case.names), case.text(7)
    for width, others in ((4, 2), (1, 1), (5, 3), (3, 1), (0, 1)):
        case.verify({name: path}, width)
        path = (*path, *case.text(others))


def _ragged(case: Case) -> str:
    for turns in (5, 2):
        case.rounds(turns, case.chain)
    return f"{case.rows} rows; {case.said}"


def _rewritten(case: Case) -> None:
    """A runtime is a function of prefixes: the same id with other tokens gets their logits."""
    name, path = next(case.names), case.text(12)
    for other in (path, path[:4], (*path[:4], *case.text(6)), case.text(12), path[:1]):
        case.verify({name: other}, 2)


def _turnover(case: Case) -> str:
    """Sequences end in any order, and others go on from texts that ended before."""
    most = min(case.runtime.max_sequences or 6, 6)
    live: dict[int, Path] = {}
    ended: list[Path] = []
    for _ in range(24):
        while len(live) < int(case.rng.integers(1, most + 1)):
            again = ended and case.rng.random() < 0.7
            text = ended[-int(case.rng.integers(1, most + 1)) :][0] if again else case.text(14)
            live[next(case.names)] = (*text[: case.room - 20], *case.text(2))
        case.verify(live, 2)
        for name in case.rng.permutation([*live])[: int(case.rng.integers(1, most + 1))].tolist():
            ended.append(live.pop(name))
            case.runtime.release([name], discard=bool(case.rng.random() < 0.3))
        live = {name: (*text, *case.text(1))[: case.room - 4] for name, text in live.items()}
    case.runtime.check_integrity()
    case.runtime.release(live)
    # All slots at once, whoever had them.
    slots = min(case.runtime.max_sequences or 6, 64)
    case.verify({next(case.names): case.text(5) for _ in range(slots)}, 1)
    return f"{len(ended)} sequences; {case.said}"


def _sharing(case: Case) -> None:
    """Texts that begin alike, in one batch and after one another, of live sequences and others."""
    text = case.text(30)
    first = next(case.names)
    case.verify({first: text}, 3)
    for length in (len(text), len(text) // 2, 3):
        if case.rows > 1:
            other, longer = next(case.names), (*text[:length], *case.text(3))
            rows = [case.chain(1), case.chain(2)]
            case.verify({first: (*text, *case.text(1)), other: longer}, rows)
            case.runtime.release([other])
    case.runtime.release([first])
    case.verify({next(case.names): text for _ in range(case.rows)}, 2)


def _parts(case: Case) -> None:
    """A long prompt prefilled in parts, then another that shares it, then a round of both."""
    first, text = next(case.names), case.text(40)
    missing = case.runtime.prefill(Prefix(first, text), 1).missing
    while missing:
        left = case.runtime.prefill(Prefix(first, text), 7).missing
        right = max(0, missing - 7) == left
        require(right, f"7 more tokens of {missing} that are missing leave {left}")
        missing = left
    live = {first: text}
    if case.rows > 1:
        other = next(case.names)
        live[other] = (*text[: len(text) // 2], *case.text(3))
        case.runtime.prefill(Prefix(other, live[other]), 2)
    case.verify(live, 2)
    case.runtime.check_integrity()


def _overflow(case: Case) -> str:
    most = case.runtime.max_length
    if most is None:
        return "the context has no bound"
    for size, drafts in ((most + 1, 0), (most, 1), (most - 1, 2)):
        asked = case.proposal([case.chain(drafts)])
        try:
            case.runtime.verify([Prefix(next(case.names), (0,) * size)], asked)
        except ContextLengthError:
            continue
        raise Broken(f"{size} tokens and {drafts} drafts were taken; max_length is {most}")
    if most <= 512:
        # To the last token, beside a row whose drafts reach further than that row has room.
        text = tuple(case.rng.integers(case.runtime.vocab_size, size=most - 1).tolist())
        name, beside = next(case.names), next(case.names)
        live = dict([(name, text), (beside, case.text(3))][: case.rows])
        case.verify(live, [case.chain(1), case.chain(4)][: len(live)])
        case.verify({name: (*text, 0)}, 0)
    return f"max_length {most}"


def _crowd(case: Case) -> str:
    most = case.runtime.max_sequences
    if most is None or most > 64:
        return "any number of sequences" if most is None else "not tried: more than 64"
    live = {next(case.names): case.text(4) for _ in range(most)}
    case.verify(live, 1)
    try:
        case.verify({next(case.names): case.text(3)}, 1)
    except ModelError:
        case.verify({name: (*text, 0) for name, text in live.items()}, 2)
        return f"{most} sequences"
    raise Broken(f"sequence {most + 1} was taken while {most} were live")


def _trees(case: Case) -> str | None:
    if not case.runtime.capabilities.trees:
        return "no trees"
    case.rounds(5, lambda width: case.tree(2 * width))
    name, path, row = next(case.names), case.text(9), (case.chain(3)[0], (0, 0, 1))
    case.verify({name: path}, [row])
    # The drafts in the order of their columns, which is no path of the tree.
    case.verify({name: (*path, *row[0], *case.text(1))}, 1)
    case.runtime.release([name])
    return None


def _drafting(case: Case) -> str | None:
    """A cursor's logits, and that a target of the same model keeps what was fed."""
    live = case.batch()
    try:
        cursor = case.runtime.open(case.prefixes(live), 4)
    except ModelError as error:
        return f"does not draft: {error}"
    with torch.inference_mode():
        case.compare(cursor.logits[:, None], live.values())
        for _ in range(3):
            new = [case.text(1) for _ in live]
            logits = cursor.step(torch.tensor(new, device=case.runtime.device)[:, 0])
            live = {name: live[name] + token for name, token in zip(live, new, strict=True)}
            case.compare(logits[:, None], live.values())
    live = {name: (*path[:-1], *case.text(1)) for name, path in live.items()}
    case.verify(live, 1)
    if not (case.runtime.capabilities.trees and case.runtime.capabilities.drafts_trees):
        return None
    # Two nodes after the prefix, then three that each follow it or one of the two.
    cursor = case.runtime.open(case.prefixes(live), 4)
    tokens = case.rng.integers(case.runtime.vocab_size, size=(len(live), 5))
    parents = case.rng.integers([1, 1, 3, 3, 3], size=tokens.shape)
    rows: list[Row] = [*zip(tokens.tolist(), parents.tolist(), strict=True)]
    fed = torch.tensor(np.stack([tokens, parents]), device=case.runtime.device)
    with torch.inference_mode():
        for start, end in ((0, 2), (2, 5)):
            after = cursor.expand(fed[0, :, start:end], fed[1, :, start:end])
            case.compare(after, live.values(), rows, start + 1)
    drafted = zip(live.items(), rows, strict=True)
    case.verify({name: (*path, *row[0], 0) for (name, path), row in drafted}, 1)
    return None


def _exception(case: Case) -> str:
    """An exception at some of the calls inside `verify`, in rounds that prefill and that do not."""
    runtime, name, path = case.runtime, next(case.names), case.text(19)
    other = next(case.names)
    calls = _interrupted(lambda: case.verify({name: path}, 2), None)
    places = sorted({int(x) for x in np.linspace(1, calls, 12)})
    for place in places:
        path = (*path[:-1], *case.text(2))
        live = dict([(name, path), (other, case.text(20))][: case.rows])
        rows = [case.chain(2)] * len(live)
        asked = partial(runtime.verify, case.prefixes(live), case.proposal(rows))
        _interrupted(asked, place)
        runtime.check_integrity()
        case.verify(live, rows)
        if case.rows > 1:
            runtime.release([other])
    return f"at {len(places)} of {calls} calls; {case.said}"


def _interrupted(act: Callable[[], object], at: int | None) -> int:
    """Run something, raise at the given call of a Python function in it; how many there were."""
    calls = 0
    before = sys.gettrace()

    def trace(frame: FrameType, event: str, _: object) -> None:
        nonlocal calls
        # What is being left or destroyed, as generators may be, belongs to others.
        code = frame.f_code
        leaving = code.co_name in ("__exit__", "__del__") or code.co_flags & CO_GENERATOR
        if event == "call" and not leaving:
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


def _reset(case: Case) -> None:
    name, path = next(case.names), case.text(14)
    case.verify({name: path}, 2)
    case.runtime.reset()
    case.runtime.check_integrity()
    case.verify({name: (*path, 0)}, 2)


def _memory(case: Case) -> str:
    """Tensors that are held after many sequences, and after three times as many."""
    many = 2 * min(case.runtime.max_sequences or 4, 8)

    def run(times: int) -> int:
        for _ in range(times):
            name = next(case.names)
            case.runtime.verify([Prefix(name, case.text(30))], case.proposal([case.chain(3)]))
            case.runtime.release([name])
        gc.collect()
        held = [each for each in gc.get_objects() if type(each) is Tensor]
        return sum(
            {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in held}.values()
        )

    before, after = run(many), run(2 * many)
    more = after - before
    require(more <= 4096, f"{2 * many} more sequences of the same length took {more} bytes")
    return f"{3 * many} sequences, by tensors of torch"


GREEDY = "greedy text is the reference's"

CHECKS: tuple[tuple[str, Callable[[Case], str | None]], ...] = (
    ("capabilities are true", _capabilities),
    (GREEDY, _greedy),
    ("logits after a rejected draft are those of a fresh forward", _rejection),
    ("rows of different lengths do not disturb each other", _ragged),
    ("a sequence may be rewritten", _rewritten),
    ("sequences come and go in any order", _turnover),
    ("sequences may share a prefix", _sharing),
    ("a prompt may be prefilled in parts", _parts),
    ("the context is not exceeded", _overflow),
    ("a live sequence keeps its slot", _crowd),
    ("every node of a tree sees its own path", _trees),
    ("a cursor sees what it was fed", _drafting),
    ("an exception leaves nothing wrong behind", _exception),
    ("a reset forgets, and goes on", _reset),
    ("memory is bounded", _memory),
)
"""Every property, by name, in the order in which they are checked."""
