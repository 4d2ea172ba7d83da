"""The command line: what it prints, and how it fails."""

from __future__ import annotations

import io
import json
import re
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from outrider.cli import main
from outrider.cli.comparison import Comparison, Side
from outrider.cli.demo_screen import Screen
from outrider.cli.paint import colored, marked, wants_color
from outrider.engine.metrics import SpeculationMetrics

CONTEXT = 64
PROMPT = "def f(x):"
BROKEN = "~"
FORMS = ("json_schema", "regex", "grammar", "choice")


def _save(folder: Path, *, characters: int = 256, seed: int = 0, broken: str = "") -> Path:
    """A tiny random model, and a tokenizer with one token for each of some bytes."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())[:characters]
    words = Tokenizer(models.BPE({char: i for i, char in enumerate(alphabet)}, []))
    words.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    words.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words)
    config = LlamaConfig(
        vocab_size=len(alphabet),
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=CONTEXT,
        bos_token_id=None,
        eos_token_id=None,
    )
    torch.manual_seed(seed)
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        for token in tokenizer.encode(broken) if broken else ():
            model.model.embed_tokens.weight[token] = torch.nan
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="session")
def target(folder: Path) -> str:
    return str(_save(folder / "target"))


@pytest.fixture(scope="session")
def draft(folder: Path) -> str:
    return str(_save(folder / "draft", seed=1))


def run(*args: str) -> int:
    try:
        return main(args)
    except SystemExit as end:
        return int(end.code or 0)


def error_of(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    """The one line that a failing command prints."""
    assert run(*args) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1, captured.err
    assert captured.err.startswith("outrider: error: ")
    return captured.err


def printed(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    assert run(*args) == 0
    return capsys.readouterr().out


def document(capsys: pytest.CaptureFixture[str], *args: str) -> Any:
    return json.loads(printed(capsys, *args, "--json"))


FIXED = ("--depth", "fixed")
"""Whatever rounds take here."""


class TestGenerate:
    def test_prompt_of_a_flag_a_file_and_standard_input_give_the_same_text(
        self, capsys, monkeypatch, tmp_path, target, draft
    ):
        common = ("generate", "--target", target, "--draft", draft, "-m", "12", "--seed", "3")
        file = tmp_path / "prompt.txt"
        file.write_text(PROMPT)
        texts = [printed(capsys, *common, "-p", PROMPT), printed(capsys, *common, "-f", str(file))]
        for flags in ((), ("-p", "-")):
            monkeypatch.setattr(sys, "stdin", io.StringIO(PROMPT))
            texts.append(printed(capsys, *common, *flags))
        assert len(set(texts)) == 1

    def test_closing_statistics_go_to_stderr(self, capsys, target):
        flags = ("--target", target, "--draft", target, "--temp", "0", "-m", "10", "--seed", "5")
        flags = (*flags, "--depth", "fixed")
        assert run("generate", "-p", PROMPT, *flags) == 0
        drafts, ceiling, speed = capsys.readouterr().err.splitlines()
        assert ceiling == (
            "estimated ceiling = 5.00 +- 0.00 tokens a round, the most that any lossless "
            "verification emits on average from such drafts; 100.0% +- 0.0% of it was reached"
        )
        assert drafts == (
            "draft acceptance = 1.000 (8 accepted / 8 drafted), mean acceptance length = 5.00, "
            "per position = (1.000, 1.000, 1.000, 1.000), over 2 rounds that drafted"
        )
        assert re.fullmatch(
            r"10 tokens in .* prompt included; 2 rounds, 5\.00 tokens a round; seed 5", speed
        )

    def test_lossy_figures_say_so(self, capsys, target, draft):
        flags = ("--target", target, "--draft", draft, "-m", "10", "--seed", "5")
        lossy = ("--verification", "mixture", "--mixture-budget", "0.5")
        assert run("generate", "-p", PROMPT, *flags, *lossy) == 0
        lines = capsys.readouterr().err.splitlines()
        assert lines[0] == "lossy: the output's distribution is not the target's"
        assert len(lines) > 2
        assert all(line.startswith("lossy: ") for line in lines)
        assert run("generate", "-p", PROMPT, *flags, *lossy, "--json") == 0
        found = json.loads(capsys.readouterr().out)
        assert found["speculation"]["lossy"] is True
        assert found["config"]["speculation"]["verification"] == "mixture"

    def test_trees_and_their_refusals(self, capsys, target, draft):
        flags = ("generate", "-p", PROMPT, "--target", target, "--draft", draft, "-m", "12")
        assert run(*flags, "--tree-shape", "2,2,1", "--json") == 0
        found = json.loads(capsys.readouterr().out)
        assert found["config"]["speculation"]["tree_shape"] == [2, 2, 1]
        assert found["speculation"]["drafted"] > sum(found["depths"])
        assert "'2,x' is not allowed" in error_of(capsys, *flags, "--tree-shape", "2,x")
        both = ("--tree-shape", "2", "--tree-budget", "3")
        assert "tree_budget=3" in error_of(capsys, *flags, *both)
        assert "--lenience=0.5" in error_of(capsys, *flags, "--lenience", "0.5")
        drawn = ("--tree-children", "with_replacement")
        assert "--tree-shape beside it" in error_of(capsys, *flags, *drawn)
        assert "at most 1024 nodes" in error_of(capsys, *flags, "--tree-shape", "50,50,50,50")
        lossy = ("--tree-shape", "2", "--verification", "typical")
        assert "verification='typical'" in error_of(capsys, *flags, *lossy)

    def test_json_is_one_object_with_the_documented_fields(self, capsys, target, draft):
        flags = ("--target", target, "--draft", draft, "-m", "9", "--seed", "3", "-k", "2")
        found = document(capsys, "generate", "-p", PROMPT, *flags)
        assert list(found) == [
            *("prompt", "text", "token_ids", "finish_reason", "seed", "depths", "usage"),
            *("speculation", "timing", "config"),
        ]
        assert found["prompt"] == PROMPT
        assert found["seed"] == 3
        assert found["finish_reason"] == "length"
        assert found["usage"] == {"prompt_tokens": len(PROMPT), "completion_tokens": 9}
        assert len(found["token_ids"]) == 9
        assert len(found["depths"]) == found["speculation"]["rounds"]
        assert sum(found["depths"]) == found["speculation"]["drafted"]
        assert set(found["speculation"]) == {
            *("rounds", "drafted", "accepted", "acceptance_rate", "acceptance_length"),
            *("per_position", "ceiling", "ceiling_interval", "ceiling_share"),
            *("ceiling_share_interval", "first_ceiling", "first_ceiling_share"),
            *("first_ceiling_share_interval", "draft_failures", "lossy"),
        }
        assert set(found["timing"]) == {
            *("total_s", "draft_s", "target_s", "other_s", "tokens_per_s", "lossy"),
        }
        config = found["config"]
        assert config["target"] == target
        assert config["draft"] == draft
        assert config["method"] == "hybrid"
        assert config["sampling"]["max_tokens"] == 9
        assert config["speculation"]["num_speculative_tokens"] == 2

    def test_streamed_text_is_the_text_of_json(self, capsys, target, draft):
        flags = ("generate", "-p", PROMPT, "--target", target, "--draft", draft, "-m", "20")
        seeded = (*flags, "--seed", "11")
        assert printed(capsys, *seeded) == document(capsys, *seeded)["text"] + "\n"

    def test_fresh_seed_is_reported_and_repeats_the_run(self, capsys, target):
        flags = ("generate", "-p", PROMPT, "--target", target, "-m", "12")
        first = document(capsys, *flags)
        second = document(capsys, *flags, "--seed", str(first["seed"]))
        assert second["token_ids"] == first["token_ids"]

    def test_several_continuations_each_have_a_heading_and_a_choice(self, capsys, target, draft):
        common = ("generate", "-p", PROMPT, "--target", target, "--draft", draft, "-m", "8")
        flags = (*common, "-n", "2", "--seed", "4")
        found = document(capsys, *flags)
        texts = [choice["text"] for choice in found["choices"]]
        assert found["text"] == texts[0]
        assert found["usage"]["completion_tokens"] == 16
        assert printed(capsys, *flags) == (
            f"--- continuation 1 of 2 (ended by length) ---\n{texts[0]}\n"
            f"--- continuation 2 of 2 (ended by length) ---\n{texts[1]}\n"
        )

    @pytest.mark.parametrize(
        ("flags", "method", "drafts"),
        [
            (FIXED, "ngram", True),
            ((*FIXED, "--prompt-lookup-max", "3", "--prompt-lookup-min", "2"), "ngram", True),
            ((*FIXED, "--method", "suffix"), "suffix", True),
            (("--method", "none"), "none", False),
            (("-k", "0"), "ngram", False),
        ],
    )
    def test_methods_without_a_draft_model(self, capsys, target, flags, method, drafts):
        prompt = "abcabcabc"
        common = ("generate", "-p", prompt, "--target", target, "--temp", "0", "-m", "12")
        found = document(capsys, *common, *flags)
        assert found["config"]["method"] == method
        assert (found["speculation"]["drafted"] > 0) == drafts
        assert (found["speculation"]["acceptance_rate"] is not None) == drafts

    def test_a_prediction_is_drafted_from(self, capsys, tmp_path, target, draft):
        flags = ("generate", "-p", PROMPT, "--target", target, "--temp", "0", "-m", "24")
        plain = document(capsys, *flags, "--method", "none")
        file = tmp_path / "expected.txt"
        file.write_text("abc")
        flags = (*flags, "--draft", draft, "--method", "hybrid", "--prediction")
        # With a draft it is what is used unless another method is asked for.
        unsaid = [flag for flag in flags if flag not in ("--method", "hybrid")]
        for asked, given in ((flags, "abc"), (flags, f"@{file}"), (unsaid, "abc")):
            found = document(capsys, *asked, given)
            assert found["token_ids"] == plain["token_ids"]
            assert found["config"]["sampling"]["prediction"] == "abc"
            assert found["config"]["method"] == "hybrid"
            assert found["config"]["draft"] == draft
        assert "expected a readable file" in error_of(capsys, *flags, f"@{tmp_path}")

    def test_the_targets_first_layers_draft(self, capsys):
        flags = ("generate", "-p", PROMPT, "--temp", "0", "-m", "8")
        plain = document(capsys, *flags, "--method", "none")
        asked = ("--method", "early_exit", "--exit-layers", "8", "--depth", "fixed")
        found = document(capsys, *flags, *asked)
        assert found["token_ids"] == plain["token_ids"]
        assert found["speculation"]["drafted"] > 0
        assert found["config"]["exit_layers"] == 8
        assert found["config"]["draft"] is None

    def test_a_prediction_needs_no_draft_model(self, capsys, target):
        """One that is the output is kept whole, in few rounds."""
        flags = ("generate", "-p", PROMPT, "--target", target, "--temp", "0", "-m", "24")
        plain = document(capsys, *flags, "--method", "none")
        asked = (*flags, "--method", "prediction", "--depth", "fixed", "--prediction")
        found = document(capsys, *asked, plain["text"], "--strict")
        assert found["token_ids"] == plain["token_ids"]
        assert found["speculation"]["rounds"] < 24
        assert found["config"]["method"] == "prediction"
        assert found["config"]["draft"] is None
        assert found["config"]["speculation"]["strict"] is True
        assert plain["config"]["speculation"]["strict"] is False

    def test_stop_token_ends_the_text(self, capsys, target):
        flags = ("generate", "-p", PROMPT, "--target", target, "--temp", "0", "-m", "8")
        stop = document(capsys, *flags)["token_ids"][0]
        found = document(capsys, *flags, "--stop-token-id", "0", "--stop-token-id", str(stop))
        assert found["finish_reason"] == "stop"
        assert found["token_ids"] == [stop]

    def test_every_sampling_parameter_has_a_flag(self, capsys, target, draft):
        flags = ("generate", "-p", PROMPT, "--target", target, "--draft", draft, "-m", "9")
        asked = {
            "temperature": ("--temp", "0.7", 0.7),
            "top_k": ("--top-k", "9", 9),
            "top_p": ("--top-p", "0.9", 0.9),
            "min_p": ("--min-p", "0.1", 0.1),
            "repetition_penalty": ("--repetition-penalty", "1.2", 1.2),
            "presence_penalty": ("--presence-penalty", "-0.5", -0.5),
            "frequency_penalty": ("--frequency-penalty", "0.5", 0.5),
            "logit_bias": ("--logit-bias", "5=-1.5", [[5, -1.5], [6, 2.0], [7, -3.0]]),
            "bad_words": ("--bad-words", "ab", None),
            "min_tokens": ("--min-tokens", "2", 2),
            "max_tokens": ("--max-tokens", "8", 8),
            "stop": ("--stop", "xyz", ["xyz", "\n"]),
            "stop_token_ids": ("--stop-token-ids", "3,4", [3, 4, 5]),
            "logprobs": ("--logprobs", "2", 2),
            "n": ("-n", "2", 2),
            "seed": ("--seed", "3", 3),
            "structured_output": ("--regex", "[a-z]*", dict.fromkeys(FORMS) | {"regex": "[a-z]*"}),
        }
        more = ("--logit-bias", "6+2", "--logit-bias", "7-3", "--bad-words", "b", "--stop", "\n")
        given = [part for flag, text, _ in asked.values() for part in (flag, text)]
        flags = (*flags, *given, *more, "--stop-token-id", "5", "--ignore-eos")
        found = document(capsys, *flags)["config"]["sampling"]
        space, a, b = (token for token, _ in self._ids(target, " ab"))
        assert found.pop("bad_words") == [[a, b], [space, a, b], [b], [space, b]]
        del asked["bad_words"]
        for field, (_, _, value) in asked.items():
            assert found[field] == value, field
        assert found["ignore_eos"] is True
        # What cannot be said in text, or replays a run.
        unsaid = {"logits_processors", "depths", "ignore_eos", "prediction"}
        assert set(found) - set(asked) == unsaid

    @staticmethod
    def _ids(target, text):
        tokenizer = PreTrainedTokenizerFast.from_pretrained(target)
        return list(zip(tokenizer.encode(text), text, strict=True))

    def test_parameters_shape_the_text(self, capsys, target):
        flags = ("generate", "-p", PROMPT, "--target", target, "--temp", "0", "-m", "12")
        plain = document(capsys, *flags)
        first = plain["token_ids"][0]
        assert document(capsys, *flags, "--logit-bias", f"{first}=-100")["token_ids"][0] != first
        assert document(capsys, *flags, "--logit-bias", "70+100")["token_ids"] == [70] * 12
        common = (*flags, "--logit-bias", "70=50", "--logit-bias", "71=49")
        assert 71 in document(capsys, *common, "--frequency-penalty", "2")["token_ids"]
        letter = "a"
        ((token, _),) = self._ids(target, letter)
        common = (*flags, "--logit-bias", f"{token}=100")
        assert token not in document(capsys, *common, "--bad-words", letter)["token_ids"]
        stopped = document(capsys, *common, "--stop", letter * 3)
        assert (stopped["text"], stopped["finish_reason"]) == ("", "stop")
        later = document(capsys, *common, "--stop", letter * 3, "--min-tokens", "7")
        assert later["text"] == letter * 4

    def test_the_text_has_the_form_asked_for(self, capsys, target, draft, tmp_path):
        common = ("generate", "-p", PROMPT, "--target", target, "--draft", draft)
        common = (*common, "--seed", "3", "-m", "50")
        schema = {"type": "array", "items": {"enum": [1, 2]}, "minItems": 2, "maxItems": 3}
        file, grammar = tmp_path / "schema.json", tmp_path / "form.lark"
        file.write_text(json.dumps(schema))
        grammar.write_text('start: "(" start ")" | "x"')
        for given in (str(file), json.dumps(schema)):
            found = document(capsys, *common, "--json-schema", given)
            assert found["finish_reason"] == "stop"
            assert len(json.loads(found["text"])) in (2, 3)
            asked = found["config"]["sampling"]["structured_output"]
            assert json.loads(asked["json_schema"]) == schema
        found = document(capsys, *common, "--regex", "a{2}(b|c)")
        assert found["text"] in ("aab", "aac")
        found = printed(capsys, *common, "--grammar", str(grammar), "--logit-bias", "87=9")
        assert re.fullmatch(r"(\(*)x(\)*)", found.strip())
        assert found.count("(") == found.count(")")
        found = document(capsys, *common, "--choice", "yes", "--choice", "no", "-n", "3")
        assert {choice["text"] for choice in found["choices"]} <= {"yes", "no"}
        assert found["config"]["sampling"]["structured_output"]["choice"] == ["yes", "no"]

    def test_a_text_that_is_not_whole_is_told(self, capsys, target):
        flags = ("generate", "-p", PROMPT, "--target", target, "--regex", "a{5}")
        for length, told in (("3", True), ("9", False)):
            assert run(*flags, "-m", length) == 0
            captured = capsys.readouterr()
            assert captured.out == "a" * min(int(length), 5) + "\n"
            assert ("cut by --max-tokens 3: not yet a whole text" in captured.err) is told

    def test_log_probabilities_in_json_and_for_reading(self, capsys, target, draft):
        flags = ("generate", "-p", PROMPT, "--target", target, "--draft", draft, "-m", "5")
        flags = (*flags, "--seed", "3", "--temp", "0", "--logprobs", "2")
        found = document(capsys, *flags)
        assert len(found["logprobs"]) == 5
        for token, entry in zip(found["token_ids"], found["logprobs"], strict=True):
            assert set(entry) == {"token_id", "token", "logprob", "top_logprobs"}
            assert entry["token_id"] == token
            best, second = entry["top_logprobs"]
            assert best == {name: entry[name] for name in best}
            assert second["logprob"] <= best["logprob"] < 0
        assert run(*flags) == 0
        printed = capsys.readouterr()
        assert printed.out == found["text"] + "\n"
        heading, names, *told = printed.err.splitlines()[:7]
        assert heading == "log-probabilities:"
        assert names.startswith("logprob  token")
        for line, entry in zip(told, found["logprobs"], strict=True):
            assert f"{entry['logprob']:.3f}  {entry['token']!r} (" in line
        several = document(capsys, *flags, "-n", "2")
        assert [len(choice["logprobs"]) for choice in several["choices"]] == [5, 5]
        assert run(*flags, "-n", "2") == 0
        assert "log-probabilities of continuation 2:" in capsys.readouterr().err

    def test_the_commands_of_the_readme(self, capsys, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        Path("tuned.toml").write_text("num-speculative-tokens = 3\n")
        readme = (Path(__file__).parent.parent / "README.md").read_text()
        blocks = "".join(part.split("```")[0] for part in readme.split("```bash\n")[1:])
        shell = ".venv/bin/outrider "
        commands = [shlex.split(part) for part in blocks.split(shell)[1:]]
        commands = [command for command in commands if command[0] == "generate"]
        assert len(commands) == 12
        for command in commands:
            assert printed(capsys, *command, "-m", "40").strip(), command

    def test_colour_changes_nothing_but_colour(self, capsys, target):
        common = ("generate", "-p", PROMPT, "--target", target, "--draft", target, "-m", "8")
        flags = (*common, "--seed", "2")
        colorful = printed(capsys, *flags, "--color", "always")
        assert "\x1b[32m" in colorful
        assert re.sub(r"\x1b\[[\d;]*m", "", colorful) == printed(capsys, *flags)


class TestDemo:
    def test_json_compares_both_sides_at_both_temperatures(self, capsys, target, draft):
        flags = ("-p", PROMPT, "--target", target, "--draft", draft, "-m", "6", "-k", "2")
        found = document(capsys, "demo", *flags, "--depth", "fixed")
        assert [result["temperature"] for result in found["results"]] == [0.0, 0.8]
        assert found["prompts"] == [PROMPT]
        greedy = found["results"][0]
        assert greedy["identical"] == greedy["prompts"] == 1
        for side in ("plain", "speculative"):
            assert greedy[side]["completion_tokens"] == 6
            assert len(greedy[side]["token_ids"][0]) == 6
        assert greedy["plain"]["speculation"]["drafted"] == 0
        assert greedy["speculative"]["speculation"]["drafted"] > 0

    def test_screen_ends_with_a_table_and_a_verdict(self, capsys, target):
        flags = ("--target", target, "--draft", target, "-m", "6", "--temp", "0")
        out = printed(capsys, "demo", "-p", PROMPT, *flags)
        assert "temperature 0: the same text with and without speculation, 1 of 1 prompts" in out
        # How fast it was decides how long the verdict is, and so how many lines it takes.
        assert out.split("\n\n")[-1].startswith("speculative against plain: ")
        assert "\x1b" not in out

    def test_shipped_pair_is_the_default(self, capsys):
        found = document(capsys, "demo", "-m", "2", "--temp", "0")
        assert found["config"]["target"] == found["config"]["draft"] == "demo"
        assert len(found["prompts"]) == found["results"][0]["prompts"] > 1

    @pytest.mark.parametrize("flags", [("--method", "none"), ("-k", "0")])
    def test_there_must_be_something_to_compare(self, capsys, flags):
        assert "to compare with plain" in error_of(capsys, "demo", *flags)


def _side(seconds: float, tokens: tuple[tuple[int, ...], ...] = ((1, 2), (3, 4))) -> Side:
    share = (9,) * 8
    return Side(tokens, seconds, SpeculationMetrics(9, 9, 72, 72, 81, 81, share, share, 1, 2, 4))


class TestComparison:
    @pytest.mark.parametrize(
        ("seconds", "verdict"),
        [
            (1.0, "2.00x as fast at temperature 0.5"),
            (2.02, "0.99x as fast at temperature 0.5 (no difference)"),
            (
                4.0,
                "0.50x as fast at temperature 0.5 "
                "(slower: decode with `outrider generate --method none`)",
            ),
        ],
    )
    def test_verdict_is_honest(self, seconds, verdict):
        assert Comparison(0.5, _side(2.0), _side(seconds)).verdict() == verdict

    def test_shares_of_time_add_up(self):
        assert _side(1.0).shares == (0.25, 0.5, 0.25)

    def test_flipped_near_tie_is_stated(self, capsys):
        comparison = Comparison(0.0, _side(2.0), _side(1.0, ((1, 2), (3, 5))))
        Screen(color=False).results([comparison])
        assert "the same text for 1 of 2 prompts; rounding" in capsys.readouterr().out

    def test_share_of_the_ceiling_is_shown_where_one_is_known(self, capsys):
        known, unknown = _side(1.0), _side(1.0)
        known = replace(known, metrics=replace(known.metrics, ceiling=12.0, ceiling_error=0.1))
        Screen(color=False).results([Comparison(0.5, unknown, known)])
        plain, speculative = (
            line.split() for line in capsys.readouterr().out.splitlines() if "25%" in line
        )
        assert plain[4:6] == ["9.00", "–"]
        assert speculative[3:5] == ["9.00", "75%"]

    def test_widest_table_fits_100_columns(self, capsys):
        Screen(color=False).results([Comparison(0.25, _side(2e-4), _side(1e-4))] * 2)
        lines = capsys.readouterr().out.splitlines()
        assert max(map(len, lines)) <= 100
        assert not any("…" in line for line in lines)


class TestPaint:
    def test_marks_go_inside_white_space(self):
        assert marked("\n    x", "correction") == "\n    ⟨x⟩"
        assert marked(" x ", "bonus") == " «x» "
        assert marked(" x", "draft") == " x"
        assert marked("\n  ", "correction") == "\n  "

    def test_colours(self):
        assert colored(" x", "draft") == " \x1b[32mx\x1b[0m"
        assert colored("x", "correction") == "\x1b[1;4;33mx\x1b[0m"
        assert colored("x", "bonus") == "x"

    def test_no_color_and_pipes_are_honoured(self, monkeypatch):
        assert not wants_color("auto")
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.delenv("NO_COLOR", raising=False)
        assert wants_color("auto")
        monkeypatch.setenv("NO_COLOR", "1")
        assert not wants_color("auto")
        assert wants_color("always")


def test_a_draft_of_another_vocabulary(capsys, folder, target):
    other = str(_save(folder / "other", characters=200))
    asked = ("generate", "-p", PROMPT, "--target", target, "-m", "12", "--temp", "0")
    drafting = ("--draft", other, "--depth", "fixed")
    drafted = json.loads(printed(capsys, *asked, *drafting, "--json"))
    plain = json.loads(printed(capsys, *asked, "--method", "none", "--json"))
    assert drafted["token_ids"] == plain["token_ids"]
    assert drafted["speculation"]["drafted"] > 0


class TestErrors:
    @pytest.mark.parametrize(
        ("flags", "message"),
        [
            (("--temp", "-1"), "--temp/--temperature: '-1' is not allowed: expected 0 for greedy"),
            (("--temp", "abc"), "'abc' is not allowed: expected 0 for greedy"),
            (("--temp", "nan"), "'nan' is not allowed: expected 0 for greedy"),
            (("--top-p", "0"), "--top-p: '0' is not allowed: expected a number in (0, 1]"),
            (("--top-p", "1.5"), "--top-p: '1.5' is not allowed: expected a number in (0, 1]"),
            (("--top-k", "-2"), "--top-k: '-2' is not allowed: expected an integer >= 0"),
            (("--min-p", "2"), "--min-p: '2' is not allowed: expected a number in [0, 1]"),
            (("-k", "-1"), "-k/--num-speculative-tokens: '-1' is not allowed: expected an integer"),
            (("-k", "2.5"), "'2.5' is not allowed: expected an integer >= 0"),
            (("-m", "0"), "--max-tokens: '0' is not allowed: expected an integer >= 1"),
            (("-n", "0"), "-n: '0' is not allowed: expected an integer >= 1"),
            (("--seed", "-1"), "--seed: '-1' is not allowed: expected an integer in [0, 2**64)"),
            (("--stop-token-id", "x"), "'x' is not allowed: expected an integer >= 0"),
            (("--stop-token-ids", "3,-1"), "'-1' is not allowed: expected an integer >= 0"),
            (("--repetition-penalty", "0"), "'0' is not allowed: expected a number > 0"),
            (("--presence-penalty", "3"), "'3' is not allowed: expected a number in [-2, 2]"),
            (("--frequency-penalty", "x"), "'x' is not allowed: expected a number in [-2, 2]"),
            (("--logit-bias", "5"), "'5' is not allowed: expected a token id and a number in"),
            (("--logit-bias", "a=1"), "'a=1' is not allowed: expected a token id and a number"),
            (("--logit-bias", "5=x"), "'5=x' is not allowed: expected a token id and a number"),
            (("--logit-bias", "5=101"), "'5=101' is not allowed: expected a token id and a number"),
            (("--bad-words", " "), "' ' is not allowed: expected a text in UTF-8, not empty"),
            (("--stop", ""), "'' is not allowed: expected a text in UTF-8, not empty"),
            (("--min-tokens", "-1"), "'-1' is not allowed: expected an integer >= 0"),
            (("--logprobs", "21"), "'21' is not allowed: expected an integer in [0, 20], or None"),
            (("--json-schema", "no.json"), "'no.json' is not allowed: expected a readable file ("),
            (("--json-schema", "{x"), "'{x' is not allowed: expected a JSON schema"),
            (("--grammar", "/"), "'/' is not allowed: expected a readable file ("),
            (("--choice", ""), "'' is not allowed: expected a text in UTF-8, not empty"),
            (("--choice", "a", "--regex", "a"), "--regex: not allowed with argument --choice"),
            (("--prompt-lookup-max", "0"), "'0' is not allowed: expected an integer >= 1"),
            (("--verification", "x"), "'x' is not allowed: expected one of 'block', 'token'"),
            (("--method", "x"), "invalid choice: 'x' (choose from"),
            (("--bogus", "1"), "unknown argument '--bogus'; see 'outrider generate --help'"),
            (("--temp",), "--temp/--temperature: expected one argument"),
        ],
    )
    def test_bad_flag_is_refused_with_its_value_and_what_is_expected(self, capsys, flags, message):
        assert message in error_of(capsys, "generate", "-p", PROMPT, *flags)

    @pytest.mark.parametrize(
        ("flags", "message"),
        [
            (("--method", "draft_model"), "expected --draft MODEL beside it, or --method ngram"),
            (("--method", "hybrid"), "expected --draft MODEL beside it, or --method ngram"),
            (("--prediction", "text"), "--prediction='text' is not allowed: expected --method"),
            (("--prediction", "text", "--method", "ngram"), "expected --method prediction beside"),
            (
                ("--prediction", "t", "--tree-shape", "2", "--draft", "d"),
                "expected --method hybrid b",
            ),
            (
                ("--prediction", "t", "--depth", "fixed", "--draft", "d"),
                "expected --method hybrid, or --method prediction beside it",
            ),
            (
                ("--prediction", "t", "--verification", "typical", "--draft", "d"),
                "expected --method prediction beside it",
            ),
            (
                ("--prediction", "t", "--tree-shape", "2,1", "--method", "ngram"),
                "--tree-shape=(2, 1) is not allowed: expected none with --method ngram",
            ),
            (("--method", "prediction"), "expected --prediction TEXT beside it"),
            (("--method", "early_exit"), "expected --exit-layers N beside it"),
            (("--exit-layers", "2"), "expected none with --method ngram; drop one of the two"),
            (("--method", "suffix", "--draft", "d"), "--draft='d' is not allowed: expected none"),
            (("--method", "ngram", "--draft", "d"), "--draft='d' is not allowed: expected none"),
            (("--min-tokens", "9", "-m", "8"), "--min-tokens=9 is not allowed: expected at most"),
            (
                ("--logit-bias", "5=1", "--logit-bias", "5=2"),
                "--logit-bias=5 is not allowed: expected one bias for each token",
            ),
            (
                ("--method", "none", "--prompt-lookup-max", "3"),
                "--prompt-lookup-max=3 is not allowed: expected none with --method none",
            ),
            (
                ("--cost-ratio", "0.3", "--depth", "fixed"),
                "--cost-ratio=0.3 is not allowed: expected none with --depth fixed; drop one of",
            ),
            *(
                (
                    ("--method", method, flag, value),
                    f"is not allowed: expected none with --method {method}; drop one of the two",
                )
                for method, flag, value in (
                    ("none", "--tree-shape", "2,1"),
                    ("none", "--tree-budget", "3"),
                    ("none", "--num-speculative-tokens", "3"),
                    ("none", "--depth", "fixed"),
                    ("none", "--cost-ratio", "0.3"),
                    ("none", "--draft-sample-method", "greedy"),
                    ("none", "--verification", "token"),
                    ("ngram", "--tree-shape", "2,1"),
                    ("ngram", "--draft-sample-method", "greedy"),
                    ("suffix", "--draft-sample-method", "greedy"),
                )
            ),
        ],
    )
    def test_flags_that_contradict_each_other(self, capsys, flags, message):
        assert message in error_of(capsys, "generate", "-p", PROMPT, "--target", "./x", *flags)

    def test_a_token_that_the_model_lacks(self, capsys, target):
        line = error_of(
            capsys, "generate", "-p", PROMPT, "--target", target, "--logit-bias", "256=1"
        )
        assert "logit_bias has token id 256; expected ids in 0..255" in line

    def test_a_form_that_no_text_has(self, capsys, target):
        common = ("generate", "-p", PROMPT, "--target", target, "-m", "9")
        for form, said in (("(", "unclosed group"), ("", "more than the empty text")):
            assert said in error_of(capsys, *common, "--regex", form)

    def test_unknown_subcommand(self, capsys):
        assert "invalid choice: 'generat' (choose from 'generate'" in error_of(capsys, "generat")

    def test_no_subcommand(self, capsys):
        assert "COMMAND; see 'outrider --help'" in error_of(capsys)

    def test_empty_prompt(self, capsys, tmp_path, monkeypatch):
        remedy = "is empty; give some text to continue"
        assert f"the prompt '' {remedy}" in error_of(capsys, "generate", "-p", "")
        empty = tmp_path / "empty"
        empty.touch()
        assert f"the file '{empty}' {remedy}" in error_of(capsys, "generate", "-f", str(empty))
        monkeypatch.setattr(sys, "stdin", io.StringIO(""))
        assert f"standard input {remedy}" in error_of(capsys, "generate")

    def test_no_prompt_on_a_terminal(self, capsys, monkeypatch):
        terminal = io.StringIO()
        monkeypatch.setattr(terminal, "isatty", lambda: True)
        monkeypatch.setattr(sys, "stdin", terminal)
        assert "use -p TEXT or -f PATH, or pipe text in" in error_of(capsys, "generate")

    def test_prompt_file_that_cannot_be_read(self, capsys, tmp_path):
        expected = "is not allowed: expected a readable UTF-8 text file"
        missing = str(tmp_path / "missing.txt")
        line = error_of(capsys, "generate", "-f", missing)
        assert f"--file='{missing}' {expected} (No such file or directory)" in line
        binary = tmp_path / "binary"
        binary.write_bytes(b"\xff\xfe")
        assert f"{expected} (it is not UTF-8 text)" in error_of(
            capsys, "generate", "-f", str(binary)
        )

    def test_model_path_that_is_missing(self, capsys, tmp_path):
        missing = str(tmp_path / "missing")
        line = error_of(capsys, "generate", "-p", PROMPT, "--target", missing)
        assert f"there is no model at '{missing}'; expected an existing folder" in line

    def test_device_and_dtype_that_torch_lacks(self, capsys, target):
        common = ("generate", "-p", PROMPT, "--target", target)
        assert "device='moon' is not allowed" in error_of(capsys, *common, "--device", "moon")
        assert "dtype='int3' is not allowed" in error_of(capsys, *common, "--dtype", "int3")

    def test_more_layers_than_the_target_has(self, capsys, target):
        flags = ("--method", "early_exit", "--exit-layers", "99")
        line = error_of(capsys, "generate", "-p", PROMPT, "--target", target, *flags)
        assert "--exit-layers=99 is not allowed: expected an integer in 1.." in line

    def test_lookup_shorter_than_its_minimum(self, capsys, target):
        flags = ("--prompt-lookup-max", "2", "--prompt-lookup-min", "3")
        line = error_of(capsys, "generate", "-p", PROMPT, "--target", target, *flags)
        assert "prompt_lookup_min=3 is not allowed" in line

    def test_prompt_longer_than_the_context(self, capsys, target):
        line = error_of(capsys, "generate", "-p", "x" * 70, "--target", target, "-m", "8")
        assert "70 tokens" in line
        assert "the target's context of 64 tokens; shorten the prompt" in line
        line = error_of(capsys, "generate", "-p", "x" * 60, "--target", target, "-m", "8")
        assert "use max_tokens <= 4" in line

    def test_logits_that_are_not_numbers(self, capsys, folder):
        broken = str(_save(folder / "nan", broken=BROKEN))
        line = error_of(capsys, "generate", "-p", BROKEN, "--target", broken, "-m", "4")
        assert "the target's logits" in line
        assert "NaN" in line
        assert "check the model's weights" in line

    def test_weights_file_that_is_cut_short(self, capsys, folder):
        cut = _save(folder / "cut")
        weights = cut / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:1000])
        line = error_of(capsys, "generate", "-p", PROMPT, "--target", str(cut))
        assert f"cannot load the model '{cut}'" in line
        assert "complete weights" in line

    def test_debug_shows_the_traceback(self, capsys):
        assert run("generate", "-p", "", "--debug") == 2
        err = capsys.readouterr().err
        assert err.startswith("Traceback")
        assert err.splitlines()[-1].startswith("outrider: error: the prompt ''")

    def test_interrupt_is_one_line_and_status_130(self, capsys, monkeypatch):
        def interrupt(*args: object) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr("outrider.cli.generate.given_or_piped_prompt", interrupt)
        assert run("generate", "-p", PROMPT) == 130
        assert capsys.readouterr().err == "outrider: error: interrupted\n"


class TestProgram:
    def test_version(self, capsys):
        assert re.fullmatch(r"outrider \d+\.\d+\.\d+\n", printed(capsys, "--version"))

    def test_help_lists_commands_and_the_records_defaults(self, capsys):
        assert "generate" in printed(capsys, "--help")
        text = " ".join(printed(capsys, "generate", "--help").split())
        assert "the most tokens to emit (default: 128)" in text
        assert "keep the likeliest tokens up to this mass, in (0, 1] (default: 1.0)" in text

    def test_bad_flags_and_help_load_no_framework(self):
        code = (
            "import sys, contextlib\n"
            "from outrider.cli import main\n"
            "for args in (['--help'], ['generate', '--help'], ['demo', '-k', '-1']):\n"
            "    with contextlib.suppress(SystemExit):\n"
            "        main(args)\n"
            "assert main(['generate', '-p', '']) == 2\n"
            "heavy = {'torch', 'transformers', 'numpy', 'rich'} & set(sys.modules)\n"
            "sys.exit(f'loaded {heavy}' if heavy else 0)\n"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr

    def test_module_is_the_command(self):
        command = [sys.executable, "-m", "outrider", "generate", "-k", "-1"]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 2
        assert done.stderr.startswith("outrider: error: argument -k/--num-speculative-tokens: '-1'")
