"""The flags that subcommands share, and the records that they make.

A flag that sets a field of `SamplingParams` or `SpeculativeConfig` takes its default from that
record and is checked by it, so that a bad value is refused before anything is loaded.
"""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError, Namespace, _ArgumentGroup
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any, get_args

from ..config.params import (
    Depth,
    DraftSampleMethod,
    SamplingParams,
    SpeculativeConfig,
    TreeChildren,
    Verification,
)
from ..errors import InvalidConfigError
from .config_file import add_config_flag

DRAFTERS = ("draft_model", "ngram", "suffix", "hybrid")
METHODS = (*DRAFTERS, "early_exit", "none")

_LOSSY = (
    ("lenience", "lenient", "no token becomes more than 1/X times as likely"),
    ("typical_epsilon", "typical", "keep tokens above the lesser of X and delta exp(-entropy)"),
    ("typical_delta", "typical", "see --typical-epsilon"),
    ("mixture_budget", "mixture", "the total variation that a token's distribution may move"),
)
"""Fields of lossy methods: the method of each, and what it does."""

_OF_TREES = ("tree_shape", "tree_budget", "tree_children")
_WITHOUT_EFFECT: dict[str, tuple[str, ...]] = {
    "none": ("num_speculative_tokens", "depth", "cost_ratio", "draft_sample_method", *_OF_TREES),
    "ngram": ("draft_sample_method", *_OF_TREES),
    "suffix": ("draft_sample_method", "tree_children"),
    "prediction": ("draft_sample_method", *_OF_TREES),
}
"""Fields that do nothing with some methods."""

Record = type[SamplingParams] | type[SpeculativeConfig]


def add_prompt_flags(parser: ArgumentParser, otherwise: str) -> None:
    """Where the prompt comes from; `otherwise` says what happens without a flag."""
    group = parser.add_argument_group("prompt", f"Without one of these: {otherwise}.")
    one = group.add_mutually_exclusive_group()
    one.add_argument("-p", "--prompt", metavar="TEXT", help="the prompt; - reads standard input")
    one.add_argument(
        "-f", "--file", metavar="PATH", help="a UTF-8 file, the whole of it one prompt"
    )


def add_model_flags(parser: ArgumentParser) -> None:
    """Which models are loaded, and where."""
    group = parser.add_argument_group("models")
    group.add_argument(
        "--target",
        default="demo",
        metavar="MODEL",
        help="demo, a local folder or a hub id (default: demo, a small pair that ships with it)",
    )
    group.add_argument("--draft", metavar="MODEL", help="a local folder or a hub id")
    group.add_argument("--dtype", help="of both models (default: auto, each checkpoint's own)")
    group.add_argument("--device", help="as torch names it (default: cuda if there is any)")


def add_speculation_flags(parser: ArgumentParser, methods: Sequence[str] = METHODS) -> None:
    """How speculation is done, by one of some methods, and a file that may say so."""
    add_config_flag(parser)
    parser.set_defaults(usual_method="hybrid")
    group = parser.add_argument_group(
        "speculation",
        "None of it changes the distribution of the output, but for the verifications typical, lenient and "
        "mixture, whose figures say lossy.",
    )
    group.add_argument(
        "--method",
        choices=methods,
        help="what proposes tokens (default: hybrid, the draft model beside a look-up of what came "
        "before, if there is a draft; draft_model for trees, a depth that does not go by measured "
        "costs and lossy methods; ngram without a draft)",
    )
    group.add_argument(
        "--exit-layers",
        type=integer_from(1),
        metavar="N",
        help="early_exit: how many of the target's first layers draft, followed by its head; pays "
        "for models that were trained to be left early",
    )
    group.add_argument(
        "--strict",
        action="store_true",
        help="end with an error where a drafter fails, in place of going on without its drafts",
    )
    add_field_flag(
        group,
        SpeculativeConfig,
        "num_speculative_tokens",
        *("-k", "--num-speculative-tokens"),
        parse=int,
        metavar="K",
        text="the most tokens drafted in a row; 0 for none (default: 16; 4 with --depth fixed)",
    )
    add_field_flag(
        group,
        SpeculativeConfig,
        "depth",
        "--depth",
        metavar=_choices(Depth),
        text="draft K tokens every round, as far as pays by measured costs and acceptance, or "
        "while the draft is sure enough",
    )
    add_field_flag(
        group,
        SpeculativeConfig,
        "cost_ratio",
        "--cost-ratio",
        parse=float,
        metavar="X",
        text="a draft step's cost beside a plain forward: adaptive, for sampling with a --seed; "
        "confidence",
    )
    add_field_flag(
        group,
        SpeculativeConfig,
        "verification",
        "--verification",
        metavar=_choices(Verification),
        text="how drafts are checked; on trees block is traversal, and token recursive",
    )
    add_field_flag(
        group,
        SpeculativeConfig,
        "draft_sample_method",
        "--draft-sample-method",
        metavar=_choices(DraftSampleMethod),
        text="draw drafts from the draft's distribution, or take its most likely token",
    )
    add_field_flag(
        group,
        SpeculativeConfig,
        "tree_shape",
        "--tree-shape",
        parse=_integers,
        metavar="N,N,...",
        text="draft trees: how many children a node has at each depth, such as 2,2,1,1",
    )
    add_field_flag(
        group,
        SpeculativeConfig,
        "tree_budget",
        "--tree-budget",
        parse=int,
        metavar="N",
        text="draft trees of N nodes, grown where the draft is surest",
    )
    add_field_flag(
        group,
        SpeculativeConfig,
        "tree_children",
        "--tree-children",
        metavar=_choices(TreeChildren),
        text="the likeliest tokens and one drawn from the rest, or (with --tree-shape) all drawn",
    )
    for field, method, text in _LOSSY:
        add_field_flag(
            group,
            SpeculativeConfig,
            field,
            "--" + field.replace("_", "-"),
            parse=float,
            metavar="X",
            text=f"{method}: {text}",
        )
    for name, which in (("max", "longest"), ("min", "shortest")):
        group.add_argument(
            f"--prompt-lookup-{name}",
            type=integer_from(1),
            metavar="N",
            help=f"ngram: the {which} run of last tokens that is looked up",
        )


def add_distribution_flags(group: _ArgumentGroup) -> None:
    """What the distribution of a token is made of, the temperature aside, and the seed."""
    add_field_flag(
        group,
        SamplingParams,
        "top_p",
        "--top-p",
        parse=float,
        metavar="P",
        text="keep the likeliest tokens up to this mass, in (0, 1]",
    )
    add_field_flag(
        group,
        SamplingParams,
        "top_k",
        "--top-k",
        parse=int,
        metavar="K",
        text="keep the K likeliest tokens; 0 keeps all",
    )
    add_field_flag(
        group,
        SamplingParams,
        "min_p",
        "--min-p",
        parse=float,
        metavar="P",
        text="keep tokens at least P times as likely as the likeliest, in [0, 1]",
    )


def add_output_flags(
    parser: ArgumentParser, document: str, colored: str = "tokens by origin"
) -> _ArgumentGroup:
    """How results are shown, and errors; `document` says what JSON holds, `colored` what colour.

    Returns:
        Their group, for flags of a subcommand's own.
    """
    group = parser.add_argument_group("output")
    group.add_argument("--json", action="store_true", help=f"print one JSON object: {document}")
    group.add_argument(
        "--color",
        choices=("auto", "always", "never"),
        default="auto",
        help=f"colour {colored} (default: auto, on a terminal unless NO_COLOR is set)",
    )
    group.add_argument("--debug", action="store_true", help="show the traceback of an error")
    return group


def add_field_flag(
    group: _ArgumentGroup,
    record: Record,
    field: str,
    *flags: str,
    text: str,
    metavar: str,
    parse: Callable[[str], object] = str,
    default: Any = None,
) -> None:
    """Add the flag of one field of a record.

    Args:
        group: where the flag is listed.
        record: gives the default and says what is allowed.
        field: of the record, and of the parsed arguments.
        flags: the names of the flag.
        text: its help; the default is added to it.
        metavar: stands for the value in the help.
        parse: makes a value of the text; a ValueError leaves the record to refuse the text.
        default: takes the place of the record's own.
    """
    default = _defaults(record)[field] if default is None else default
    shown = " and ".join(map(str, default)) if isinstance(default, tuple) else default
    known = "" if default is None else f" (default: {shown})"
    convert = _converter(record, field, parse)
    group.add_argument(
        *flags, dest=field, type=convert, default=default, metavar=metavar, help=text + known
    )


def integer_from(least: int) -> Callable[[str], int]:
    """A converter of flags to integers that are not below `least`."""

    def convert(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if value < least:
            raise ArgumentTypeError(f"{text!r} is not allowed: expected an integer >= {least}")
        return value

    return convert


def listed(
    parse: Callable[[str], object], *, once: bool = True, hint: str = ""
) -> Callable[[str], tuple[Any, ...]]:
    """A converter of flags to items that have commas between them.

    Args:
        parse: makes an item of its text; an InvalidConfigError says what it has to be, another
            ValueError that it has to be a number.
        once: whether an item may come only once.
        hint: what is said where one comes twice.
    """

    def convert(text: str) -> tuple[Any, ...]:
        values = []
        for part in text.split(","):
            try:
                values.append(parse(part.strip()))
            except ValueError as error:
                reason = error.expected if isinstance(error, InvalidConfigError) else "a number"
                raise ArgumentTypeError(f"{part!r} is not allowed: expected {reason}") from error
        if once and len(set(values)) < len(values):
            raise ArgumentTypeError(f"{text!r} is not allowed: expected each only once{hint}")
        return tuple(values)

    return convert


def drafter(name: str) -> str:
    """One of `DRAFTERS`."""
    if name not in DRAFTERS:
        raise InvalidConfigError("--drafters", name, f"some of {', '.join(DRAFTERS)}")
    return name


def temperature(text: str) -> float:
    """A temperature, for `listed`."""
    return SamplingParams(temperature=float(text)).temperature


def sampling_params(args: Namespace, **others: Any) -> SamplingParams:
    """The sampling parameters that were asked for; `others` take precedence."""
    return SamplingParams(**(_given(SamplingParams, args) | others))


def speculative_config(args: Namespace) -> SpeculativeConfig:
    """How speculation was asked to be done.

    Raises:
        InvalidConfigError: flags contradict each other.
    """
    config = SpeculativeConfig(**_given(SpeculativeConfig, args))
    usual = _defaults(SpeculativeConfig)
    for field, method, _ in _LOSSY:
        value = getattr(config, field)
        if value != usual[field] and config.verification != method:
            flag = "--" + field.replace("_", "-")
            remedy = f"--verification {method} beside it; or drop the flag"
            raise InvalidConfigError(flag, value, remedy)
    if config.tree_children != usual["tree_children"] and not config.drafts_trees:
        raise InvalidConfigError(
            "--tree-children", config.tree_children, "--tree-shape beside it; or drop the flag"
        )
    if config.cost_ratio is not None and config.depth == "fixed":
        raise _contradiction("--cost-ratio", config.cost_ratio, "--depth fixed")
    return config


def speculation_method(args: Namespace) -> str:
    """What proposes tokens.

    Raises:
        InvalidConfigError: `--method` contradicts other flags, or they have no effect with it.
    """
    available = args.draft is not None or args.target == "demo"
    config = SpeculativeConfig(**_given(SpeculativeConfig, args))
    usual_method = args.usual_method
    if config.depth != "adaptive" or config.drafts_trees or config.lossy:
        usual_method = "draft_model"
    method: str = args.method or (usual_method if available else "ngram")
    with_model = method in ("draft_model", "hybrid")
    if with_model and not available:
        raise InvalidConfigError("--method", method, "--draft MODEL beside it, or --method ngram")
    if not with_model and args.draft is not None:
        raise _contradiction("--draft", args.draft, f"--method {method}")
    given, usual = _given(SpeculativeConfig, args), _defaults(SpeculativeConfig)
    idle = list(_WITHOUT_EFFECT.get(method, ()))
    if method == "none" and given.get("verification") != "coupled":
        # Coupled noise gives a seed another text, drafted or not.
        idle.append("verification")
    for field in idle:
        if given.get(field, usual[field]) != usual[field]:
            flag = "--" + field.replace("_", "-")
            raise _contradiction(flag, given[field], f"--method {method}")
    for flag, value in (
        ("--prompt-lookup-max", args.prompt_lookup_max),
        ("--prompt-lookup-min", args.prompt_lookup_min),
    ):
        if method != "ngram" and value is not None:
            raise InvalidConfigError(flag, value, f"none with --method {method}; drop the flag")
    if method == "early_exit" and args.exit_layers is None:
        raise InvalidConfigError("--method", method, "--exit-layers N beside it")
    if method != "early_exit" and args.exit_layers is not None:
        raise _contradiction("--exit-layers", args.exit_layers, f"--method {method}")
    return method


def _contradiction(flag: str, value: object, other: str) -> InvalidConfigError:
    return InvalidConfigError(flag, value, f"none with {other}; drop one of the two flags")


def _converter(
    record: Record, field: str, parse: Callable[[str], object]
) -> Callable[[str], object]:
    def convert(text: str) -> object:
        value: Any
        try:
            value = parse(text)
        except ValueError:
            value = text
        try:
            record(**{field: value})
        except InvalidConfigError as error:
            raise ArgumentTypeError(
                f"{text!r} is not allowed: expected {error.expected}"
            ) from error
        return value

    return convert


def _defaults(record: Record) -> dict[str, Any]:
    return {field.name: field.default for field in fields(record)}


def _given(record: Record, args: Namespace) -> dict[str, Any]:
    flags = vars(args)
    return {name: flags[name] for name in _defaults(record) if name in flags}


def _integers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


def _choices(kind: Any) -> str:
    return "{" + ",".join(get_args(kind)) + "}"
