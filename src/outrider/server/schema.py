"""What clients may ask for: bodies as OpenAI and vLLM name their fields, made into our records."""

from __future__ import annotations

import json
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StrictBool,
    StrictFloat,
    StrictInt,
    StrictStr,
    field_validator,
    model_validator,
)

from .fields import IGNORED, asks_for_nothing

Speculation = Literal["none", "summary", "detailed"]
"""Which figures about speculation a response carries."""

_MOST_STOPS = 16
_ENDS = ("add_generation_prompt", "continue_final_message")

_OF_SCHEMAS = frozenset(
    ("type", "properties", "items", "enum", "const", "anyOf", "oneOf", "allOf", "$ref", "$defs")
)
"""Keywords by which a JSON schema is known."""


class Record(BaseModel):
    """An object of JSON whose fields are all known; one that is null is as if it were not there."""

    model_config = ConfigDict(extra="forbid")
    ignored: ClassVar[frozenset[str]] = frozenset()

    @model_validator(mode="before")
    @classmethod
    def _asked(cls, given: Any) -> Any:
        """Leave out what asks for nothing."""
        if not isinstance(given, dict):
            return given
        return {
            name: value
            for name, value in given.items()
            if not (value is None or name in cls.ignored or asks_for_nothing(name, value))
        }


class _Part(Record):
    type: Literal["text"]
    text: StrictStr


class _Function(Record):
    name: StrictStr
    arguments: dict[str, Any] = Field(default_factory=dict)

    @field_validator("arguments", mode="before")
    @classmethod
    def _parsed(cls, given: Any) -> Any:
        """Parse JSON text, as OpenAI has it: templates take a mapping."""
        if not isinstance(given, str):
            return given
        try:
            return json.loads(given or "{}")
        except (ValueError, RecursionError):
            raise ValueError("JSON text of an object, or an object") from None


class _ToolCall(Record):
    ignored = frozenset({"index"})
    id: StrictStr | None = None
    type: Literal["function"] = "function"
    function: _Function


class Message(Record):
    """One message of a conversation; parts of its content are joined.

    Fields that are not named here are for templates that read them.
    """

    model_config = ConfigDict(extra="allow")
    ignored = frozenset({"annotations"})
    role: StrictStr
    content: StrictStr | list[_Part] | None = None
    name: StrictStr | None = None
    tool_calls: list[_ToolCall] | None = None
    tool_call_id: StrictStr | None = None

    def plain(self) -> dict[str, Any]:
        """Return it as chat templates take it."""
        unset = set() if self.tool_calls else {"tool_calls"}
        given = self.model_dump(exclude_none=True, exclude=unset)
        return {**given, "content": joined(self.content)}


class _StreamOptions(Record):
    include_usage: StrictBool = False
    continuous_usage_stats: StrictBool = False
    include_obfuscation: Literal[False] = False


class _Prediction(Record):
    type: Literal["content"]
    content: StrictStr | list[_Part]


class _NamedSchema(Record):
    """What `json_schema` of a response format holds: {name, schema}, or the schema itself."""

    name: StrictStr | None = None
    description: StrictStr | None = None
    schema_: dict[str, Any] = Field(alias="schema")
    strict: StrictBool | None = None

    @model_validator(mode="before")
    @classmethod
    def _wrapped(cls, given: Any) -> Any:
        """Wrap what is a schema itself."""
        if not isinstance(given, dict) or given.keys() & {"schema", "name", "strict"}:
            return given
        return {"schema": given} if given.keys() & _OF_SCHEMAS else given


class ResponseFormat(Record):
    """OpenAI's form of an answer; `schema` and `value` beside the type are others' names of it."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: _NamedSchema | None = None
    schema_: dict[str, Any] | None = Field(default=None, alias="schema")
    value: dict[str, Any] | None = None
    name: StrictStr | None = None
    description: StrictStr | None = None
    strict: StrictBool | None = None


class Structured(Record):
    """A form of the text, as vLLM names them."""

    json_: dict[str, Any] | StrictStr | None = Field(default=None, alias="json")
    regex: StrictStr | None = None
    choice: list[StrictStr] | None = None
    grammar: StrictStr | None = None
    json_object: StrictBool | None = None


class Common(Record):
    """The fields that both kinds of requests have."""

    ignored = IGNORED

    model: StrictStr | None = None
    max_tokens: StrictInt | None = None
    temperature: StrictFloat | None = None
    top_p: StrictFloat | None = None
    top_k: StrictInt | None = None
    min_p: StrictFloat | None = None
    n: StrictInt | None = None
    seed: StrictInt | None = None
    stop: StrictStr | Annotated[list[StrictStr], Field(max_length=_MOST_STOPS)] | None = None
    stop_token_ids: list[StrictInt] | None = None
    include_stop_str_in_output: StrictBool | None = None
    ignore_eos: StrictBool | None = None
    min_tokens: StrictInt | None = None
    presence_penalty: StrictFloat | None = None
    frequency_penalty: StrictFloat | None = None
    repetition_penalty: StrictFloat | None = None
    logit_bias: dict[int, StrictFloat] | None = None
    bad_words: list[StrictStr | list[StrictInt]] | None = None
    allowed_token_ids: list[StrictInt] | None = None
    stream: StrictBool = False
    stream_options: _StreamOptions = Field(default_factory=_StreamOptions)
    prediction: _Prediction | None = None
    response_format: ResponseFormat | None = None
    guided_json: dict[str, Any] | StrictStr | None = None
    guided_regex: StrictStr | None = None
    guided_choice: list[StrictStr] | None = None
    guided_grammar: StrictStr | None = None
    structured_outputs: Structured | None = None
    return_token_ids: StrictBool = False
    return_tokens_as_token_ids: StrictBool = False
    speculation_metrics: Speculation | None = None
    speculative: StrictBool | None = None


class CompletionBody(Common):
    """A body of /v1/completions."""

    prompt: StrictStr | list[StrictStr] | list[StrictInt] | list[list[StrictInt]]
    logprobs: Annotated[StrictInt, Field(ge=0, le=5)] | None = None
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


class TokenizeBody(Record):
    """A body of /tokenize, as vLLM has it."""

    model: StrictStr | None = None
    prompt: StrictStr


class ChatBody(Common):
    """A body of /v1/chat/completions."""

    messages: Annotated[list[Message], Field(min_length=1)]
    max_completion_tokens: StrictInt | None = None
    logprobs: StrictBool | None = None
    top_logprobs: Annotated[StrictInt, Field(ge=0, le=20)] | None = None
    add_generation_prompt: StrictBool | None = None
    continue_final_message: StrictBool | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    @model_validator(mode="before")
    @classmethod
    def _lifted(cls, given: Any) -> Any:
        """Take how the conversation ends out of the template's own variables, where vLLM has it."""
        inner = given.get("chat_template_kwargs") if isinstance(given, dict) else None
        if not isinstance(inner, dict):
            return given
        ends = {name: inner[name] for name in _ENDS if name in inner and name not in given}
        own = {name: value for name, value in inner.items() if name not in ends}
        return {**given, **ends, "chat_template_kwargs": own}

    @property
    def top(self) -> int | None:
        """How many likeliest tokens are reported; None for no log-probabilities."""
        return (self.top_logprobs or 0) if self.logprobs else None


Body = CompletionBody | ChatBody


def joined(content: str | list[_Part] | None) -> str:
    """Return a content as one text."""
    if isinstance(content, list):
        return "".join(part.text for part in content)
    return content or ""
