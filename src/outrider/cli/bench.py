"""`outrider bench`: what speculation is worth, measured beside plain decoding and other systems."""

from __future__ import annotations

import sys
from argparse import SUPPRESS, ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, get_args

from ..config.params import SpeculativeConfig, Verification
from ..errors import InvalidConfigError
from . import options
from .ending import Ending, terminable
from .paint import wants_color

if TYPE_CHECKING:
    from rich.console import Console

    from ..bench.matrix import Matrix
    from ..bench.records import BenchResult, Workload
    from ..bench.workload import Lines
    from ..engine.loading import Pair
    from .models import Loaded

FORMATS = ("json", "jsonl", "md", "csv")

USUAL: dict[str, Any] = {
    "workloads": ("code", "editing", "json", "quote", "chat", "random"),
    "drafters": None,
    "exits": (),
    "verifications": ("block",),
    "depths": (4, None),
    "trees": (),
    "temperatures": (0.0, 0.8),
    "batches": (1,),
    "max_tokens": 128,
    "count": 4,
    "repeats": 1,
    "peers": ("transformers", "llama.cpp"),
}
QUICK = USUAL | {
    "workloads": ("code", "json", "random"),
    "depths": (None,),
    "max_tokens": 40,
}
"""What is measured unless flags say otherwise, and with --quick."""

_DRAFTERS = (*options.DRAFTERS, "early_exit", "prediction")


def configure(parser: ArgumentParser) -> None:
    """Add the flags of this subcommand."""
    parser.description = (
        "Measure what speculation is worth. All contenders decode the same prompts in turn, in one "
        "process, beside plain decoding (the same engine at depth 0) and other systems on the same "
        "weights. Tokens are counted from ids; end-of-text is ignored. Clocks run from the request "
        "to the last token, but for the target's reading of the prompt. --dtype takes several, "
        "with commas between. Ctrl-C and SIGTERM keep what was measured."
    )
    parser.set_defaults(
        run=run,
        method=None,
        usual_method="draft_model",
        prompt_lookup_max=None,
        prompt_lookup_min=None,
        exit_layers=None,
    )
    parser.add_argument(
        "--quick", action="store_true", help="a small matrix, with plots and a page, in minutes"
    )
    options.add_model_flags(parser)
    prompts = parser.add_argument_group("prompts")
    which = prompts.add_mutually_exclusive_group()
    _add_list(
        which,
        "--workloads",
        "workloads",
        _among("workloads", USUAL["workloads"]),
        "KIND,...",
        "built-in kinds of prompts",
    )
    which.add_argument(
        "--prompts",
        metavar="FILE",
        help="JSONL instead: rows with a prompt, Spec-Bench's, or OpenAI batch requests",
    )
    _add_number(prompts, "--prompts-per-workload", "count", "built-in prompts of each kind")
    _add_number(prompts, "-m, --max-tokens", "max_tokens", "to emit, where a row does not say")
    matrix = parser.add_argument_group(
        "matrix",
        "Every drafter with every verification, at every depth and shape, each under every regime.",
    )
    _add_list(
        matrix,
        "--drafters",
        "drafters",
        _among("drafters", _DRAFTERS),
        "NAME,...",
        f"of {', '.join(_DRAFTERS)} (default: draft_model and hybrid, or without a draft suffix "
        "and ngram); prediction and hybrid look at the prediction in a row of --prompts",
    )
    _add_list(
        matrix,
        "--exit-layers",
        "exits",
        options.integer_from(1),
        "N,...",
        "early_exit: how many of the target's first layers draft",
    )
    _add_list(
        matrix,
        "--verification",
        "verifications",
        _among("verification", get_args(Verification)),
        "NAME,...",
        "how checked",
    )
    _add_list(matrix, "-k, --k", "depths", _depth, "K,...", "tokens drafted in a row, or adaptive")
    _add_list(
        matrix,
        "--trees",
        "trees",
        _tree,
        "SHAPE,...",
        "such as 2x2x1, children by depth",
        hint=", and x between the numbers of a shape, such as 2x2x1",
    )
    _add_list(matrix, "--temps", "temperatures", options.temperature, "T,...", "a regime each")
    _add_list(
        matrix,
        "--batches",
        "batches",
        options.integer_from(1),
        "N,...",
        "sequences together, a regime each",
    )
    _add_number(matrix, "--repeats", "repeats", "of every prompt")
    _add_list(
        matrix,
        "--peers",
        "peers",
        _among("peers", (*USUAL["peers"], "none")),
        "NAME,...",
        "of transformers, llama.cpp; or none. With peers contenders take turns by whole requests, "
        "without them by rounds, which a noisy machine disturbs less",
    )
    _add_list(
        matrix,
        "--peer-k",
        "peer_depths",
        _depth,
        "K,...",
        "depths of peers; adaptive is what they do by themselves (default: as -k, and adaptive)",
    )
    options.add_output_flags(parser, "all measurements", "which contenders are faster")
    output = parser.add_argument_group("files")
    output.add_argument(
        "--out",
        metavar="DIR",
        help="write result.json, .md, .csv, plots and a page into this folder "
        "(default: with --quick a new one, outrider-bench-DATE; else nothing is written)",
    )
    for name, what in (
        ("jsonl", "a line of JSON a measurement"),
        ("md", "Markdown"),
        ("csv", "CSV"),
    ):
        output.add_argument(f"--{name}", action="store_true", help=f"print {what}, and no table")


def run(args: Namespace) -> int:
    """Measure, print the table, and write the files; 130 or 143 if it was interrupted."""
    form = _form(args)
    settings = _settings(args)
    with terminable() as ending:
        return _run(args, form, settings, ending)


def _run(args: Namespace, form: str | None, settings: Namespace, ending: Ending) -> int:
    from rich.console import Console

    from .bench_files import Folder

    console = Console(stderr=True)
    with Folder.prepared(args.out, quick=args.quick) as folder:
        try:
            result = _measure(args, settings, console, ending)
            if not result.measurements:
                raise ending.kind
        except KeyboardInterrupt as interrupt:
            raise type(interrupt)(f"{ending.told} before anything was measured") from None
        if folder is not None:
            folder.write(result)
        _show(result, form, args)
        sys.stdout.flush()
        ending.release()
        if folder is not None:
            with console.status("drawing"):
                folder.draw(result)
            print(f"written to {folder.path}", file=sys.stderr)
    if result.partial:
        print("outrider: interrupted; this is what had been measured", file=sys.stderr)
        return ending.status
    return 0


def _measure(args: Namespace, settings: Namespace, console: Console, ending: Ending) -> BenchResult:
    """Measure; signals wait from there on."""
    from ..bench.provenance import provenance
    from ..bench.run import run as run_matrix
    from ..bench.workload import lines_of
    from .models import load
    from .screen import progress

    def load_in(dtype: str | None) -> Loaded:
        asked = Namespace(**vars(args) | {"dtype": dtype})
        return load(asked, console, max_sequences=max(settings.batches))

    # What is wrong with a file is known before a model is loaded.
    lines = None if args.prompts is None else lines_of(args.prompts)
    first, *others = settings.dtypes
    loaded = load_in(first)
    pair = _pair(loaded)
    if settings.drafters is None:
        with_model = ("draft_model",) if settings.lossy else ("draft_model", "hybrid")
        settings.drafters = ("suffix", "ngram") if pair.model_drafter is None else with_model
    workloads = _workloads(args, lines, settings, pair)
    predictions = {
        each.name: sum(prompt.prediction is not None for prompt in each.prompts)
        for each in workloads
    }
    if "prediction" in settings.drafters and not any(predictions.values()):
        what = f"{args.prompts} has no row that can be used with a prediction"
        raise InvalidConfigError("prompts", args.prompts, '"prediction" in its rows', given=what)
    dtype = str(loaded.facts["dtype"])
    matrix = _matrix(settings, (dtype, *others))
    models = {name: loaded.facts[name] for name in ("target", "draft", "device")}
    models["dtype"] = ", ".join(matrix.dtypes)
    template = getattr(pair.tokenizer, "chat_template", None)
    told = {
        "quick": args.quick,
        "prompts": {each.name: len(each.prompts) for each in workloads},
        "predictions": {name: count for name, count in predictions.items() if count},
        "max_tokens": matrix.max_tokens,
        "repeats": matrix.repeats,
        "messages": "the chat template" if template else "contents alone: no chat template",
    }
    with progress(console, "timing") as advance:
        result = run_matrix(
            matrix,
            workloads,
            lambda name: pair if name == dtype else _pair(load_in(name)),
            provenance(models, told),
            advance,
        )
        ending.hold()
    return result


def _show(result: BenchResult, form: str | None, args: Namespace) -> None:
    from ..bench import documents, tables

    if form is None:
        from .screen import standard_output

        console = standard_output(wants_color(args.color))
        console.print(tables.rendered(result, console.width))
        return
    writers: dict[str, Callable[[BenchResult], str]] = {
        "json": documents.as_json,
        "jsonl": documents.as_jsonl,
        "md": tables.as_markdown,
        "csv": documents.as_csv,
    }
    print(writers[form](result).rstrip("\n"))


def _form(args: Namespace) -> str | None:
    chosen = [name for name in FORMATS if getattr(args, name)]
    if len(chosen) > 1:
        raise InvalidConfigError(f"--{chosen[1]}", True, f"one format; drop --{chosen[0]}")
    return chosen[0] if chosen else None


def _settings(args: Namespace) -> Namespace:
    """What is to be measured: the flags, and the usual in the place of those not given.

    Raises:
        InvalidConfigError: flags contradict each other.
    """
    options.speculation_method(args)
    usual = QUICK if args.quick else USUAL
    given = {name: value for name, value in vars(args).items() if name in usual}
    found = Namespace(**usual | given)
    if found.peers == ("none",):
        found.peers = ()
    found.dtypes = (None,) if args.dtype is None else tuple(args.dtype.split(","))
    depths = given.get("depths", usual["depths"])
    found.peer_depths = getattr(args, "peer_depths", tuple(dict.fromkeys((*depths, None))))
    found.lossy = [
        name for name in found.verifications if SpeculativeConfig(verification=name).lossy
    ]
    if found.lossy and "hybrid" in (found.drafters or ()):
        raise InvalidConfigError(
            "--drafters",
            "hybrid",
            f"draft_model beside --verification {found.lossy[0]}, which takes a model's drafts "
            "alone",
        )
    if "prediction" in (found.drafters or ()) and args.prompts is None:
        wanted = '--prompts FILE beside it, with "prediction" in its rows'
        raise InvalidConfigError("--drafters", "prediction", wanted)
    exits = "early_exit" in (found.drafters or ())
    if exits and not found.exits:
        raise InvalidConfigError("--drafters", "early_exit", "--exit-layers N beside it")
    if found.exits and not exits:
        asked = ",".join(map(str, found.exits))
        raise InvalidConfigError("--exit-layers", asked, "--drafters early_exit beside it")
    if args.prompts is not None and "count" in given:
        raise InvalidConfigError(
            "--prompts-per-workload", found.count, "none beside --prompts: all rows are measured"
        )
    return found


def _matrix(settings: Namespace, dtypes: tuple[str, ...]) -> Matrix:
    from ..bench.contending import contenders
    from ..bench.matrix import Matrix

    return Matrix(
        contenders=contenders(
            settings.drafters,
            settings.exits,
            settings.verifications,
            settings.depths,
            settings.trees,
        ),
        temperatures=settings.temperatures,
        batches=settings.batches,
        dtypes=dtypes,
        max_tokens=settings.max_tokens,
        repeats=settings.repeats,
        peers=settings.peers,
        peer_depths=settings.peer_depths,
        curve_rows=tuple(sorted({1, *settings.batches})),
    )


def _workloads(
    args: Namespace, lines: Lines | None, settings: Namespace, pair: Pair
) -> tuple[Workload, ...]:
    from ..bench.workload import built_in, read

    if args.prompts is not None:
        return (read(args.prompts, pair.tokenizer, lines),)
    return built_in(settings.workloads, pair.tokenizer, pair.target.vocab_size, settings.count)


def _pair(loaded: Loaded) -> Pair:
    from ..drafters.model import ModelDrafter
    from ..drafters.vocabulary.drafter import VocabularyDrafter
    from ..engine.loading import Pair

    drafter = loaded.drafter
    model = drafter if isinstance(drafter, ModelDrafter | VocabularyDrafter) else None
    return Pair(loaded.target, model, loaded.tokenizer)


def _add_number(group: Any, flags: str, name: str, text: str) -> None:
    group.add_argument(
        *flags.split(", "),
        dest=name,
        type=options.integer_from(1),
        default=SUPPRESS,
        metavar="N",
        help=f"{text} (default: {_default(name)})",
    )


def _add_list(
    group: Any,
    flags: str,
    name: str,
    parse: Callable[[str], object],
    metavar: str,
    text: str,
    hint: str = "",
) -> None:
    """A flag with several values, commas between; one that is not given is not in the result."""
    known = f" (default: {_default(name)})" if USUAL.get(name) else ""
    group.add_argument(
        *flags.split(", "),
        dest=name,
        type=options.listed(parse, hint=hint),
        default=SUPPRESS,
        metavar=metavar,
        help=text + known,
    )


def _default(name: str) -> str:
    value = USUAL[name]
    if not isinstance(value, tuple):
        return str(value)
    return ",".join("adaptive" if each is None else str(each) for each in value)


def _depth(text: str) -> int | None:
    if text == "adaptive":
        return None
    depth = int(text) if text.isdecimal() else 0
    if depth < 1:
        raise InvalidConfigError("k", text, "an integer >= 1, or adaptive; plain always takes part")
    return depth


def _tree(text: str) -> tuple[int, ...]:
    parts = text.split("x")
    shape = tuple(int(part) if part.isdecimal() else 0 for part in parts)
    if min(shape) < 1:
        raise InvalidConfigError("trees", text, "children at each depth, such as 2x2x1")
    SpeculativeConfig(tree_shape=shape)
    return shape


def _among(name: str, names: Sequence[str]) -> Callable[[str], str]:
    def convert(text: str) -> str:
        if text not in names:
            raise InvalidConfigError(name, text, f"one of {', '.join(names)}")
        return text

    return convert
