"""What clients may ask for: bodies as OpenAI and vLLM name their fields, read into our records."""

from __future__ import annotations

import json
import logging
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictFloat, StrictInt, StrictStr
from pydantic import ValidationError as PydanticError

from ..config.params import SamplingParams
from ..config.structured import StructuredOutput
from ..errors import InvalidConfigError

_LOG = logging.getLogger(__name__)

Speculation = Literal["none", "summary", "detailed"]
"""Which figures about speculation a response carries."""

Number = StrictFloat
Body = TypeVar("Body", bound="Common")
_MOST_STOPS = 4
_LONGEST_NAME = 200
COMPLETION_TOKENS = 16
"""What /v1/completions emits at most where nothing is said, as OpenAI has it."""


class _Part(BaseModel):
    type: Literal["text"]
    text: StrictStr


class Message(BaseModel):
    """One message of a conversation; parts of its content are joined."""

    model_config = ConfigDict(extra="allow")
    role: StrictStr
    content: StrictStr | list[_Part] | None = None

    def plain(self) -> dict[str, Any]:
        """Return it as chat templates take it."""
        return {**self.model_dump(exclude_none=True), "content": _joined(self.content)}


class _StreamOptions(BaseModel):
    model_config = ConfigDict(extra="forbid")
    include_usage: StrictBool | None = None
    continuous_usage_stats: StrictBool | None = None
    include_obfuscation: Literal[False] | None = None


class _Prediction(BaseModel):
    type: Literal["content"]
    content: StrictStr | list[_Part]


class _JsonSchema(BaseModel):
    name: StrictStr = "schema"
    schema_: dict[str, Any] = Field(default_factory=dict, alias="schema")
    strict: StrictBool | None = None


class _ResponseFormat(BaseModel):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: _JsonSchema | None = None


class _Structured(BaseModel):
    json_: dict[str, Any] | StrictStr | None = Field(default=None, alias="json")
    regex: StrictStr | None = None
    choice: list[StrictStr] | None = None
    grammar: StrictStr | None = None
    json_object: StrictBool | None = None


class Common(BaseModel):
    """The fields that both kinds of requests have."""

    model_config = ConfigDict(extra="allow")

    model: StrictStr | None = None
    max_tokens: StrictInt | None = None
    temperature: Number | None = None
    top_p: Number | None = None
    top_k: StrictInt | None = None
    min_p: Number | None = None
    n: StrictInt | None = None
    seed: StrictInt | None = None
    stop: StrictStr | list[StrictStr] | None = None
    stop_token_ids: list[StrictInt] | None = None
    ignore_eos: StrictBool | None = None
    min_tokens: StrictInt | None = None
    presence_penalty: Number | None = None
    frequency_penalty: Number | None = None
    repetition_penalty: Number | None = None
    logit_bias: dict[StrictStr, Number] | None = None
    stream: StrictBool | None = None
    stream_options: _StreamOptions | None = None
    prediction: _Prediction | None = None
    response_format: _ResponseFormat | None = None
    guided_json: dict[str, Any] | StrictStr | None = None
    guided_regex: StrictStr | None = None
    guided_choice: list[StrictStr] | None = None
    guided_grammar: StrictStr | None = None
    structured_outputs: _Structured | None = None
    speculation_metrics: Speculation | None = None
    speculative: StrictBool | None = None
    user: Any = None
    metadata: Any = None

    @property
    def top(self) -> int | None:
        """How many likeliest tokens are reported; None for no log-probabilities."""
        return None

    @property
    def streams(self) -> bool:
        """Whether the answer is streamed."""
        return bool(self.stream)

    @property
    def streams_usage(self) -> bool:
        """Whether a stream ends with the usage."""
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def streams_usage_so_far(self) -> bool:
        """Whether each chunk of a stream carries the usage so far."""
        return bool(self.stream_options and self.stream_options.continuous_usage_stats)


class CompletionBody(Common):
    """A body of /v1/completions."""

    prompt: StrictStr | list[StrictStr] | list[StrictInt] | list[list[StrictInt]]
    logprobs: Annotated[StrictInt, Field(ge=0, le=5)] | None = None
    echo: StrictBool | None = None
    suffix: StrictStr | None = None
    best_of: StrictInt | None = None

    @property
    def prompts(self) -> list[Any]:
        """The prompts, each a text or token ids."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        if self.prompt and isinstance(self.prompt[0], int):
            return [self.prompt]
        return list(self.prompt)

    @property
    def top(self) -> int | None:
        """How many likeliest tokens are reported; None for no log-probabilities."""
        return self.logprobs


class ChatBody(Common):
    """A body of /v1/chat/completions."""

    messages: Annotated[list[Message], Field(min_length=1)]
    max_completion_tokens: StrictInt | None = None
    logprobs: StrictBool | None = None
    top_logprobs: Annotated[StrictInt, Field(ge=0, le=20)] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    tools: Any = None
    functions: Any = None

    @property
    def top(self) -> int | None:
        """How many likeliest tokens are reported; None for no log-probabilities."""
        return (self.top_logprobs or 0) if self.logprobs else None


_REFUSED = {
    "echo": "false: prompts are not repeated",
    "suffix": "none: text is continued, not filled in",
    "tools": "none: tools are not called",
    "functions": "none: tools are not called",
}
"""Fields that are known and not served, with what is expected of them."""


def read_body(kind: type[Body], data: bytes) -> Body:
    """Read the JSON of a body.

    Raises:
        InvalidConfigError: it is no JSON object, or a field has a value that is not allowed.
    """
    try:
        given = json.loads(data)
    except (ValueError, RecursionError) as error:
        why = "too deeply nested" if isinstance(error, RecursionError) else str(error)
        raise InvalidConfigError("body", _start(data), f"a JSON object ({why})") from None
    if not isinstance(given, dict):
        raise InvalidConfigError("body", given, "a JSON object")
    try:
        body = kind.model_validate(given)
    except PydanticError as error:
        raise _refused(given, error) from None
    _check_served(body)
    unknown = sorted(body.model_extra or ())
    if unknown:
        _LOG.info("fields that are not known are ignored: %s", ", ".join(unknown)[:200])
    return body


def _check_served(body: Common) -> None:
    """Refuse what is known and not served."""
    for name, expected in _REFUSED.items():
        value = getattr(body, name, None)
        if value:
            raise InvalidConfigError(name, value, expected)
    best_of = getattr(body, "best_of", None)
    if best_of is not None and best_of != (body.n or 1):
        raise InvalidConfigError("best_of", best_of, "n, or none: nothing is ranked")


def sampling_params(body: Common, max_tokens: int) -> SamplingParams:
    """Make the parameters that a body asks for.

    Args:
        body: of a request.
        max_tokens: where the body does not say.

    Raises:
        InvalidConfigError: a value is not allowed.
    """
    asked = getattr(body, "max_completion_tokens", None)
    given: dict[str, Any] = {
        name: value for name in _AS_THEY_ARE if (value := getattr(body, name)) is not None
    }
    if isinstance(body.stop, list) and len(body.stop) > _MOST_STOPS:
        raise InvalidConfigError("stop", body.stop, f"at most {_MOST_STOPS} strings")
    if body.stop is not None:
        given["stop"] = (body.stop,) if isinstance(body.stop, str) else tuple(body.stop)
    if body.logit_bias is not None:
        given["logit_bias"] = _biases(body.logit_bias)
    if body.prediction is not None:
        given["prediction"] = _joined(body.prediction.content)
    limit = body.max_tokens if asked is None else asked
    return SamplingParams(
        **given,
        max_tokens=max_tokens if limit is None else limit,
        structured_output=_form(body),
        logprobs=body.top,
    )


_AS_THEY_ARE = (
    *("temperature", "top_p", "top_k", "min_p", "n", "seed", "ignore_eos", "min_tokens"),
    *("presence_penalty", "frequency_penalty", "repetition_penalty", "stop_token_ids"),
)


def _form(body: Common) -> StructuredOutput | None:
    """Find the form that a body asks for, under any of its names."""
    found: dict[str, StructuredOutput] = {}
    asked = body.response_format
    if asked is not None and asked.type == "json_object":
        found["response_format"] = StructuredOutput(json_schema={"type": "object"})
    if asked is not None and asked.type == "json_schema":
        if asked.json_schema is None:
            expected = "one with json_schema: {name, schema}"
            raise InvalidConfigError("response_format", asked.model_dump(), expected)
        found["response_format"] = StructuredOutput(json_schema=asked.json_schema.schema_)
    guided = _Structured(
        json=body.guided_json,
        regex=body.guided_regex,
        choice=body.guided_choice,
        grammar=body.guided_grammar,
    )
    if any(value is not None for value in guided.model_dump().values()):
        found["guided_*"] = _structured(guided)
    if body.structured_outputs is not None:
        found["structured_outputs"] = _structured(body.structured_outputs)
    if len(found) > 1:
        raise InvalidConfigError("response_format", list(found), "one of these fields")
    return next(iter(found.values()), None)


def _structured(asked: _Structured) -> StructuredOutput:
    if asked.json_object and asked.json_ is not None:
        raise InvalidConfigError("structured_outputs", ["json", "json_object"], "one of these")
    return StructuredOutput(
        json_schema={"type": "object"} if asked.json_object else asked.json_,
        regex=asked.regex,
        choice=None if asked.choice is None else tuple(asked.choice),
        grammar=asked.grammar,
    )


def _biases(given: dict[str, float]) -> dict[int, float]:
    wrong = [token for token in given if str(_whole(token)) != token]
    if wrong:
        raise InvalidConfigError("logit_bias", wrong[0], "token ids, and a number for each")
    return {int(token): value for token, value in given.items()}


def _whole(text: str) -> int | None:
    try:
        return int(text)
    except ValueError:
        return None


def _joined(content: str | list[_Part] | None) -> str:
    if isinstance(content, list):
        return "".join(part.text for part in content)
    return content or ""


def _refused(given: dict[str, Any], error: PydanticError) -> InvalidConfigError:
    """Name the first field that is wrong, or what is wrong within it: `messages[0].role`.

    A field of several types has an error for each of them: the deepest one says most.
    """
    found = [(_path(given, each), each) for each in error.errors(include_url=False)]
    first, _ = found[0]
    within = [pair for pair in found if pair[0][: len(first)] == first]
    path, wrong = max(within, key=lambda pair: len(pair[0]))
    steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    name = "".join(steps).removeprefix(".")[:_LONGEST_NAME] or "body"
    if wrong["type"] == "missing":
        return InvalidConfigError(name, None, "a value", given=f"{name} is missing")
    if wrong["type"] == "extra_forbidden":
        return InvalidConfigError(name, wrong["input"], "none: there is no such field")
    said = "a JSON object" if wrong["type"] in ("model_type", "dict_type") else wrong["msg"]
    return InvalidConfigError(name, wrong["input"], said.removeprefix("Input should be "))


def _path(given: Any, error: Any) -> list[str | int]:
    """Return the keys that lead to an error; pydantic puts names of types between them."""
    path: list[str | int] = []
    for step in error["loc"]:
        inside = step in given if isinstance(given, dict) else isinstance(given, list)
        if inside and isinstance(step, str) == isinstance(given, dict):
            given = given[step]
            path.append(step)
    return [*path, error["loc"][-1]] if error["type"] == "missing" else path


def _start(data: bytes) -> str:
    return data[:40].decode(errors="replace")
