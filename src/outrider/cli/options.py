"""The options that subcommands share: dataclasses whose docstrings are the help."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Group, Parameter, Token
from cyclopts.types import PositiveInt

from ..config import validation
from ..config.params import WITH_MODEL, SpeculativeConfig
from ..config.sources import Dtype, RuntimeName, Weights, model_source
from ..config.validation import read_text
from ..errors import EmptyPrefixError, InvalidConfigError
from .files import check_file
from .flags import flags_of, plain

Method = Literal["draft_model", "ngram", "suffix", "hybrid", "early_exit", "prediction", "none"]


@cache
def group(title: str, place: int = 0) -> Group:
    """Make the title of some flags; titles of one place are shown in the order they are made in."""
    return Group.create_ordered(title, sort_key=place)


def titled(title: str) -> Parameter:
    """Show a record's fields as flags of their own under a title."""
    return Parameter(name="*", group=group(title))


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """Where the prompt comes from.

    Attributes:
        prompt: the prompt; - reads standard input.
        file: a UTF-8 file, the whole of it one prompt.
    """

    prompt: Annotated[str | None, Parameter(alias="-p", allow_leading_hyphen=True)] = None
    file: Annotated[str | None, Parameter(alias="-f")] = None

    def __post_init__(self) -> None:
        if self.prompt is not None and self.file is not None:
            raise InvalidConfigError("--file", self.file, "none beside --prompt; drop one of them")

    def read(self, *, piped: bool = False) -> str | None:
        """Read the prompt; without one standard input if `piped`, else None.

        Raises:
            InvalidConfigError: it cannot be read, or is not UTF-8 text.
            EmptyPrefixError: it is empty, or a terminal with nothing piped in.
        """
        text, source = self.prompt, "the prompt"
        if self.file is not None:
            text, source = read_text("--file", self.file), f"the file {self.file!r}"
        elif text == "-" or (text is None and piped):
            if sys.stdin.isatty():
                expected = "use -p TEXT or -f PATH, or pipe text in"
                raise EmptyPrefixError(f"no prompt was given; {expected}")
            try:
                text, source = sys.stdin.read(), "standard input"
            except UnicodeDecodeError as error:
                raise InvalidConfigError("--prompt", "-", "UTF-8 text on standard input") from error
        if text == "":
            raise EmptyPrefixError(f"{source} is empty; give some text to continue")
        return None if text is None else validation.text("--prompt", text)


@dataclass(frozen=True, kw_only=True)
class Models:
    """Which models are loaded, and where.

    Attributes:
        target: demo (a small pair of models), a local folder, a GGUF file or a hub id.
        draft: likewise, or a draft head; demo-head is the demo target's, mtp the layer for
            multi-token prediction in the target's checkpoint.
        runtime: what computes both; auto takes llama_cpp for a GGUF file, on a CPU openvino where
            it is installed and converts the model, else transformers.
        dtype: of both models; without it each checkpoint's own.
        weights: round both models' weights; with --runtime openvino.
        device: as torch names it; without it cuda if there is any.
        kv_cache_memory: bytes for the keys and values of each model; without it what all sequences
            may need, or half of what is free.
    """

    target: str = "demo"
    draft: Annotated[str | None, Parameter(alias="--draft-model")] = None
    runtime: RuntimeName = "auto"
    dtype: Dtype | None = None
    weights: Weights | None = None
    device: str | None = None
    kv_cache_memory: int | None = None

    def __post_init__(self) -> None:
        for name, source in (("target", self.target), ("draft", self.draft)):
            if source is not None:
                model_source(name, source)

    @property
    def can_draft(self) -> bool:
        """Whether there is a draft model."""
        return self.draft is not None or self.target == "demo"


@dataclass(frozen=True, kw_only=True)
class Drafting:
    """What proposes tokens.

    Attributes:
        method: hybrid is the draft model beside a look-up of what came before, and the default
            where there is a draft; trees, a depth that is not adaptive and lossy methods take
            draft_model; without a draft it is ngram.
        exit_layers: early_exit: how many of the target's first layers draft, followed by its head.
        prompt_lookup_max: ngram: the longest run of last tokens that is looked up.
        prompt_lookup_min: ngram: the shortest run of last tokens that is looked up.
        speculative_config: the settings of speculation as one JSON object, as vLLM takes them:
            {"method": ..., "model": ..., "num_speculative_tokens": ...}; flags override it.
    """

    method: Method | None = None
    exit_layers: PositiveInt | None = None
    prompt_lookup_max: PositiveInt | None = None
    prompt_lookup_min: PositiveInt | None = None
    speculative_config: str | None = None


def _tree(_kind: Any, tokens: Sequence[Token]) -> tuple[int, ...]:
    return validation.shape_of("tree_shape", ",".join(token.value for token in tokens))


def speculation_flags(**defaults: Any) -> Any:
    """Make the flags of `SpeculativeConfig`, with these defaults in place of its own."""
    shown = {item.name: None for item in fields(SpeculativeConfig) if item.name != "draft_params"}
    own = {
        "num_speculative_tokens": Parameter(alias="-k"),
        "tree_shape": Annotated[
            tuple[Any, ...] | None, Parameter(converter=_tree, n_tokens=1, metavar="2x2x1")
        ],
    }
    return flags_of(SpeculativeConfig, {**shown, **own}, defaults)()


SPECULATION = speculation_flags()


@dataclass(frozen=True, kw_only=True)
class Shown:
    """How results and errors are shown, and where settings come from.

    Attributes:
        config: take settings from this TOML or YAML file, such as tune --save writes; flags
            override it.
        color: colour on standard output; auto is on a terminal unless NO_COLOR is set.
        debug: show the traceback of an error.
    """

    config: str | None = None
    color: Literal["auto", "always", "never"] = "auto"
    debug: bool = False


@dataclass(frozen=True, kw_only=True)
class Output(Shown):
    """What is printed, and how.

    Attributes:
        output: what to print.
        json: print one JSON object; the same as -o json.
    """

    output: Annotated[Literal["text", "json"], Parameter(alias="-o")] = "text"
    json: bool = False

    @property
    def as_json(self) -> bool:
        """Whether one JSON object is printed."""
        return self.json or self.output == "json"


def check_trace(trace: str | None) -> None:
    """Refuse a file that cannot be written, or that holds something else than a trace.

    Raises:
        InvalidConfigError: see above.
    """
    if trace is None:
        return
    from ..engine.trace import is_trace

    path = Path(trace)
    check_file("--trace", trace)
    if path.is_file() and path.stat().st_size and not is_trace(path):
        expected = "a file that can be written (it holds something else than a trace)"
        raise InvalidConfigError("--trace", trace, expected)


_WITHOUT_EFFECT: dict[str, tuple[str, ...]] = {
    "none": ("num_speculative_tokens", "depth", "cost_ratio", "draft_sample_method"),
    "ngram": ("draft_sample_method", "tree_shape", "tree_budget"),
    "suffix": ("draft_sample_method",),
    "prediction": ("draft_sample_method", "tree_shape", "tree_budget"),
}
"""Settings that do nothing with some methods."""

_OWNERS = {
    "lenience": "lenient",
    "typical_epsilon": "typical",
    "typical_delta": "typical",
    "mixture_budget": "mixture",
}
"""Settings that belong to one verification."""


@dataclass(frozen=True)
class Setup:
    """What a command is to decode with: the flags, what proposes tokens, and how."""

    models: Models
    drafting: Drafting
    method: Method
    config: SpeculativeConfig

    @classmethod
    def of(
        cls, models: Models, drafting: Drafting, speculation: Any, model: str | None = None
    ) -> Setup:
        """Read the flags of a command; `model` takes the place of the target among them.

        Raises:
            InvalidConfigError: flags contradict each other.
        """
        models = models if model is None else replace(models, target=model)
        config: SpeculativeConfig = plain(SpeculativeConfig, speculation)
        return cls(models, drafting, choose_method(models, drafting, config), config)


def choose_method(
    models: Models, drafting: Drafting, config: SpeculativeConfig, usual: Method = "hybrid"
) -> Method:
    """Choose what proposes tokens, and refuse flags that contradict it or do nothing with it.

    `usual` proposes where nothing was asked for and there is a draft model.

    Raises:
        InvalidConfigError: flags contradict each other.
    """
    if config.depth != "adaptive" or config.drafts_trees or config.lossy:
        usual = "draft_model"
    method = drafting.method or (usual if models.can_draft else "ngram")
    uses_model = method in WITH_MODEL
    if uses_model and not models.can_draft:
        raise InvalidConfigError("--method", method, "--draft MODEL beside it, or --method ngram")
    if method == "early_exit" and drafting.exit_layers is None:
        raise InvalidConfigError("--method", method, "--exit-layers N beside it")
    beside = f"--method {method}"
    idle = dict.fromkeys(_WITHOUT_EFFECT.get(method, ()), beside)
    if not uses_model:
        idle["draft"] = beside
    if method != "ngram":
        idle |= {"prompt_lookup_max": beside, "prompt_lookup_min": beside}
    if method != "early_exit":
        idle["exit_layers"] = beside
    if method == "none" and config.verification != "coupled":
        idle["verification"] = beside
    if config.depth == "fixed":
        idle.setdefault("cost_ratio", "--depth fixed")
    if not config.drafts_trees:
        idle["tree_children"] = "chains (give --tree-shape)"
    for field, owner in _OWNERS.items():
        if config.verification != owner:
            idle[field] = f"--verification {config.verification}"
    expected = {name: f"none with {other}; drop one of the two" for name, other in idle.items()}
    refuse(expected, models, drafting, config)
    return method


def refuse(idle: Mapping[str, str], *records: Any) -> None:
    """Refuse fields that are set and do nothing; `idle` says for each what is expected."""
    for record in records:
        for item in fields(record):
            value = getattr(record, item.name)
            if item.name in idle and value != item.default:
                flag = f"--{item.name.replace('_', '-')}"
                raise InvalidConfigError(flag, value, idle[item.name])
