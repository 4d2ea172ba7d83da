"""Pages and pictures: self-contained, well formed, and true to the figures."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest

from outrider import SamplingParams, SpeculativeConfig, SpeculativeDecoder
from outrider.bench import Results, render_report
from outrider.bench.records import PLAIN
from outrider.bench.svg import Bar, bars, columns
from outrider.engine.trace import TraceWriter, read_trace

from ...support.bench import PROMPTS, measured, pair

SVG = "{http://www.w3.org/2000/svg}"


class Outline(HTMLParser):
    """Reads the heading and whatever points out of the page."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.heading = ""
        self._inside = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._inside = tag == "h1"
        self.links += [value or "" for name, value in attrs if name in ("src", "href", "srcset")]

    def handle_data(self, data: str) -> None:
        self.heading += data * self._inside
        self._inside = False


def _outline(page: str) -> Outline:
    outline = Outline()
    outline.feed(page)
    for picture in re.findall(r"<svg.*?</svg>", page, re.DOTALL):
        ElementTree.fromstring(picture)
    return outline


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """A trace of one short request."""
    given, path = pair(), tmp_path / "trace.jsonl"
    config = SpeculativeConfig(num_speculative_tokens=3, depth="fixed")
    with TraceWriter(path, {"target": "<tiny> & random"}) as writer:
        decoder = SpeculativeDecoder(
            given.target, given.model_drafter, config=config, on_round=writer.write
        )
        params = SamplingParams(max_tokens=20, temperature=0, ignore_eos=True)
        decoder.generate(list(PROMPTS[0].token_ids), params)
    return path


def test_a_result_is_rendered_as_one_page() -> None:
    fast, slow = measured(), measured(speedup=0.5, temperature=0.8)
    results = Results({"target": "<tiny>"}, (measured(PLAIN, 1.0), fast, slow), missing=("<b>",))
    page = render_report(results)
    outline = _outline(page)
    assert outline.links == []
    assert "<tiny>" not in page
    assert "&lt;b&gt;" in page
    assert outline.heading == "outrider bench: <tiny>"
    assert "turn it off: plain decoding is faster" in page
    assert page.count("<svg") == 1
    assert "1.82–2.20" in page


def test_an_empty_result_is_a_page() -> None:
    assert "interrupted" in render_report(Results({}, (), partial=True))


def test_a_trace_is_rendered_as_one_page(trace: Path) -> None:
    page = render_report(read_trace(trace))
    outline = _outline(page)
    assert outline.links == []
    assert "20 tokens in" in outline.heading
    assert page.count("<svg") == 2
    assert "&lt;tiny&gt; &amp; random" in page


def test_a_trace_that_was_cut_short_says_so(trace: Path) -> None:
    trace.write_bytes(trace.read_bytes()[:-5])
    assert "cut short" in render_report(read_trace(trace))


def test_a_trace_without_rounds_is_a_page(trace: Path) -> None:
    trace.write_bytes(trace.read_bytes().split(b"\n")[0] + b"\n")
    assert "Nothing was drafted" in render_report(read_trace(trace))


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


def test_columns_are_stacked() -> None:
    picture = ElementTree.fromstring(columns("t", [(1.0, 1.0), (4.0, 0.0)], "ab"))
    heights = [float(each.attrib["height"]) for each in picture.findall(f"{SVG}rect")]
    assert heights[0] == heights[1]
    assert heights[2] == pytest.approx(4 * heights[0], abs=0.3)
    assert picture.findall(f"{SVG}text")[1].text == "up to 4"


@pytest.mark.parametrize("most", [0.003, 1.7, 12.0, 99.0, 4321.0])
def test_scales_have_a_few_round_numbers(most: float) -> None:
    picture = ElementTree.fromstring(bars("t", [Bar("all", most)], unit=""))
    labels = [text.text or "" for text in picture.findall(f"{SVG}text")][1:-2]
    values = [float(label) for label in labels]
    assert 3 <= len(values) <= 9
    assert values[0] == 0
    assert values[-1] >= most * (1 - 1e-9)
