"""`outrider tune`: what speculation is worth for a pair on prompts, and with which settings."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser, Namespace
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..config.params import SamplingParams, SpeculativeConfig
from ..errors import InvalidConfigError
from . import config_file, options, tune_document
from .ending import Ending, terminable
from .paint import wants_color
from .parser import HelpFormatter

if TYPE_CHECKING:
    from ..bench.exports import Export
    from ..bench.records import Contender, Workload
    from ..bench.search import Models, Search
    from ..bench.tune import TuneResult
    from ..bench.workload import Lines
    from .models import Loaded

SYSTEMS = ("vllm", "sglang", "llama.cpp", "transformers")
VERIFIED = 24
"""How many predictions `--verify-all` compares with runs."""

PICTURE = "predicted-vs-measured.png"

_EXAMPLES = """examples:
  outrider tune
  outrider tune --target MODEL --draft MODEL --prompts prompts.jsonl --temp 0.7 --save tuned.toml
  outrider generate --config tuned.toml -p "def fib(n):"
  outrider tune --verify-all --out results
"""


def configure(parser: ArgumentParser) -> None:
    """Add the flags of this subcommand."""
    parser.description = (
        "Find how a pair of models decodes prompts fastest. Round times and acceptance are "
        "measured once; from them the tokens a second of every drafter, verification, depth and "
        "tree are predicted: a draft model's by exact formulae, lookups and hybrids by replaying "
        "them along the target's texts, trees from short runs of each. The best, and the adaptive "
        "default, are run beside plain decoding. Ends in a recommendation, which may be not to "
        "speculate."
    )
    parser.usage = "%(prog)s [--target MODEL --draft MODEL] [--prompts FILE] [flag ...]"
    parser.formatter_class = HelpFormatter
    parser.epilog = _EXAMPLES
    parser.set_defaults(
        run=run,
        method=None,
        usual_method="draft_model",
        prompt_lookup_max=None,
        prompt_lookup_min=None,
        exit_layers=None,
    )
    prompts = parser.add_argument_group("prompts")
    prompts.add_argument(
        "--prompts",
        metavar="FILE",
        help='JSON lines: {"prompt": text}, Spec-Bench or OpenAI batch requests, of which '
        "predictions are not looked at (default: the beginnings of Python files)",
    )
    prompts.add_argument(
        "--max-prompts",
        type=options.integer_from(1),
        default=8,
        metavar="N",
        help="use the first N (default: 8)",
    )
    options.add_model_flags(parser)
    _add_search_flags(parser)
    _add_sampling_flags(parser)
    results = parser.add_argument_group("results")
    results.add_argument(
        "--save", metavar="FILE", help="write what is recommended to a TOML file for --config"
    )
    results.add_argument(
        "--out", metavar="DIR", help=f"write tune.json there, and with matplotlib {PICTURE}"
    )
    results.add_argument(
        "--export",
        dest="exports",
        action="append",
        choices=SYSTEMS,
        help="show the recommendation in this engine's words; may be repeated (default: all)",
    )
    results.add_argument(
        "--verify-all",
        action="store_const",
        const=VERIFIED,
        default=0,
        help=f"compare {VERIFIED} predictions with runs, at all temperatures alike, by formula or "
        "replay where there are as many",
    )
    options.add_output_flags(parser, "all that was measured and predicted", "the report")
    config_file.add_config_flag(
        parser, ("method", "depth", "num-speculative-tokens", "verification", "tree-shape")
    )


def _add_search_flags(parser: ArgumentParser) -> None:
    group = parser.add_argument_group(
        "what is looked at", "A --config file is not asked about these."
    )
    group.add_argument(
        "--drafters",
        type=options.listed(options.drafter),
        metavar="NAME,...",
        help=f"of {', '.join(options.DRAFTERS)} (default: all that the models allow)",
    )
    group.add_argument(
        "--verifications",
        type=options.listed(_verification),
        default=("block", "token"),
        metavar="NAME,...",
        help="lossless methods (default: block,token)",
    )
    group.add_argument(
        "--depths",
        dest="draft_depths",
        type=options.listed(options.integer_from(1)),
        metavar="K,...",
        help="tokens drafted in a row (default: 1 to 8, 12 and 16)",
    )
    trees = group.add_mutually_exclusive_group()
    trees.add_argument(
        "--shape",
        dest="shapes",
        type=options.listed(options.integer_from(1), once=False),
        action="append",
        metavar="N,N,...",
        help="trees: children of a node at each depth; may be repeated (default: three shapes)",
    )
    trees.add_argument(
        "--no-trees", dest="shapes", action="store_const", const=(), help="chains alone"
    )
    group.add_argument(
        "--batch",
        type=options.integer_from(1),
        default=1,
        metavar="N",
        help="sequences decoded together (default: 1)",
    )
    group.add_argument(
        "--checks",
        type=options.integer_from(1),
        default=3,
        metavar="N",
        help="run this many of the best (default: 3)",
    )
    group.add_argument(
        "--repeats",
        type=options.integer_from(1),
        default=2,
        metavar="N",
        help="decode each prompt this often when checking (default: 2)",
    )


def _add_sampling_flags(parser: ArgumentParser) -> None:
    sampling = parser.add_argument_group("sampling")
    sampling.add_argument(
        "--temp",
        "--temperature",
        dest="temperatures",
        type=options.listed(options.temperature),
        default=(0.0, 0.8),
        metavar="T,...",
        help="of requests; what is recommended is best over all of them (default: 0 and 0.8)",
    )
    options.add_distribution_flags(sampling)
    options.add_field_flag(
        sampling,
        SamplingParams,
        "max_tokens",
        *("-m", "--max-tokens"),
        parse=int,
        metavar="N",
        default=96,
        text="tokens of each text; end-of-text is ignored",
    )


def run(args: Namespace) -> int:
    """Measure, predict, check, and print the recommendation; 130 or 143 after an interrupt."""
    _check_outputs(args)
    if args.max_tokens < 2:
        raise InvalidConfigError("--max-tokens", args.max_tokens, "an integer >= 2")
    with terminable() as ending:
        return _run(args, _drafters(args), ending)


def _run(args: Namespace, drafters: tuple[str, ...], ending: Ending) -> int:
    from rich.console import Console

    from ..bench.provenance import provenance
    from ..bench.tune import tune
    from ..bench.workload import lines_of
    from .models import load
    from .screen import progress

    search = _search(args, drafters)
    # What is wrong with a file is known before a model is loaded.
    lines = None if args.prompts is None else lines_of(args.prompts)
    console = Console(stderr=True)
    loaded = load(args, console, max_sequences=max(8, 2 * args.batch))
    models = _models(loaded)
    workload = _workload(args, lines, loaded)
    if len(workload.prompts) < 2 * args.batch:
        print(
            f"outrider: {len(workload.prompts)} prompts cannot tell whether speculation pays on "
            f"others: give at least {2 * args.batch} for a recommendation",
            file=sys.stderr,
        )
    facts = {name: loaded.facts[name] for name in ("target", "draft", "device", "dtype")}
    with progress(console, "tuning") as advance:
        result = tune(models, workload, search, advance, provenance(facts, asdict(search)))
        ending.hold()
    exports = _exports(args, result)
    settings = None
    if result.recommendation is not None:
        settings = _settings(args, result.recommendation.contender)
    document = tune_document.document(result, exports, settings)
    _write(args, result, document, settings)
    if args.json:
        print(json.dumps(document))
    else:
        from .tune_screen import Screen

        saved = args.save if settings is not None else None
        Screen(wants_color(args.color)).show(result, exports, saved)
    sys.stdout.flush()
    ending.release()
    with console.status("drawing"):
        _draw(args, result)
    if args.out is not None:
        print(f"written to {args.out}", file=sys.stderr)
    if args.save is not None and settings is None:
        print(f"outrider: nothing was recommended, and {args.save} not written", file=sys.stderr)
    if result.partial:
        print("outrider: interrupted; what was measured until then is shown", file=sys.stderr)
        return ending.status
    return 0


def _check_outputs(args: Namespace) -> None:
    if args.save is not None:
        config_file.check_writable("--save", args.save)
    if args.out is not None:
        try:
            Path(args.out).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            reason = error.strerror or type(error).__name__
            raise InvalidConfigError("--out", args.out, f"a folder ({reason})") from error
        config_file.check_folder("--out", args.out, Path(args.out))


def _drafters(args: Namespace) -> tuple[str, ...]:
    """Those that were asked for, or all that there are models for."""
    available = args.draft is not None or args.target == "demo"
    possible = options.DRAFTERS if available else ("ngram", "suffix")
    chosen: tuple[str, ...] = args.drafters or possible
    for name in chosen:
        if name not in possible:
            raise InvalidConfigError("--drafters", name, "--draft MODEL beside it")
    return chosen


def _search(args: Namespace, drafters: tuple[str, ...]) -> Search:
    from ..bench.search import Search

    given: dict[str, Any] = {}
    if args.draft_depths is not None:
        given["depths"] = args.draft_depths
    if args.shapes is not None:
        given["shapes"] = tuple(args.shapes)
    return Search(
        drafters=drafters,
        verifications=args.verifications,
        temperatures=args.temperatures,
        batch=args.batch,
        params=options.sampling_params(args, ignore_eos=True),
        checks=args.checks,
        verify=args.verify_all,
        repeats=args.repeats,
        **given,
    )


def _models(loaded: Loaded) -> Models:
    from ..bench.search import Models

    # Without a draft model what was loaded is prompt lookup, which is made anew for each run.
    drafter = loaded.drafter if loaded.facts["draft"] is not None else None
    return Models(loaded.target, drafter, loaded.tokenizer, loaded.facts["dtype"])


def _workload(args: Namespace, lines: Lines | None, loaded: Loaded) -> Workload:
    from ..bench import workload

    if args.prompts is None:
        vocab_size = loaded.target.vocab_size
        (found,) = workload.built_in(["code"], loaded.tokenizer, vocab_size, args.max_prompts)
        return found
    found = workload.read(args.prompts, loaded.tokenizer, lines)
    return replace(found, prompts=found.prompts[: args.max_prompts])


def _exports(args: Namespace, result: TuneResult) -> list[Export]:
    import outrider_demo as demo

    from ..bench.exports import export
    from ..bench.tune import best_depth

    if result.recommendation is None:
        return []
    contender = result.recommendation.contender
    depth = best_depth(contender, result.predictions)
    target, draft = args.target, args.draft
    if target == "demo":
        target, draft = str(demo.TARGET), draft or str(demo.DRAFT)
    return [
        export(system, contender, target=target, draft=draft, depth=depth)
        for system in args.exports or SYSTEMS
    ]


def _settings(args: Namespace, contender: Contender) -> dict[str, Any]:
    """What `--config` takes to decode like this."""
    settings: dict[str, Any] = {"target": args.target}
    if contender.drafter in ("draft_model", "hybrid") and args.draft is not None:
        settings["draft"] = args.draft
    settings |= {
        name: value
        for name, value in (("dtype", args.dtype), ("device", args.device))
        if value is not None
    }
    settings["method"] = contender.drafter
    if contender.plain:
        return settings
    fixed = contender.num_speculative_tokens is not None
    settings["depth"] = "fixed" if fixed else "adaptive"
    settings["verification"] = contender.verification
    if fixed:
        settings["num-speculative-tokens"] = contender.num_speculative_tokens
    if contender.tree_shape is not None:
        settings["tree-shape"] = list(contender.tree_shape)
    return settings


def _write(
    args: Namespace, result: TuneResult, document: dict[str, Any], settings: dict[str, Any] | None
) -> None:
    if args.save is not None and settings is not None and result.recommendation is not None:
        temperatures = " and ".join(f"{each:g}" for each in args.temperatures)
        comments = (
            f"found by outrider tune, on prompts of {result.workload} at temperature "
            f"{temperatures}",
            result.recommendation.verdict,
        )
        config_file.write(args.save, config_file.written(settings, comments).encode())
    if args.out is not None:
        config_file.write(Path(args.out) / "tune.json", json.dumps(document).encode())


def _draw(args: Namespace, result: TuneResult) -> None:
    if args.out is None or all(check.predicted is None for check in result.checks):
        return
    from ..bench.agreement import picture

    try:
        config_file.write(Path(args.out) / PICTURE, picture(result.checks))
    except InvalidConfigError as error:
        print(f"outrider: no {PICTURE}: {error}", file=sys.stderr)


def _verification(name: str) -> str:
    values: Any = name
    if SpeculativeConfig(verification=values).lossy:
        raise InvalidConfigError("verifications", name, "lossless methods")
    return name
