"""The tokenizer that a GGUF file carries is that of the model it was made from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from outrider import SamplingParams, SpeculativeDecoder, StructuredOutput, VocabularyDrafter
from outrider.drafters.vocabulary.spelling import Spelling
from outrider.engine.detokenize import StreamDecoder
from outrider.errors import InvalidConfigError, ModelError, TokenOutOfRangeError
from outrider.sampling.grammar import Grammars
from outrider.types.prefix import Prefix

pytest.importorskip("llama_cpp", reason="llama.cpp is not installed")
pytest.importorskip("gguf", reason="gguf writes the files of these tests")
pytest.importorskip("outrider_demo")

import outrider_demo as demo
from outrider.runtimes.llama_cpp.model import LlamaCppModel
from outrider.runtimes.llama_cpp.tokenizer import LlamaCppTokenizer
from outrider.server.tokens import TokenTexts
from tests.support.gguf_files import byte_level, gguf_model, write_gguf

TEXTS = (
    "",
    " ",
    "def f(x):\n    return x  # twice\n\n\n",
    "  two spaces,\ttabs\r\n and the end ",
    "naïve café, 東京, Ελλάδα, \N{GRINNING FACE}\N{WOMAN}\N{ZERO WIDTH JOINER}\N{ROCKET}",
    "it's they'll I'D 1234567 3.14159 __init__ a\0b",
    "before<|endoftext|>after",
)

TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}\n"
    "    {%- if message.role not in ('user', 'assistant') %}\n"
    "        {{- raise_exception('no role ' + message.role) }}\n"
    "    {%- endif %}\n"
    "{{ message.role }}: {{ message.content | trim }}\n"
    "{% endfor %}{% if tools %}{{ tools | tojson }}{% endif %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)


@pytest.fixture(scope="module")
def known() -> Any:
    return demo.tokenizer()


@pytest.fixture(scope="module")
def model(known: Any) -> Any:
    return gguf_model("llama", vocab_size=len(known))


@pytest.fixture(scope="module")
def path(model: Any, known: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "demo.gguf"
    return write_gguf(model, path, byte_level(known, TEMPLATE))


@pytest.fixture(scope="module")
def tokenizer(path: Path) -> LlamaCppTokenizer:
    return LlamaCppTokenizer(path)


@pytest.mark.parametrize("text", TEXTS)
def test_texts_are_encoded_and_decoded_as_by_transformers(
    text: str, tokenizer: LlamaCppTokenizer, known: Any
) -> None:
    ids = tokenizer.encode(text)
    assert ids == known.encode(text)
    assert tokenizer.encode(text, add_special_tokens=False) == ids
    assert tokenizer.decode(ids) == known.decode(ids) == text
    for start in range(len(ids)):
        for skip in (True, False):
            cut = ids[start : start + 3]
            found = tokenizer.decode(cut, skip_special_tokens=skip)
            assert found == known.decode(cut, skip_special_tokens=skip)


def test_the_vocabulary_is_the_same(tokenizer: LlamaCppTokenizer, known: Any) -> None:
    assert len(tokenizer) == len(known)
    assert tokenizer.get_vocab() == known.get_vocab()
    assert tokenizer.bos_token == known.bos_token
    assert tokenizer.eos_token_id == known.eos_token_id
    assert Spelling.of(tokenizer) == Spelling.of(known)


def test_a_stream_decodes_to_the_text(tokenizer: LlamaCppTokenizer) -> None:
    ids = tokenizer.encode("".join(TEXTS))
    decoder = StreamDecoder(tokenizer)
    streamed = "".join(decoder.push(token) for token in ids)
    whole = tokenizer.decode(ids, skip_special_tokens=True)
    assert "\N{REPLACEMENT CHARACTER}" not in streamed
    assert streamed + decoder.finish(whole) == whole


def test_the_bytes_of_tokens_join_to_the_text(tokenizer: LlamaCppTokenizer) -> None:
    texts, text = TokenTexts(tokenizer), "".join(TEXTS)
    ids = tokenizer.encode(text)
    parts = [texts.data(token, first=place == 0) for place, token in enumerate(ids)]
    assert b"".join(part or b"" for part in parts) == text.replace("<|endoftext|>", "").encode()


def test_ids_that_are_no_tokens_are_refused(tokenizer: LlamaCppTokenizer) -> None:
    with pytest.raises(TokenOutOfRangeError, match=r"-1\.\.4096; expected ids in 0\.\.4095"):
        tokenizer.decode([-1, 4096])


def test_a_conversation_is_written_by_the_files_template(
    tokenizer: LlamaCppTokenizer, known: Any
) -> None:
    known.chat_template = TEMPLATE
    messages = [
        {"role": "user", "content": " Ça va? "},
        {"role": "assistant", "content": "Oui <&>"},
    ]
    for more in ({}, {"tools": [{"name": "é <"}]}, {"add_generation_prompt": True}):
        expected = known.apply_chat_template(messages, tokenize=False, **more)
        assert tokenizer.apply_chat_template(messages, tokenize=False, **more) == expected
        ids = tokenizer.apply_chat_template(messages, **more)
        assert ids == known.encode(expected, add_special_tokens=False)
    with pytest.raises(InvalidConfigError, match="template refuses the messages: no role pirate"):
        tokenizer.apply_chat_template([{"role": "pirate", "content": "arr"}])


def test_a_file_without_a_template_or_a_tokenizer_says_so(
    model: Any, known: Any, tmp_path: Path
) -> None:
    silent = LlamaCppTokenizer(write_gguf(model, tmp_path / "a.gguf", byte_level(known)))
    assert silent.chat_template is None
    with pytest.raises(ModelError, match="has no chat template; write the prompt as text"):
        silent.apply_chat_template([{"role": "user", "content": "a"}])
    path = write_gguf(model, tmp_path / "b.gguf")
    with pytest.raises(ModelError, match="has no tokenizer; expected one that has"):
        LlamaCppTokenizer(path)


def test_a_schema_allows_the_tokens_that_it_allows_under_the_tokenizer_of_transformers(
    tokenizer: LlamaCppTokenizer, known: Any
) -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"enum": ["x", "y€"]}},
        "required": ["a", "b"],
        "additionalProperties": False,
    }
    asked = StructuredOutput(json_schema=schema)
    ends = frozenset([known.eos_token_id])
    grammars = [Grammars(each, len(known), ends).of(asked, ends) for each in (tokenizer, known)]
    ids = known.encode('{"a": 12, "b":\n "y€"}')
    for length in range(len(ids) + 1):
        output = Prefix(0, ids[:length])
        masks = [grammar.mask(output) for grammar in grammars]
        assert masks[0] is not None
        assert np.array_equal(*masks)


def test_text_by_a_regex_ends_where_it_is_whole(path: Path, tokenizer: LlamaCppTokenizer) -> None:
    short = StructuredOutput(regex=r"(yes|no)\.")
    params = SamplingParams(max_tokens=40, temperature=0, structured_output=short)
    out = SpeculativeDecoder(LlamaCppModel(path), tokenizer=tokenizer).generate("Is it? ", params)
    assert out.text in ("yes.", "no.")
    assert out.finish_reason == "stop"


def test_it_drafts_across_vocabularies_as_the_tokenizer_of_transformers(
    path: Path, tokenizer: LlamaCppTokenizer, known: Any
) -> None:
    """A draft in the same words meets the target's own, token by token."""
    target, draft = (LlamaCppModel(path, kv_dtype="float32") for _ in range(2))
    greedy = SamplingParams(max_tokens=20, temperature=0)
    plain = SpeculativeDecoder(target, tokenizer=tokenizer).generate("def ", greedy)
    for mine, theirs in ((tokenizer, known), (known, tokenizer), (tokenizer, tokenizer)):
        drafter = VocabularyDrafter(draft, mine, theirs)
        assert drafter.common == len(known)
        out = SpeculativeDecoder(target, drafter, tokenizer=tokenizer).generate("def ", greedy)
        assert out.token_ids == plain.token_ids
        assert out.metrics.accepted > 0
