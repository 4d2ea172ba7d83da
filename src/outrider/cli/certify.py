"""`outrider certify`: is the output's distribution the target's, and would we have seen if it were not?"""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from time import perf_counter
from typing import TYPE_CHECKING, Any

from .. import __version__
from ..errors import InvalidConfigError
from . import options
from .paint import wants_color

if TYPE_CHECKING:
    from rich.console import Console

    from ..certify.cases import Part
    from ..certify.checks import Report
    from .models import Loaded

TIERS = ("exact", "statistical", "controls")
SAMPLES = 2400
PROMPT_TOKENS = 16
SEQUENCES = 64

DESCRIPTION = """\
Certify that what is emitted has exactly the target's distribution. Exact: the engine as
it ships is enumerated on small random models, over a design that covers every
triple of settings. Statistical: the engine under its own random numbers on real
models, by G-tests; in float32 unless --dtype says otherwise, since in a narrower
type forwards of other shapes round otherwise, and top_k may keep another token in
the engine than in the test. Controls: planted faults, each of which a named check
must reject. The exit status is 0 if all passes, 1 if anything fails, 2 after an
error.
"""

CONTRACT = """\
what --module takes; arrays are torch tensors unless they are said to be NumPy's,
B rows, N drafted tokens in the longest, V tokens in the vocabulary:

  method: a subclass of outrider.verification.Method; trees = False if it is for chains only
  method.stop_distribution(tree) -> (distribution, claims)
      distribution  float64 [B, N + 1], the probability that each node is the last one kept
                    (on a chain: of keeping 0, 1, ... tokens); 0 beyond a row's length
      claims        float64 [B, N + 1], handed on to residual
  method.residual(tree, claims, node) -> distribution
      node          int64 [B], the last node kept
      distribution  float64 [B, V], of the token that follows it
  tree.tokens  int64 [B, N], drafted; tree.length int64 [B], how many in each row
  tree.target  [B, N + 1, V], the target's distributions before and after each token
  tree.draft   [B, N, V], the distributions the tokens were drawn from; None if each was
               proposed outright, a point mass
  tree.ratio   float64 [B, N], target over draft probability of each token; 0 where none was drafted
  tree.remaining_distribution(node, claim), claim float64 [B], is float64 [B, V]: on a chain
               norm((claim * target - draft)+), the target's distribution at a row's end

  drafter.vocab_size    V, or None if it proposes only tokens it has seen
  drafter.propose(prefixes, plan, ctx) -> outrider.types.records.DraftProposal
      prefixes  B of them; prefix.tokens is NumPy int64, the tokens so far
      plan      plan.depth, NumPy int64 [B], the most tokens for each row
      ctx       ctx.distribution(logits [B, V]) gives a position's Distributions: probs [B, V], or
                point_masses int64 [B] where every row is greedy;
                ctx.pick(distributions, position) int64 [B], tokens drawn from them
  DraftProposal(tokens, lengths, Distributions(probs=probs))
      tokens    int64 [B, N]; lengths NumPy int64 [B], at most plan.depth
      probs     [B, N, V], the distributions they were drawn from; Distributions(point_masses=tokens)
                if they were proposed outright
"""


def configure(parser: ArgumentParser) -> None:
    """Add the flags of this subcommand."""
    parser.formatter_class = RawDescriptionHelpFormatter
    parser.description = DESCRIPTION
    parser.epilog = CONTRACT
    parser.set_defaults(
        run=run,
        method=None,
        usual_method="draft_model",
        prompt_lookup_max=None,
        prompt_lookup_min=None,
        exit_layers=None,
    )
    parser.add_argument(
        "--tier",
        dest="tiers",
        action="append",
        choices=TIERS,
        help="run this tier; may be repeated (default: all three)",
    )
    parser.add_argument(
        "--module",
        metavar="FILE.py:NAME",
        help="put a verification method or a drafter of your own through the exact tier alone: "
        "path.py:Name or package.module:Name. An object or class that derives from "
        "outrider.verification.Method is a method (a subclass of outrider.verification.Method, or "
        "a Verifier with one), one with propose a drafter. A class is made without arguments; a drafter's class whose constructor requires "
        "one argument is given the draft model of each case",
    )
    statistical = parser.add_argument_group("statistical tier")
    statistical.add_argument(
        "--samples",
        type=options.integer_from(100),
        default=SAMPLES,
        metavar="N",
        help=f"continuations drawn in each cell (default: {SAMPLES})",
    )
    statistical.add_argument(
        "--seed",
        type=options.integer_from(0),
        default=0,
        metavar="N",
        help="of every request (default: 0)",
    )
    options.add_model_flags(parser)
    options.add_output_flags(parser, "every case, test and control", "verdicts")


def run(args: Namespace) -> int:
    """Run the tiers that were asked for, print the report, and say whether all passed."""
    tiers = _tiers(args)

    import torch

    # Small tensors gain nothing from more threads, and lose much where others want the cores.
    torch.set_num_threads(1)

    from rich.console import Console

    console = Console(stderr=True)
    with console.status("loading"):
        from ..certify import document
        from ..certify.modules import load_part
        from .certify_screen import Screen
        from .screen import progress

        part = None if args.module is None else load_part(args.module)
    # What cannot be loaded is refused before anything is printed.
    loaded = _loaded(args, console) if "statistical" in tiers else None
    screen = None if args.json else Screen(wants_color(args.color))
    found: dict[str, Any] = {
        "outrider": __version__,
        "part": args.module,
        "models": None if loaded is None else loaded.facts,
    }
    if screen is not None:
        screen.title(args.module, None if loaded is None else loaded.facts)
    for name in TIERS:
        if name not in tiers:
            continue
        start = perf_counter()
        with progress(console, name) as report:
            tier = _run_tier(name, args, report, part, loaded)
        seconds = perf_counter() - start
        found[name] = {"seconds": seconds, **getattr(document, name)(tier)}
        if screen is not None:
            getattr(screen, name)(tier, seconds)
            sys.stdout.flush()
    passed = all(found[name]["passed"] for name in tiers)
    if screen is None:
        print(json.dumps({**found, "passed": passed}))
    else:
        screen.verdict(passed, {name: found[name]["passed"] for name in TIERS if name in tiers})
    return 0 if passed else 1


def _tiers(args: Namespace) -> tuple[str, ...]:
    """The tiers to run.

    Raises:
        InvalidConfigError: flags contradict each other.
    """
    tiers = tuple(dict.fromkeys(args.tiers or TIERS))
    if args.module is not None:
        if args.tiers not in (None, ["exact"]):
            raise InvalidConfigError(
                "--tier", ", ".join(tiers), "exact alone with --module; drop one of the two flags"
            )
        tiers = ("exact",)
    if "statistical" in tiers:
        options.speculation_method(args)
    else:
        for flag, value, usual in (
            ("--target", args.target, "demo"),
            ("--draft", args.draft, None),
            ("--dtype", args.dtype, None),
            ("--device", args.device, None),
            ("--samples", args.samples, SAMPLES),
            ("--seed", args.seed, 0),
        ):
            if value != usual:
                raise InvalidConfigError(
                    flag, value, "the statistical tier beside it (--tier statistical), or no flag"
                )
    if args.seed >= 2**64:
        raise InvalidConfigError("--seed", args.seed, "an integer in [0, 2**64)")
    return tiers


def _loaded(args: Namespace, console: Console) -> Loaded:
    from .models import load

    wide = Namespace(**vars(args) | {"dtype": args.dtype or "float32"})
    return load(wide, console, max_sequences=SEQUENCES)


def _run_tier(
    name: str, args: Namespace, report: Report, part: Part | None, loaded: Loaded | None
) -> Any:
    if name == "exact":
        from ..certify.exact import exact_tier

        return exact_tier(report, part)
    if name == "controls":
        from ..certify.controls import control_tier

        return control_tier(report)
    from outrider_demo import PROMPTS

    from ..certify.statistics import statistical_tier

    assert loaded is not None
    assert loaded.drafter is not None
    prompts = [tuple(loaded.tokenizer.encode(text)[:PROMPT_TOKENS]) for text in PROMPTS]
    return statistical_tier(report, loaded.target, loaded.drafter, prompts, args.samples, args.seed)
