"""The recipe of the demo pair: its parts, its commands, and what they refuse."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from training import corpus as corpus_command
from training import distil as distil_command
from training import evaluate as evaluate_command
from training import export as export_command
from training import lessons as lessons_command
from training import train as train_command
from training.checkpoint import load_checkpoint, save_checkpoint
from training.corpus import Document, documents, shuffled, split_by_name
from training.evaluate import measure_pair
from training.files import claim_directory, replacing
from training.muon import Muon, orthogonalise
from training.objective import imitation, loss_on
from training.schedule import learning_rate_factor
from training.windows import consecutive_windows, load_corpus, require_length, sample_windows
from transformers import LlamaConfig, LlamaForCausalLM

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


@pytest.mark.parametrize("shape", [(24, 64), (64, 24), (32, 96)])
def test_orthogonalised_matrix_has_singular_values_near_one(shape: tuple[int, int]) -> None:
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    singular_values = torch.linalg.svdvals(orthogonalise(matrix).float())
    assert singular_values.min() > 0.6
    assert singular_values.max() < 1.3


@pytest.mark.parametrize("shape", [(24, 64), (64, 24)])
def test_orthogonalised_matrix_keeps_the_singular_vectors(shape: tuple[int, int]) -> None:
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    left, _, right = torch.linalg.svd(matrix, full_matrices=False)
    aligned = left.T @ orthogonalise(matrix).float() @ right.T
    off_diagonal = aligned - torch.diag(aligned.diagonal())
    assert off_diagonal.abs().max() < 0.05
    assert aligned.diagonal().min() > 0.6


def test_orthogonalise_refuses_a_vector() -> None:
    with pytest.raises(ValueError, match=r"takes a matrix, got shape \(3,\)"):
        orthogonalise(torch.ones(3))


def test_muon_moves_entries_by_a_fifth_of_the_learning_rate_whatever_the_gradient() -> None:
    for gradient_scale in (1e-4, 1e4):
        weight = torch.nn.Parameter(torch.zeros(32, 96))
        gradient = torch.randn(32, 96, generator=torch.Generator().manual_seed(0))
        weight.grad = gradient * gradient_scale
        Muon([weight], lr=0.01).step()
        assert weight.square().mean().sqrt().item() == pytest.approx(0.2 * 0.01, rel=0.2)
        assert (weight * gradient).sum() < 0


def test_muon_decays_weights_without_touching_those_that_have_no_gradient() -> None:
    decayed, idle = (torch.nn.Parameter(torch.ones(4, 4)) for _ in range(2))
    decayed.grad = torch.zeros(4, 4)
    Muon([decayed, idle], lr=0.5, weight_decay=0.1).step()
    assert torch.equal(decayed.data, torch.full((4, 4), 0.95))
    assert torch.equal(idle.data, torch.ones(4, 4))


@pytest.mark.parametrize(
    ("step", "elapsed", "factor"),
    [
        (0, 0.0, 1 / 30),
        (14, 0.1, 0.5),
        (29, 0.2, 1.0),
        (500, 0.4999, 1.0),
        (500, 0.75, 0.5),
        (500, 0.9, 0.2),
        (500, 0.999, 0.02),
        (14, 0.75, 0.25),
    ],
)
def test_learning_rate_warms_up_holds_and_decays(step: int, elapsed: float, factor: float) -> None:
    assert learning_rate_factor(step, elapsed) == pytest.approx(factor)


def test_muon_takes_the_inner_matrices_and_adamw_the_rest() -> None:
    model = tiny_model(300)
    muon, adamw = train_command.build_optimizers(model, 1e-3)
    counts = [len(optimizer.param_groups[0]["params"]) for optimizer in (muon, adamw)]
    # Four attention and three MLP matrices, the output head; the embedding and three norms.
    assert counts == [8, 4]


# Files that appear whole or not at all


def test_replacing_swaps_the_whole_directory(tmp_path: Path) -> None:
    out = tmp_path / "out"
    for text in ("first", "second"):
        with replacing(out) as staged:
            (staged / text).write_text(text)
    assert [path.name for path in out.iterdir()] == ["second"]
    assert list(tmp_path.iterdir()) == [out]


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


def test_failed_rename_puts_the_old_directory_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "kept").write_text("whole")
    rename = Path.rename

    def failing_rename(self: Path, to: Path) -> Path:
        if self.name == "staged":
            raise OSError("no space")
        return rename(self, to)

    monkeypatch.setattr(Path, "rename", failing_rename)
    with pytest.raises(OSError, match="no space"), replacing(out):
        pass
    assert (out / "kept").read_text() == "whole"


def test_failed_save_keeps_the_last_checkpoint(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "model"
    save_checkpoint(tiny_model(300), out, data / "tokenizer.json")
    before = (out / "model.safetensors").read_bytes()
    with pytest.raises(FileNotFoundError):
        save_checkpoint(tiny_model(400), out, data / "no-such-tokenizer.json")
    assert (out / "model.safetensors").read_bytes() == before
    assert list(tmp_path.iterdir()) == [out]


def test_claim_directory_refuses_one_that_holds_something(tmp_path: Path) -> None:
    claim_directory(tmp_path / "new" / "deep")
    claim_directory(tmp_path / "new" / "deep")
    with pytest.raises(FileExistsError, match="name a new or an empty directory"):
        claim_directory(tmp_path / "new")


# The corpus


def test_documents_leaves_out_skipped_directories_short_files_and_other_encodings(
    tmp_path: Path,
) -> None:
    for name in ("b.py", "pkg/a.py", "pkg/test/a.py", "encodings/a.py", "lib2to3/x/a.py", "a.txt"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x" * 401)
    (tmp_path / "short.py").write_text("x" * 400)
    (tmp_path / "latin.py").write_bytes(b"\xe9" * 500)
    assert [doc.name for doc in documents(tmp_path)] == ["b.py", "pkg/a.py"]


def test_shuffle_is_the_same_every_time_and_loses_nothing() -> None:
    docs = [Document(str(n), "") for n in range(20)]
    assert shuffled(docs) == shuffled(docs) != docs
    assert sorted(shuffled(docs)) == sorted(docs)


def test_split_by_name_follows_the_list_and_skips_what_is_gone() -> None:
    docs = [Document(name, "") for name in "abcd"]
    train, held = split_by_name(docs, ["d", "gone", "b"])
    assert [doc.name for doc in train] == ["a", "c"]
    assert [doc.name for doc in held] == ["d", "b"]
    with pytest.raises(ValueError, match="none of the 1 held-out files"):
        split_by_name(docs, ["gone"])


def test_corpus_keeps_the_held_out_file_out_of_training(data: Path) -> None:
    corpus = load_corpus(data)
    assert corpus.vocab_size <= 300
    assert int((corpus.train == 0).sum()) == 3
    assert int((corpus.held == 0).sum()) == 1
    assert len(json.loads((data / "held_out.json").read_text())) == 1


def test_corpus_like_another_has_its_tokenizer_and_held_out_files(
    data: Path, tmp_path: Path
) -> None:
    source = data.parent / "source"
    corpus_command.main([f"--data={tmp_path / 'twin'}", f"--source={source}", f"--like={data}"])
    for name in ("train.npy", "held.npy", "held_out.json"):
        assert (tmp_path / "twin" / name).read_bytes() == (data / name).read_bytes()


def test_consecutive_windows_predict_each_token_but_the_first_once() -> None:
    for count in (9, 10, 11):
        tokens = torch.arange(count)
        windows = list(consecutive_windows(tokens, 3))
        assert torch.cat([window[0, 1:] for window in windows]).tolist() == list(range(1, count))
        assert all(2 <= window.shape[1] <= 4 for window in windows)


def test_sampled_windows_are_runs_of_the_array() -> None:
    tokens = torch.arange(10)
    windows = sample_windows(tokens, 4, 50, torch.Generator().manual_seed(0))
    assert windows.shape == (50, 5)
    assert torch.equal(windows - windows[:, :1], torch.arange(5).expand(50, 5))


def test_array_shorter_than_a_window_is_refused() -> None:
    require_length(torch.arange(6), 4)
    with pytest.raises(ValueError, match="at least 6, this one has 5"):
        require_length(torch.arange(5), 4)


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


def test_continued_model_starts_from_the_weights_named(
    data: Path, teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[LlamaForCausalLM] = []
    monkeypatch.setattr(train_command, "train", lambda model, *_: started.append(model))
    train_command.main(
        [f"--data={data}", f"--out={tmp_path}/out", "--seconds=1", f"--init={teacher}", *TINY]
    )
    saved = load_checkpoint(teacher, load_corpus(data)).state_dict()
    assert all(torch.equal(saved[name], value) for name, value in started[0].state_dict().items())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--seconds=0"], "--seconds 0.0: expected more than 0"),
        (["--seconds=1", "--hidden=100"], "--hidden 100: expected a multiple of twice --heads 6"),
        (["--seconds=1", "--window=2000"], "--window 2000: expected at most 1024"),
        (["--seconds=1", "--window=1000"], "a window of 1000 tokens needs an array of at least"),
        (["--seconds=1", "--teacher=nowhere"], "nowhere holds no model (no config.json)"),
        ([], "the following arguments are required: --seconds"),
    ],
)
def test_train_names_the_argument_that_is_wrong(
    data: Path,
    tmp_path: Path,
    arguments: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "out"
    given = [f"--data={data}", f"--out={out}", "--window=16", *arguments]
    assert message in error_of(train_command.main, given, capsys)
    assert not out.exists()


def test_missing_data_says_how_to_make_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [f"--data={tmp_path}", f"--out={tmp_path}/out", "--seconds=1"]
    error = error_of(train_command.main, given, capsys)
    assert f"make it with: python -m training.corpus --data {tmp_path}" in error


def test_output_directory_in_use_is_refused(
    data: Path, teacher: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [f"--data={data}", f"--out={teacher}", "--seconds=1", *TINY]
    assert "name a new or an empty directory" in error_of(train_command.main, given, capsys)


def test_teacher_with_another_tokenizer_is_refused(
    teacher: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = make_corpus(tmp_path, [f"# {n}\n" + "class Other: pass\n" * 40 for n in range(3)])
    given = [f"--data={other}", f"--out={tmp_path}/out", "--seconds=1", f"--teacher={teacher}"]
    given = [*given, *TINY]
    assert "give different token ids" in error_of(train_command.main, given, capsys)


def test_teacher_wider_than_the_tokenizer_is_refused(data: Path, tmp_path: Path) -> None:
    save_checkpoint(tiny_model(512), tmp_path / "wide", data / "tokenizer.json")
    with pytest.raises(ValueError, match="has a vocabulary of 512 tokens, the corpus one of"):
        load_checkpoint(tmp_path / "wide", load_corpus(data))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--vocab=10"], "--vocab 10: expected 257"),
        (["--held-out=0"], "--held-out 0: expected at least 1"),
        (["--source=nowhere"], "--source nowhere is not a directory"),
        (["--like=nowhere"], "--like nowhere holds no tokenizer.json"),
        (["--source=."], "expected more than the 9999 to hold out"),
    ],
)
def test_corpus_names_the_argument_that_is_wrong(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    given = ["--data=out", "--held-out=9999", *arguments]
    assert message in error_of(corpus_command.main, given, capsys)
    assert not Path("out").exists()


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


def test_lessons_hold_what_the_teacher_says(data: Path, teacher: Path, lessons: Path) -> None:
    found = lessons_command.load_lessons([lessons, lessons], 96)
    assert found.windows.shape == (12, 97)
    model = load_checkpoint(teacher, load_corpus(data)).eval()
    again = lessons_command.last_states(model, found.windows[:6].long())
    assert torch.equal(again, found.states[:6])
    assert torch.equal(found.states[:6], found.states[6:])


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


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (["--windows=1"], "--windows 1: expected at least 2"),
        (["--windows=4", "--written=5"], "--written 5: expected 0 to --windows 4"),
        (["--window=64"], "--window 64: expected at least 96"),
    ],
)
def test_lessons_refuse(
    asked: list[str],
    message: str,
    data: Path,
    teacher: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    flags = [f"--data={data}", f"--teacher={teacher}", f"--out={tmp_path / 'out'}", *asked]
    assert message in error_of(lessons_command.main, flags, capsys)


def test_distillation_refuses(
    data: Path,
    teacher: Path,
    lessons: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    common = [f"--data={data}", f"--teacher={teacher}", f"--init={teacher}", "--seconds=1"]
    out = f"--out={tmp_path / 'out'}"
    wrong = [*common, out, f"--lessons={lessons}", "--window=80"]
    assert "holds windows of 96 tokens" in error_of(distil_command.main, wrong, capsys)
    nowhere = [*common, out, f"--lessons={tmp_path}", "--window=96"]
    assert "holds no windows.npy" in error_of(distil_command.main, nowhere, capsys)
    heavy = [*common, out, f"--lessons={lessons}", "--window=96", "--overlap=2"]
    assert "--overlap 2.0: expected 0 to 1" in error_of(distil_command.main, heavy, capsys)
