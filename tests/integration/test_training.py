"""The recipe of the demo pair: its parts, its commands, and what they refuse."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from outrider import (
    SamplingParams,
    SpeculativeConfig,
    SpeculativeDecoder,
    TransformersModel,
    load_head,
)
from training import corpus as corpus_command
from training import distil as distil_command
from training import evaluate as evaluate_command
from training import export as export_command
from training import head as head_command
from training import lessons as lessons_command
from training import train as train_command
from training.checkpoint import load_checkpoint, save_checkpoint
from training.evaluate import measure_pair
from training.files import replacing
from training.muon import Muon
from training.objective import imitation, loss_on
from training.windows import consecutive_windows, load_corpus

pytestmark = pytest.mark.integration
slow = pytest.mark.slow  # trains, or decodes, for seconds

LONG_TEXT = "def double(number):\n    return number + number\n\n\n" * 12
TINY = ["--hidden=8", "--layers=1", "--inter=8", "--heads=2", "--window=16", "--batch=2"]


def tiny_model(vocab_size: int) -> LlamaForCausalLM:
    torch.manual_seed(3)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=vocab_size,
            hidden_size=8,
            intermediate_size=8,
            num_hidden_layers=1,
            num_attention_heads=2,
            bos_token_id=0,
            eos_token_id=0,
        )
    ).eval()


def make_corpus(root: Path, texts: list[str], vocab: int = 300) -> Path:
    source, data = root / "source", root / "data"
    source.mkdir(parents=True)
    for index, text in enumerate(texts):
        (source / f"file{index}.py").write_text(text)
    corpus_command.main(
        [f"--data={data}", f"--source={source}", f"--vocab={vocab}", "--held-out=1"]
    )
    return data


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_corpus(tmp_path_factory.mktemp("corpus"), [f"# {n}\n{LONG_TEXT}" for n in range(4)])


@pytest.fixture(scope="module")
def teacher(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("models") / "teacher"
    train_command.main([f"--data={data}", f"--out={out}", "--seconds=0.2", *TINY])
    return out


def error_of(
    command: Callable[[list[str]], None], arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> str:
    with pytest.raises(SystemExit) as stopped:
        command(arguments)
    assert stopped.value.code == 2
    return capsys.readouterr().err


# Muon and the schedule


def test_muon_moves_entries_by_a_fifth_of_the_learning_rate_whatever_the_gradient() -> None:
    for gradient_scale in (1e-4, 1e4):
        weight = torch.nn.Parameter(torch.zeros(32, 96))
        gradient = torch.randn(32, 96, generator=torch.Generator().manual_seed(0))
        weight.grad = gradient * gradient_scale
        Muon([weight], lr=0.01).step()
        assert weight.square().mean().sqrt().item() == pytest.approx(0.2 * 0.01, rel=0.2)
        assert (weight * gradient).sum() < 0


# Files that appear whole or not at all


def test_interrupted_block_leaves_the_directory_as_it_was(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "kept").write_text("whole")

    def write_half() -> None:
        with replacing(out) as staged:
            (staged / "kept").write_text("ha")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_half()
    assert (out / "kept").read_text() == "whole"
    assert list(tmp_path.iterdir()) == [out]


# The corpus


def test_corpus_keeps_the_held_out_file_out_of_training(data: Path) -> None:
    corpus = load_corpus(data)
    assert corpus.vocab_size <= 300
    assert int((corpus.train == 0).sum()) == 3
    assert int((corpus.held == 0).sum()) == 1
    assert len(json.loads((data / "held_out.json").read_text())) == 1


def test_consecutive_windows_predict_each_token_but_the_first_once() -> None:
    for count in (9, 10, 11):
        tokens = torch.arange(count)
        windows = list(consecutive_windows(tokens, 3))
        assert torch.cat([window[0, 1:] for window in windows]).tolist() == list(range(1, count))
        assert all(2 <= window.shape[1] <= 4 for window in windows)


# Objectives


def test_losses_are_the_cross_entropy_and_the_divergence_of_the_distributions() -> None:
    student, master = tiny_model(50), tiny_model(50)
    with torch.no_grad():
        master.lm_head.weight.mul_(40)
    windows = torch.randint(0, 50, (2, 9), generator=torch.Generator().manual_seed(0))
    target, draft = (
        torch.softmax(model(windows[:, :-1]).logits.double(), -1) for model in (master, student)
    )
    labels = windows[:, 1:, None]
    cross_entropy = -draft.gather(-1, labels).log().mean().item()
    divergence = (target * (target / draft).log()).sum(-1).mean().item()
    assert divergence > 0.1
    assert loss_on(student, None, windows).item() == pytest.approx(cross_entropy, abs=5e-3)
    assert loss_on(student, master, windows).item() == pytest.approx(divergence, abs=5e-3)
    losses = measure_pair(master, student, iter([windows[:1], windows[1:]]))
    assert losses.tokens == 16
    assert losses.draft == pytest.approx(cross_entropy, abs=1e-5)
    assert losses.divergence == pytest.approx(divergence, abs=1e-5)
    overlap = torch.minimum(target, draft).sum(-1).mean().item()
    assert losses.overlap == pytest.approx(overlap, abs=1e-5)


# The commands


@slow
def test_a_pair_is_trained_distilled_continued_exported_and_measured(
    data: Path, teacher: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    draft, longer, pair = tmp_path / "draft", tmp_path / "longer", tmp_path / "pair"
    distil = [f"--data={data}", f"--teacher={teacher}", "--seconds=0.1", *TINY]
    train_command.main([*distil, f"--out={draft}"])
    train_command.main([*distil, f"--out={longer}", f"--init={draft}"])
    export_command.main(
        [f"--data={data}", f"--target={teacher}", f"--draft={longer}", f"--out={pair}"]
    )
    assert sorted(path.name for path in pair.iterdir()) == [
        "draft",
        "held_out.json",
        "target",
        "tokenizer.json",
    ]
    assert json.loads((pair / "target" / "config.json").read_text())["dtype"] == "bfloat16"
    capsys.readouterr()
    evaluate_command.main(
        [f"--data={data}", f"--target={pair}/target", f"--draft={pair}/draft", "--window=16"]
    )
    assert capsys.readouterr().out.count("KL(target || draft)") == 2


# Lessons and distillation from them


@pytest.mark.parametrize("weight", [0.0, 0.3, 1.0])
def test_the_gradient_of_imitation_is_that_of_its_loss(weight: float) -> None:
    generator = torch.Generator().manual_seed(0)
    logits, taught = torch.randn(2, 2, 3, 50, generator=generator, dtype=torch.float64)
    logits.requires_grad_()
    model, teacher = logits.softmax(-1), taught.softmax(-1)
    divergence = (teacher * (teacher.log() - model.log())).sum(-1).mean()
    overlap = torch.minimum(model, teacher).sum(-1).mean()
    loss = (1 - weight) * divergence + weight * (1 - overlap)
    (expected,) = torch.autograd.grad(loss, logits)
    found = imitation(logits.detach(), taught, weight)
    assert (found.gradient - expected).abs().max() < 1e-15
    assert found.divergence == pytest.approx(divergence.item(), abs=1e-12)
    assert found.overlap == pytest.approx(overlap.item(), abs=1e-12)


@pytest.fixture(scope="module")
def lessons(data: Path, teacher: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("lessons")
    (root / "source" / "test").mkdir(parents=True)
    (root / "source" / "test" / "unseen.py").write_text(LONG_TEXT)
    lessons_command.main(
        [
            *(f"--data={data}", f"--teacher={teacher}", f"--out={root / 'out'}"),
            *(f"--source={root / 'source'}", "--windows=6", "--written=3", "--window=96"),
        ]
    )
    return root / "out"


@slow
def test_lessons_hold_what_the_teacher_says(data: Path, teacher: Path, lessons: Path) -> None:
    found = lessons_command.load_lessons([lessons, lessons], 96)
    assert found.windows.shape == (12, 97)
    model = load_checkpoint(teacher, load_corpus(data)).eval()
    again = lessons_command.last_states(model, found.windows[:6].long())
    assert torch.equal(again, found.states[:6])
    assert torch.equal(found.states[:6], found.states[6:])


@slow
def test_a_draft_is_distilled_from_lessons(
    data: Path, teacher: Path, lessons: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "draft"
    distil_command.main(
        [
            *(f"--data={data}", f"--lessons={lessons}", f"--teacher={teacher}"),
            *(f"--init={teacher}", f"--out={out}", "--seconds=0.2", "--window=96", "--batch=2"),
        ]
    )
    assert "shared mass" in capsys.readouterr().out
    assert load_checkpoint(out, load_corpus(data)).config.hidden_size == 8


@slow
def test_a_head_is_trained_that_drafts(
    data: Path, lessons: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target, out = tmp_path / "target", tmp_path / "head"
    layers = [each for each in TINY if "layers" not in each] + ["--layers=6"]
    train_command.main([f"--data={data}", f"--out={target}", "--seconds=0.2", *layers])
    head_command.main(
        [
            *(f"--data={data}", f"--lessons={lessons}", f"--target={target}", f"--out={out}"),
            *(f"--source={lessons.parent / 'source'}", "--window=96", "--batch=4"),
            *("--seconds=0.2", "--inter=8"),
        ]
    )
    assert "held out" in capsys.readouterr().out
    model = TransformersModel(load_checkpoint(target, load_corpus(data)).eval())
    config = SpeculativeConfig(depth="fixed", num_speculative_tokens=3)
    decoder = SpeculativeDecoder(model, load_head(out, model), config=config)
    params = SamplingParams(max_tokens=12, temperature=0, ignore_eos=True)
    plain = SpeculativeDecoder(model).generate([1, 2, 3], params)
    assert decoder.generate([1, 2, 3], params).token_ids == plain.token_ids
    assert decoder.metrics.drafted > 0


# What the commands refuse, before anything is written


@slow
@pytest.mark.parametrize(
    ("command", "arguments", "message"),
    [
        (train_command, ["--seconds=0"], "--seconds 0.0: expected more than 0"),
        (train_command, ["--seconds=1", "--hidden=100"], "--hidden 100: expected a multiple of"),
        (train_command, ["--seconds=1", "--window=1000"], "a window of 1000 tokens needs an array"),
        (train_command, ["--seconds=1", "--teacher=no"], "no holds no model (no config.json)"),
        (train_command, ["--data=no", "--seconds=1"], "make it with: python -m training.corpus"),
        (corpus_command, ["--vocab=10"], "--vocab 10: expected 257"),
        (corpus_command, ["--source=no"], "--source no is not a directory"),
        (lessons_command, ["--teacher={teacher}", "--windows=1"], "--windows 1: expected at least"),
        (lessons_command, ["--teacher={teacher}", "--window=64"], "--window 64: expected at least"),
        (distil_command, ["--window=80"], "holds windows of 96 tokens"),
        (distil_command, ["--window=96", "--overlap=2"], "--overlap 2.0: expected 0 to 1"),
    ],
)
def test_a_command_names_the_argument_that_is_wrong(
    command: Any,
    arguments: list[str],
    message: str,
    data: Path,
    teacher: Path,
    lessons: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    given = [f"--data={tmp_path / 'new' if command is corpus_command else data}"]
    if command is not corpus_command:
        given.append(f"--out={tmp_path / 'out'}")
    if command is train_command:
        given.append("--window=16")
    if command is distil_command:
        given += [f"--lessons={lessons}", f"--teacher={teacher}", f"--init={teacher}"]
        given.append("--seconds=1")
    given += [argument.format(teacher=teacher) for argument in arguments]
    assert message in error_of(command.main, given, capsys)
    assert list(tmp_path.iterdir()) == []


def test_an_output_directory_in_use_is_refused(
    data: Path, teacher: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [f"--data={data}", f"--out={teacher}", "--seconds=1", *TINY]
    assert "name a new or an empty directory" in error_of(train_command.main, given, capsys)


def test_models_of_another_tokenizer_are_refused(
    data: Path, teacher: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = make_corpus(tmp_path, [f"# {n}\n" + "class Other: pass\n" * 40 for n in range(3)])
    given = [f"--data={other}", f"--out={tmp_path}/out", "--seconds=1", f"--teacher={teacher}"]
    assert "give different token ids" in error_of(train_command.main, [*given, *TINY], capsys)
    save_checkpoint(tiny_model(512), tmp_path / "wide", data / "tokenizer.json")
    with pytest.raises(ValueError, match="has a vocabulary of 512 tokens, the corpus one of"):
        load_checkpoint(tmp_path / "wide", load_corpus(data))
