"""The benchmarks run, and end in one line of JSON. What they measure is not looked at."""

from __future__ import annotations

import json

import pytest
from benchmarks import depth, losing, parameters
from benchmarks.__main__ import main

from outrider.bench.race import Timed
from outrider.engine.metrics import Tally
from outrider.types.records import RoundRecord


@pytest.mark.parametrize(
    ("name", "rounds", "figures"),
    [
        ("overhead", 3, {"k", "rows"}),
        ("drafting", 1, {"k", "rows"}),
        ("import", 1, set()),
        ("verification", 1, {"k", "rows"}),
        ("parameters", 1, {"k", "rows"}),
    ],
)
def test_a_benchmark_ends_in_one_line_of_json(
    name: str,
    rounds: int,
    figures: set[str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(parameters, "VOCABULARIES", (400, 500))
    main([name, "--rounds", str(rounds)])
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert len(last) == 2
    assert last["environment"]["torch"]
    assert figures <= set(next(value for key, value in last.items() if key != "environment"))


def test_the_suffix_benchmark(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On fewer tokens: the loops that it compiles take a while as it is."""
    monkeypatch.setattr("benchmarks.suffix.TOKENS", 10_000)
    test_a_benchmark_ends_in_one_line_of_json("suffix", 1, {"rows"}, capsys, monkeypatch)


def test_the_speedup_benchmark(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On fewer tokens, and at one temperature."""
    for name, value in {
        "TOKENS": 6,
        "TEMPERATURES": (0.8,),
        "BATCHES": (1, 2),
        "WARM_UP": 2,
    }.items():
        monkeypatch.setattr(f"benchmarks.speedup.{name}", value)
    test_a_benchmark_ends_in_one_line_of_json("speedup", 1, {"rows", "tokens"}, capsys, monkeypatch)


def test_the_losing_benchmark(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On fewer tokens, and at one temperature."""
    few = {"TOKENS": 6, "TEMPERATURES": (0.8,), "SIZES": (1, 2), "WARM_UP": 2}
    for name, value in few.items():
        monkeypatch.setattr(f"benchmarks.losing.{name}", value)
    figures = {"rows", "tokens", "kinds"}
    test_a_benchmark_ends_in_one_line_of_json("losing", 1, figures, capsys, monkeypatch)


def test_what_did_not_pay_is_a_share_of_the_time() -> None:
    """Of two rows: plain rounds of 10 s, and one of 25 s that emitted 1.5 tokens for each."""

    def record(drafted: int, emitted: tuple[int, int], total_s: float) -> RoundRecord:
        nothing = ((),) * 2
        return RoundRecord(
            sequence_ids=(0, 1),
            drafted=(drafted,) * 2,
            depth=(drafted,) * 2,
            accepted=(0, 0),
            emitted=emitted,
            bonus=(False,) * 2,
            ceiling=(None,) * 2,
            first_ceiling=(None,) * 2,
            draft_failed=False,
            looked_up=(False,) * 2,
            ended=(False,) * 2,
            entropies=nothing,
            cached=(0, 0),
            draft_s=0.0,
            target_s=0.0,
            total_s=total_s,
            plan_s=1.0,
        )

    plain = [record(0, (1, 1), 11.0)] * 3
    found = losing._overhead([*plain, record(1, (1, 2), 26.0)], plain)
    assert found["unpaid"] == pytest.approx((25 - 1.5 * 10) / 59)
    assert found["planning"] == pytest.approx(4 / 59)


def test_the_depth_benchmark(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two depths, fewer of batches, few tokens, and both temperatures."""
    depths = {1: (1, 2), 2: (1,)}
    for name, value in {"TOKENS": 6, "DEPTHS": depths, "KINDS": ("json",), "WARM_UP": 2}.items():
        monkeypatch.setattr(f"benchmarks.depth.{name}", value)
    test_a_benchmark_ends_in_one_line_of_json("depth", 1, {"rows", "tokens"}, capsys, monkeypatch)


def test_the_adaptive_depth_stands_beside_the_fastest_fixed_one() -> None:
    """Of made-up times: k = 2 is fastest, and the adaptive depth takes 5/4 of its time.

    By the usual times of rounds k = 1 is, and the adaptive depth as fast.
    """
    nothing = Tally().metrics()

    def timed(seconds: float, usual: float) -> Timed:
        return Timed((seconds,) * 2, (((0,) * 10,),) * 2, nothing, usual=(usual,) * 2)

    found = {"k=1": timed(5.0, 3.0), "k=2": timed(4.0, 4.0), "adaptive": timed(5.0, 3.0)}
    row = depth._row(timed(10.0, 9.0), found)
    assert row["best"] == "k=2"
    assert row["speedup"] == {"k=1": 2.0, "k=2": 2.5, "adaptive": 2.0}
    assert row["over_best"] == pytest.approx(0.8)
    assert (row["usual"]["best"], row["usual"]["over_best"]) == ("k=1", pytest.approx(1.0))


def test_a_depth_that_other_prompts_choose_is_not_the_luckiest() -> None:
    """Each of two is chosen for the prompt on which it is slower."""
    nothing = Tally().metrics()

    def timed(*seconds: float) -> Timed:
        return Timed(seconds, (((0,) * 10,),) * 2, nothing, usual=seconds)

    found = {"k=1": timed(1.0, 9.0), "k=2": timed(5.0, 3.0), "adaptive": timed(2.0, 2.0)}
    row = depth._row(timed(4.0, 4.0), found)
    assert row["over_best"] == pytest.approx((5 + 3) / 4)
    assert row["held_out"][0] == pytest.approx((5 + 9) / 4)


def test_some_regimes_alone(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the order in which they are measured where all are."""
    few = {"TOKENS": 4, "WARM_UP": 2, "DEPTHS": {1: (1,), 2: (1,), 3: (1,)}}
    for name, value in few.items():
        monkeypatch.setattr(f"benchmarks.depth.{name}", value)
    main(["depth", "--rounds", "1", "--batches", "3,1", "--temps", "0.8", "--workloads", "json"])
    rows = json.loads(capsys.readouterr().out.splitlines()[-1])["depth"]["rows"]
    assert [(row["workload"], row["temperature"], row["batch"]) for row in rows] == [
        ("json", 0.8, 1),
        ("json", 0.8, 3),
    ]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["depth", "--batches", "5"], "--batches=5 is not allowed: expected some of 1, 4, 16"),
        (["losing", "--temps", "2"], "--temps=2.0 is not allowed: expected some of 0.0, 0.8, 1.0"),
        (["speedup", "--workloads", "x"], "--workloads='x' is not allowed: expected some of code"),
        (["speedup", "--batches", "one"], "'one' is not allowed: expected ints"),
        (["suffix", "--temps", "0"], "suffix has no regimes to choose from; speedup, losing, dep"),
        (["--temps", "0"], "overhead has no regimes to choose from"),
    ],
)
def test_regimes_that_there_are_not(
    args: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(args)
    assert message in capsys.readouterr().err


def test_an_unknown_benchmark_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["overhed"])
    assert "no benchmark overhed; there are overhead" in capsys.readouterr().err
