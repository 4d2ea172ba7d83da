"""`outrider certify`: is the output's distribution the target's, and would faults be seen?"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

from cyclopts import App
from cyclopts.types import NonNegativeInt

from .. import __version__
from ..certify.endpoint.questions import Plan
from ..config.params import SamplingParams, SpeculativeConfig
from ..config.sources import is_gguf
from ..config.validation import real, unreadable
from ..errors import InvalidConfigError, missing
from .certify_endpoint import Server, certify_endpoint
from .options import Drafting, Models, Output, Setup, choose_method, refuse, titled
from .signals import terminable

if TYPE_CHECKING:
    from ..certify.checks import Report

Tier = Literal["exact", "statistical", "controls", "runtime"]
TIERS: tuple[Tier, ...] = get_args(Tier)
PROMPT_TOKENS = 16
SEQUENCES = 64
CONTRACT = """\
Exact: the engine as it ships is enumerated on small random models, over a design that covers every
triple of settings. Statistical: the engine under its own random numbers on real models, token by
token; in float32 unless --dtype or a GGUF file says otherwise. Controls: planted faults, each of
which a named check must reject. Runtime: a model's answers, whatever a cache holds, beside those of
an empty one, or of transformers without a cache; run by --runtime alone, or --tier runtime, then in
each checkpoint's own dtype. With --endpoint another engine is certified instead: its texts, scored
by a reference, are bets on the known distribution of every token. The exit status is 0 if all
passes, 1 if anything fails, 2 after an error, 130 after Ctrl-C, 143 after SIGTERM.

--module takes a subclass of outrider.verification.Method (stop_distribution(tree), residual(tree,
weights, node)), a Verifier, or a subclass of outrider.drafters.base.Drafter (vocab_size,
propose(prefixes, plan, ctx)); their docstrings say what each is given and returns.
"""

_ONLY_IN = (
    (
        ("statistical", "runtime"),
        ("target", "draft", "runtime", "dtype", "weights", "device"),
        "the statistical tier beside it (--tier statistical), --runtime, or no flag",
    ),
    (
        ("statistical",),
        ("samples", "seed"),
        "the statistical tier beside it (--tier statistical), or no flag",
    ),
    (("runtime",), ("tolerance",), "the runtime tier beside it (--tier runtime), or no flag"),
)
"""Tiers, the flags that mean something in these alone, and what is expected beside them."""

app = App(name="certify", help_epilogue=CONTRACT)


@dataclass(frozen=True, kw_only=True)
class What:
    """What is certified.

    Attributes:
        tier: run this tier; may be repeated; without it exact, statistical and controls, or with
            --runtime the runtime's.
        module: put a verification method or a drafter of your own through the exact tier alone:
            path.py:Name or package.module:Name, an object or a class. A class is made without
            arguments; a drafter's class that requires one argument is given the draft model of each
            case.
        samples: continuations drawn in each cell of the statistical tier, at least 100.
        seed: of every request of the statistical tier.
        tolerance: by how much logits may differ in the runtime tier, beside the largest of them;
            without it what rounding explains, 1e-4 in float32.
    """

    tier: tuple[Tier, ...] = ()
    module: str | None = None
    samples: int = 2400
    seed: NonNegativeInt = 0
    tolerance: float | None = None

    def __post_init__(self) -> None:
        SamplingParams(seed=self.seed)
        if self.tolerance is not None:
            real("tolerance", self.tolerance, "a number > 0", lambda each: each > 0)
        if self.samples < 100:
            raise InvalidConfigError("samples", self.samples, "an integer >= 100")
        path = Path((self.module or "").rpartition(":")[0])
        if path.suffix == ".py" and not path.is_file():
            raise unreadable("--module", path, "the file of path.py:Name")
        if self.module is not None and self.tier not in ((), ("exact",)):
            expected = "exact alone with --module; drop one of the two flags"
            raise InvalidConfigError("--tier", ", ".join(self.tier), expected)

    def tiers(self, models: Models) -> tuple[Tier, ...]:
        """The tiers to run, in their order."""
        if self.module is not None:
            return ("exact",)
        usual = TIERS[:-1] if models.runtime == "auto" else TIERS[-1:]
        return tuple(name for name in TIERS if name in (self.tier or usual))


@app.default
def certify(
    *,
    what: Annotated[What, titled("What is certified")] = What(),
    models: Annotated[Models, titled("Models (statistical and runtime tiers)")] = Models(),
    server: Annotated[Server, titled("Another engine")] = Server(),
    plan: Annotated[Plan, titled("What another engine is asked")] = Plan(),
    output: Annotated[Output, titled("Output")] = Output(),
) -> int:
    """Prove that the output has the target's distribution, and that the proof can fail."""
    if server.endpoint is not None:
        ours = ("target", *(item.name for item in fields(what)))
        refuse(dict.fromkeys(ours, "none with --endpoint; drop one of the two"), models, what)
        return certify_endpoint(server, plan, models, output)
    refuse({item.name: "none without --endpoint URL" for item in fields(plan)}, plan)
    tiers = what.tiers(models)
    for where, names, expected in _ONLY_IN:
        if not set(where) & set(tiers):
            refuse(dict.fromkeys(names, expected), models, what)
    method = choose_method(models, Drafting(), SpeculativeConfig(), "draft_model")

    import torch

    # Small tensors gain nothing from more threads.
    torch.set_num_threads(1)

    from .terminal import messages, progress

    console = messages()
    with console.status("loading"), missing("transformers"):
        from ..certify import document
        from ..certify.controls import control_tier
        from ..certify.exact import exact_tier
        from ..certify.modules import load_part
        from ..certify.runtime import runtime_tier
        from ..certify.spread import workers
        from ..certify.statistics import statistical_tier
        from .certify_screen import Screen
        from .models import load

        part = None if what.module is None else load_part(what.module)
    loaded = None
    if {"statistical", "runtime"} & set(tiers):
        files = any(map(is_gguf, filter(None, (models.target, models.draft))))
        own = "statistical" not in tiers or (files and models.runtime in ("auto", "llama_cpp"))
        wide = models if own else replace(models, dtype=models.dtype or "float32")
        setup = Setup(wide, Drafting(), method, SpeculativeConfig())
        loaded = load(setup, console, max_sequences=SEQUENCES)
    facts = None if loaded is None else loaded.facts
    screen = None if output.as_json else Screen(output.color)
    found: dict[str, Any] = {"outrider": __version__, "part": what.module, "models": facts}
    if screen is not None:
        screen.title(what.module, facts)
    start = perf_counter()
    done = {}
    # As many as there are processors, within the memory of an ordinary machine.
    processes = min(4, os.cpu_count() or 1)
    # Processes of the pool would outlive one that SIGTERM ends at once.
    with terminable(), workers(processes) if processes > 1 else nullcontext() as pool:
        begun: dict[Tier, Callable[[Report], Any]] = {}
        if "exact" in tiers:
            begun["exact"] = exact_tier(part, pool)
        if "controls" in tiers:
            begun["controls"] = control_tier(pool)
        if loaded is not None and "runtime" in tiers:
            begun["runtime"] = partial(runtime_tier, target=loaded.target, tolerance=what.tolerance)
        if loaded is not None and "statistical" in tiers:
            from outrider_demo import PROMPTS

            begun["statistical"] = partial(
                statistical_tier,
                target=loaded.target,
                drafter=loaded.drafter,
                prompts=[tuple(loaded.tokenizer.encode(text)[:PROMPT_TOKENS]) for text in PROMPTS],
                samples=what.samples,
                seed=what.seed,
            )
        # The statistical tier runs in this process, while others do the work of the other two.
        for name in sorted(tiers, key=lambda name: name != "statistical"):
            with progress(console, name, logged=False) as report:
                done[name] = begun[name](report), perf_counter() - start
            if not console.is_terminal:
                console.print(f"outrider: {name} tier done after {done[name][1]:.0f} s")
    for name in tiers:
        tier, seconds = done[name]
        found[name] = {"seconds": seconds, **getattr(document, name)(tier)}
        if screen is not None:
            getattr(screen, name)(tier, seconds)
    verdicts: dict[str, bool] = {name: found[name]["passed"] for name in tiers}
    passed = all(verdicts.values())
    if screen is None:
        print(json.dumps({**found, "passed": passed}))
    else:
        screen.verdict(passed, verdicts)
    return 0 if passed else 1
