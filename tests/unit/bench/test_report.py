"""The page of a result: self-contained, and true to the figures."""

from __future__ import annotations

from outrider.bench import Results
from outrider.bench.page import render_report
from outrider.bench.records import PLAIN

from ...support.bench import measured
from ...support.pages import outline


def test_a_result_is_rendered_as_one_page() -> None:
    fast, slow = measured(), measured(speedup=0.5, temperature=0.8)
    results = Results({"target": "<tiny>"}, (measured(PLAIN, 1.0), fast, slow), missing=("<b>",))
    page = render_report(results)
    found = outline(page)
    assert found.links == []
    assert "<tiny>" not in page
    assert "&lt;b&gt;" in page
    assert found.heading == "outrider bench: <tiny>"
    assert "turn it off: plain decoding is faster" in page
    assert "1.82–2.20" in page


def test_an_empty_result_is_a_page() -> None:
    assert "interrupted" in render_report(Results({}, (), partial=True))
