"""The matrix of a benchmark, on tiny models. What it measures is not looked at."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest
import torch
from rich.console import Console

from outrider import ModelDrafter, Pair, SpeculativeDecoder, TransformersModel
from outrider.bench import documents, tables
from outrider.bench.curve import forward_times
from outrider.bench.matrix import Matrix
from outrider.bench.peers import entrants, twin
from outrider.bench.provenance import provenance
from outrider.bench.race import speedup
from outrider.bench.records import BenchResult, Contender, Prompt, Workload
from outrider.bench.run import run
from outrider.config.params import SamplingParams
from outrider.engine.metrics import Tally
from outrider.errors import InvalidConfigError

from .families import CONTEXT, random_model, resembling

TARGET = random_model("llama")
DRAFT = resembling(TARGET)
MODEL = Contender("outrider", "draft_model", "block", 3)
COUPLED = Contender("outrider", "draft_model", "coupled", 3)
PROMPTS = tuple(Prompt(tuple(range(first, first + 9)), f"prompt {first}") for first in (1, 20, 40))
KIND = Workload("kind", PROMPTS)


def pair() -> Pair:
    target = TransformersModel(TARGET, max_sequences=2)
    return Pair(target, ModelDrafter(TransformersModel(DRAFT, max_sequences=2)), None)


def bench(
    matrix: Matrix,
    workloads: tuple[Workload, ...] = (KIND,),
    report: Callable[[int, int, str], None] = lambda *_: None,
) -> BenchResult:
    return run(matrix, workloads, lambda _: pair(), {"target": "tiny"}, report)


def small(*contenders: Contender, **settings: Any) -> Matrix:
    return Matrix(
        **{
            "contenders": contenders,
            "dtypes": ("float64",),
            "max_tokens": 10,
            "curve_rows": (),
            **settings,
        }
    )


def test_every_contender_under_every_regime() -> None:
    found = bench(small(MODEL, COUPLED, batches=(1, 2), repeats=2))
    regimes = {(each.temperature, each.batch) for each in found.measurements}
    assert regimes == {(0.0, 1), (0.0, 2), (0.8, 1), (0.8, 2)}
    labels = ["outrider plain", "outrider draft_model k=3", "outrider draft_model coupled k=3"]
    assert [each.contender.label for each in found.measurements] == labels * 4
    assert found.partial is False
    assert found.missing == found.skipped == found.curve == ()
    for each in found.measurements:
        # Three prompts make two batches of two, each twice.
        stretches = 6 if each.batch == 1 else 4
        assert each.tokens == (10 * each.batch,) * stretches
        assert len(each.seconds) == len(each.prompt_s) == stretches
        assert each.metrics is not None
        assert each.metrics.emitted == sum(each.tokens)
        assert each.speedup is not None
        assert each.low is not None
        assert each.high is not None
        assert each.low <= each.high
        fixed = each.temperature == 0 or each.contender == COUPLED
        assert each.identical == (stretches if fixed else None)
        if each.contender.plain:
            assert (each.speedup, each.low, each.high) == (1, 1, 1)
            assert each.metrics.draft_rounds == 0
        else:
            assert len(each.metrics.per_position) == 3


def test_no_contender_finds_a_prompt_that_was_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither by another contender nor by itself, in an earlier repeat."""
    forward, whole = TransformersModel.forward, Counter[int]()

    def counted(
        self: TransformersModel, slots: Any, starts: Any, tokens: Any, *rest: Any, **more: Any
    ) -> Any:
        whole[id(self)] += tokens.shape[1] >= 9
        return forward(self, slots, starts, tokens, *rest, **more)

    monkeypatch.setattr(TransformersModel, "forward", counted)
    bench(small(MODEL, temperatures=(0.0,), repeats=2))
    # Two targets and a draft, each in the warm-up and for three prompts twice; others only checked.
    assert sorted(whole.values())[-3:] == [7, 7, 7]
    assert set(sorted(whole.values())[:-3]) <= {0}


def test_lossy_contenders_need_not_agree_with_plain_decoding() -> None:
    typical = Contender("outrider", "draft_model", "typical", 2)
    found = bench(small(typical, temperatures=(0.0,)))
    assert [each.identical for each in found.measurements] == [3, None]
    assert found.measurements[1].metrics is not None
    assert found.measurements[1].metrics.lossy


def test_one_stretch_has_no_interval() -> None:
    found = bench(small(MODEL, temperatures=(0.0,)), (Workload("one", PROMPTS[:1]),))
    for each in found.measurements:
        assert each.speedup is not None
        assert each.low is None
        assert each.high is None


def test_prompts_may_say_how_many_tokens_they_want() -> None:
    asking = (replace(PROMPTS[0], max_tokens=4), PROMPTS[1])
    found = bench(small(MODEL, temperatures=(0.0,)), (Workload("rows", asking),))
    assert [each.tokens for each in found.measurements] == [(4, 10), (4, 10)]


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_transformers_takes_part(temperature: float) -> None:
    settings: dict[str, Any] = {"temperatures": (temperature,), "peer_depths": (2, None)}
    found = bench(small(MODEL, peers=("transformers",), **settings))
    labels = [each.contender.label for each in found.measurements]
    assert labels[2:] == [
        "transformers plain",
        "transformers draft_model k=2",
        "transformers draft_model adaptive",
        "transformers ngram k=2",
    ]
    for each in found.measurements:
        assert each.tokens == (10, 10, 10)
        assert each.identical == (3 if temperature == 0 else None)
        assert each.metrics is not None
        assert each.metrics.emitted == 30
        assert each.speedup is not None
    plain, assisted = found.measurements[2], found.measurements[3]
    assert plain.metrics is not None
    assert plain.metrics.rounds == 30
    assert assisted.metrics is not None
    assert assisted.metrics.accepted == 30 - assisted.metrics.rounds
    assert found.missing == ()


def test_rounds_of_assisted_generation_are_counted() -> None:
    """A draft that is the target is always kept: k + 1 tokens a forward."""
    same = TransformersModel(TARGET)
    alike = Pair(same, ModelDrafter(same), None)
    with ExitStack() as held:
        found, _ = entrants(("transformers",), alike, (3,), held, lambda _: None)
    (assisted,) = (each for each in found if each.contender.drafter == "draft_model")
    lane = assisted.lane([PROMPTS[0].token_ids], [SamplingParams(max_tokens=12, temperature=0)], 0)
    lane.advance()
    assert [record.drafted for record in lane.records] == [(3,)] * 3
    assert [record.accepted for record in lane.records] == [(3,)] * 3
    tally = Tally()
    for record in lane.records:
        tally.add(record)
    assert tally.metrics().acceptance_length == 4
    assert not lane.running


def test_a_twin_shares_weights_and_nothing_else() -> None:
    model = TransformersModel(TARGET).hf_model
    made = twin(model)
    assert made.config._attn_implementation == "sdpa" != model.config._attn_implementation
    for own, other in zip(made.parameters(), model.parameters(), strict=True):
        assert own is other


def test_peers_decode_one_sequence_at_a_time() -> None:
    found = bench(small(MODEL, batches=(2,), peers=("transformers",), temperatures=(0.0,)))
    assert {each.contender.system for each in found.measurements} == {"outrider"}
    assert len(found.missing) == 1
    assert "batches of 2" in found.missing[0]


def test_it_is_said_what_turns_were(monkeypatch: pytest.MonkeyPatch) -> None:
    alone: dict[str, Any] = {"temperatures": (0.0,)}
    asked: dict[str, Any] = {"peers": ("transformers",), "peer_depths": (None,)}
    assert bench(small(MODEL, **alone)).provenance == {"target": "tiny", "turns": "rounds"}
    assert bench(small(MODEL, **alone, **asked)).provenance["turns"] == "whole requests"
    assert bench(small(MODEL, **alone, **asked, batches=(2,))).provenance["turns"] == "rounds"
    both = bench(small(MODEL, **alone, **asked, batches=(1, 2)))
    assert both.provenance["turns"] == (
        "whole requests: kind, temperature 0, float64; rounds: kind, temperature 0, batch 2, "
        "float64"
    )
    monkeypatch.setattr("outrider.bench.peers.twin", None)
    lone = bench(small(MODEL, **alone, **asked))
    assert len(lone.missing) == 1
    assert lone.provenance["turns"] == "rounds"


def test_peers_that_share_a_draft_draft_as_deep_as_each_of_them_is_set() -> None:
    """Whichever is asked last: all requests of a stretch are made before the first is answered."""
    depths = (1, 4, 2)
    asked: dict[str, Any] = {"peers": ("transformers",), "temperatures": (0.0,)}
    found = bench(small(MODEL, **asked, peer_depths=depths, max_tokens=20))
    of = {each.contender.label: each.metrics for each in found.measurements}
    for depth in depths:
        metrics = of[f"transformers draft_model k={depth}"]
        assert metrics is not None
        # The last rounds of a text have room for fewer.
        assert len(metrics.depths) == depth + 1
        assert metrics.depths[depth] > sum(metrics.depths) / 2


def test_a_peer_that_fails_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("no such\nthing")

    monkeypatch.setattr(type(TARGET), "generate", fail)
    found = bench(small(MODEL, peers=("transformers",), peer_depths=(2,), temperatures=(0.0, 0.8)))
    assert {each.contender.system for each in found.measurements} == {"outrider"}
    assert found.missing[0] == "transformers plain: RuntimeError: no such thing"
    assert len(found.missing) == 3


def test_a_peer_that_fails_later_is_missing_from_there_on(monkeypatch: pytest.MonkeyPatch) -> None:
    generate, calls = type(TARGET).generate, Counter[str]()

    def failing(self: Any, *args: Any, **settings: Any) -> Any:
        kind = "assisted" if "assistant_model" in settings else "other"
        calls[kind] += 1
        # A warm-up and three prompts greedily; a warm-up and the second prompt at 0.8.
        if (kind, calls[kind]) == ("assisted", 7):
            raise RuntimeError("out of\nmemory")
        return generate(self, *args, **settings)

    monkeypatch.setattr(type(TARGET), "generate", failing)
    temperatures = (0.0, 0.8, 1.0)
    found = bench(
        small(MODEL, peers=("transformers",), peer_depths=(2,), temperatures=temperatures)
    )
    assert found.missing == ("transformers draft_model k=2: RuntimeError: out of memory",)
    assert not found.partial
    assert calls["assisted"] == 7
    by_label = Counter(each.contender.label for each in found.measurements)
    assert by_label == {
        "outrider plain": 3,
        "outrider draft_model k=3": 3,
        "transformers plain": 3,
        "transformers draft_model k=2": 1,
        "transformers ngram k=2": 3,
    }
    assert {each.tokens for each in found.measurements} == {(10, 10, 10)}


@pytest.mark.parametrize("error", [RuntimeError("stuck"), KeyboardInterrupt()])
def test_what_cannot_be_freed_costs_no_measurement(
    error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stuck() -> None:
        raise error

    def holding(_: Any, __: Any, ___: Any, held: ExitStack, ____: Any) -> Any:
        held.callback(stuck)
        return [], []

    monkeypatch.setattr("outrider.bench.peers.entrants", holding)
    found = bench(small(MODEL, temperatures=(0.0,)))
    assert [each.tokens for each in found.measurements] == [(10, 10, 10)] * 2
    assert found.partial == isinstance(error, KeyboardInterrupt)
    assert [("stuck" in each) for each in found.missing] == [True] * (not found.partial)


def test_a_peer_that_cannot_be_made_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: Any) -> None:
        raise ValueError("no sdpa")

    monkeypatch.setattr("outrider.bench.peers.twin", fail)
    found = bench(small(MODEL, peers=("transformers",), temperatures=(0.0,)))
    assert found.missing == ("transformers: ValueError: no sdpa",)
    assert len(found.measurements) == 2


def test_a_pair_without_a_draft() -> None:
    lone = Pair(TransformersModel(TARGET), None, None)
    ngram = Contender("outrider", "ngram", "block", 2)
    matrix = small(ngram, peers=("transformers",), peer_depths=(2,), temperatures=(0.0,))
    found = run(matrix, (KIND,), lambda _: lone, {}, lambda *_: None)
    assert found.missing == ("transformers draft_model: there is no draft",)
    assert len(found.measurements) == 4
    with pytest.raises(InvalidConfigError, match=r"drafters='draft_model'.*no draft"):
        run(small(MODEL), (KIND,), lambda _: lone, {}, lambda *_: None)


@pytest.mark.parametrize("depth", [2, None])
def test_first_layers_draft_without_a_draft_model(depth: int | None) -> None:
    lone = Pair(TransformersModel(TARGET, max_sequences=2), None, None)
    exits = [
        Contender("outrider", "early_exit", method, depth, exit_layers=layers)
        for method, layers in (("block", 1), ("coupled", 2))
    ]
    matrix = small(*exits, batches=(2,))
    found = run(matrix, (KIND,), lambda _: lone, {}, lambda *_: None)
    told = "adaptive" if depth is None else "k=2"
    labels = [f"outrider early_exit of 1 {told}", f"outrider early_exit of 2 coupled {told}"]
    assert [each.contender.label for each in found.measurements] == ["outrider plain", *labels] * 2
    for each in found.measurements:
        assert each.tokens == (20, 20)
        fixed = each.temperature == 0 or each.contender.verification == "coupled"
        assert each.identical == (2 if fixed else None)
        assert each.metrics is not None
        assert each.metrics.draft_failures == 0
        # Adaptive, it may find out beforehand that these layers cannot pay.
        assert each.contender.plain or depth is None or each.metrics.drafted > 0


def test_what_a_prompt_expects_is_drafted() -> None:
    """All of it is kept where the prediction is what plain decoding writes; less where it lies."""
    (plain, *_) = bench(small(MODEL, temperatures=(0.0,))).measurements
    texts = []
    for prompt in PROMPTS:
        decoder = SpeculativeDecoder(TransformersModel(TARGET))
        params = SamplingParams(max_tokens=10, temperature=0, ignore_eos=True)
        texts.append(decoder.generate(list(prompt.token_ids), params).token_ids)
    foretold = [
        replace(prompt, prediction=tuple(text)) for prompt, text in zip(PROMPTS, texts, strict=True)
    ]
    wrong = [replace(prompt, prediction=(prompt.token_ids[0],) * 9) for prompt in PROMPTS]
    contender = Contender("outrider", "prediction", "block", 3)
    workloads = Workload("foretold", tuple(foretold)), Workload("wrong", tuple(wrong))
    found = bench(small(contender, temperatures=(0.0,)), workloads)
    right, lied = found.measurements[1], found.measurements[3]
    assert right.identical == lied.identical == 3
    assert right.tokens == lied.tokens == plain.tokens
    assert right.metrics is not None
    assert lied.metrics is not None
    assert right.metrics.accepted == right.metrics.drafted >= 18
    assert lied.metrics.accepted < right.metrics.accepted


def test_prompts_beyond_the_context_are_left_out() -> None:
    long = Prompt((1,) * (CONTEXT - 5), "line 7")
    found = bench(small(MODEL, temperatures=(0.0,)), (Workload("mine", (*PROMPTS, long)),))
    assert found.skipped == (
        f"mine, line 7: {CONTEXT - 5} tokens and 10 to emit exceed the context of {CONTEXT} tokens",
    )
    assert len(found.measurements[0].tokens) == 3
    with pytest.raises(InvalidConfigError, match=r"mine: line 7: .* exceed the context"):
        bench(small(MODEL), (Workload("mine", (long,)),))


class Interrupt:
    """Ctrl-C when it is told of something for the n-th time."""

    def __init__(self, what: str, times: int = 1) -> None:
        self.what, self.left = what, times

    def __call__(self, done: int, total: int, what: str) -> None:
        assert 0 <= done <= total
        self.left -= self.what in what
        if self.left == 0:
            raise KeyboardInterrupt


def test_an_interrupt_keeps_what_was_measured() -> None:
    found = bench(small(MODEL), report=Interrupt("temperature 0.8: 3 of 3"))
    assert found.partial
    assert [each.partial for each in found.measurements] == [False, False, True, True]
    assert [len(each.tokens) for each in found.measurements] == [3, 3, 2, 2]
    for each in found.measurements:
        assert each.metrics is not None
        assert each.metrics.emitted == sum(each.tokens)


@pytest.mark.parametrize("what", ["preparing", "temperature 0: warming up", "temperature 0: 1 of"])
def test_an_interrupt_before_anything_was_measured(what: str) -> None:
    found = bench(small(MODEL), report=Interrupt(what))
    assert found.partial
    assert found.measurements == ()


def test_an_interrupt_within_a_stretch_leaves_it_out(monkeypatch: pytest.MonkeyPatch) -> None:
    verify, calls = TransformersModel.verify, 0

    def interrupted(self: TransformersModel, *args: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 60:
            raise KeyboardInterrupt
        return verify(self, *args)

    monkeypatch.setattr(TransformersModel, "verify", interrupted)
    found = bench(small(MODEL, temperatures=(0.0,), repeats=4))
    assert found.partial
    plain, model = found.measurements
    assert 0 < len(plain.tokens) == len(model.tokens) < 12
    assert plain.tokens == (10,) * len(plain.tokens)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"batches": ()}, r"batches=\(\)"),
        ({"batches": (0,)}, "batches=0"),
        ({"batches": (2, 2)}, r"batches=\(2, 2\).*only once"),
        ({"max_tokens": 0}, "max_tokens=0"),
        ({"repeats": 0}, "repeats=0"),
        ({"temperatures": (-1.0,)}, "temperature=-1.0"),
        ({"contenders": (Contender("outrider", "none"),)}, "by itself"),
    ],
)
def test_matrices_that_mean_nothing(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidConfigError, match=message):
        Matrix(**{"contenders": (MODEL,), **settings})


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        (
            small(Contender("outrider", "crystal ball")),
            "drafters='crystal ball'.*draft_model, ngram",
        ),
        (small(Contender("outrider", "early_exit", "block", 2)), "exit_layers=None.*how many"),
        (
            small(Contender("outrider", "early_exit", "block", 2, exit_layers=3)),
            "exit_layers=3.*1..2: some of the target's 3 layers",
        ),
        (small(Contender("outrider", "hybrid", "typical", 2)), "verification='typical'"),
        (small(MODEL, peers=("vllm",)), "peers='vllm'.*transformers, llama.cpp"),
    ],
)
def test_contenders_that_there_are_not(matrix: Matrix, message: str) -> None:
    with pytest.raises(InvalidConfigError, match=message):
        bench(matrix)


def test_the_curve_of_forwards() -> None:
    found = forward_times(TARGET, (1, 2), widths=(1, 3), prompt_tokens=20, repeats=2)
    assert [(point.rows, point.width) for point in found] == [(1, 1), (1, 3), (2, 1), (2, 3)]
    for point in found:
        assert 0 < point.low <= point.seconds <= point.high


@pytest.fixture(scope="module")
def result() -> BenchResult:
    """A real one: trees, peers, a curve, and prompts that were left out."""
    tree = Contender("outrider", "draft_model", "block", 2, (2, 2))
    first = Contender("outrider", "early_exit", "block", 2, exit_layers=1)
    matrix = small(
        MODEL, tree, first, peers=("transformers",), peer_depths=(2,), temperatures=(0.0,)
    )
    long = Prompt((1,) * CONTEXT, "line 7")
    found = bench(matrix, (Workload("mine", (*PROMPTS, long)),))
    points = forward_times(TARGET, (1,), widths=(1, 2), repeats=1)
    models = {"target": "tiny", "draft": "tiny", "device": "cpu", "dtype": "float64"}
    return replace(found, curve=tuple(points), provenance=provenance(models, {"max_tokens": 10}))


def test_a_document_can_be_read_back(result: BenchResult) -> None:
    text = documents.as_json(result)
    assert "\n" not in text
    assert documents.from_document(json.loads(text)) == result


@pytest.mark.parametrize(
    ("found", "message"),
    [
        ([], "format='list'"),
        ({"format": "other"}, "format='other'"),
        ({"format": documents.FORMAT}, "KeyError"),
        (documents.document(BenchResult({}, ())) | {"curve": [{"x": 1}]}, "TypeError"),
    ],
)
def test_documents_that_are_none(found: Any, message: str) -> None:
    with pytest.raises(InvalidConfigError, match=message):
        documents.from_document(found)


def test_a_row_for_each_measurement(result: BenchResult) -> None:
    lines = [json.loads(line) for line in documents.as_jsonl(result).splitlines()]
    assert [line["contender"] for line in lines] == [
        each.contender.label for each in result.measurements
    ]
    for line, each in zip(lines, result.measurements, strict=True):
        assert line["output_throughput"] == each.tokens_per_s
        assert line["total_output_tokens"] == sum(each.tokens)
        assert line["completed"] == 3
        assert len(line["per_position_acceptance_rates"]) == len(line["per_position"])
    header, *rows = documents.as_csv(result).splitlines()
    assert header.split(",") == list(lines[0])
    assert len(rows) == len(lines)
    assert documents.as_csv(BenchResult({}, ())) == "system\n"


def shown(found: BenchResult) -> str:
    console = Console(width=100, color_system=None)
    with console.capture() as capture:
        console.print(tables.rendered(found))
    return capture.get()


def with_speedup(
    found: BenchResult, speedup: float | None, low: float | None, high: float | None
) -> str:
    """The table of a plain contender and another, in one line."""
    plain, model = found.measurements[:2]
    other = replace(model, speedup=speedup, low=low, high=high)
    return " ".join(shown(replace(found, measurements=(plain, other))).split())


def test_the_table_and_the_page_for_people(result: BenchResult) -> None:
    text, markdown = shown(result), tables.as_markdown(result)
    for each in result.measurements:
        assert each.contender.label in text
        assert f"| {each.contender.label} |" in markdown
    assert "mine, temperature 0" in text
    assert "## mine, temperature 0" in markdown
    assert "left out: mine, line 7: 160 tokens and 10 to emit" in " ".join(text.split())
    assert all(len(line) <= 100 for line in text.splitlines())
    assert f"- torch: {torch.__version__}" in markdown


def test_what_to_do_is_said(result: BenchResult) -> None:
    assert "slower than plain: do not speculate" in with_speedup(result, 0.8, 0.7, 0.9)
    assert "not told apart from plain" in with_speedup(result, 1.05, 0.9, 1.2)
    faster = with_speedup(result, 2.0, 1.9, 2.1)
    assert "outrider draft_model k=3 is 2.00x as fast as plain decoding" in faster
    assert "1.90–2.10" in faster
    missing = with_speedup(result, None, None, None)
    assert "tokens that were asked for are missing, so there is no speedup" in missing
    assert "x as fast" not in missing
    assert "partial: the run was interrupted" in shown(replace(result, partial=True))
    assert "2.00x" in with_speedup(result, 2.0, None, None)


def test_other_tokens_than_plain_are_reported(result: BenchResult) -> None:
    plain, model = result.measurements[:2]
    odd = replace(result, measurements=(plain, replace(model, identical=2)))
    assert "other tokens than plain decoding in 1 of 3 stretches" in " ".join(shown(odd).split())


def test_provenance_names_versions_and_machine_but_no_place() -> None:
    found = provenance({"target": "demo", "device": "cpu"}, {"repeats": 1})
    for name in ("target", "device", "outrider", "torch", "transformers", "python", "threads"):
        assert found[name]
    assert found["machine"]["cpus"] >= found["machine"]["usable_cpus"] >= 1
    assert found["settings"] == {"repeats": 1}
    assert json.loads(json.dumps(found)) == found
    assert found["commit"] is None or len(found["commit"].removesuffix("-dirty")) == 40


def test_repeats_of_a_stretch_are_no_new_prompts() -> None:
    """Two prompts of unequal speed: measured four times, they tell no more than measured once."""
    once = speedup([1.0, 1.0], [10, 10], [0.5, 1.0], [10, 10])
    again = speedup([1.0, 1.0] * 4, [10, 10] * 4, [0.5, 1.0] * 4, [10, 10] * 4, 2)
    assert again == pytest.approx(once)
    assert once[1] < 1.0 < 2.0 < once[2]


@pytest.mark.parametrize(
    "damage", [{"provenance": 3}, {"missing": [3]}, {"skipped": 3}, {"measurements": [3]}]
)
def test_a_damaged_document_is_refused(damage: dict[str, object]) -> None:
    whole = documents.document(BenchResult(provenance={}, measurements=()))
    assert documents.from_document(whole) == BenchResult(provenance={}, measurements=())
    with pytest.raises(InvalidConfigError, match="all of its fields"):
        documents.from_document(whole | damage)
