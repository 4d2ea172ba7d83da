"""`python -m benchmarks`: tiny runs of each, result files, and the documents made of them."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from benchmarks import results, tables
from benchmarks.__main__ import NAMES, main
from benchmarks.report import COLUMNS, Scope
from benchmarks.svg import Bar, bars

import outrider
from outrider.errors import InvalidConfigError

from ...support.bench import load_pair, pair

SVG = "{http://www.w3.org/2000/svg}"
TINY = Scope(rounds=2, tokens=10, workloads=("random",), temps=(0.0,), batches=(1,))
ROW = {
    "workload": "code",
    "temperature": 0.0,
    "batch": 1,
    "stretches": 12,
    "speedup": 1.9,
    "low": 1.7,
    "high": 2.1,
    "tokens_per_s": 200.0,
    "plain_tokens_per_s": 105.0,
    "acceptance_length": 3.2,
    "identical": "12/12",
}


def _made(date: str = "2026-01-02", version: str = "1.0", cpu: str = "Some CPU") -> dict[str, Any]:
    machine = {"system": "Linux x", "cpu": cpu, "cores": 2}
    facts = {"machine": machine, "outrider": version, "date": date, "torch": "2", "threads": 2}
    return {"environment": facts, "seconds": 1.0, "note": "What was measured.", "rows": [ROW]}


@pytest.fixture(autouse=True)
def _tiny_models(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outrider, "load", load_pair)
    monkeypatch.setattr(outrider, "load_head", lambda *_: pair().model_drafter)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.slow
def test_each_benchmark_fills_its_columns(name: str) -> None:
    report = import_module(f"benchmarks.{name}").run(TINY, lambda _: None)
    assert report.rows
    assert report.note
    json.dumps(report.rows)
    for row in report.rows:
        for column in COLUMNS[name]:
            assert column.field in row
            assert column.text(row)


def test_the_last_line_is_json_and_figures_are_saved(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(results, "FOLDER", tmp_path)
    main(["imports", "--rounds", "2", "--save"])
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    (path,) = tmp_path.glob("*/*.json")
    saved = results.load(path)
    assert saved["benchmarks"]["imports"]["rows"] == figures["imports"]["rows"]
    assert path.stem == saved["version"]


@pytest.mark.parametrize("argv", [["none"], ["speedup", "--rounds", "1"]])
def test_bad_arguments_are_refused(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(argv)
    assert "error:" in capsys.readouterr().err


def test_an_unknown_workload_is_refused() -> None:
    with pytest.raises(SystemExit, match="some of code"):
        main(["speedup", "--workloads", "prose"])


def test_saving_again_replaces_one_benchmark_alone(tmp_path: Path) -> None:
    path = results.save("speedup", _made(), tmp_path)
    assert results.save("losing", _made(), tmp_path) == path
    assert results.save("speedup", _made(date="2026-03-04"), tmp_path) == path
    found = results.load(path)["benchmarks"]
    assert list(found) == ["speedup", "losing"]
    assert found["speedup"]["environment"]["date"] == "2026-03-04"
    path.write_text('{"schema": 0}')
    with pytest.raises(InvalidConfigError, match="schema"):
        results.load(path)


def test_documents_are_written_from_the_newest_files(tmp_path: Path) -> None:
    folder = tmp_path / "results"
    results.save("speedup", _made("2026-01-01", "1.0"), folder)
    results.save("speedup", _made("2026-02-01", "1.1"), folder)
    results.save("speedup", _made("2026-01-15", "1.0", cpu="Other"), folder)
    readme = "# A\n<!-- benchmarks:speedup -->\nold\n<!-- /benchmarks -->\nend\n"
    (tmp_path / "README.md").write_text(readme)
    written = {path.name for path in tables.write(folder, tmp_path)}
    assert written == {
        "index.md", "README.md", "some-2-cores.md", "some-2-cores.svg", "other-2-cores.md",
        "other-2-cores.svg",
    }  # fmt: skip
    page = (tmp_path / "docs/benchmarks/some-2-cores.md").read_text()
    assert "| code | 0 | 1 | 12 | 1.90 (1.70–2.10) | 200.0 | 105.0 | 3.20 | 12/12 |" in page
    assert "Outrider 1.1" in page
    assert "1.90x" in (tmp_path / "docs/benchmarks/some-2-cores.svg").read_text()
    text = (tmp_path / "README.md").read_text()
    assert "| code | 0 | 1.90 (1.70–2.10) |" in text
    assert "old" not in text
    assert text.endswith("<!-- /benchmarks -->\nend\n")
    assert "Some CPU, 2 cores, version 1.1" not in text


def test_a_text_without_markers_is_left_alone() -> None:
    assert tables.fill("nothing here", "speedup", "figures") == "nothing here"


def test_bars_are_as_long_as_their_values() -> None:
    rows = [Bar("all"), Bar("a", 1.0), Bar("b", 2.0, 1.5, 2.5), Bar("c <d>", 0.5, 0.1, 90.0)]
    picture = ElementTree.fromstring(bars("speed & more", rows))
    found = picture.findall(f"{SVG}rect")
    widths = [float(each.attrib["width"]) for each in found]
    assert widths[1] == pytest.approx(2 * widths[0], abs=0.2)
    assert widths[2] == pytest.approx(widths[0] / 2, abs=0.2)
    assert found[1].findtext(f"{SVG}title") == "b: 2.00x, 95% interval 1.50 to 2.50"
    edge = float(picture.attrib["viewBox"].split()[2])
    assert all(float(line.attrib["x2"]) <= edge for line in picture.findall(f"{SVG}line"))


@pytest.mark.parametrize("most", [0.003, 1.7, 12.0, 99.0, 4321.0])
def test_scales_have_a_few_round_numbers(most: float) -> None:
    picture = ElementTree.fromstring(bars("t", [Bar("all", most)]))
    labels = [text.text or "" for text in picture.findall(f"{SVG}text")][1:-2]
    values = [float(label.removesuffix("x")) for label in labels]
    assert 3 <= len(values) <= 9
    assert values[0] == 0
    assert values[-1] >= most * (1 - 1e-9)
