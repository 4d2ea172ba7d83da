"""Asks a server for texts, scores them, and gathers the evidence, question by question."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import count, cycle, islice
from math import ceil
from time import perf_counter
from typing import Any

import numpy as np

from ...config.params import SamplingParams
from . import evidence, features
from .client import Endpoint, EndpointError, RefusedError, UnreachableError
from .evidence import Evidence
from .features import FEATURES, Place
from .questions import PAIRS, Plan, pairs, parameters, plain
from .records import Question, Reading, Row, Text, Tokens
from .references import Reference

Ask = Callable[[Question, int, Tokens], list[Text]]
"""Takes a question, the number of its request, and a prompt; returns texts."""

Report = Callable[[int, int, str], None]
"""Takes how many tokens were looked at, of how many, and what is being asked."""

TWICE = 3
"""How many texts are scored twice, for what rounding does."""

_MARGIN = 2.0
"""What rounding did on average counts so many times."""


@dataclass
class Answer:
    """What is found for one question, text by text.

    Attributes:
        alpha: the rate of false alarms of all questions together.
        held: evidence against each reading of the question, by its name.
        refused: what the server said, if it takes no such request.
        failed: what became of the server, if it failed.
        gone: whether it does not answer any more.
        cut: whether the question ended with another one, before all of its tokens.
        worst: the text that speaks most against it, and how much.
        came: tokens of its texts, those included of which nothing is known.
        seconds: it took.
    """

    question: Question
    alpha: float
    held: dict[str, Evidence] = field(default_factory=dict)
    refused: str | None = None
    failed: str | None = None
    gone: bool = False
    cut: bool = False
    worst: tuple[float, Text | None] = (-math.inf, None)
    came: int = 0
    seconds: float = 0.0

    def add(self, text: Text, gains: dict[str, Row], noise: Row) -> None:
        """Look at a text.

        Args:
            text: the text.
            gains: of its tokens under each reading, float64 [n, features].
            noise: what rounding does to the mean of each feature, float64 [features].
        """
        for name, rows in gains.items():
            before = self.held.get(name, evidence.start(rows.shape[1]))
            self.held[name] = evidence.look(before, rows, noise)
        rows = gains[self._reading]
        self.came += len(rows)
        if len(rows):
            feature, bet = np.unravel_index(self.against.held.argmax(), self.against.held.shape)
            speaks = float(evidence.growth(rows, noise)[:, feature, bet].sum())
            self.worst = max(self.worst, (speaks, text), key=lambda each: each[0])

    @property
    def _reading(self) -> str:
        """The reading of what was asked for that the texts speak least against."""
        asked = (name for name in self.held if name != "ignored")
        return min(asked, key=lambda name: self.held[name].highest)

    @property
    def against(self) -> Evidence:
        """The evidence against the parameters as they were asked for, as the engine reads them."""
        return self.held[self._reading] if self.held else evidence.start(1)

    @property
    def rejected(self) -> bool:
        """Whether the texts are no draws from what was asked for."""
        return self.rejects(self.against.highest)

    @property
    def verdict(self) -> str:
        """One of honoured (by some reading), ignored, wrong, refused, failed, and undecided."""
        if self.refused is not None:
            return "refused"
        if self.failed is not None and not self.rejected:
            return "failed"
        standing = [name for name, each in self.held.items() if not self.rejects(each.highest)]
        open_ = not self.against.tokens or (self.cut and not self.rejected)
        if open_ or ("ignored" in standing and len(standing) > 1):
            return "undecided"
        return standing[0] if standing else "wrong"

    @property
    def over(self) -> bool:
        """Whether more texts would say nothing new."""
        return self.verdict == "wrong" or self.came >= self.question.tokens

    def summary(self) -> dict[str, Any]:
        """Return it as JSON takes it; evidence is the logarithm of E."""
        text = self.worst[1]
        return {
            "question": self.question.name,
            "verdict": self.verdict,
            "weight": self.question.weight,
            "tokens": self.against.tokens,
            "log_e": self.against.log_e,
            "highest_log_e": self.against.highest,
            "curve": self.against.curve,
            "distance_found": None if self.question.name == PAIRS else self.distance_found,
            "seen_in": self.seen_in,
            "log_e_if_ignored": self.held["ignored"].log_e if "ignored" in self.held else None,
            "refused": self.refused,
            "failed": self.failed,
            "request": text and text.body,
            "text": text and text.text,
            "seconds": self.seconds,
        }

    @property
    def distance_found(self) -> float:
        """By how much the likeliest token's probability may be off before it is found, power .9."""
        alpha = self.alpha * self.question.weight
        return evidence.distance_found(self.against.tokens, alpha, len(FEATURES))

    @property
    def seen_in(self) -> str:
        """The number of the draws that speaks most against it, and how far off it is."""
        held = self.against
        if self.question.name == PAIRS:
            return f"equal tokens, {held.off:+.1%} of draws"
        name = FEATURES[held.leader]
        return f"{name}, {held.off:+.1%} of draws" if held.leader in features.COUNTED else name

    @property
    def evidence(self) -> float:
        """The largest E at any moment, with the question's weight: rejected from 1 / alpha on."""
        return self.question.weight * math.exp(min(self.against.highest, 700.0))

    def rejects(self, log_e: float) -> bool:
        """Say whether so much evidence is enough."""
        return log_e + math.log(self.question.weight) >= -math.log(self.alpha)


def pace(endpoint: Endpoint, reference: Reference, prompt: Tokens, plan: Plan) -> float:
    """Return the seconds that one text of a plan takes, with its score."""
    begun = perf_counter()
    (text,) = endpoint.complete(prompt, SamplingParams(max_tokens=plan.length))
    reference.score(text.prompt, text.tokens)
    return perf_counter() - begun


@dataclass
class Certification:
    """Asks a server all questions, one after another; each ends early where its answer is certain.

    Args:
        ask: sends a request.
        reference: scores texts.
        prompts: token ids; used in turn.
        plan: how much is asked.
        report: of progress.
        draft: the server's draft model, if it is known.

    Attributes:
        noise: what rounding does to the mean of each feature, float64 [features], under the
            parameters that were asked about so far.
    """

    ask: Ask
    reference: Reference
    prompts: Sequence[Tokens]
    plan: Plan
    report: Report = lambda *_: None
    draft: Reference | None = None
    noise: Row = field(default_factory=lambda: np.zeros(len(FEATURES)))
    _rounding: dict[str, list[Row]] = field(default_factory=dict)

    def answers(self) -> list[Answer]:
        """Return an answer for each question.

        Raises:
            EndpointError: the server fails, or refuses a request, without parameters; a failure
                under a parameter is an answer.
        """
        plan = self.plan
        alone, joint, texts = self._ordinary()
        asked = parameters(
            texts, plan.parameter_tokens, plan.length, self.reference.listed, plan.only
        )
        found = [alone, joint]
        for question in asked:
            answer = self._about(question)
            found.append(answer)
            if answer.gone:
                break
        return found

    def _ordinary(self) -> tuple[Answer, Answer, list[Text]]:
        """Ask for ordinary texts, each prompt twice at once; return the texts as well.

        The first token of a text comes from the prompt's forward, and is left out.
        """
        plan, begun = self.plan, perf_counter()
        seen: list[Text] = []
        alone = Answer(plain(plan.tokens, plan.length), plan.alpha)
        joint = Answer(pairs(plan.tokens, plan.length), plan.alpha)
        twice = (prompt for prompt in cycle(self.prompts) for _ in range(2))
        for texts in self._waves(alone, twice):
            scored = [self._places(text) for text in texts]
            seen += texts
            for text, places in zip(texts, scored, strict=True):
                self._score_again(alone.question, text, places)
                alone.add(text, _gains(alone.question, places[1:], text.tokens[1:]), self.noise)
            for first in range(0, len(texts) - 1, 2):
                same = features.coincidences(texts[first : first + 2], scored[first : first + 2])
                joint.add(texts[first], {"honoured": same}, 2 * self.noise.max(keepdims=True))
            self.report(min(alone.came, plan.tokens), plan.tokens, alone.question.name)
            if alone.over:
                joint.cut = alone.rejected  # pairs say little of draws that are wrong one by one
                break
        alone.seconds = joint.seconds = perf_counter() - begun
        return alone, joint, seen

    def _about(self, question: Question) -> Answer:
        """Ask for texts under a parameter."""
        begun, answer = perf_counter(), Answer(question, self.plan.alpha)
        try:
            for texts in self._waves(answer, cycle(self.prompts)):
                for text in texts:
                    places = self._places(text)
                    self._score_again(question, text, places)
                    answer.add(text, _gains(question, places, text.tokens), self.noise)
                self.report(min(answer.came, question.tokens), question.tokens, question.name)
                if answer.over:
                    break
        except RefusedError as error:
            answer.refused = str(error)
        except EndpointError as error:
            answer.failed, answer.gone = str(error), isinstance(error, UnreachableError)
        answer.seconds = perf_counter() - begun
        return answer

    def _waves(self, answer: Answer, prompts: Iterable[Tokens]) -> Iterator[list[Text]]:
        """Send requests, some at once, an even number of them, without end."""
        numbered, question, without = zip(count(), prompts, strict=False), answer.question, 0
        with ThreadPoolExecutor(self.plan.concurrency) as pool:
            while True:
                left = ceil((question.tokens - answer.came) / question.params.max_tokens)
                wave = islice(numbered, min(self.plan.concurrency, max(2, left + left % 2)))
                asked = [pool.submit(self.ask, question, *each) for each in wave]
                texts = [text for each in asked for text in each.result()]
                without += len(texts)
                if any(len(text.tokens) > 1 for text in texts):
                    without = 0
                elif without >= 2 * len(self.prompts):
                    raise EndpointError(
                        f"no text of {without} has two tokens or more, under {question.name}; "
                        "take other prompts, or a larger --length"
                    )
                yield texts

    def _places(self, text: Text) -> list[Place]:
        """Score a text."""
        if not text.tokens:
            return []
        listings = self.reference.score(text.prompt, text.tokens)
        drafts = self.draft.score(text.prompt, text.tokens) if self.draft else None
        return [
            Place(each, text.prompt, text.tokens[:n], drafts[n] if drafts else None)
            for n, each in enumerate(listings)
        ]

    def _score_again(self, question: Question, text: Text, places: Sequence[Place]) -> None:
        """Take the measure of rounding, on the first few texts of a question."""
        known = self._rounding.setdefault(question.name, [])
        if len(known) < TWICE and places:
            again = self.reference.again(text.prompt, text.tokens)
            ignored = question.readings.get("ignored")
            rows = features.rounding(places, again, Reading(question.params), ignored)
            known.append(rows)
            found = np.concatenate(known)
            seen = np.maximum((~np.isnan(found)).sum(0), 1)
            self.noise = _MARGIN * np.nansum(found, 0) / seen


def _gains(question: Question, places: Sequence[Place], tokens: Tokens) -> dict[str, Row]:
    """Return the gains of tokens under each reading of a question, with the one that it rivals."""
    readings = question.readings
    ignored, asked = readings.get("ignored"), readings["honoured"]
    return {
        name: features.gains(places, tokens, reading, asked if name == "ignored" else ignored)
        for name, reading in readings.items()
    }
