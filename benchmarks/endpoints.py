"""`python -m benchmarks.endpoints [faults] [alarms] [power]`: what `certify --endpoint` finds.

`faults`: servers with a planted fault: tokens and seconds until it is certain. `alarms`: sound runs
on the demo pair, and how many were rejected. `power`: the demo pair's server, whose every token is
off by a total variation: how often it is found, and in how many tokens.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from statistics import median
from time import perf_counter
from typing import Any

import torch
from tests.support.faulty_servers import FAULTS, LETTERS, SOUND, Tampered, letters, serving
from tests.support.server import listening, toy_server

import outrider
from outrider.certify.endpoint import promises
from outrider.certify.endpoint.client import Endpoint
from outrider.certify.endpoint.questions import PAIRS, PLAIN, Plan
from outrider.certify.endpoint.records import Tokens
from outrider.certify.endpoint.references import ModelReference
from outrider.certify.endpoint.run import Answer, Certification
from outrider.certify.endpoint.texts import Texts
from outrider.cli.certify_endpoint import PROMPTS

ALPHA = 0.01
DISTANCES = (0.1, 0.05)


def main() -> None:
    """Run what is named, all by default; a line of JSON for each."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.endpoints", description=__doc__)
    parser.add_argument("parts", nargs="*", help="of faults, alarms, power")
    parser.add_argument("--runs", type=int, default=50, help="of alarms (default: 50)")
    parser.add_argument("--tokens", type=int, default=2048, help="of each sound run")
    asked = parser.parse_args()
    for part in asked.parts or ("faults", "alarms", "power"):
        if part == "faults":
            for name in FAULTS:
                print(json.dumps({"fault": name, **fault(name)}), flush=True)
        elif part == "alarms":
            print(json.dumps(alarms(asked.runs, asked.tokens)), flush=True)
        else:
            for distance in DISTANCES:
                print(json.dumps(power(distance)), flush=True)


def fault(name: str) -> dict[str, Any]:
    """Certify a server with a planted fault, with its draft model known and not."""
    planted = FAULTS[name]
    target, draft = (ModelReference(model, "letters") for model in letters())
    prompts = [tuple((7 * n + i) % len(LETTERS) for i in range(6)) for n in range(24)]
    statistical = planted.found not in promises.CHECKS
    found: dict[str, Any] = {"question": planted.found}
    with serving(planted) as url, Endpoint(url) as engine:
        begun = perf_counter()
        if not statistical:
            kept = {each.name: each for each in promises.kept(engine, target, prompts)}
            verdict = kept[planted.found].verdict
            return {**found, "verdict": verdict, "seconds": round(perf_counter() - begun, 1)}
        only: Any = (planted.found,)
        plan = Plan(tokens=8192, parameter_tokens=2048, length=48, alpha=ALPHA, only=only)
        if planted.found not in (PLAIN, PAIRS):
            plan = replace(plan, tokens=256)
        for known, model in (("without_draft", None), ("with_draft", draft)):
            run = Certification(Texts(engine).ask, target, prompts, plan, draft=model)
            answers = run.answers()
            (answer,) = (each for each in answers if each.question.name == planted.found)
            found |= {"verdict": answer.verdict, f"tokens_{known}": found_after(answer)}
            found[f"seconds_{known}"] = round(answer.seconds, 1)
    return found


def found_after(answer: Answer) -> int | None:
    """Return after how many tokens a question was rejected, to the end of a text."""
    return next((tokens for tokens, value in answer.against.curve if answer.rejects(value)), None)


def alarms(runs: int, tokens: int) -> dict[str, Any]:
    """Certify the demo pair's server again and again; it is sound."""
    begun, rejected, worst = perf_counter(), 0, 0.0
    with demo() as (url, reference, prompts):
        for run in range(runs):
            with Endpoint(url) as engine:
                plan = Plan(tokens=tokens, parameter_tokens=128, length=32, alpha=ALPHA)
                answers = Certification(Texts(engine).ask, reference, prompts, plan).answers()
            rejected += any(answer.rejected for answer in answers)
            worst = max(worst, *(answer.evidence for answer in answers))
            print(f"{run + 1} runs, {rejected} rejected, evidence {worst:.3g}", file=sys.stderr)
    return {
        "sound runs": runs,
        "alarms": rejected,
        "largest evidence": worst,
        "rejected at": 1 / ALPHA,
        "seconds": round(perf_counter() - begun),
    }


def power(distance: float, runs: int = 5) -> dict[str, Any]:
    """Certify the demo pair's server with draws that are off by a total variation."""
    begun, found = perf_counter(), []
    ordinary: Any = (PLAIN,)
    with demo(partial(off, distance=distance)) as (url, reference, prompts):
        for _ in range(runs):
            with Endpoint(url) as engine:
                plan = Plan(tokens=6144, length=64, alpha=ALPHA, only=ordinary)
                answers = Certification(Texts(engine).ask, reference, prompts, plan).answers()
            found.append(found_after(answers[0]))
    seen = [tokens for tokens in found if tokens is not None]
    return {
        "total variation": distance,
        "found": f"{len(seen)} of {runs}",
        "median tokens": median(seen) if seen else None,
        "seconds": round(perf_counter() - begun),
    }


def off(_: Any, logits: Any, *, distance: float) -> Any:
    """Take a mass from the likeliest token, and give it to the others in proportion."""
    probs = torch.as_tensor(logits).double().softmax(-1)
    top = int(probs.argmax())
    moved = min(distance, float(probs[top]))
    rest = 1 - float(probs[top])
    factor = 1 + moved / rest if rest > 0 else 1.0
    changed = probs * factor
    changed[top] = probs[top] - moved
    return changed.clamp(min=1e-300).log().to(logits.dtype)


@contextmanager
def demo(change: Any = None) -> Iterator[tuple[str, ModelReference, list[Tokens]]]:
    """Serve the demo pair, with a change of every distribution; gives address and reference."""

    class Changed(outrider.SpeculativeDecoder):
        def start(self, prompt: Any, params: Any = None) -> Any:
            processors = () if change is None else (change,)
            return super().start(prompt, replace(params, logits_processors=processors))

    pair = outrider.load("demo", max_sequences=16)
    decoder = Changed(pair.target, pair.drafter, tokenizer=pair.tokenizer, config=pair.config)
    prompts = [tuple(map(int, pair.tokenizer.encode(text))) for text in PROMPTS]
    with toy_server(decoder) as server, listening(Tampered(server.app, SOUND)) as url:
        yield url, ModelReference(pair.target.fresh(4), "demo"), prompts


if __name__ == "__main__":
    main()
