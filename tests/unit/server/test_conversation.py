"""A conversation is written whole, as the model's template takes it, or refused by its part."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the server extra is not installed")

from fastapi.testclient import TestClient

from outrider import SamplingParams
from outrider.errors import InvalidConfigError
from outrider.server.conversation import written
from outrider.server.schema import Message
from tests.support.alphabet import every_byte
from tests.support.server import toy_decoder, toy_server

CHATML = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}</>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
ALL_BUT = (
    "{% for m in messages %}{% if m.role in ('system', 'user', 'assistant') %}"
    "<{{ m.role }}>{{ m.content }}</>{% endif %}{% endfor %}"
)
"""No branch for developers, tools or anyone else."""
FIRST = (
    "{% if messages[0].role == 'system' %}<system>{{ messages[0].content }}</>{% endif %}"
    "{% for m in messages if m.role != 'system' %}<{{ m.role }}>{{ m.content }}</>{% endfor %}"
)
"""Only the first message may be the system's."""
DEVELOPERS = (
    "{% for m in messages %}{% if m.role == 'developer' %}!{% endif %}{{ m.content }}{% endfor %}"
)
THINKING = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content.split('</think>')[-1] }}</>{% endfor %}"
    "{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}"
)
TOOLS = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}"
    "{% for c in m.tool_calls or [] %}[{{ c.function.name }}"
    "{% for k, v in c.function.arguments.items() %} {{ k }}={{ v }}{% endfor %}]{% endfor %}"
    "</>{% endfor %}"
)
TOOLS_AS_TEXT = (
    "{% for m in messages %}{% if m.tool_calls is defined %}{% for c in m.tool_calls %}"
    "{{ c.function.name + ' ' + c.function.arguments }}{% endfor %}{% else %}{{ m.content }}"
    "{% endif %}{% endfor %}"
)
TOOLS_PRINTED = (
    "{% for m in messages %}{% for c in m.tool_calls or [] %}{{ c.function.name }}"
    "({{ c.function.arguments }}){% endfor %}{{ m.content }}{% endfor %}"
)
TOOLS_AS_JSON = TOOLS_PRINTED.replace("arguments }}", "arguments | tojson }}")
MARKED = (
    "{% for m in messages %}{% if m.content not in ('yes', 'no') %}{{ raise_exception('what?') }}"
    "{% endif %}{{ m.content }}{% endfor %}"
)
"""Takes some contents alone."""


def say(role: str, content: Any = "hello", **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


def text(template: str, *messages: dict[str, Any], **options: Any) -> str:
    tokenizer = every_byte()
    tokenizer.chat_template = template
    return written(tokenizer, messages, **options)


def refused(template: str, *messages: dict[str, Any], **options: Any) -> str:
    with pytest.raises(InvalidConfigError) as raised:
        text(template, *messages, **options)
    return raised.value.field


def test_a_developer_is_the_system_where_the_template_knows_none() -> None:
    for template in (CHATML, ALL_BUT, FIRST):
        found = text(template, say("developer", "Be brief."), say("user"), answers=False)
        assert found == "<system>Be brief.</><user>hello</>"
    assert text(DEVELOPERS, say("developer", "Be brief.")) == "!Be brief."


@pytest.mark.parametrize(
    ("template", "messages", "field"),
    [
        (ALL_BUT, (say("user"), say("tool", "e")), "messages[1].content"),
        (ALL_BUT, (say("critic", "h"), say("user")), "messages[0].content"),
        (FIRST, (say("user"), say("developer", "hello")), "messages[1].content"),
        (CHATML, (say("user", name="hello"),), "messages[0].name"),
        (CHATML, (say("user"), say("assistant", "a", prefix=True)), "messages[1].prefix"),
        (MARKED, (say("user", "perhaps"),), "messages"),
    ],
)
def test_what_a_template_leaves_out_is_refused(
    template: str, messages: tuple[dict[str, Any], ...], field: str
) -> None:
    """Also where the text holds the same letters by chance."""
    assert refused(template, *messages) == field


def test_what_a_template_does_not_need_is_no_loss() -> None:
    assert text(CHATML, say("user", " \n hello\n"), say("assistant", "")).startswith("<user>hello<")
    thought = say("assistant", "<think>hm</think>yes")
    assert text(THINKING, say("user"), thought) == "<user>hello</><assistant>yes</>"
    assert (
        text(CHATML, say("assistant", "a", reasoning_content="hm")) == "<assistant>a</><assistant>"
    )
    assert text(CHATML, say("tool", "3", name="sum", tool_call_id="1")) == "<tool>3</><assistant>"
    assert text(MARKED, say("user", "yes"), say("user", "no")) == "yesno"


def call(arguments: Any) -> dict[str, Any]:
    function = {"name": "add", "arguments": arguments}
    return say("assistant", "", tool_calls=[{"id": "1", "type": "function", "function": function}])


def test_tool_calls_are_written_as_the_template_takes_them() -> None:
    made = call({"a": "x", "b": {"c": ["d", None]}})
    assert text(TOOLS, made) == "<assistant>[add a=x b={'c': ['d', None]}]</>"
    assert text(TOOLS_AS_TEXT, made) == 'add {"a": "x", "b": {"c": ["d", null]}}'
    assert refused(CHATML, made) == "messages[0].tool_calls[0].function.name"
    for template in (TOOLS_PRINTED, TOOLS_AS_JSON):
        assert text(template, made) == 'add({"a": "x", "b": {"c": ["d", null]}})'
        assert text(template, call({}), say("user", "{}")) == "add({}){}"
    without = TOOLS.replace(" {{ k }}={{ v }}", "")
    assert refused(without, made) == "messages[0].tool_calls[0].function.arguments"
    deep: Any = {}
    for _ in range(5000):
        deep = {"a": deep}
    for template in (TOOLS_AS_TEXT, TOOLS.replace("={{ v }}", "={{ v | tojson }}")):
        assert refused(template, call(deep)) == "messages"
    spoken = {**made, "content": "I add"}
    assert refused(TOOLS_AS_TEXT, spoken) == "messages[0].content"


@pytest.mark.parametrize(
    ("lost", "arguments", "path"),
    [
        ("{{ v | list | first }}", {"a": {"c": "lost"}}, "a.c"),
        ("{{ v.values() | list }}", {"a": {"lost": None}}, "a"),
        ("{{ v | list | first }}", {"a": {"c": 1}}, "a.c"),
        ("{{ v[:1] }}", {"a": [1, 1]}, "a[1]"),
        ("{{ v[:1] }}", {"a": ["x", {"lost": False}]}, "a[1]"),
        ("{{ v if v is string }}", {"a": 10}, "a"),
        ("{{ v if v is string }}", {"a": 1.5}, "a"),
        ("{% if v is not number %}{{ v }}{% endif %}", {"a": "1", "b": 1}, "b"),
    ],
    ids=str,
)
def test_no_part_of_arguments_is_lost(lost: str, arguments: Any, path: str) -> None:
    """Names and numbers are looked for as texts are, at any depth."""
    template = TOOLS.replace("{{ v }}", lost)
    found = refused(template, call(arguments))
    assert found == f"messages[0].tool_calls[0].function.arguments.{path}"
    assert text(TOOLS, call(arguments)).startswith("<assistant>[add a=")


def test_a_template_with_what_transformers_adds_is_taken() -> None:
    template = (
        "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}"
        "{% if loop.last %}{% break %}{% endif %}{% endfor %}"
    )
    assert text(template, say("user")) == "hello"
    assert refused("{% for m in messages %}", say("user")) == "messages"


def test_an_answer_may_be_begun() -> None:
    last = say("assistant", "Once upon a ")
    assert text(CHATML, say("user"), last, continues=True) == (
        "<user>hello</><assistant>Once upon a "
    )
    assert text(CHATML, say("user"), say("assistant", ""), continues=True) == (
        "<user>hello</><assistant>"
    )
    assert text(CHATML, say("user"), answers=False) == "<user>hello</>"
    assert (
        refused(ALL_BUT, say("user"), say("tool", ""), continues=True) == "continue_final_message"
    )


def test_variables_are_those_of_the_template() -> None:
    assert text(THINKING, say("user"), variables={"enable_thinking": False}).endswith("</think>")
    names = ("enable", "thinking", "content", "endfor", "m", "messages", "tools", "bos_token")
    template = THINKING + "{{ bos_token }}{{ messages[0].enable }}{# thinking #}"
    for name in names:
        assert refused(template, say("user"), variables={name: False}) == "chat_template_kwargs"


@pytest.fixture
def client() -> Any:
    with toy_server() as server:
        server.decoder.tokenizer.chat_template = TOOLS
        yield TestClient(server.app)


def asked(client: Any, *messages: Any, **body: Any) -> Any:
    body = {"messages": messages, "max_tokens": 6, "temperature": 0, **body}
    return client.post("/v1/chat/completions", json=body)


def prompted(prompt: str) -> str | None:
    return toy_decoder().generate(prompt, SamplingParams(max_tokens=6, temperature=0)).text


def test_arguments_are_parsed_before_the_template(client: Any) -> None:
    history = [say("user"), call('{"a": 1}'), say("tool", "1", tool_call_id="1"), say("user", "?")]
    expected = prompted("<user>hello</><assistant>[add a=1]</><tool>1</><user>?</>")
    for arguments in ('{"a": 1}', {"a": 1}):
        history[1] = call(arguments)
        found = asked(client, *history).json()["choices"][0]["message"]["content"]
        assert found == expected
    history[1]["content"] = None
    assert asked(client, *history).json()["choices"][0]["message"]["content"] == expected
    assert asked(client, call("")).status_code == 200


@pytest.mark.parametrize("arguments", ["{", "a=1", "[1]", "3", 3, [1], "[" * 100_000])
def test_arguments_that_are_no_object_are_refused_by_their_path(
    arguments: Any, client: Any
) -> None:
    response = asked(client, say("user"), call(arguments))
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "messages[1].tool_calls[0].function.arguments"


def test_a_dropped_message_is_refused_by_its_place(client: Any) -> None:
    with toy_server() as server:
        server.decoder.tokenizer.chat_template = ALL_BUT
        response = asked(TestClient(server.app), say("user"), say("tool", "e"))
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "messages[1].content"
    assert "messages[1].content='e'" in response.json()["error"]["message"]


@pytest.mark.parametrize("inside", [False, True])
def test_a_conversation_may_end_without_a_prompt_or_be_continued(inside: bool) -> None:
    with toy_server() as server:
        server.decoder.tokenizer.chat_template = CHATML
        client = TestClient(server.app)
        last = say("assistant", "ab ")
        for option, expected in (
            ({"continue_final_message": True}, "<assistant>ab "),
            ({"continue_final_message": True, "add_generation_prompt": False}, "<assistant>ab "),
            ({"add_generation_prompt": False}, "<assistant>ab</>"),
            ({"add_generation_prompt": True}, "<assistant>ab</><assistant>"),
            ({}, "<assistant>ab</><assistant>"),
        ):
            body = {"chat_template_kwargs": option} if inside else option
            found = asked(client, last, **body).json()
            assert found["choices"][0]["message"]["content"] == prompted(expected)


def test_an_answers_message_may_be_sent_back(client: Any) -> None:
    given = asked(client, say("user")).json()["choices"][0]["message"]
    given["content"] = "fine"
    sdk = given | {"annotations": [], "audio": None, "function_call": None, "tool_calls": None}
    for message in (sdk, sdk | {"tool_calls": []}):
        assert Message.model_validate(message).plain() == say("assistant", "fine")
        assert asked(client, say("user"), message, say("user", "?")).status_code == 200
