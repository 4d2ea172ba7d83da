"""`python -m benchmarks.confirm tune.json --minutes 20`: race what tune recommended, at length.

The prompts, temperatures and models are those of the file that `outrider tune --out` wrote; the
recommended configuration and plain decoding take turns by rounds until the time is gone. Printed is
one line of JSON: the speed over plain decoding's as predicted for the texts that were raced, as
tune's own race found it, and in this race.
"""

from __future__ import annotations

import argparse
import json
from contextlib import suppress
from dataclasses import fields, replace
from pathlib import Path
from time import monotonic
from typing import Any

from outrider.bench import TuneOptions
from outrider.bench.forecast import Stretch, gain
from outrider.bench.race import OutriderRunner
from outrider.bench.records import PLAIN, Candidate
from outrider.bench.run import prepared
from outrider.bench.trial import Trial, TrialRace, fitting
from outrider.bench.workloads import in_turn, mixed


class _Enough(Exception):
    """The time is gone."""


def main() -> None:
    """Race and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.confirm", description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--minutes", type=float, default=20.0)
    asked = parser.parse_args()
    found = json.loads(asked.file.read_text())
    options, candidate = _options(found), _candidate(found)
    forecast = next(each for each in found["forecasts"] if _made(each["candidate"]) == candidate)
    pair, _, workload = prepared(options, options.batch, lambda *_: None)
    if workload is None:
        workload = mixed(None, pair.tokenizer, pair.target.vocab_size, options.max_prompts)
    workload = fitting(workload, options.max_tokens, pair.target.max_length)
    kinds = {prompt.name: prompt.kind for prompt in workload.prompts}
    raced: list[Stretch] = []
    for temperature in options.temp:
        end = monotonic() + 60 * asked.minutes / len(options.temp)
        ends = {
            each["name"]: each["tokens"]
            for each in forecast["stretches"]
            if each["temperature"] == temperature and options.batch == 1
        }
        prompts = tuple(replace(each, max_tokens=ends.get(each.name)) for each in workload.prompts)
        trial = Trial(
            workload=replace(workload, prompts=in_turn(prompts, options.max_prompts)),
            sampling=options.sampling(temperature),
            batch=options.batch,
            repeats=10_000,
        )

        def watch(_lanes: Any, end: float = end) -> None:
            if monotonic() > end:
                raise _Enough

        field = [OutriderRunner.of(each, pair, options.batch) for each in (PLAIN, candidate)]
        race = TrialRace(trial, field, watch)
        with suppress(_Enough):
            race.run()
        measured = race.measurements()
        if measured:
            plain, own = measured
            rows = zip(
                trial.stretches * trial.repeats,
                own.tokens,
                plain.seconds,
                own.seconds,
                strict=False,
            )
            for batch, tokens, *seconds in rows:
                name = " + ".join(each.name for each in batch)
                raced.append(Stretch(temperature, name, kinds.get(name, ""), tokens, *seconds))
    print(json.dumps(_summary(forecast, raced) | {"candidate": candidate.label}))


def _summary(forecast: dict[str, Any], raced: list[Stretch]) -> dict[str, Any]:
    expected = [_stretch(each) for each in forecast["stretches"]]
    keys = {(each.temperature, each.name) for each in raced}
    same = [each for each in expected if (each.temperature, each.name) in keys]
    both = {(each.temperature, each.name) for each in same}
    there = [each for each in raced if (each.temperature, each.name) in both]
    predicted, confirmed = gain(same), gain(there)
    own = [_stretch(each) for each in forecast["raced"]]
    return {
        "predicted": round(predicted.ratio, 3),
        "raced_by_tune": round(gain(own).ratio, 3) if own else None,
        "confirmed": round(confirmed.ratio, 3),
        "interval": [confirmed.low, confirmed.high],
        "off": round(predicted.ratio / confirmed.ratio - 1, 3),
        "stretches": len(raced),
        "by_temperature": {
            f"{temperature:g}": round(
                gain([x for x in raced if x.temperature == temperature]).ratio, 3
            )
            for temperature in sorted({each.temperature for each in raced})
        },
    }


def _options(found: dict[str, Any]) -> TuneOptions:
    given = found["environment"]["settings"]
    names = {item.name for item in fields(TuneOptions)} & set(given)
    values: dict[str, Any] = {
        name: tuple(given[name]) if isinstance(given[name], list) else given[name] for name in names
    }
    values["prompts"] = tuple(map(Path, values.get("prompts", ())))
    return TuneOptions(**values)


def _candidate(found: dict[str, Any]) -> Candidate:
    candidate = _made(found["candidate"])
    best = _made(found["forecasts"][0]["candidate"])
    return best if candidate.plain else candidate


def _made(given: dict[str, Any]) -> Candidate:
    names = {item.name for item in fields(Candidate)}
    values: dict[str, Any] = {name: given[name] for name in names & set(given)}
    for name in values:
        if isinstance(values[name], list):
            values[name] = tuple(values[name])
    return Candidate(**values)


def _stretch(given: dict[str, Any]) -> Stretch:
    return Stretch(**given)


if __name__ == "__main__":
    main()
