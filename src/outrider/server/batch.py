"""Files of requests in OpenAI's batch format: answered in order, and gone on with after a kill."""

from __future__ import annotations

import json
import logging
import secrets
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from ..engine.decoder import SpeculativeDecoder
from ..errors import InvalidConfigError, ModelError, OutriderError
from .failures import described
from .replies import Reply
from .requests import ROUTES, Requests
from .service import Service, Update

_LOG = logging.getLogger(__name__)

_BEGINS = b'{"id": "batch_req_'
"""How each line of answers begins."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a batch.

    Attributes:
        number: of the line in the file, from 1.
        custom_id: what the file calls the request; None where it cannot be read.
        route: what it asks; one of `ROUTES`.
        body: its JSON.
        wrong: why it cannot be answered; None if it can.
    """

    number: int
    custom_id: str | None
    route: str = ""
    body: str = ""
    wrong: str | None = None


def lines_of(path: Path) -> Iterator[Line]:
    """Read a batch file, line by line; empty lines are left out."""
    with path.open("rb") as file:
        for number, data in enumerate(file, 1):
            if data.strip():
                yield _line(number, data)


def counted(path: Path) -> int:
    """Count the lines of a batch file, and refuse one in which two have one custom_id."""
    total, first = 0, dict[str, int]()
    for line in lines_of(path):
        total += 1
        name = line.custom_id
        if name is not None and first.setdefault(name, line.number) != line.number:
            given = f"{path}: lines {first[name]} and {line.number} have the custom_id {name!r}"
            expected = "one of its own for each line"
            raise InvalidConfigError("--input-file", str(path), expected, given=given)
    return total


def _line(number: int, data: bytes) -> Line:
    try:
        given = json.loads(data)
    except (ValueError, RecursionError) as error:
        return Line(number, None, wrong=f"no JSON ({error})")
    if not isinstance(given, dict):
        return Line(number, None, wrong=f"a {type(given).__name__}, not an object")
    name, route, body = (given.get(key) for key in ("custom_id", "url", "body"))
    if not isinstance(name, str):
        return Line(number, None, wrong="no custom_id that is a text")
    method = given.get("method", "POST")
    if method != "POST" or not isinstance(route, str) or route not in ROUTES:
        asked = f"method {method!r} and url {route!r}"
        return Line(number, name, wrong=f"{asked}; expected POST to {' or '.join(ROUTES)}")
    if not isinstance(body, dict):
        return Line(number, name, wrong="no body that is an object")
    whole = {"stream": False, "stream_options": None}
    return Line(number, name, route, json.dumps(body | whole))


def resume(path: Path, lines: Iterator[Line]) -> tuple[int, int]:
    """Find how many lines were answered before, and cut off half a line that a kill left.

    Args:
        path: of the answers; what is no ordinary file, or not there, has none.
        lines: of the batch; as many are taken as were answered.

    Returns:
        How many were answered, and how many of those with an error.

    Raises:
        InvalidConfigError: the file holds something else, or answers of another batch.
    """
    if not path.is_file():
        return 0, 0
    done = failed = end = 0
    with path.open("rb+") as file:
        for data in file:
            half = not data.endswith(b"\n") and data.startswith(_BEGINS[: len(data)])
            if half:
                break
            line, (name, status) = next(lines, None), _answered(data)
            if line is None or status is None or name != line.custom_id:
                expected = "a new file, or answers to this batch; give another --output-file"
                raise InvalidConfigError("--output-file", str(path), expected)
            done, failed, end = done + 1, failed + (status != 200), end + len(data)
        file.truncate(end)
    return done, failed


def _answered(data: bytes) -> tuple[Any, int | None]:
    """Return whose answer a line is, and its status; None if it is no answer."""
    try:
        found = json.loads(data)
        return found["custom_id"], int(found["response"]["status_code"])
    except (ValueError, KeyError, TypeError):
        return None, None


Answering = Callable[[Iterator[Line]], Iterator[dict[str, Any]]]
"""Answers lines one by one, in their order; several may be worked on at once."""

Answer = Callable[[], dict[str, Any]]
"""Waits for the answer of a line."""


@dataclass(frozen=True, slots=True)
class Answered:
    """What became of a batch.

    Attributes:
        before: lines that had been answered before.
        now: lines that were answered now.
        failed: of both, those that were answered with an error.
    """

    before: int
    now: int
    failed: int


def answer_file(
    source: Path, target: Path, answering: Answering, report: Callable[[int, str | None], None]
) -> Answered:
    """Answer the lines of a batch in their order, and write each answer as soon as it is its turn.

    Args:
        source: the batch.
        target: where the answers go; what it holds is gone on with.
        answering: answers lines.
        report: called after each line with how many were answered, and what went wrong, if anything
            did.

    Raises:
        InvalidConfigError: the target holds something else than answers to this batch.
    """
    lines, now = lines_of(source), 0
    before, failed = resume(target, lines)
    with target.open("ab", buffering=0) as file:
        for answer in answering(lines):
            file.write(json.dumps(answer).encode() + b"\n")
            now += 1
            error = answer["error"]
            failed += error is not None
            report(before + now, None if error is None else error["message"])
    return Answered(before, now, failed)


def in_process(make: Callable[[], SpeculativeDecoder], model: str, *, together: int) -> Answering:
    """Answer lines with a decoder in this process.

    Args:
        make: makes it, once there is a line to answer.
        model: what its model is called.
        together: how many lines are worked on at once.
    """

    def answering(lines: Iterator[Line]) -> Iterator[dict[str, Any]]:
        first = list(islice(lines, together))
        if not first:
            return
        requests = batch_requests(make(), model)
        try:
            going = deque(begun(requests, line) for line in first)
            while going:
                yield going.popleft()()
                going.extend(begun(requests, line) for line in islice(lines, 1))
        finally:
            requests.service.close()
            requests.service.join()

    return answering


def batch_requests(decoder: SpeculativeDecoder, model: str) -> Requests:
    """Make what answers lines: no queue is too long, and no request takes too much time."""
    service = Service(decoder, max_waiting=2**20, timeout_s=float("inf"))
    return Requests(service, [model])


def begun(requests: Requests, line: Line) -> Answer:
    """Begin to answer a line; what is returned waits for the answer, in OpenAI's form."""
    updates: SimpleQueue[Update] = SimpleQueue()
    try:
        if line.wrong is not None:
            raise OutriderError(line.wrong)
        reply, groups = requests.prepared(line.route, line.body.encode())
        reply.job = requests.service.submit(groups, updates.put)
    except OutriderError as error:
        return partial(_failed, line, error)
    except Exception as error:
        _LOG.exception("line %d failed", line.number)
        return partial(_failed, line, ModelError(f"{type(error).__name__}; see the log"))
    return partial(_ended, requests, line, reply, updates)


def _ended(
    requests: Requests, line: Line, reply: Reply, updates: SimpleQueue[Update]
) -> dict[str, Any]:
    done = False
    try:
        while not done:
            update = updates.get()
            reply.add(update)
            done = update.done
        return _written(line, 200, reply.whole(), None)
    except OutriderError as error:
        requests.service.cancel(reply.job)
        return _failed(line, error)


def _failed(line: Line, error: OutriderError) -> dict[str, Any]:
    status, body = described(error)
    said = {"code": str(status), "message": f"line {line.number}: {error}"}
    return _written(line, status, body, said)


def _written(line: Line, status: int, body: Any, error: Any) -> dict[str, Any]:
    name = secrets.token_hex(8)
    return {
        "id": f"batch_req_{name}",
        "custom_id": line.custom_id,
        "response": {"status_code": status, "request_id": name, "body": body},
        "error": error,
    }
