"""Files of requests in OpenAI's batch format: answered in order, and gone on with after a kill."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from ..errors import InvalidConfigError, OutriderError
from .failures import described
from .requests import ROUTES, Requests


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
    body: bytes = b""
    wrong: str | None = None


def lines_of(path: Path) -> Iterator[Line]:
    """Read a batch file, line by line; empty lines are left out."""
    with path.open("rb") as file:
        for number, data in enumerate(file, 1):
            if data.strip():
                yield _line(number, data)


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
    if given.get("method", "POST") != "POST" or route not in ROUTES:
        return Line(number, name, wrong=f"url {route!r}; expected POST to {' or '.join(ROUTES)}")
    if not isinstance(body, dict):
        return Line(number, name, wrong="no body that is an object")
    return Line(number, name, route, json.dumps(body | {"stream": False}).encode())


def resume(path: Path, lines: Iterator[Line]) -> int:
    """Find how many lines were answered before, and cut off half a line that a kill left.

    Args:
        path: of the answers; a file that is not there has none.
        lines: of the batch; as many are taken as were answered.

    Raises:
        InvalidConfigError: the file holds answers of another batch.
    """
    if not path.exists():
        return 0
    done = end = 0
    with path.open("rb+") as file:
        for data in file:
            if not data.endswith(b"\n"):
                break
            line = next(lines, None)
            if line is None or _named(data) != line.custom_id:
                expected = "a new file, or answers to this batch; give another --output-file"
                raise InvalidConfigError("--output-file", str(path), expected)
            done, end = done + 1, end + len(data)
        file.truncate(end)
    return done


def _named(data: bytes) -> Any:
    try:
        return json.loads(data)["custom_id"]
    except (ValueError, KeyError, TypeError):
        return secrets.token_hex()


async def run_batch(
    requests: Requests,
    source: Path,
    target: Path,
    *,
    together: int,
    report: Callable[[Line, int], None],
) -> tuple[int, int]:
    """Answer the lines of a batch in their order, and write each answer as soon as it is its turn.

    Args:
        requests: answers.
        source: the batch.
        target: where the answers go; what it holds is gone on with.
        together: how many lines are worked on at once.
        report: called with each line that was answered, and its status.

    Returns:
        How many lines had been answered before, and how many were answered now.

    Raises:
        InvalidConfigError: the target holds answers to another batch.
    """
    lines = lines_of(source)
    before, now = resume(target, lines), 0
    going: deque[tuple[Line, asyncio.Task[dict[str, Any]]]] = deque()
    with target.open("ab", buffering=0) as file:
        try:
            while True:
                for line in islice(lines, together - len(going)):
                    going.append((line, asyncio.create_task(answered(requests, line))))
                if not going:
                    return before, now
                line, task = going.popleft()
                answer = await task
                file.write(json.dumps(answer, ensure_ascii=False).encode() + b"\n")
                now += 1
                report(line, answer["response"]["status_code"])
        finally:
            for _, task in going:
                task.cancel()


async def answered(requests: Requests, line: Line) -> dict[str, Any]:
    """Answer one line, in the form that OpenAI writes it."""
    error: OutriderError | None = None
    try:
        if line.wrong is not None:
            raise InvalidConfigError("line", line.number, "a request", given=line.wrong)
        status, body = 200, await requests.answer(line.route, line.body)
    except OutriderError as raised:
        error = raised
        status, body = described(raised)
    name = secrets.token_hex(8)
    message = f"line {line.number}: {error}"
    said = None if error is None else {"code": str(status), "message": message}
    return {
        "id": f"batch_req_{name}",
        "custom_id": line.custom_id,
        "response": {"status_code": status, "request_id": name, "body": body},
        "error": said,
    }
