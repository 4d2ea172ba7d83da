"""What `outrider report --from` shows: other engines' drafts, and what other depths would give."""

from __future__ import annotations

from typing import Any

from rich.console import Group
from rich.text import Text

from ..bench.tables import table
from ..integrations.engine_records import Acceptance

_BAR = 24


def as_json(found: Acceptance, cost_ratio: float | None) -> dict[str, Any]:
    """Return what is shown, as JSON takes it."""
    return {
        "requests": found.requests,
        "rounds": found.rounds,
        "drafted": found.drafted,
        "accepted": found.accepted,
        "acceptance_length": found.length,
        "acceptance_rate": found.rate,
        "exact": found.exact,
        "depths": [
            {"depth": depth, "tokens_per_round": length, "speedup": speedup}
            for depth, (length, speedup) in enumerate(_depths(found, cost_ratio))
        ],
    }


def shown(found: Acceptance, cost_ratio: float | None) -> Group:
    """Return a sentence, and a table of depths with a bar for what each token adds."""
    requests = f"{found.requests:,} requests, " if found.requests else ""
    text = (
        f"{found.length:.2f} tokens a round ({requests}{found.rounds:,} rounds, {found.accepted:,} "
        f"of {found.drafted:,} drafted tokens accepted, {found.rate:.0%})"
    )
    depths = _depths(found, cost_ratio)
    columns = ("depth", "tokens a round", *(("speedup",) if cost_ratio is not None else ()))
    rows = table(columns[0], right=columns[1:])
    rows.add_column("kept, of rounds that draft so far")
    for depth, (length, speedup) in enumerate(depths):
        added = length - depths[depth - 1][0] if depth else 0.0
        more = [] if speedup is None else [f"{speedup:.2f}x"]
        bar = Text("█" * round(added * _BAR), "blue") + Text(f" {added:.0%}" if depth else "")
        rows.add_row(str(depth), f"{length:.2f}", *more, bar)
    return Group(Text(text, "bold"), Text(), rows, Text(_words(found, cost_ratio, depths), "dim"))


def _depths(found: Acceptance, cost_ratio: float | None) -> list[tuple[float, float | None]]:
    """Return tokens a round by depth, and how much faster than none each is."""
    return [
        (length, None if cost_ratio is None else length / (1 + cost_ratio * depth))
        for depth, length in enumerate(found.lengths())
    ]


def _words(
    found: Acceptance, cost_ratio: float | None, depths: list[tuple[float, float | None]]
) -> str:
    basis = (
        "rounds were recorded one by one: smaller depths are what they would have given"
        if found.exact
        else "only sums were recorded: each token is taken to be kept alike often"
    )
    best = max(range(len(depths)), key=lambda depth: depths[depth][1] or 0.0)
    pays = (
        "--cost-ratio, a draft step's cost beside a forward of the target, says which depth pays"
        if cost_ratio is None
        else f"depth {best} is the fastest if a draft step costs {cost_ratio:g} of a forward, and "
        "a forward of several tokens as much as of one"
    )
    other = (
        "what block verification would keep more needs the distributions, which no engine records"
    )
    return f"{basis}; {pays}; {other}"
