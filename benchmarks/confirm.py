"""`python -m benchmarks.confirm tune.json --minutes 20`: race what tune recommended, at length.

The prompts, temperatures and models are those of the file that `outrider tune --out` wrote; the
recommended configuration and plain decoding take turns by rounds until the time is gone. Printed is
one line of JSON: the speed over plain decoding's as predicted for the texts that were raced, as
tune's own race found it, and in this race.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import fields, replace
from pathlib import Path
from time import monotonic
from typing import Any

from outrider.bench import TuneOptions
from outrider.bench.race import Enough, OutriderRunner
from outrider.bench.records import PLAIN, Candidate
from outrider.bench.run import prepared
from outrider.bench.speedup import Stretch, gain
from outrider.bench.trial import Trial, TrialRace, fitting
from outrider.bench.workloads import in_turn, mixed


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
                raise Enough

        field = [OutriderRunner.of(each, pair, options.batch) for each in (PLAIN, candidate)]
        race = TrialRace(trial, field, watch)
        race.run()
        raced += race.compared(field[1])
    print(json.dumps(_summary(forecast, raced) | {"candidate": candidate.label}))


def _summary(forecast: dict[str, Any], raced: list[Stretch]) -> dict[str, Any]:
    expected = [Stretch(**each) for each in forecast["stretches"]]
    both = {each.place for each in expected} & {each.place for each in raced}
    predicted, confirmed = (
        gain([each for each in part if each.place in both]) for part in (expected, raced)
    )
    own = [Stretch(**each) for each in forecast["raced"]]
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


if __name__ == "__main__":
    main()
