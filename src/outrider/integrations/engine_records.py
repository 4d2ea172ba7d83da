"""What vLLM, SGLang and llama.cpp record of speculation, and what another depth would have given.

A record is the JSON of an answer, several of them (a list, or a line each), or the text of
/metrics:

- vLLM and Outrider: `metrics.speculative_decoding` of an answer, with `acceptance_histogram` or
  `per_step_accepted`; `vllm:spec_decode_*` of /metrics.
- SGLang: `meta_info.spec_verify_ct` and `completion_tokens`, with `spec_accept_histogram` in later
  ones.
- llama.cpp: `timings.draft_n`, `draft_n_accepted` and `predicted_n`.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal, Self

from ..errors import InvalidConfigError

Engine = Literal["vllm", "sglang", "llama.cpp"]

EXPECTED: Mapping[str, str] = {
    "vllm": "answers with metrics.speculative_decoding (--per-request-spec-decode-metrics "
    "summary), or the text of /metrics",
    "sglang": "answers with meta_info.spec_verify_ct",
    "llama.cpp": "answers with timings.draft_n, as its server gives them where it drafts",
}


@dataclass(frozen=True, slots=True)
class Acceptance:
    """What became of drafts, over all requests of a record.

    Attributes:
        requests: how many; 0 where a record does not say.
        rounds: how often drafts were verified.
        drafted, accepted: tokens.
        kept: how many rounds accepted how many tokens; empty where a record does not say.
        depth: the most tokens that were drafted in a round, as far as a record says.
    """

    requests: int
    rounds: int
    drafted: int
    accepted: int
    kept: Counter[int] = field(default_factory=Counter)
    depth: int = 0

    def __add__(self, other: Self) -> Acceptance:
        return Acceptance(
            self.requests + other.requests,
            self.rounds + other.rounds,
            self.drafted + other.drafted,
            self.accepted + other.accepted,
            self.kept + other.kept,
            max(self.depth, other.depth),
        )

    @property
    def length(self) -> float:
        """Tokens that a round emits on average, the correction or bonus included."""
        return 1 + self.accepted / max(1, self.rounds)

    @property
    def rate(self) -> float:
        """The share of drafted tokens that were accepted."""
        return self.accepted / max(1, self.drafted)

    @property
    def exact(self) -> bool:
        """Whether rounds were recorded one by one, and not their sums alone."""
        return bool(self.kept)

    def lengths(self) -> list[float]:
        """Return the tokens of a round by depth, from 0 to what was drafted.

        Where rounds were recorded, those of a smaller depth would have accepted what they did, as
        far as it goes: the drafts of chains do not depend on the depth. Else every token is taken
        to be kept alike often, given the one before it.
        """
        if self.exact:
            total = sum(self.kept.values())
            return [
                1 + sum(min(kept, depth) * count for kept, count in self.kept.items()) / total
                for depth in range(self.depth + 1)
            ]
        share = _kept_alike(self.accepted / max(1, self.rounds), self.depth)
        return [sum(share**place for place in range(depth + 1)) for depth in range(self.depth + 1)]


def read_records(engine: Engine, text: str, name: str) -> Acceptance:
    """Read what an engine recorded.

    Args:
        engine: whose records they are.
        text: of the file.
        name: of the file, for errors.

    Raises:
        InvalidConfigError: nothing of speculation is in it.
    """
    found = Acceptance(0, 0, 0, 0)
    try:
        for each in _answers(text):
            found += _READERS[engine](each)
        if engine == "vllm" and not found.rounds:
            found = _of_metrics(text)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        why = f"{type(error).__name__}: {error}"
        raise InvalidConfigError("FILE", name, f"{EXPECTED[engine]} ({why})") from error
    if not found.rounds:
        raise InvalidConfigError("FILE", name, f"{EXPECTED[engine]}; nothing of that is in it")
    return found


def _answers(text: str) -> Iterator[dict[str, Any]]:
    """Give the objects of a JSON text, of a list in it, or of its lines; events of streams too."""
    try:
        whole = json.loads(text)
        rows: Iterable[Any] = whole if isinstance(whole, list) else [whole]
    except ValueError:
        rows = []
        for line in text.splitlines():
            line = line.removeprefix("data:").strip()
            if line.startswith("{"):
                with suppress(ValueError):
                    rows.append(json.loads(line))
    for row in rows:
        if isinstance(row, dict):
            # A line of OpenAI's batch format has the answer inside.
            inner = (row.get("response") or {}).get("body") if "response" in row else None
            yield inner if isinstance(inner, dict) else row


def _of_vllm(answer: Mapping[str, Any]) -> Acceptance:
    figures = (answer.get("metrics") or {}).get("speculative_decoding")
    if not figures:
        return Acceptance(0, 0, 0, 0)
    steps = figures.get("per_step_accepted")
    histogram = figures.get("acceptance_histogram") or ()
    kept = Counter(steps) if steps else Counter(dict(enumerate(histogram)))
    deepest = max(figures.get("per_step_drafted") or [figures.get("num_spec_tokens") or 0])
    return Acceptance(
        1,
        figures["num_spec_steps"],
        figures["num_draft_tokens"],
        figures["num_accepted_draft_tokens"],
        +kept,
        max([deepest, *(+kept)]),
    )


def _of_sglang(answer: Mapping[str, Any]) -> Acceptance:
    meta = answer.get("meta_info") or {}
    rounds = meta.get("spec_verify_ct") or 0
    if not rounds:
        return Acceptance(0, 0, 0, 0)
    accepted = meta.get("spec_accept_token_num", meta.get("completion_tokens", rounds) - rounds)
    kept = +Counter(dict(enumerate(meta.get("spec_accept_histogram") or ())))
    drafted = meta.get("spec_draft_token_num", accepted)
    return Acceptance(1, rounds, drafted, accepted, kept, max([*kept, round(drafted / rounds)]))


def _of_llama_cpp(answer: Mapping[str, Any]) -> Acceptance:
    timings = answer.get("timings") or {}
    drafted, accepted = timings.get("draft_n") or 0, timings.get("draft_n_accepted") or 0
    if not drafted:
        return Acceptance(0, 0, 0, 0)
    rounds = max(1, timings["predicted_n"] - accepted)
    return Acceptance(1, rounds, drafted, accepted, depth=max(1, round(drafted / rounds)))


_READERS = {"vllm": _of_vllm, "sglang": _of_sglang, "llama.cpp": _of_llama_cpp}


def _of_metrics(text: str) -> Acceptance:
    """Read vLLM's counters; those by position say how many rounds accepted so many at least."""
    totals: Counter[str] = Counter()
    places: Counter[int] = Counter()
    for name, labels, value in re.findall(
        r"^vllm:spec_decode_(\w+?)_total(?:\{(.*?)\})? (\S+)$", text, re.MULTILINE
    ):
        place = re.search(r'position="(\d+)"', labels)
        if place:
            places[int(place[1])] += round(float(value))
        else:
            totals[name] += round(float(value))
    rounds = totals["num_drafts"]
    least = [rounds, *(places[place] for place in sorted(places)), 0]
    kept = Counter({n: least[n] - least[n + 1] for n in range(len(places) + 1)} if places else ())
    return Acceptance(
        0,
        rounds,
        totals["num_draft_tokens"],
        totals["num_accepted_tokens"],
        +kept,
        len(places) or round(totals["num_draft_tokens"] / max(1, rounds)),
    )


def _kept_alike(accepted: float, depth: int) -> float:
    """Return the share s with s + s^2 + ... + s^depth accepted tokens a round, by bisection."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        total = sum(middle**place for place in range(1, depth + 1))
        low, high = (middle, high) if total < accepted else (low, middle)
    return low
