"""A trace as one HTML file."""

from __future__ import annotations

from collections.abc import Sequence

from ..engine.trace import Trace
from . import markup
from .canvas import Picture
from .summary import number, summary
from .trace_plots import regime

CUT_SHORT = "The last line was cut short, as when a run is killed, and is left out."


def trace_page(trace: Trace, pictures: Sequence[Picture]) -> str:
    """The whole page.

    Args:
        trace: of a run.
        pictures: name and PNG of each plot.
    """
    metrics = trace.metrics
    parts = [markup.paragraph(regime(trace), "quiet")]
    if trace.truncated:
        parts.append(markup.paragraph(CUT_SHORT, "banner"))
    parts.append(markup.section("Summary", markup.pairs(summary(metrics))))
    if pictures:
        parts.append(markup.section("Plots", markup.plots(pictures)))
    if trace.settings:
        parts.append(markup.section("Settings", markup.pairs(markup.flat(trace.settings))))
    if metrics.acceptance_length is None:
        title = f"{metrics.rounds:,} rounds, nothing drafted"
    else:
        title = (
            f"{number(metrics.acceptance_length)} tokens a round that drafted, "
            f"{metrics.draft_rounds:,} of {metrics.rounds:,} rounds"
        )
    return markup.html_page(title, parts)
