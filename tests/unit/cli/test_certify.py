"""`outrider certify`: its report, its document and its exit status."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from outrider.certify import cases, controls, exact
from outrider.cli import main
from tests.support.command import Capture, error_of

PART = """
from outrider.drafters.base import Drafter


class Raises(Drafter):
    vocab_size = None

    def __init__(self):
        pass

    def propose(self, prefixes, plan, ctx):
        raise RuntimeError("no idea")
"""


@pytest.fixture(scope="module")
def _short() -> Iterator[None]:
    """Fewer cases and controls, each run once: what the tiers find is tested with them."""
    design, checks, tier = cases.design, exact._checks, exact.exact_tier
    run = cache(lambda part: tier(part)(_silent))

    def shortened(part: Any = None) -> Any:
        return design(part)[:3]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exact, "_checks", lambda part: checks(part)[-1:])
        patch.setattr("outrider.certify.exact.design", shortened)
        patch.setattr(controls, "CONTROLS", controls.CONTROLS[:2])
        patch.setattr(exact, "exact_tier", lambda part, _pool: lambda _: run(part))
        yield


def _silent(_done: int, _total: int, _what: str) -> None:
    pass


@pytest.mark.slow
@pytest.mark.usefixtures("_short")
def test_json_is_one_object_with_everything(capsys: Capture) -> None:
    assert main(["certify", "--tier", "exact", "--tier", "controls", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["passed"] is True
    assert found["exact"]["largest_error"] < 1e-12
    assert len(found["exact"]["cases"]) == 3
    assert [fault["passed"] for fault in found["controls"]["faults"]] == [True, True]
    assert "statistical" not in found


@pytest.mark.slow
@pytest.mark.usefixtures("_short")
def test_the_report_fits_100_columns_and_ends_in_a_verdict(capsys: Capture) -> None:
    assert main(["certify", "--tier", "controls", "--tier", "exact"]) == 0
    captured = capsys.readouterr()
    lines = captured.out.splitlines()
    assert re.fullmatch(
        r"outrider: exact tier done after \d+ s\noutrider: controls tier done after \d+ s\n",
        captured.err,
    )
    assert lines[-1] == "PASS: exact, controls"
    assert max(map(len, lines)) <= 100
    assert any("largest error" in line for line in lines)
    assert any("planted fault" in line for line in lines)


@pytest.mark.usefixtures("_short")
def test_a_part_that_fails_is_status_1_and_said_once(capsys: Capture, tmp_path: Path) -> None:
    path = tmp_path / "own.py"
    path.write_text(PART)
    assert main(["certify", "--module", f"{path}:Raises"]) == 1
    report = " ".join(capsys.readouterr().out.split())
    assert report.endswith("FAIL: exact failed")
    assert "3 cases: the drafter raised RuntimeError: no idea (own.py, line" in report


@pytest.mark.slow
def test_the_runtime_tier_by_itself_takes_a_checkpoints_own_type(
    capsys: Capture, target: str, tmp_path: Path
) -> None:
    narrow = tmp_path / "narrow"
    copytree(target, narrow)
    AutoModelForCausalLM.from_pretrained(target, dtype=torch.bfloat16).save_pretrained(narrow)
    flags = ("--tier", "runtime", "--runtime", "transformers", "--target", str(narrow), "--json")
    assert main(["certify", *flags]) == 0
    assert "bfloat16" in json.dumps(json.loads(capsys.readouterr().out)["models"])


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--tier", "x"), '"x"'),
        (("--samples", "9"), "--samples 9 is not allowed: expected an integer >= 100"),
        (("--seed", "-1"), "--seed"),
        (
            ("--tier", "exact", "--dtype", "float64"),
            "--dtype='float64' is not allowed: expected the",
        ),
        (("--tier", "exact", "--weights", "int8"), "--weights='int8' is not allowed: expected the"),
        (("--tolerance", "0.1"), "expected the runtime tier beside it (--tier runtime)"),
        (("--tier", "controls", "--samples", "200"), "--samples=200 is not allowed: expected the"),
        (("--tier", "controls", "--module", "a:B"), "exact alone with --module"),
        (("--module", "missing.py:Name"), "missing.py"),
        (("--model", "m", "--key", "k"), "--model and --key without --endpoint; expected"),
        (("--reference-key", "k"), "--reference-key without --endpoint; expected --endpoint URL"),
        (
            ("--endpoint", "http://x", "--self", "--reference-key", "k"),
            "--reference-key with --self; expected --reference-endpoint URL beside it",
        ),
        (("--alpha", "0.1"), "--alpha=0.1 is not allowed: expected none without --endpoint"),
        (("--endpoint", "http://x", "--self", "--tier", "exact"), "expected none with --endpoint"),
        (("--endpoint", "http://x", "--self", "--target", "x/y"), "expected none with --endpoint"),
    ],
)
def test_flags_that_do_nothing_are_refused(
    capsys: Capture, flags: tuple[str, ...], message: str
) -> None:
    assert message in error_of(capsys, "certify", *flags)
