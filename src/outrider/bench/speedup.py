"""The ratio of two speeds, with an interval."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, inf, sqrt
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from .records import Prompt

_T = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
)
"""Student's t for 1 to 20 degrees of freedom; beyond, it nears the normal's as their inverse."""


@dataclass(frozen=True, slots=True)
class Speedup:
    """A ratio of speeds and its 95% interval; no interval from fewer than two stretches."""

    ratio: float
    low: float | None = None
    high: float | None = None

    @property
    def outcome(self) -> int:
        """1 if its whole interval is above 1, -1 if it is below, else 0."""
        return ((self.low or 0.0) > 1) - ((self.high or inf) < 1)


@dataclass(frozen=True, slots=True)
class Stretch:
    """A batch of texts, and the seconds for it, decoded plainly and with drafts.

    Attributes:
        temperature: of the texts.
        name: of their prompts.
        kind: of text.
        tokens: that were emitted, of all texts together.
        plain, drafting: seconds without and with drafts.
    """

    temperature: float
    name: str
    kind: str
    tokens: int
    plain: float
    drafting: float

    @property
    def place(self) -> tuple[str, float]:
        """Which texts these are: all that have it are the same, decoded again."""
        return self.name, self.temperature

    @staticmethod
    def of(
        temperature: float, prompts: Sequence[Prompt], tokens: int, plain: float, drafting: float
    ) -> Stretch:
        """Name a stretch by its prompts."""
        name = " + ".join(prompt.name for prompt in prompts)
        kinds = {prompt.kind for prompt in prompts}
        kind = kinds.pop() if len(kinds) == 1 else "mixed text"
        return Stretch(temperature, name, kind, tokens, plain, drafting)


def gain(stretches: Sequence[Stretch]) -> Speedup:
    """Return the ratio of speeds, each text counted once, however often it was decoded.

    Texts that go on from one prompt count as one.
    """
    texts: dict[tuple[str, float], list[tuple[float, float]]] = {}
    for each in stretches:
        texts.setdefault(each.place, []).append((each.plain, each.drafting))
    prompts: dict[str, Any] = {}
    for (name, _), seconds in texts.items():
        prompts[name] = prompts.get(name, 0.0) + np.mean(seconds, 0)
    return speedup(*np.array(list(prompts.values())).T.tolist())


def speedup(plain_s: Sequence[float], other_s: Sequence[float]) -> Speedup:
    """Compare a speed with plain decoding's, on the same prompts and for as many tokens.

    The standard error of the ratio's logarithm is the jackknife's over prompts, which are left out
    in pairs, since both ways of decoding met the same prompt and the same noise; the interval is
    Student's t with n - 1 degrees of freedom.
    """
    each = np.array([plain_s, other_s], dtype=float)
    plain, other = each.sum(1)
    ratio, count = float(plain / other), each.shape[1]
    if count < 2:
        return Speedup(ratio)
    without = (plain - each[0]) / (other - each[1])
    error = sqrt((count - 1) * np.log(without).var())
    margin = exp(min(t_quantile(count - 1) * error, 700.0))
    return Speedup(ratio, ratio / margin, ratio * margin)


def t_quantile(freedom: int) -> float:
    """Return the 97.5% quantile of Student's t with `freedom` >= 1 degrees, to 0.1%."""
    if freedom <= len(_T):
        return _T[freedom - 1]
    return 1.95996 + (_T[-1] - 1.95996) * len(_T) / freedom
