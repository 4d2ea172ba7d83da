"""A wrong command ends in one line that names flag, value and remedy, before anything is loaded."""

from __future__ import annotations

import io
import re
import subprocess
import sys
from pathlib import Path

import pytest

from outrider.cli import COMMANDS, main
from tests.support.command import PROMPT, Capture, error_of, printed, save_model


@pytest.mark.parametrize(
    ("flags", "parts"),
    [
        (("--temp", "-1"), ("--temp", "-1", "0 for greedy")),
        (("--temp", "abc"), ("--temp", "abc", "float")),
        (("--temp", "nan"), ("--temp", "nan", "0 for greedy")),
        (("--top-p", "1.5"), ("--top-p", "1.5", "a number in (0, 1]")),
        (("--top-k", "-2"), ("--top-k", "-2", "an integer >= 0")),
        (("-k", "-1"), ("--num-speculative-tokens", "-1", "an integer >= 0")),
        (("-k", "2.5"), ("-k", "2.5", "int")),
        (("-m", "0"), ("--max-tokens", "0", "an integer >= 1")),
        (("--seed", "-1"), ("--seed", "-1", "an integer in [0, 2**64)")),
        (("--stop-token-ids", "3,x"), ("--stop-token-ids", "x", "int")),
        (("--presence-penalty", "3"), ("--presence-penalty", "3", "a number in [-2, 2]")),
        (("--logit-bias", "5"), ("--logit-bias", "'5'", "a token id and a number")),
        (("--logit-bias", "5=101"), ("--logit-bias", "numbers in [-100, 100]")),
        (("--logit-bias", "5=1", "--logit-bias", "5=2"), ("one bias for token 5",)),
        (("--bad-words", ""), ("--bad-words", "none of them empty")),
        (("--stop", ""), ("--stop", "none of them empty")),
        (("--stop", "\udc80"), ("--stop", "UTF-8")),
        (("--logprobs", "21"), ("--logprobs", "21", "an integer in [0, 20]")),
        (("--json-schema", "no.json"), ("cannot read no.json: there is no such file",)),
        (("--json-schema", "{x"), ("--json-schema", "{x", "a JSON schema")),
        (("--choice", "a", "--regex", "a"), ("regex and choice", "exactly one of")),
        (("--prompt-lookup-max", "0"), ("--prompt-lookup-max", "0", "> 0")),
        (("--verification", "x"), ("--verification", '"x"', '"block"')),
        (("--method", "x"), ("--method", '"x"', '"hybrid"')),
        (("--bogus", "1"), ("--bogus", "see 'outrider generate --help'")),
        (("--tem", "1"), ("--tem", "--temp")),
        (("--temp",), ("--temp", "requires an argument")),
        (("--seed", "1", "--seed", "2"), ("--seed", "multiple times")),
        (("a prompt",), ("unexpected 'a prompt'; a prompt goes with -p or --prompt",)),
        (("--tree-shape", "2,0"), ("--tree-shape", "'2,0'", "such as 2x2x1")),
        (("--tree-shape", "2x", "--seed", "1"), ("--tree-shape", "'2x'", "such as 2x2x1")),
        (("--tree-shape", "2", "--tree-budget", "3"), ("--tree-budget", "tree_shape")),
        (("--tree-shape", "50,50,50"), ("--tree-shape", "1024 nodes in all at most")),
        (("--min-tokens", "9", "-m", "8"), ("--min-tokens", "9", "max_tokens=8")),
        (("--file", "x"), ("--file", "--prompt")),
        (("--speculative-config", "{"), ("--speculative-config", "{", "a JSON object")),
        (("--config", "/no/file"), ("cannot read /no/file: there is no such file",)),
    ],
)
def test_a_bad_flag_is_refused_with_its_value_and_what_is_expected(
    capsys: Capture, flags: tuple[str, ...], parts: tuple[str, ...]
) -> None:
    line = error_of(capsys, "generate", "-p", PROMPT, *flags)
    for part in parts:
        assert part in line


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--method", "draft_model"), "expected --draft MODEL beside it, or --method ngram"),
        (("--prediction", "text"), "--prediction='text' is not allowed: expected --method"),
        (
            ("--prediction", "t", "--depth", "fixed", "--draft", "d"),
            "expected --method hybrid, or --method prediction beside it",
        ),
        (("--method", "prediction"), "expected --prediction TEXT beside it"),
        (("--method", "early_exit"), "expected --exit-layers N beside it"),
        (("--exit-layers", "2"), "expected none with --method ngram; drop one of the two"),
        (("--method", "suffix", "--draft", "d"), "--draft='d' is not allowed: expected none"),
        (("--lenience", "0.5"), "--lenience=0.5 is not allowed: expected none with --verification"),
        (("--cost-ratio", "0.3", "--depth", "fixed"), "expected none with --depth fixed"),
        (("--tree-children", "with_replacement"), "--tree-shape"),
        (("--tree-shape", "2", "--verification", "typical"), "a lossless method for trees"),
        *(
            (("--method", method, flag, value), f"expected none with --method {method}")
            for method, flag, value in (
                ("none", "--num-speculative-tokens", "3"),
                ("none", "--verification", "token"),
                ("none", "--prompt-lookup-max", "3"),
                ("ngram", "--tree-shape", "2,1"),
                ("suffix", "--draft-sample-method", "greedy"),
            )
        ),
    ],
)
def test_flags_that_contradict_each_other_are_refused(
    capsys: Capture, flags: tuple[str, ...], message: str
) -> None:
    assert message in error_of(capsys, "generate", "-p", PROMPT, "--target", "x/y", *flags)


def test_an_unknown_command_is_refused(capsys: Capture) -> None:
    line = error_of(capsys, "generat")
    assert "generat" in line
    assert "see 'outrider --help'" in line


def test_an_argument_that_follows_no_flag_is_refused(capsys: Capture) -> None:
    line = error_of(capsys, "certify", "one", "two")
    assert line == "outrider: error: unexpected 'one two'; see 'outrider certify --help'\n"


def test_a_prompt_that_is_empty_or_cannot_be_read_is_refused(
    capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remedy = "is empty; give some text to continue"
    assert f"the prompt {remedy}" in error_of(capsys, "generate", "-p", "")
    empty, binary = tmp_path / "empty", tmp_path / "binary"
    empty.touch()
    binary.write_bytes(b"\xff\xfe")
    assert f"the file '{empty}' {remedy}" in error_of(capsys, "generate", "-f", str(empty))
    assert "it is not UTF-8 text" in error_of(capsys, "generate", "-f", str(binary))
    missing = str(tmp_path / "missing")
    line = error_of(capsys, "generate", "-f", missing)
    assert f"cannot read {missing}: there is no such file" in line
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    assert f"standard input {remedy}" in error_of(capsys, "generate")
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stdin", terminal)
    assert "use -p TEXT or -f PATH, or pipe text in" in error_of(capsys, "generate")


@pytest.mark.slow
def test_what_only_the_models_can_refuse_is_one_line_too(
    capsys: Capture, tmp_path: Path, folder: Path, target: str
) -> None:
    missing = str(tmp_path / "missing")
    line = error_of(capsys, "generate", "-p", PROMPT, "--target", missing)
    assert f"there is no model at '{missing}'" in line
    common = ("generate", "--target", target, "-m", "8")
    assert "device='moon'" in error_of(capsys, *common, "-p", PROMPT, "--device", "moon")
    assert 'Invalid value "int3" for --dtype' in error_of(
        capsys, *common, "-p", PROMPT, "--dtype", "int3"
    )
    assert "context of 64 tokens" in error_of(capsys, *common, "-p", "x" * 70)
    assert "token id 256" in error_of(capsys, *common, "-p", PROMPT, "--logit-bias", "256=1")
    exits = ("--method", "early_exit", "--exit-layers", "99")
    assert "exit_layers=99" in error_of(capsys, *common, "-p", PROMPT, *exits)
    broken = save_model(folder / "nan", broken="~")
    line = error_of(capsys, "generate", "-p", "~", "--target", broken, "-m", "4")
    assert "NaN" in line
    assert "check the model's weights" in line


def test_debug_shows_the_traceback(capsys: Capture) -> None:
    assert main(["generate", "-p", "", "--debug"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("Traceback")
    assert lines[-1].startswith("outrider: error: the prompt is empty")


@pytest.mark.parametrize(
    ("kind", "status", "word"), [("int", 130, "interrupted"), ("term", 143, "terminated")]
)
def test_an_interrupt_is_one_line(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, kind: str, status: int, word: str
) -> None:
    from outrider.cli.signals import Terminated

    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt if kind == "int" else Terminated

    monkeypatch.setattr("outrider.cli.options.Prompt.read", interrupt)
    line = error_of(capsys, "generate", "-p", PROMPT, status=status)
    assert line == f"outrider: error: {word}\n"


def test_help_lists_commands_and_the_records_own_words_and_defaults(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    text = printed(capsys, "--help")
    assert all(name in text for name in COMMANDS)
    text = " ".join(printed(capsys, "generate", "--help").replace("│", "").split())
    assert "the most tokens to emit, at least 1. [default: 128]" in text
    assert "draft trees of this many nodes" in text
    assert printed(capsys, "--version").startswith("outrider ")


@pytest.mark.parametrize("name", sorted(set(COMMANDS) - {"tune"}))
def test_help_is_in_the_words_of_a_command_line(capsys: Capture, name: str) -> None:
    text = " ".join(printed(capsys, name, "--help").replace("│", "").split())
    for of_python in ("None", "default: (", "True]", "False]", "2**64", ".0]", "(2, 2, 1)"):
        assert of_python not in text
    assert not re.search(r"(num_speculative_tokens|max_tokens|cost_ratio|tree_shape)\b(?!\")", text)


@pytest.mark.parametrize("name", ["bench", "certify", "tune"])
def test_help_says_what_the_exit_status_is_after_an_interrupt(capsys: Capture, name: str) -> None:
    text = " ".join(printed(capsys, name, "--help").split()).partition("he exit status is")[2]
    assert "130" in text
    assert "143" in text


def test_help_and_errors_load_no_framework() -> None:
    code = (
        "import sys\n"
        "from outrider.cli import COMMANDS, main\n"
        "main(['--help'])\n"
        "for name in COMMANDS:\n"
        "    main([name, '--help'])\n"
        "    assert main([name, '--bogus']) == 2\n"
        "assert main(['generate', '-p', '']) == 2\n"
        "assert main(['demo', '-k', '0']) == 2\n"
        "assert main(['generate', '-p', 'x', '--method', 'ngram', '--draft', 'd']) == 2\n"
        "assert main(['bench', '--trees', 'x']) == 2\n"
        "assert main(['tune', '--temp', 'x']) == 2\n"
        "assert main(['certify', '--tier', 'exact', '--seed', '1']) == 2\n"
        "assert main(['certify', '--module', '/none.py:X']) == 2\n"
        "assert main(['bench', '--prompts', '/none.jsonl']) == 2\n"
        "assert main(['tune', '--dtype', 'float12']) == 2\n"
        "assert main(['generate', '-p', 'x', '--target', '/none']) == 2\n"
        "assert main(['demo', '--draft', './none']) == 2\n"
        "heavy = {'torch', 'transformers', 'numba', 'openvino'} & set(sys.modules)\n"
        "sys.exit(f'loaded {heavy}' if heavy else 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_module_is_the_command() -> None:
    command = [sys.executable, "-m", "outrider", "generate", "-k", "-1"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("outrider: error: --num-speculative-tokens -1 is not allowed")
