"""Result files: benchmarks/results/<machine>/<version>.json, one for each machine and version.

Layout, of which `SCHEMA` is the number::

    {
      "schema": 1,
      "machine": {"system", "cpu", "cores", "gpu" if one decodes},
      "version": the version of outrider,
      "benchmarks": {
        NAME: {
          "environment": versions, threads, commit, date and flags, see outrider.bench.environment,
          "seconds": how long the benchmark took,
          "note": what was measured, in words,
          "rows": [{field: figure}], the fields of benchmarks.report.COLUMNS[NAME] and others
        }
      }
    }

Speedups are ratios of tokens per second, `low` and `high` the ends of a 95% interval, rates are
fractions, and `_s` and `_ms` are seconds and milliseconds. A benchmark that is saved again
replaces its own entry only.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from outrider.errors import InvalidConfigError

SCHEMA = 1
FOLDER = Path(__file__).parent / "results"


def machine_slug(found: Mapping[str, Any]) -> str:
    """Make a short name for a machine's results, such as "amd-epyc-9r14-2-cores"."""
    if "gpu" in found:
        text = str(found["gpu"])
    else:
        model = re.sub(r"\(.*?\)|CPU.*|@.*|\d+-Core.*|Processor.*", " ", str(found["cpu"]))
        text = f"{model} {found['cores']} cores"
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def commit() -> str | None:
    """Name the git commit of the source, and "-dirty" if it was changed since; None if unknown."""
    root = Path(__file__).resolve().parents[1]
    if not (root / ".git").exists():
        return None
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    with suppress(OSError, subprocess.SubprocessError):
        found = subprocess.run(
            command, cwd=root, capture_output=True, text=True, timeout=10, check=True
        )
        return found.stdout.strip() or None
    return None


def save(name: str, found: dict[str, Any], folder: Path | None = None) -> Path:
    """Put one benchmark's figures into the file of this machine and version."""
    folder = folder or FOLDER
    machine, version = found["environment"]["machine"], found["environment"]["outrider"]
    path = folder / machine_slug(machine) / f"{version}.json"
    known = load(path)["benchmarks"] if path.exists() else {}
    document = {
        "schema": SCHEMA,
        "machine": machine,
        "version": version,
        "benchmarks": known | {name: found},
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return path


def load(path: Path) -> dict[str, Any]:
    """Read a result file.

    Raises:
        InvalidConfigError: its layout is another.
    """
    document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    if document.get("schema") != SCHEMA:
        raise InvalidConfigError("schema", document.get("schema"), f"{SCHEMA} in {path.name}")
    return document


def newest(folder: Path = FOLDER) -> dict[str, dict[str, Any]]:
    """For each machine, by its short name, the file with the latest figures."""
    found: dict[str, dict[str, Any]] = {}
    for path in sorted(folder.glob("*/*.json")):
        document = load(path)
        known = found.get(path.parent.name)
        if known is None or date(document) >= date(known):
            found[path.parent.name] = document
    return found


def date(document: dict[str, Any]) -> str:
    """When the latest figures of a file were measured."""
    return max(str(each["environment"]["date"]) for each in document["benchmarks"].values())
