"""The picture of predictions beside what was measured."""

from __future__ import annotations

from collections.abc import Sequence

from .canvas import FAINT, MARKERS, QUIET, SERIES, canvas, dress, legend, png
from .checks import WITHIN, Check, agreement


def picture(checks: Sequence[Check]) -> bytes:
    """A PNG: tokens a second predicted against measured, a point for each configuration.

    Args:
        checks: those without a prediction are left out; at least one has one.

    Raises:
        InvalidConfigError: matplotlib is not installed.
    """
    known = [(check, check.expected) for check in checks if check.expected is not None]
    counted, rehearsed = (agreement(checks, rehearsed=each) for each in (False, True))
    lines = [
        "Each point is a configuration at a temperature; the band is 10% to either side.",
        "Predicted for the pace that the machine had in the run, which plain decoding shows; at",
        "the usual times of rounds: had each taken the median of its kind, without slow moments.",
    ]
    if rehearsed.of:
        lines.append(f"Apart, from short runs of the same configuration: {rehearsed.told}.")
    figure, [[axes]] = canvas(
        f"Predictions by formula or replay: {counted.told}", lines, height=6.2
    )
    rates = [rate for check, expected in known for rate in (check.measured.tokens_per_s, expected)]
    ends = [0.9 * min(rates), 1.1 * max(rates)]
    low, high = ([(1 + side) * end for end in ends] for side in (-WITHIN, WITHIN))
    axes.fill_between(ends, low, high, color=FAINT, linewidth=0)
    axes.plot(ends, ends, color=QUIET, linewidth=1)
    kinds = list(
        dict.fromkeys((check.measured.contender.drafter, check.rehearsed) for check, _ in known)
    )
    temperatures = list(dict.fromkeys(check.measured.temperature for check, _ in known))
    marks, labels = [], []
    for row, (drafter, short) in enumerate(kinds):
        for column, temperature in enumerate(temperatures):
            points = [
                (check.measured.tokens_per_s, expected)
                for check, expected in known
                if (check.measured.contender.drafter, check.rehearsed) == (drafter, short)
                and check.measured.temperature == temperature
            ]
            if not points:
                continue
            color = SERIES[row % len(SERIES)]
            marks += axes.plot(
                *zip(*points, strict=True),
                linestyle="",
                marker=MARKERS[column % len(MARKERS)],
                markerfacecolor=color if column == 0 else "none",
                markeredgecolor=color,
            )
            name = f"{drafter}, short runs" if short else drafter
            labels.append(f"{name}, temperature {temperature:g}")
    axes.set_xlim(*ends)
    axes.set_ylim(*ends)
    dress(axes, grid="y", x="measured tokens a second", y="predicted tokens a second")
    legend(figure, marks, labels, 3)
    return png(figure)
