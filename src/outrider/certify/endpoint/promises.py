"""What a server promises beside a distribution: each promise is asked for once, and looked at."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

from ...config.params import SamplingParams
from .client import Endpoint, EndpointError, RefusedError, UnreachableError
from .questions import GREEDY
from .records import Text, Tokens
from .references import Reference

Verdict = Literal["honoured", "ignored", "wrong", "refused", "failed", "undecided"]

_TIES = 0.05
"""Differences of greedy texts are ties where their gap is among this share of the smallest."""

_NEAR = 4.0
"""Log-probabilities that come with tokens may be this many times as far from those of the text as a
prompt as the largest difference that scoring it again makes."""

_DIGITS = 1e-3
"""Differences below this are those of servers that write log-probabilities with few digits."""

_LIKELY = 0.01
"""Texts at least this likely may come twice by chance."""


@dataclass(frozen=True, slots=True)
class Promise:
    """What became of one promise."""

    name: str
    verdict: Verdict
    detail: str


def kept(endpoint: Endpoint, reference: Reference, prompts: Sequence[Tokens]) -> list[Promise]:
    """Ask for everything that is looked at without statistics.

    Args:
        endpoint: connected.
        reference: scores texts.
        prompts: token ids, one at least.
    """
    found: list[Promise] = []
    for name, check in CHECKS.items():
        try:
            verdict, detail = check(endpoint, reference, prompts)
        except RefusedError as error:
            verdict, detail = "refused", str(error)
        except UnreachableError as error:
            return [*found, Promise(name, "failed", f"{error}; no other promise was looked at")]
        except EndpointError as error:
            verdict, detail = "failed", str(error)
        found.append(Promise(name, verdict, detail))
    return found


Found = tuple[Verdict, str]
Check = Callable[[Endpoint, Reference, Sequence[Tokens]], Found]


def greedy(endpoint: Endpoint, reference: Reference, prompts: Sequence[Tokens]) -> Found:
    """Whether a text at temperature 0 is the likeliest at every token, and how near the others are.

    The gap of a token that is not the likeliest is ranked among the gaps between the two likeliest
    of all tokens: rounding decides where they are smallest.
    """
    gaps: list[float] = []
    missed: list[float] = []
    for prompt in prompts[:4]:
        (text,) = endpoint.complete(prompt, SamplingParams(temperature=0, max_tokens=48))
        for listing, token in zip(reference.score(prompt, text.tokens), text.tokens, strict=True):
            if not len(listing.ids):
                continue
            likeliest = sorted(listing.probs[:-1], reverse=True)[:2]
            gaps.append(math.log(likeliest[0] / max(likeliest[-1], 1e-300)))
            own = max(listing.of(token), 1e-300)
            if own < likeliest[0]:
                missed.append(math.log(likeliest[0] / own))
    if not missed:
        return "honoured" if gaps else "undecided", f"{len(gaps)} tokens, all the likeliest"
    rank = sum(gap <= max(missed) for gap in gaps)
    said = f"{len(missed)} of {len(gaps)} tokens are not the likeliest"
    where = f"{said}; the largest gap, {max(missed):.3g}, has rank {rank} among all gaps"
    if rank <= max(1, _TIES * len(gaps)):
        return "honoured", f"{where}: ties"
    return "wrong", where


def stop(endpoint: Endpoint, _: Reference, prompts: Sequence[Tokens]) -> Found:
    """Whether texts end before stop strings, wherever these begin and end."""
    (whole,) = endpoint.complete(prompts[0], SamplingParams(temperature=0, max_tokens=48))
    tried = 0
    for begin in range(3, len(whole.text) - 4, 5):
        ending = whole.text[begin : begin + 4]
        params = SamplingParams(temperature=0, max_tokens=48, stop=(ending,))
        (text,) = endpoint.complete(prompts[0], params)
        before = whole.text[: whole.text.find(ending)]
        if ending in text.text:
            return "ignored", f"{ending!r} did not end a text: {text.text[:80]!r}"
        if not _same_begin(text.text, before):
            continue  # rounding decided otherwise before the stop string came
        if text.text != before or text.finish_reason != "stop":
            given = f"{text.text[-40:]!r}, {text.finish_reason}"
            return "wrong", f"at {ending!r} a text ended {given}, not {before[-40:]!r}"
        tried += 1
        if tried == 6:
            break
    return ("honoured", f"{tried} strings") if tried else ("undecided", "the text is too short")


def stop_token_ids(endpoint: Endpoint, _: Reference, prompts: Sequence[Tokens]) -> Found:
    """Whether texts end at stop tokens, wherever these come in a round."""
    (whole,) = endpoint.complete(prompts[0], SamplingParams(temperature=0, max_tokens=48))
    tried = 0
    for end in list(dict.fromkeys(whole.tokens[:-1]))[1:9]:
        asked = SamplingParams(temperature=0, max_tokens=48, stop_token_ids=(end,))
        (text,) = endpoint.complete(prompts[0], asked)
        before = whole.tokens[: whole.tokens.index(end)]
        if end in text.tokens[:-1]:
            came = len(text.tokens) - text.tokens.index(end) - 1
            verdict: Verdict = "ignored" if text.tokens == whole.tokens else "wrong"
            return verdict, f"{came} tokens came after it"
        if not _same_begin(text.tokens, before):
            continue
        if text.tokens not in (before, (*before, end)):
            return "wrong", f"{len(text.tokens)} tokens came, {len(before)} are before it"
        tried += 1
    return ("honoured", f"{tried} tokens") if tried else ("undecided", "the text is too short")


def _same_begin(one: Sequence[Any], other: Sequence[Any]) -> bool:
    """Say whether one of two begins with the other."""
    return all(first == second for first, second in zip(one, other, strict=False))


def max_tokens(endpoint: Endpoint, _: Reference, prompts: Sequence[Tokens]) -> Found:
    """Whether texts have no more tokens than were asked for."""
    came = 0
    for most in (1, 2, 3, 6, 11):
        (text,) = endpoint.complete(prompts[0], SamplingParams(max_tokens=most))
        came += len(text.tokens)
        if len(text.tokens) > most or (len(text.tokens) < most and text.finish_reason == "length"):
            return "wrong", f"{len(text.tokens)} tokens where {most} were asked for"
    return "honoured" if came else "undecided", f"{came} tokens came of 1 to 11"


def choices(endpoint: Endpoint, reference: Reference, prompts: Sequence[Tokens]) -> Found:
    """Whether n texts come, and not one text n times."""
    texts = endpoint.complete(prompts[0], SamplingParams(max_tokens=16, n=4))
    if len(texts) != 4:
        return "ignored", f"{len(texts)} texts where 4 were asked for"
    different = len({text.tokens for text in texts})
    if different > 1:
        return "honoured", f"{different} different texts of 4"
    return _unless_likely(reference, texts[0], "4 equal texts")


def seed(endpoint: Endpoint, reference: Reference, prompts: Sequence[Tokens]) -> Found:
    """Whether a seed gives one text, and another seed another one."""
    asked = [SamplingParams(max_tokens=24, seed=each) for each in (11, 11, 12)]
    for prompt in prompts[:4]:
        one, same, other = (endpoint.complete(prompt, each)[0] for each in asked)
        if one.tokens == other.tokens:
            return _unless_likely(reference, one, "two seeds gave the same text")
        if one.tokens[:1] != same.tokens[:1]:
            return "ignored", "a seed gave two texts"
        if one.tokens != same.tokens:
            both = list(zip(one.tokens, same.tokens, strict=False))
            equal = next((n for n, (a, b) in enumerate(both) if a != b), len(both))
            return "undecided", f"a seed gave two texts after {equal} equal tokens; of rounding?"
    return "honoured", "repeated"


def _unless_likely(reference: Reference, text: Text, said: str) -> Found:
    """Return that something is wrong, unless a text is so likely that chance may have done it."""
    listings = reference.score(text.prompt, text.tokens)
    known = [
        listing.of(token) if len(listing.ids) else 1.0
        for listing, token in zip(listings, text.tokens, strict=True)
    ]
    chance = math.prod(known)
    if chance > _LIKELY:
        return "undecided", f"{said}, which has a probability of {chance:.2g}"
    return "wrong", said


def response_format(endpoint: Endpoint, _: Reference, prompts: Sequence[Tokens]) -> Found:
    """Whether a text is the JSON object that was asked for."""
    asked = SamplingParams(max_tokens=96)
    form = {"type": "json_object"}
    (text,) = endpoint.complete(prompts[0], asked, response_format=form)
    if text.finish_reason == "length":
        begun = text.text.lstrip()[:1] in ("{", "")
        return ("undecided", "cut") if begun else ("ignored", f"no object: {text.text[:60]!r}")
    with suppress(ValueError):
        if isinstance(json.loads(text.text), dict):
            return "honoured", f"an object: {text.text[:60]!r}"
    return "ignored", f"no object: {text.text[:60]!r}"


def logprobs(endpoint: Endpoint, reference: Reference, prompts: Sequence[Tokens]) -> Found:
    """Whether the log-probabilities that come with tokens are those of the text as a prompt."""
    (text,) = endpoint.complete(prompts[0], SamplingParams(max_tokens=32), logprobs=1)
    if text.logprobs is None:
        return "ignored", "none came"
    given = [value for value in text.logprobs if value is not None]
    counted = text.usage.get("completion_tokens", 0) - (text.finish_reason == "stop")
    if len(given) != len(text.tokens) or len(given) < counted:
        return "wrong", f"{len(given)} values for {max(counted, len(text.tokens))} tokens"
    apart, again = 0.0, 0.0
    scored = (each(text.prompt, text.tokens) for each in (reference.score, reference.again))
    for value, token, *listings in zip(given, text.tokens, *scored, strict=True):
        known = [each.of(token) if len(each.ids) else 0.0 for each in listings]
        if all(known):
            one, two = map(math.log, known)
            apart, again = max(apart, abs(value - one)), max(again, abs(two - one))
    if apart > _DIGITS and not any(given):
        return "wrong", f"0.0 for each of {len(given)} tokens"
    said = f"off by {apart:.2g} at most, the reference by {again:.2g} from itself"
    if not given:
        return "undecided", "the text is empty"
    if apart <= max(_DIGITS, _NEAR * again):
        return "honoured", said
    # Another runtime, or another precision, rounds otherwise.
    return ("undecided" if reference.listed is None else "wrong"), said


def usage(endpoint: Endpoint, _: Reference, prompts: Sequence[Tokens]) -> Found:
    """Whether tokens are counted as they came."""
    (text,) = endpoint.complete(prompts[0], SamplingParams(max_tokens=21))
    if not text.usage:
        return "ignored", "no counts"
    counted = text.usage.get("prompt_tokens"), text.usage.get("completion_tokens")
    came = len(text.prompt), len(text.tokens)
    said = f"{counted[0]} + {counted[1]} tokens counted, {came[0]} + {came[1]} came"
    ended = text.finish_reason == "stop"  # by a token that need not be among them
    right = counted in (came, (came[0], came[1] + ended))
    return ("honoured" if right else "wrong"), said


def acceptance(endpoint: Endpoint, _: Reference, prompts: Sequence[Tokens]) -> Found:
    """Whether what is said of drafts can be true of the tokens that came.

    Every round emits what it accepted and one token more, but for the last one, of which a part may
    be cut; rounds without drafts may not count.
    """
    asked = SamplingParams(max_tokens=48)
    try:
        (text,) = endpoint.complete(prompts[0], asked, speculation_metrics="summary")
    except RefusedError:
        (text,) = endpoint.complete(prompts[0], asked)
    figures = text.metrics.get("speculative_decoding")
    if not figures:
        return "undecided", "the server gives no figures of a request"
    names = ("num_spec_steps", "num_accepted_draft_tokens", "num_draft_tokens")
    rounds, accepted, drafted = (int(figures.get(name, 0)) for name in names)
    came = len(text.tokens)
    said = f"{accepted} of {drafted} drafted tokens accepted in {rounds} rounds, {came} tokens came"
    possible = accepted <= min(drafted, came - rounds + 1 + math.ceil(drafted / max(rounds, 1)))
    return ("honoured" if possible else "wrong"), said


CHECKS: dict[str, Check] = {
    GREEDY: greedy,
    "stop": stop,
    "stop_token_ids": stop_token_ids,
    "max_tokens": max_tokens,
    "n": choices,
    "seed": seed,
    "response_format": response_format,
    "logprobs": logprobs,
    "usage": usage,
    "acceptance figures": acceptance,
}
