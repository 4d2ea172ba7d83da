"""The reference recursion, held against the definitions of parameters by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from outrider import SamplingParams, StructuredOutput
from outrider.certify import toys
from outrider.certify.reference import allowed, ended, filtered

FORM = StructuredOutput(choice=("ab", "b", "abc"))
REGEX = StructuredOutput(regex="(ab)+")


@pytest.mark.parametrize(
    ("output", "asked", "expected"),
    [
        ((), {}, [0, 1, 2, 3]),
        ((), {"structured_output": FORM}, [0, 2]),
        ((0, 2), {"structured_output": FORM}, [3]),
        ((0, 2), {"structured_output": FORM, "stop_token_ids": (1,)}, [1, 3]),
        ((0,), {"structured_output": REGEX}, [2]),
        ((0, 2), {"structured_output": REGEX, "stop_token_ids": (1,)}, [0, 1]),
    ],
)
def test_a_form_allows_what_goes_on_with_it(
    output: tuple[int, ...], asked: dict[str, Any], expected: list[int]
) -> None:
    """Letters a, b and c at 0, 2 and 3; the token 1 has no text."""
    found = allowed(output, SamplingParams(**asked), toys.TEXTS)
    assert np.flatnonzero(found).tolist() == expected


@pytest.mark.parametrize(
    ("output", "asked", "over"),
    [
        ((0, 2, 3), {}, False),
        ((0, 2, 3, 0), {}, True),
        ((2, 1, 0), {"stop": ("ba",)}, True),
        ((2, 0, 1), {"stop": ("ba",)}, False),
        ((2,), {"stop": ("b",), "min_tokens": 2}, False),
        ((2, 2), {"stop": ("b",), "min_tokens": 2}, True),
        ((1,), {"stop_token_ids": (1,)}, True),
        ((0, 2, 3), {"structured_output": FORM}, True),
        ((0, 2, 3), {"structured_output": FORM, "stop_token_ids": (1,)}, False),
    ],
)
def test_an_output_ends_by_definition(
    output: tuple[int, ...], asked: dict[str, Any], over: bool
) -> None:
    assert ended(output, SamplingParams(max_tokens=4, **asked), toys.TEXTS) is over


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"top_k": 2}, [0.625, 0.375, 0, 0]),
        ({"top_p": 0.6}, [0.625, 0.375, 0, 0]),
        ({"min_p": 0.25}, [0.5 / 0.95, 0.3 / 0.95, 0.15 / 0.95, 0]),
        ({"temperature": 0}, [1, 0, 0, 0]),
    ],
)
def test_filters_by_definition(asked: dict[str, Any], expected: list[float]) -> None:
    row = np.array([0.5, 0.3, 0.15, 0.05])
    assert filtered(row, SamplingParams(**asked)) == pytest.approx(expected)
