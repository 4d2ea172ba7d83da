"""Plots and pages: what data are there is shown, what is not is left out, nothing is trusted."""

from __future__ import annotations

import io
import re
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest
from PIL import Image
from rich.console import Console

from outrider.bench import canvas, plots, trace_plots
from outrider.bench.page import page
from outrider.bench.records import BenchResult, Contender, ForwardTime, Measurement
from outrider.bench.tables import as_markdown, closing, remarks, rendered
from outrider.bench.trace_page import CUT_SHORT, trace_page
from outrider.bench.trace_plots import wilson
from outrider.bench.verdicts import Regime, caution, none_faster, outcome, verdicts
from outrider.engine.metrics import SpeculationMetrics, Tally
from outrider.engine.trace import Trace
from outrider.errors import InvalidConfigError
from outrider.types.records import RoundRecord

PLAIN = Contender("outrider", "none")
DRAFT = Contender("outrider", "draft_model", "block", 2)
HYBRID = Contender("outrider", "hybrid")
ASSISTED = Contender("transformers", "draft_model")
PEER_PLAIN = Contender("llama.cpp", "none")
NASTY = '<script>alert("$x_{1$")</script> & \n名'


def record(depth: int = 2, accepted: int = 1, seconds: float = 0.01) -> RoundRecord:
    return RoundRecord(
        sequence_ids=(1,),
        drafted=(depth,),
        depth=(depth,),
        accepted=(accepted,),
        emitted=(accepted + 1,),
        bonus=(depth == accepted,),
        ceiling=(accepted + 1.25,),
        first_ceiling=(None,),
        draft_failed=False,
        looked_up=(False,),
        ended=(False,),
        entropies=((),),
        cached=(0,),
        draft_s=seconds / 4,
        target_s=seconds / 2,
        total_s=seconds,
    )


def figures(depth: int, rounds: int = 40, *, lossy: bool = False) -> SpeculationMetrics:
    tally = Tally(lossy=lossy)
    for number in range(rounds):
        tally.add(record(depth, min(depth, number % 3)))
    return tally.metrics()


def measured(contender: Contender, speedup: float | None, **others: Any) -> Measurement:
    usual = Measurement(
        contender=contender,
        workload="code",
        temperature=0.0,
        batch=1,
        dtype="float32",
        seconds=(1.0, 1.0),
        tokens=(80, 90),
        metrics=None if contender.system != "outrider" else figures(0 if contender.plain else 2),
        identical=2,
        speedup=speedup,
        low=None if speedup is None else speedup - 0.1,
        high=None if speedup is None else speedup + 0.1,
    )
    return replace(usual, **others)


def result(*measurements: Measurement, **others: Any) -> BenchResult:
    return BenchResult({"target": "demo", "threads": 2}, measurements, **others)


CURVE = tuple(ForwardTime(1, n, 0.01 * n, 0.009 * n, 0.012 * n) for n in (1, 2, 5, 9))
WHOLE = result(measured(PLAIN, 1.0), measured(DRAFT, 1.6), curve=CURVE)


def names(found: BenchResult) -> list[str]:
    return [name for name, _ in plots.pictures(found)]


class TestPictures:
    def test_all_of_them_at_twice_the_dots(self, tmp_path):
        paths = plots.draw(WHOLE, tmp_path / "new" / "folder")
        assert [path.name for path in paths] == [
            "speedup.png",
            "acceptance-by-position.png",
            "time-per-round.png",
            "forward-times.png",
        ]
        for path in paths:
            with Image.open(path) as image:
                assert image.width == 1600
                assert image.info["dpi"] == pytest.approx((200, 200), abs=1)

    def test_a_wide_interval_does_not_squeeze_the_others(self, monkeypatch):
        """The axis of speedups ends near the fastest, where an arrow says that it goes on."""
        axes = []
        dress = canvas.dress

        def watched(one, **how):
            axes.append(one)
            dress(one, **how)

        monkeypatch.setattr(canvas, "dress", watched)
        wide = measured(DRAFT, 1.6, low=0.2, high=17.0)
        assert plots.pictures(result(measured(PLAIN, 1.0), wide))[0][0] == "speedup"
        assert 1.4 * 1.6 < axes[0].get_xlim()[1] < 3
        assert sum(line.get_marker() == ">" for line in axes[0].lines) == 1
        axes.clear()
        plots.pictures(WHOLE)
        assert not any(line.get_marker() == ">" for line in axes[0].lines)

    @pytest.mark.parametrize(
        ("low", "high", "told"),
        [
            (1.5, 1.7, "wins 1 of 1 comparisons with plain decoding, by up to 1.60 times"),
            (
                0.5,
                3.0,
                "Speculation was not told apart from plain decoding: more prompts or repeats may",
            ),
            (0.5, 0.9, "Do not speculate here: plain decoding is faster on every workload"),
        ],
    )
    def test_the_title_says_what_intervals_do(self, monkeypatch, low, high, told):
        titles = []
        drawn = canvas.canvas

        def watched(title, *rest, **how):
            titles.append(title)
            return drawn(title, *rest, **how)

        monkeypatch.setattr(canvas, "canvas", watched)
        speedup = 0.7 if high < 1 else 1.6
        plots.pictures(result(measured(PLAIN, 1.0), measured(DRAFT, speedup, low=low, high=high)))
        assert told in titles[0]

    def test_times_leave_out_the_reading_of_prompts(self, monkeypatch):
        """40 rounds take .4 s, the target half of it, of which .05 s are its first forwards."""
        told = []
        monkeypatch.setattr(canvas, "write_beside", lambda *given, **_: told.append(given[3]))
        read = measured(DRAFT, None, prompt_s=(0.02, 0.03))
        assert names(result(read))[-1] == "time-per-round"
        assert told == ["8.8 ms, 2.0 tok."]
        assert read.decoding.target_s == pytest.approx(0.15)
        assert "8.75 ms: draft 29%, target 43%, rest 29%" in page(result(read))

    def test_a_single_position_has_no_axis_of_fractions(self, monkeypatch):
        axes = []
        dress = canvas.dress
        monkeypatch.setattr(
            canvas, "dress", lambda one, **how: (axes.append(one), dress(one, **how))
        )
        plots.pictures(result(measured(DRAFT, None, metrics=figures(1))))
        assert axes[0].get_xlim() == (0.5, 1.5)

    def test_a_plot_without_data_is_left_out(self):
        assert names(result()) == []
        assert names(result(curve=CURVE)) == ["forward-times"]
        assert names(result(measured(PLAIN, 1.0))) == ["time-per-round"]
        assert names(result(measured(PEER_PLAIN, 0.9))) == ["speedup"]
        few = replace(measured(DRAFT, None), metrics=figures(2, plots.FEWEST_ROUNDS - 1))
        assert names(result(few)) == ["time-per-round"]

    def test_regimes_have_plots_of_their_own(self):
        found = result(*(measured(PEER_PLAIN, 1.2, batch=batch) for batch in (1, 4)))
        assert names(found) == [
            "speedup-batch-1-float32",
            "speedup-batch-4-float32",
        ]

    def test_names_are_no_markup(self):
        nasty = replace(measured(replace(DRAFT, drafter=NASTY), 1.1), workload=NASTY)
        found = replace(result(nasty, curve=CURVE), provenance={"target": NASTY})
        assert len(plots.pictures(found)) == 4

    def test_more_contenders_than_colours(self):
        many = [replace(DRAFT, num_speculative_tokens=k) for k in range(1, 13)]
        assert len(names(result(*(measured(each, 1.0) for each in many)))) == 3

    def test_sides_without_intervals_or_rounds(self):
        found = result(measured(DRAFT, 1.2, low=None, high=None, metrics=Tally().metrics()))
        assert names(found) == ["speedup"]

    def test_a_curve_of_one_point_and_of_many_sequences(self):
        assert names(result(curve=CURVE[:1])) == ["forward-times"]
        many = tuple(replace(p, rows=rows) for rows in (1, 8, 32) for p in CURVE)
        assert names(result(curve=many)) == ["forward-times"]

    def test_of_a_trace(self):
        trace = Trace("0", False, {"target": NASTY}, (record(),) * 300, False)
        expected = ["depth-by-round", "time-by-round", "acceptance-by-position"]
        assert [name for name, _ in trace_plots.pictures(trace)] == expected
        plain = replace(trace, records=(record(0, 0, 0.0),))
        assert [name for name, _ in trace_plots.pictures(plain)] == ["time-by-round"]
        assert trace_plots.pictures(replace(trace, records=())) == []

    def test_a_trace_whose_first_round_is_far_above_the_others(self):
        records = (record(seconds=9.0), *(record() for _ in range(80)))
        assert len(trace_plots.pictures(Trace("0", False, {}, records, True))) == 3

    def test_without_matplotlib_the_error_says_what_to_install(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
        with pytest.raises(InvalidConfigError, match=r'pip install "outrider\[bench\]"'):
            plots.pictures(WHOLE)
        with pytest.raises(InvalidConfigError, match="matplotlib is not installed"):
            canvas.check_plots()

    def test_no_global_state_of_matplotlib_is_touched(self):
        program = (
            "import sys; from outrider.bench import plots, trace_plots, page; "
            "assert 'matplotlib' not in sys.modules; "
            "from outrider.bench.canvas import canvas, png; png(canvas('a', ['b'], height=1)[0]); "
            "assert 'matplotlib.pyplot' not in sys.modules"
        )
        subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


class TestTables:
    def text(self, found: BenchResult, width: int = 100) -> str:
        console = Console(width=width, file=io.StringIO())
        with console.capture() as capture:
            console.print(rendered(found, width))
        return capture.get()

    def test_who_never_drafted_is_said_to(self):
        idle = measured(DRAFT, 0.98, metrics=figures(0))
        assert idle.idle
        assert "no draft" in self.text(result(measured(PLAIN, 1.0), idle))
        assert "drafted nothing" in page(result(measured(PLAIN, 1.0), idle))
        assert "no draft" not in self.text(WHOLE)
        assert "drafted nothing" not in page(WHOLE)

    def test_two_prompts_that_say_nothing_have_no_interval(self):
        vague = result(measured(PLAIN, 1.0), measured(DRAFT, 1.6, low=0.0, high=268225.4))
        for told in (self.text(vague), as_markdown(vague), page(vague)):
            assert "too few" in told
            assert "268225" not in told
        assert "1.50–1.70" in self.text(WHOLE)

    def test_a_narrow_terminal_has_fewer_columns(self):
        label = replace(DRAFT, system="transformers", num_speculative_tokens=None)
        found = result(measured(PLAIN, 1.0), measured(label, 1.6))
        for width, columns in ((80, 6), (100, 8)):
            lines = self.text(found, width).splitlines()
            assert len(re.split(r"  +", lines[0].strip())) == columns
            assert any(
                "transformers draft_model adaptive" in line and "1.60x" in line for line in lines
            )
        assert "ceiling and rate: in a terminal of 100 columns" in self.text(found, 80)


class TestVerdicts:
    def test_an_interval_on_one_side_of_one_decides(self):
        assert outcome(measured(DRAFT, 1.2)) == "faster"
        assert outcome(measured(DRAFT, 0.8)) == "slower"
        assert outcome(measured(DRAFT, 1.05)) == "not told apart"
        assert outcome(measured(DRAFT, 1.05, low=None, high=None)) == "not told apart"

    def test_the_best_that_speculates_for_each_workload_and_regime(self):
        found = verdicts(
            result(
                measured(PLAIN, 1.0),
                measured(DRAFT, 1.3),
                measured(ASSISTED, 1.5),
                measured(PEER_PLAIN, 1.4),
                measured(DRAFT, 0.7, workload="chat"),
                measured(ASSISTED, None, workload="chat"),
                measured(PEER_PLAIN, 1.2, workload="chat"),
                measured(DRAFT, 1.1, batch=4),
            )
        )
        assert [verdict.best.contender for verdict in found] == [DRAFT, DRAFT, DRAFT]
        assert [verdict.outcome for verdict in found] == ["faster", "slower", "not told apart"]
        peers = [verdict.peer.contender if verdict.peer else None for verdict in found]
        assert peers == [ASSISTED, PEER_PLAIN, None]
        assert found[2].regime == Regime(4, "float32")

    def test_one_that_is_surely_faster_stands_before_one_that_may_be(self):
        """The second of them has the higher speedup, and an interval that says nothing."""
        may = measured(HYBRID, 2.4, low=0.96, high=5.9)
        (verdict,) = verdicts(result(measured(PLAIN, 1.0), measured(DRAFT, 1.9), may))
        assert verdict.best.contender == DRAFT
        assert verdict.ahead == may
        assert verdict.outcome == "faster"

    def test_slower_only_if_all_that_speculate_are(self):
        sure = measured(DRAFT, 0.95, low=0.92, high=0.98)
        may = measured(HYBRID, 0.93, low=0.6, high=1.44)
        (verdict,) = verdicts(result(measured(PLAIN, 1.0), sure, may))
        assert verdict.best == may
        assert verdict.ahead is None
        assert verdict.outcome == "not told apart"
        (verdict,) = verdicts(result(measured(PLAIN, 1.0), sure))
        assert verdict.outcome == "slower"

    def test_a_title_where_nothing_is_faster(self):
        assert none_faster(["slower", "slower"]).startswith("Do not speculate here")
        assert none_faster(["not told apart"] * 2).startswith("Speculation was not told apart")
        mixed = none_faster(["slower", "slower", "not told apart"])
        assert mixed.startswith("Speculation is slower than plain decoding in 2 of 3 comp")

    def test_what_is_fastest_of_all_is_not_ahead_of_itself(self):
        (verdict,) = verdicts(result(measured(DRAFT, 1.9), measured(HYBRID, 1.2)))
        assert verdict.ahead is None

    def test_what_is_ahead_and_not_sure_is_named_by_table_and_page(self):
        may = measured(HYBRID, 2.4, low=0.96, high=5.9)
        found = result(measured(PLAIN, 1.0), measured(DRAFT, 1.9), may)
        told = f"{HYBRID.label}, at 2.40x, was not told apart from plain"
        assert told in next(closing(found))
        assert f"{HYBRID.label}, at 2.40 times, was not told apart" in page(found)

    @pytest.mark.parametrize("peer", [ASSISTED, PEER_PLAIN])
    def test_what_speculation_is_worth_is_not_told_by_a_faster_engine(self, peer):
        found = result(measured(PLAIN, 1.0), measured(DRAFT, 1.3), measured(peer, 2.6))
        (verdict,) = verdicts(found)
        assert verdict.best.contender == DRAFT
        assert verdict.peer is not None
        assert "Speculate: up to 1.30 times as fast" in page(found)
        (line,) = [line for line in closing(found) if "code" in line]
        assert line.endswith(
            f"{DRAFT.label} is 1.30x as fast as plain decoding; {peer.label}, at 2.60x, is ahead "
            "of that"
        )

    def test_where_nothing_of_outriders_speculates_peers_are_told(self):
        (verdict,) = verdicts(result(measured(PLAIN, 1.0), measured(ASSISTED, 1.3)))
        assert verdict.best.contender == ASSISTED
        assert verdict.peer is None

    def test_caution_grows_with_the_contenders_of_a_comparison(self):
        """Two and a half in a hundred for each; peers' plain decoding does not count."""
        alone = result(measured(PLAIN, 1.0), measured(DRAFT, 1.9), measured(PEER_PLAIN, 1.1))
        assert caution(alone) is None
        two = result(*alone.measurements, measured(ASSISTED, 1.2))
        told = caution(two)
        assert told is not None
        assert "with 2 contenders" in told
        assert "in up to 5% of" in told
        assert told in list(remarks(two))
        elsewhere = result(*alone.measurements, measured(ASSISTED, 1.2, workload="chat"))
        assert caution(elsewhere) is None

    def test_none_without_speedups(self):
        assert verdicts(result(measured(PLAIN, 1.0), measured(DRAFT, None))) == []


class TestPage:
    def test_everything_is_in_it(self):
        found = replace(
            WHOLE, missing=("llama.cpp: not installed",), skipped=("line 3: no prompt",)
        )
        html = page(found, [("speedup-by-workload", b"png")])
        for text in (
            "Speculate: up to 1.60 times as fast (code, temperature 0)",
            *(
                "outrider draft_model k=2",
                "1.50–1.70",
                "llama.cpp: not installed",
                "line 3: no prompt",
            ),
            *('alt="speedup by workload"', "data:image/png;base64,cG5n", "threads"),
        ):
            assert text in html
        assert 'class="banner"' not in html

    def test_nothing_is_fetched(self):
        html = page(WHOLE, plots.pictures(WHOLE))
        assert set(re.findall(r'(?:src|href)="(.{11})', html)) == {"data:image/"}
        assert not re.search(r"https?://|url\(|@import|<script|<link", html)
        assert "default-src 'none'" in html
        assert "prefers-color-scheme: dark" in html
        assert "width=device-width" in html

    def test_plain_wins(self):
        html = page(result(measured(PLAIN, 1.0), measured(DRAFT, 0.6)))
        assert "<h1>Do not speculate here: plain decoding is faster on every workload</h1>" in html
        assert "do not speculate here (best: outrider draft_model k=2)" in html

    def test_what_is_not_told_apart_is_not_advised_against(self):
        html = page(result(measured(PLAIN, 1.0), measured(DRAFT, 2.1, low=0.7, high=6.3)))
        assert "not speculate" not in html
        assert "<h1>Speculation was not told apart from plain decoding: more prompts" in html
        assert "not told apart from plain decoding (best: outrider draft_model k=2)" in html

    def test_a_peer_that_is_plainly_faster_still_is_named(self):
        """Its speedup is over the same as all others, not over the contender beside it."""
        html = page(result(measured(DRAFT, 1.2), measured(PEER_PLAIN, 2.0)))
        told = "llama.cpp plain, at 2.00 times Outrider&#x27;s plain decoding, is ahead of that"
        assert f"{told}<" in html
        alone = measured(PEER_PLAIN, 2.0, low=None, high=None)
        assert f"{told}, if not surely<" in page(result(measured(DRAFT, 1.2), alone))

    def test_a_partial_result_has_a_banner(self):
        assert 'class="banner"' in page(replace(WHOLE, partial=True))
        empty = page(replace(result(), partial=True))
        assert "Benchmark of speculative decoding" in empty
        measured_nothing = measured(DRAFT, None, seconds=(), tokens=(), partial=True)
        assert "(partial)" in page(result(measured_nothing))

    def test_lossy_figures_say_so(self):
        lossy = measured(DRAFT, 1.2, metrics=figures(2, lossy=True))
        assert "outrider draft_model k=2 (lossy)" in page(result(lossy))

    def test_names_are_no_markup(self):
        nasty = replace(measured(replace(DRAFT, drafter=NASTY), 1.1), workload=NASTY)
        found = replace(
            result(nasty, missing=(NASTY,), skipped=(NASTY,)),
            provenance={"target": NASTY, NASTY: {NASTY: [NASTY]}},
        )
        html = page(found, [(NASTY, b"")])
        assert "<script" not in html
        assert "&lt;script&gt;" in html
        trace = Trace(NASTY, False, {NASTY: NASTY}, (record(),), True)
        assert "<script" not in trace_page(trace, [(NASTY, b"")])

    def test_of_a_trace(self):
        trace = Trace("0", True, {"a": {"b": 1}}, (record(),) * 3, True)
        html = trace_page(trace, [])
        for text in ("2.00 tokens a round that drafted", CUT_SHORT, "a.b", "2: 100%", "lossy"):
            assert text in html
        assert "nothing drafted" in trace_page(replace(trace, records=()), [])


def test_wilson_intervals() -> None:
    # Brown, Cai and DasGupta (2001): an interval for 0 of n begins at 0.
    low, high = wilson(0, 10)
    assert low == pytest.approx(0, abs=1e-12)
    assert high == pytest.approx(0.2775, abs=1e-4)
    assert sum(wilson(5, 10)) == pytest.approx(1)
