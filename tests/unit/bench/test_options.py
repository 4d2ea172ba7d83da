"""Options of the commands: defaults, and one-line errors before anything is loaded."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from outrider.bench import BenchOptions, TuneOptions
from outrider.config.validation import shape_of
from outrider.errors import InvalidConfigError


@pytest.mark.parametrize(
    ("kind", "given", "field"),
    [
        (BenchOptions, {"k": (0,)}, "k"),
        (BenchOptions, {"k": ("deep",)}, "k"),
        (BenchOptions, {"temps": ()}, "temps"),
        (BenchOptions, {"temps": (-1.0,)}, "temps"),
        (BenchOptions, {"temps": (float("nan"),)}, "temps"),
        (BenchOptions, {"batches": (1, 1)}, "batches"),
        (BenchOptions, {"batches": (0,)}, "batches"),
        (BenchOptions, {"trees": ("2x0",)}, "trees"),
        (BenchOptions, {"max_tokens": 0}, "max_tokens"),
        (BenchOptions, {"repeats": 1.5}, "repeats"),
        (BenchOptions, {"drafters": ("hybrid",), "verification": ("typical",)}, "drafters"),
        (BenchOptions, {"peers": ("none", "none")}, "peers"),
        (TuneOptions, {"max_tokens": 1}, "max_tokens"),
        (TuneOptions, {"budget": 0.5}, "budget"),
        (TuneOptions, {"context": 0}, "context"),
        (TuneOptions, {"target": "a", "drafters": ("hybrid",)}, "drafters"),
        (TuneOptions, {"depths": (0,)}, "depths"),
        (TuneOptions, {"schedule": (4, 0)}, "schedule"),
    ],
)
def test_a_bad_value_is_refused_by_its_name(kind: Any, given: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidConfigError) as refused:
        kind(**given)
    assert refused.value.field == field
    assert "\n" not in str(refused.value)


def test_quick_measures_less() -> None:
    usual, quick = BenchOptions(), BenchOptions(quick=True)
    assert set(quick.chosen_workloads) < set(usual.chosen_workloads)
    assert quick.tokens < usual.tokens
    assert usual.depths == (4, None)
    assert quick.depths == (None,)
    assert BenchOptions(quick=True, max_tokens=7).tokens == 7


@pytest.mark.parametrize(
    ("options", "has_model", "expected"),
    [
        (BenchOptions(), True, ("draft_model", "hybrid")),
        (BenchOptions(), False, ("suffix", "ngram")),
        (BenchOptions(verification=("typical",)), True, ("draft_model",)),
        (BenchOptions(drafters=("suffix",)), True, ("suffix",)),
    ],
)
def test_what_drafts_depends_on_the_models(
    options: BenchOptions, has_model: bool, expected: tuple[str, ...]
) -> None:
    assert options.chosen_drafters(has_model) == expected


def test_tune_tries_what_the_models_allow() -> None:
    assert TuneOptions(target="a").chosen_drafters == ("ngram", "suffix")
    assert "hybrid" in TuneOptions(target="a", draft="b").chosen_drafters
    assert TuneOptions(target="a").depths == (1, 2, 4, 8)


def test_shapes_are_read() -> None:
    assert shape_of("trees", "2x2x1") == (2, 2, 1)


def test_importing_the_package_loads_no_framework() -> None:
    program = "import sys, outrider.bench; assert not {'torch', 'transformers'} & set(sys.modules)"
    root = Path(__file__).resolve().parents[3]
    subprocess.run([sys.executable, "-c", program], check=True, cwd=root)
