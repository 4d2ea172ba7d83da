"""The picture of predictions beside what was measured."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO

from matplotlib.figure import Figure

from .tune import WITHIN, Check, within

_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
_COLORS = ("#0072B2", "#D55E00", "#009E73", "#E69F00", "#CC79A7", "#56B4E9", "#000000")
"""Okabe and Ito (2008), which people who see few colours can tell apart."""


def picture(checks: Sequence[Check]) -> bytes:
    """A PNG: tokens a second predicted against measured, a point for each configuration.

    Args:
        checks: those without a prediction are left out; at least one has one.
    """
    known = [(check, check.predicted) for check in checks if check.predicted is not None]
    right, total = within(checks)
    figure = Figure(figsize=(7.0, 6.0), dpi=160, layout="constrained")
    axes = figure.add_subplot()
    rates = [
        rate
        for check, predicted in known
        for rate in (check.measured.tokens_per_s, predicted.tokens_per_s)
    ]
    ends = [0.9 * min(rates), 1.1 * max(rates)]
    axes.fill_between(
        ends,
        [(1 - WITHIN) * end for end in ends],
        [(1 + WITHIN) * end for end in ends],
        color="#E3E3E3",
        linewidth=0,
        label="within 10%",
    )
    axes.plot(ends, ends, color="#595959", linewidth=1)
    drafters = list(dict.fromkeys(check.measured.contender.drafter for check, _ in known))
    temperatures = list(dict.fromkeys(check.measured.temperature for check, _ in known))
    for row, drafter in enumerate(drafters):
        for column, temperature in enumerate(temperatures):
            points = [
                (check.measured.tokens_per_s, predicted.tokens_per_s)
                for check, predicted in known
                if check.measured.contender.drafter == drafter
                and check.measured.temperature == temperature
            ]
            if points:
                axes.plot(
                    *zip(*points, strict=True),
                    linestyle="",
                    marker=_MARKERS[column % len(_MARKERS)],
                    markerfacecolor=_COLORS[row % len(_COLORS)] if column == 0 else "none",
                    markeredgecolor=_COLORS[row % len(_COLORS)],
                    label=f"{drafter}, temperature {temperature:g}",
                )
    axes.set_xlim(*ends)
    axes.set_ylim(*ends)
    axes.set_xlabel("measured tokens a second")
    axes.set_ylabel("predicted tokens a second")
    axes.set_title(f"{right} of {total} predictions are within 10%", loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8)
    made = BytesIO()
    figure.savefig(made, format="png")
    return made.getvalue()
