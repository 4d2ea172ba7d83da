"""The documents' tables and pictures, written from result files: no figure is typed by hand."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from textwrap import fill as wrapped
from typing import Any

from outrider.bench.tables import markdown_table

from . import results, svg
from .report import COLUMNS

ROOT = Path(__file__).parent.parent
_TITLES = {
    "speedup": "Default settings beside plain decoding",
    "losing": "Drafters that cannot pay",
    "depth": "The adaptive depth beside fixed ones",
    "overhead": "What a round takes",
    "imports": "Import time",
    "heads": "The demo head beside the draft model",
    "hybrids": "Hybrid models on transformers",
}


def write(folder: Path = results.FOLDER, root: Path = ROOT) -> list[Path]:
    """Write docs/benchmarks and fill the README's markers; returns the files written."""
    documents = results.newest(folder)
    docs = root / "docs" / "benchmarks"
    docs.mkdir(parents=True, exist_ok=True)
    made = {docs / "index.md": _index(documents)}
    for machine, document in documents.items():
        made[docs / f"{machine}.md"] = _page(machine, document)
        if "speedup" in document["benchmarks"]:
            rows = document["benchmarks"]["speedup"]["rows"]
            made[docs / f"{machine}.svg"] = speedup_picture(rows)
    readme = root / "README.md"
    measured = [each for each in documents.values() if "speedup" in each["benchmarks"]]
    if measured and readme.exists():
        latest = max(measured, key=results.date)
        text = readme.read_text(encoding="utf-8")
        made[readme] = fill(text, "speedup", _summary(latest))
    for path, text in made.items():
        path.write_text(text, encoding="utf-8")
    return list(made)


def fill(text: str, name: str, content: str) -> str:
    """Put content between `<!-- benchmarks:NAME -->` and `<!-- /benchmarks -->`, if there."""
    begin, end = f"<!-- benchmarks:{name} -->", "<!-- /benchmarks -->"
    pattern = re.compile(f"({re.escape(begin)}\n).*?({re.escape(end)})", re.DOTALL)
    return pattern.sub(lambda found: f"{found[1]}{content}\n{found[2]}", text)


def table(name: str, rows: Sequence[dict[str, Any]]) -> str:
    """A benchmark's rows as Markdown."""
    chosen = COLUMNS[name]
    cells = [[column.text(row) for column in chosen] for row in rows]
    return markdown_table([column.heading for column in chosen], cells)


def speedup_picture(rows: Sequence[dict[str, Any]]) -> str:
    """The speedups of every workload as bars with intervals, in SVG."""
    drawn: list[svg.Bar] = []
    for workload in dict.fromkeys(row["workload"] for row in rows):
        drawn.append(svg.Bar(workload))
        drawn += [
            svg.Bar(
                f"temperature {row['temperature']:g}, batch {row['batch']}",
                row["speedup"],
                row["low"],
                row["high"],
            )
            for row in rows
            if row["workload"] == workload and row["speedup"]
        ]
    return svg.bars("Tokens per second over plain decoding's, with 95% intervals", drawn)


def _index(documents: dict[str, dict[str, Any]]) -> str:
    lines = [
        "# Benchmarks",
        "",
        "Measured by `python -m benchmarks --save`, one page a machine.",
        "",
    ]
    lines += [
        f"- [{_machine(document)}]({machine}.md), version {document['version']}"
        for machine, document in documents.items()
    ]
    return "\n".join(lines) + "\n"


def _page(machine: str, document: dict[str, Any]) -> str:
    lines = [f"# Benchmarks: {_machine(document)}", ""]
    for name, found in document["benchmarks"].items():
        facts = found["environment"]
        lines += [f"## {_TITLES[name]}", "", wrapped(found["note"], 116), ""]
        if name == "speedup":
            lines += [f"![Speedup over plain decoding]({machine}.svg)", ""]
        lines += [table(name, found["rows"]), ""]
        lines += [
            f"Outrider {facts['outrider']}, torch {facts['torch']}, {facts['threads']} threads, "
            f"{facts['date'][:10]}: `python -m benchmarks {name} --save`",
            "",
        ]
    return "\n".join(lines)


def _summary(document: dict[str, Any]) -> str:
    """The README's small table: a column of speedups for each batch size."""
    found = document["benchmarks"]["speedup"]
    rows = found["rows"]
    shown = next(each for each in COLUMNS["speedup"] if each.field == "speedup")
    batches = sorted({row["batch"] for row in rows})
    cells = {
        (row["workload"], f"{row['temperature']:g}", row["batch"]): shown.text(row) for row in rows
    }
    kinds = dict.fromkeys(key[:2] for key in cells)
    made = [[*kind, *(cells.get((*kind, batch), "") for batch in batches)] for kind in kinds]
    headings = ["text", "temperature", *(f"batch {batch}" for batch in batches)]
    note = wrapped(f"{_machine(document)}. {found['note']}", 116)
    return f"{markdown_table(headings, made)}\n\n{note}"


def _machine(document: dict[str, Any]) -> str:
    machine = document["machine"]
    return str(machine.get("gpu") or f"{machine['cpu']}, {machine['cores']} cores")
