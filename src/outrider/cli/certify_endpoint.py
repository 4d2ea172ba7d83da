"""`outrider certify --endpoint`: is another engine's speculation lossless?"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from .. import __version__
from ..certify.endpoint.questions import Plan
from ..config.params import SpeculativeConfig
from ..config.validation import read_text
from ..errors import InvalidConfigError
from .files import make_folder, replace_file
from .options import Drafting, Models, Output, Setup

if TYPE_CHECKING:
    from ..certify.endpoint.client import Endpoint
    from ..certify.endpoint.promises import Promise
    from ..certify.endpoint.records import Tokens
    from ..certify.endpoint.references import Reference
    from ..certify.endpoint.run import Answer
    from .models import Loaded

PROMPTS = (
    "The history of the lighthouse begins with",
    "def read_table(path):\n    ",
    "Three things are needed to bake bread:",
    "Q: Why is the sky blue?\nA:",
    '[{"id": 1, "name": "alice", "active": true}, {"id": 2,',
    "Once upon a time, in a village by the sea,",
    "class Queue:\n    def __init__(self):\n        ",
    "Dear Sir or Madam,\n\nI write to you because",
    "The train leaves at seven. If it is late,",
    "import os\nimport sys\n\n\ndef main():\n    ",
    "In 1969 the first people",
    "SELECT name, count(*) FROM orders",
    "To sort a list of numbers, first",
    "She opened the letter and read:",
    "# Installation\n\nRun\n\n    pip install",
    "The main difference between a virus and a bacterium is",
)
"""Beginnings of texts of many kinds."""


@dataclass(frozen=True, kw_only=True)
class Server:
    """Another engine, behind a server of OpenAI's API; --draft names its draft model, if known.

    Attributes:
        endpoint: the address of the server, such as http://localhost:8000/v1.
        reference_endpoint: the address of the same model without speculation.
        reference_model: the same model's weights, on a runtime of this machine (--runtime ...).
        own_reference: take the server's own log-probabilities of prompts as the reference: what a
            server gets wrong there as well is not seen.
        model: what the server calls its model; without it the first that it serves.
        key: sent to the server, also from OUTRIDER_API_KEY.
        reference_key: sent to the server of --reference-endpoint.
        prompts: a file of prompts, one a line, each a text or a JSON list of token ids.
        out: write page, result and texts into this folder.
    """

    endpoint: str | None = None
    reference_endpoint: str | None = None
    reference_model: str | None = None
    own_reference: Annotated[bool, Parameter(name="--self")] = False
    model: str | None = None
    key: str | None = None
    reference_key: str | None = None
    prompts: str | None = None
    out: str | None = None

    def __post_init__(self) -> None:
        values = {f"--{name.replace('_', '-')}": value for name, value in vars(self).items()}
        values["--self"] = values.pop("--own-reference") or None
        flags = [flag for flag, value in values.items() if value is not None]
        if flags and self.endpoint is None:
            expected = "--endpoint URL, the address of the server to certify"
            given = f"{' and '.join(flags)} without --endpoint"
            raise InvalidConfigError("--endpoint", None, expected, given=given)
        references = {"--reference-endpoint", "--reference-model", "--self"}
        named = [flag for flag in flags if flag in references]
        if flags and len(named) != 1:
            expected = "one of --reference-endpoint URL, --reference-model MODEL and --self"
            given = f"--endpoint with {' and '.join(named) or 'no reference'}"
            raise InvalidConfigError("reference", named, expected, given=given)
        if self.reference_key is not None and self.reference_endpoint is None:
            expected = "--reference-endpoint URL beside it, to which it is sent"
            given = f"--reference-key with {named[0]}"
            raise InvalidConfigError("--reference-key", None, expected, given=given)


def certify_endpoint(server: Server, plan: Plan, models: Models, output: Output) -> int:
    """Certify a server; return the exit status."""
    from ..certify.endpoint.run import pace
    from .endpoint_screen import page, show, show_plan
    from .terminal import messages
    from .terminal import output as standard

    folder = None if server.out is None else make_folder("--out", server.out)
    if folder is not None and not _may_go_on(folder / "certificate.json"):
        expected = "a new folder: this one has a certificate, of texts that came before"
        raise InvalidConfigError("--out", server.out, expected)
    console, screen = messages(), None if output.as_json else standard(output.color)
    with ExitStack() as stack:
        engine = _connected(stack, server, console)
        reference, draft, prompts = _reference(stack, server, plan, models, engine, console)
        if screen is not None:
            with console.status("timing a text"):
                seconds = pace(engine, reference, prompts[0], plan)
            show_plan(screen, engine, reference, plan, seconds)
        answers, kept, noise = _asked(engine, reference, draft, prompts, plan, folder, console)
    broken = any(each.verdict in ("wrong", "ignored", "failed") for each in kept)
    broken |= any(each.rejected or each.failed for each in answers)
    found: dict[str, Any] = {
        "format": "outrider-endpoint/1",
        "outrider": __version__,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "endpoint": engine.url,
        "version": engine.version,
        "model": engine.model,
        "reference": reference.name,
        "plan": asdict(plan),
        "questions": [each.summary() for each in answers],
        "promises": [asdict(each) for each in kept],
        "rounding": noise,
        "passed": not broken,
    }
    if folder is not None:
        replace_file(folder / "certificate.json", json.dumps(found, indent=2))
        replace_file(folder / "index.html", page(found, answers, kept))
    if screen is None:
        print(json.dumps(found))
    else:
        show(screen, answers, kept)
        if folder is not None:
            print(f"\nwritten: {folder / 'index.html'}, {folder / 'certificate.json'}")
    return 0 if found["passed"] else 1


def _may_go_on(certificate: Path) -> bool:
    """Whether there is no certificate yet, or one with a question that failed."""
    if not certificate.exists():
        return True
    with suppress(KeyError, TypeError, ValueError):
        found = json.loads(certificate.read_bytes())
        every = (*found["questions"], *found["promises"])
        return any(each["verdict"] == "failed" for each in every)
    return False


def _asked(
    engine: Endpoint,
    reference: Reference,
    draft: Reference | None,
    prompts: Sequence[Tokens],
    plan: Plan,
    folder: Path | None,
    console: Any,
) -> tuple[list[Answer], list[Promise], list[float]]:
    """Ask all questions, then for what is promised; return also what rounding does."""
    from ..certify.endpoint import promises
    from ..certify.endpoint.client import EndpointError
    from ..certify.endpoint.run import Certification
    from ..certify.endpoint.texts import Texts
    from .terminal import progress

    asked = [asdict(plan), reference.name, draft and draft.name, prompts]
    texts = Texts(engine, None if folder is None else folder / "texts.jsonl", asked)
    try:
        with progress(console, "certify", unit="tokens") as report:
            run = Certification(texts.ask, reference, prompts, plan, report, draft)
            answers = run.answers()
            report(0, 1, "promises")
            return answers, promises.kept(engine, reference, prompts), run.noise.tolist()
    except (EndpointError, KeyboardInterrupt) as error:
        if folder is None:
            raise
        again = f"the same command goes on with the texts in {folder}"
        if isinstance(error, KeyboardInterrupt):
            raise KeyboardInterrupt(f"interrupted; {again}") from None
        raise EndpointError(f"{error}; {again}") from error


def _connected(stack: ExitStack, server: Server, console: Any, url: str | None = None) -> Endpoint:
    from ..certify.endpoint.client import Endpoint

    address, name = url or server.endpoint or "", None if url else server.model
    with console.status(f"connecting to {address.rpartition('@')[2]}"):
        # Another host is not given the key of this one.
        key = server.reference_key if url else server.key or os.environ.get("OUTRIDER_API_KEY")
        return stack.enter_context(Endpoint(address, name, key))


def _reference(
    stack: ExitStack,
    server: Server,
    plan: Plan,
    models: Models,
    engine: Endpoint,
    console: Any,
) -> tuple[Reference, Reference | None, list[Tokens]]:
    """Return what scores texts, the draft model if it is known, and the prompts' ids."""
    from ..certify.endpoint.references import EndpointReference, ModelReference

    texts = PROMPTS if server.prompts is None else _lines(server.prompts)
    draft = None
    if models.draft is not None:
        draft = ModelReference(_loaded(models.draft, models, console).target, models.draft)
    if server.reference_model is not None:
        loaded = _loaded(server.reference_model, models, console)
        encode = loaded.tokenizer.encode
        prompts = [_ids(text) or tuple(int(token) for token in encode(text)) for text in texts]
        return ModelReference(loaded.target, server.reference_model), draft, prompts
    url = server.reference_endpoint
    other = engine if url is None else _connected(stack, server, console, url)
    if url is not None and other.url == engine.url:
        expected = "another server than --endpoint; --self takes the server as its own reference"
        raise InvalidConfigError("--reference-endpoint", url, expected)
    reference = EndpointReference(other, concurrency=plan.concurrency)
    if url is None:
        reference.name = f"{reference.name} itself, whose faults of log-probabilities are not seen"
    return reference, draft, [_ids(text) or engine.tokenize(text) for text in texts]


def _loaded(source: str, models: Models, console: Any) -> Loaded:
    """Load a model by itself, as the flags of models say."""
    from .models import load

    alone = replace(models, target=source, draft=None)
    return load(Setup(alone, Drafting(), "none", SpeculativeConfig()), console)


def _lines(path: str) -> Sequence[str]:
    found = read_text("--prompts", Path(path)).splitlines()
    for number, line in enumerate(found, 1):
        if re.match(r"\s*\[\s*-?\d+\s*(,|$)", line) and _ids(line) is None:
            given = f"{path} line {number} begins like a list of token ids, and is none"
            raise InvalidConfigError("--prompts", line, "a JSON list such as [17, 4]", given=given)
    if not any(map(str.strip, found)):
        raise InvalidConfigError("--prompts", path, "a file with a prompt on every line")
    return list(filter(str.strip, found))


def _ids(text: str) -> Tokens | None:
    """Return the token ids that a line lists as JSON; None for a text."""
    whole = re.fullmatch(r"\s*\[\s*\d{1,9}(\s*,\s*\d{1,9})*\s*\]\s*", text)
    return tuple(map(int, re.findall(r"\d+", text))) if whole else None
