"""The flags of one request: what the distribution of its tokens is, when it ends, what is told of it.

A function for each group of the help. Values are checked as they are read, so that a bad one is
refused before anything is loaded; what needs a tokenizer is made once there is one.
"""

from __future__ import annotations

import re
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..config.params import SamplingParams
from ..config.structured import StructuredOutput
from ..errors import InvalidConfigError, shown
from .options import (
    add_distribution_flags,
    add_field_flag,
    integer_from,
    speculation_method,
    speculative_config,
)

_BIAS = re.compile(r"(\d+)(?:=|(?=[+-]))(.+)")


def add_sampling_flags(parser: ArgumentParser) -> None:
    """How tokens are drawn."""
    group = parser.add_argument_group("sampling")
    add_field_flag(
        group,
        SamplingParams,
        "temperature",
        *("--temp", "--temperature"),
        parse=float,
        metavar="T",
        text="divides the logits; 0 is greedy decoding",
    )
    add_distribution_flags(group)
    add_field_flag(
        group,
        SamplingParams,
        "seed",
        "--seed",
        parse=int,
        metavar="N",
        text="makes the output repeatable (default: a fresh one, which is reported)",
    )
    add_field_flag(
        group,
        SamplingParams,
        "n",
        "-n",
        parse=int,
        metavar="N",
        text="how many continuations to produce",
    )


def add_shaping_flags(parser: ArgumentParser) -> None:
    """What makes tokens likelier or less likely, or forbids them, before the temperature."""
    group = parser.add_argument_group(
        "penalties, biases and bans",
        "Applied to the logits before the temperature. Those that look at earlier tokens see "
        "drafted ones as if they had been emitted.",
    )
    add_field_flag(
        group,
        SamplingParams,
        "repetition_penalty",
        "--repetition-penalty",
        parse=float,
        metavar="X",
        text="makes tokens of the prompt or the output less likely above 1, likelier below",
    )
    for name, when in (
        ("presence", "once if the output has the token"),
        ("frequency", "for each time the output has the token"),
    ):
        add_field_flag(
            group,
            SamplingParams,
            f"{name}_penalty",
            f"--{name}-penalty",
            parse=float,
            metavar="X",
            text=f"taken from a logit {when}, in [-2, 2]",
        )
    group.add_argument(
        "--logit-bias",
        type=_bias,
        action="append",
        default=[],
        metavar="ID=X",
        help="add X, in [-100, 100], to the logit of a token id, as --json shows them; also "
        "written ID+X and ID-X; may be repeated",
    )
    group.add_argument(
        "--bad-words",
        dest="bad_texts",
        type=_text("bad_words"),
        action="append",
        default=[],
        metavar="TEXT",
        help="never emit the tokens that the tokenizer makes of TEXT, or of TEXT after a space "
        "(the same letters may still come in other tokens); may be repeated",
    )


def add_structure_flags(parser: ArgumentParser) -> None:
    """What form the text is to have."""
    group = parser.add_argument_group(
        "structured output",
        "The form that the text is to have; one of these. Tokens that would leave it are "
        "forbidden, for drafts and target alike. The text is whole if it ends by itself, and cut "
        "if --max-tokens or a stop string ends it.",
    )
    one = group.add_mutually_exclusive_group()
    one.add_argument(
        "--json-schema",
        dest="structured_output",
        type=_schema,
        metavar="PATH|JSON",
        help="JSON of this schema, given as a file or as JSON text; '{}' is any JSON",
    )
    one.add_argument(
        "--regex",
        dest="structured_output",
        type=lambda text: _form(text, regex=text),
        metavar="REGEX",
        help="a text that all of this regular expression matches, in the syntax of Rust's regex",
    )
    one.add_argument(
        "--grammar",
        dest="structured_output",
        type=_grammar,
        metavar="PATH",
        help="a text of the grammar in this file, in llguidance's dialect of Lark; it has a rule "
        "'start'",
    )
    one.add_argument(
        "--choice",
        dest="choices",
        type=_text("choice"),
        action="append",
        default=[],
        metavar="TEXT",
        help="one of several texts, each with a flag of its own",
    )


def structured_output(args: Namespace) -> StructuredOutput | None:
    """The form that was asked for, if any."""
    if args.choices:
        return StructuredOutput(choice=tuple(args.choices))
    found: StructuredOutput | None = args.structured_output
    return found


def add_stopping_flags(parser: ArgumentParser) -> None:
    """When a request ends."""
    group = parser.add_argument_group("stopping")
    for name, flags, text in (
        ("max_tokens", ("-m", "--max-tokens"), "the most tokens to emit"),
        ("min_tokens", ("--min-tokens",), "stop tokens and strings end nothing before this many"),
    ):
        add_field_flag(group, SamplingParams, name, *flags, parse=int, metavar="N", text=text)
    group.add_argument(
        "--stop",
        type=_text("stop"),
        action="append",
        default=[],
        metavar="TEXT",
        help="stop once the output holds this text, and cut it off; may be repeated (in bash, "
        "$'\\n' is a newline)",
    )
    group.add_argument(
        "--stop-token-ids",
        "--stop-token-id",
        dest="stop_token_ids",
        type=_token_ids,
        action="extend",
        default=[],
        metavar="ID[,ID...]",
        help="stop after one of these tokens; may be repeated",
    )
    group.add_argument(
        "--ignore-eos", action="store_true", help="go on at the model's own end-of-text tokens"
    )


def add_prediction_flag(parser: ArgumentParser) -> None:
    """What the output is expected to be."""
    parser.add_argument_group("prediction").add_argument(
        "--prediction",
        type=_text_or_file,
        metavar="TEXT",
        help="a text that the output is expected to resemble, drafted from with --method hybrid, "
        "or with --method prediction, which needs no draft; @PATH reads a UTF-8 file",
    )


def add_report_flags(parser: ArgumentParser) -> None:
    """What is told of each token."""
    add_field_flag(
        parser.add_argument_group("report"),
        SamplingParams,
        "logprobs",
        "--logprobs",
        parse=int,
        metavar="N",
        text="tell each token's log-probability under the target's raw logits, and the N likeliest "
        "tokens, in [0, 20]; on standard error, or in the JSON object",
    )


def bad_words(texts: Sequence[str], tokenizer: Any) -> tuple[tuple[int, ...], ...]:
    """The tokens of each text, as it is and after a space: most tokenizers write these differently.

    Raises:
        InvalidConfigError: the tokenizer makes no tokens of a text.
    """
    found: dict[tuple[int, ...], None] = {}
    for text in texts:
        for spelled in (text, " " + text.lstrip(" ")):
            ids = tuple(tokenizer.encode(spelled, add_special_tokens=False))
            if not ids:
                raise InvalidConfigError("--bad-words", text, "a text that has tokens")
            found[ids] = None
    return tuple(found)


def check_together(args: Namespace) -> None:
    """Refuse what the models' own limits need not be known for.

    Raises:
        InvalidConfigError: flags contradict each other.
    """
    if args.min_tokens > args.max_tokens:
        raise InvalidConfigError(
            "--min-tokens", args.min_tokens, f"at most --max-tokens {args.max_tokens}"
        )
    if args.prediction is not None and speculation_method(args) not in ("hybrid", "prediction"):
        raise InvalidConfigError("--prediction", args.prediction, _remedy(args))
    if args.prediction is None and args.method == "prediction":
        raise InvalidConfigError("--method", args.method, "--prediction TEXT beside it")
    tokens = [token for token, _ in args.logit_bias]
    for token in tokens:
        if tokens.count(token) > 1:
            raise InvalidConfigError("--logit-bias", token, "one bias for each token")


def _remedy(args: Namespace) -> str:
    """What drafts from a prediction beside the other flags."""
    config = speculative_config(args)
    model = args.draft is not None or args.target == "demo"
    ways = ["--method hybrid"] if model and not config.lossy else []
    ways += [] if config.drafts_trees else ["--method prediction"]
    return f"{', or '.join(ways)} beside it" if ways else "none with these other flags"


def _bias(text: str) -> tuple[int, float]:
    """`ID=X`, or `ID+X` and `ID-X` as llama.cpp has it."""
    expected = "a token id and a number in [-100, 100], such as 42=-1.5"
    parts = _BIAS.fullmatch(text)
    try:
        if parts is None:
            raise ValueError
        token, value = int(parts[1]), float(parts[2])
        SamplingParams(logit_bias=((token, value),))
    except ValueError as error:
        raise ArgumentTypeError(f"{text!r} is not allowed: expected {expected}") from error
    return token, value


def _token_ids(text: str) -> tuple[int, ...]:
    return tuple(map(integer_from(0), text.split(",")))


def _text_or_file(text: str) -> str:
    return _read(text[1:]) if text.startswith("@") else _text("prediction")(text)


def _schema(given: str) -> StructuredOutput:
    """A schema of JSON text, which begins with a brace, or of a file."""
    text = given if given.lstrip().startswith("{") else _read(given)
    return _form(given, json_schema=text)


def _grammar(path: str) -> StructuredOutput:
    return _form(path, grammar=_read(path))


def _form(given: str, **form: Any) -> StructuredOutput:
    """The form that a flag's value asks for."""
    try:
        given.encode()
        return StructuredOutput(**form)
    except UnicodeEncodeError:
        expected = "UTF-8"
    except InvalidConfigError as error:
        expected = error.expected
    raise ArgumentTypeError(f"{shown(given)} is not allowed: expected {expected}")


def _read(path: str) -> str:
    try:
        return Path(path).read_bytes().decode()
    except OSError as error:
        reason = error.strerror or type(error).__name__
    except (UnicodeDecodeError, ValueError):
        reason = "it is not UTF-8 text"
    raise ArgumentTypeError(f"{path!r} is not allowed: expected a readable file ({reason})")


def _text(flag: str) -> Callable[[str], str]:
    def convert(text: str) -> str:
        try:
            text.encode()
        except UnicodeEncodeError:
            text = ""
        if not text.strip(" ") if flag == "bad_words" else not text:
            raise ArgumentTypeError(f"{text!r} is not allowed: expected a text in UTF-8, not empty")
        return text

    return convert
