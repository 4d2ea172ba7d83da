"""Servers with a fault are found out, a sound one passes, and bad servers are described.

Draws of servers are seeded, so that a fault is found in every run or in none.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import pytest

from outrider.certify.endpoint import promises
from outrider.certify.endpoint.client import Endpoint, EndpointError
from outrider.certify.endpoint.questions import Plan, parameters, plain
from outrider.certify.endpoint.records import Question, Text, Tokens
from outrider.certify.endpoint.references import EndpointReference, ModelReference
from outrider.certify.endpoint.run import Answer, Certification
from outrider.certify.endpoint.texts import Texts
from outrider.cli import main
from outrider.config.params import SamplingParams
from outrider.errors import InvalidConfigError
from outrider.runtimes.tabular import TabularModel
from tests.support.faulty_servers import FAULTS, SOUND, Fault, letters, serving

_RNG = np.random.default_rng(0)
PROMPTS: list[Tokens] = [tuple(_RNG.integers(0, 26, 6).tolist()) for _ in range(24)]


def asked(url: str, plan: Plan, path: Path | None = None) -> dict[str, Answer]:
    model, draft = (ModelReference(each, "letters") for each in letters())
    with Endpoint(url) as engine:
        run = Certification(Texts(engine, path).ask, model, PROMPTS, plan, draft=draft)
        answers = run.answers()
    return {answer.question.name: answer for answer in answers}


def kept(url: str) -> dict[str, str]:
    with Endpoint(url) as engine:
        found = promises.kept(engine, ModelReference(letters()[0], "letters"), PROMPTS)
    return {item.name: item.verdict for item in found}


def verdicts(url: str, fault: Fault) -> dict[str, str]:
    """Ask what may show a fault."""
    if fault.found in promises.CHECKS:
        return kept(url)
    ordinary = 4096 if fault.found in ("sampling", "simultaneous requests") else 300
    plan = Plan(tokens=ordinary, parameter_tokens=800, length=48, only=(fault.found,))
    return {name: answer.verdict for name, answer in asked(url, plan).items()}


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found_where_it_is(name: str) -> None:
    fault = FAULTS[name]
    with serving(fault) as url:
        found = verdicts(url, fault)
    assert found[fault.found] in ("wrong", "ignored")
    if fault.found not in ("sampling", "simultaneous requests"):
        others = {each: verdict for each, verdict in found.items() if each != fault.found}
        assert not {"wrong", "ignored"} & set(others.values())


@pytest.mark.slow
def test_a_sound_server_passes_whatever_is_asked() -> None:
    with serving(SOUND) as url:
        found = asked(url, Plan(tokens=1600, parameter_tokens=600, length=48))
        promised = kept(url)
    assert len(found) == 12
    assert {answer.verdict for answer in found.values()} <= {"honoured", "undecided"}
    assert set(promised.values()) <= {"honoured", "undecided"}


def test_a_server_is_scored_by_another_and_by_itself() -> None:
    """By its five likeliest tokens; a fault of the temperature is found all the same."""
    fault = FAULTS["filters applied twice"]
    plan = Plan(tokens=128, parameter_tokens=400, length=32, only=("temperature", "top_p"))
    with (
        serving(fault) as url,
        serving(SOUND) as other,
        Endpoint(url) as engine,
        Endpoint(other) as sound,
    ):
        reference = EndpointReference(sound)
        assert reference.listed == 5
        run = Certification(Texts(engine).ask, reference, PROMPTS, plan)
        answers = run.answers()
        found = {answer.question.name: answer.verdict for answer in answers}
        assert found["temperature"] == "wrong"
        assert found["sampling"] == "honoured"
        assert run.noise.max() < 1e-9
        answers = Certification(Texts(sound).ask, reference, PROMPTS, plan).answers()
        assert not any(answer.rejected for answer in answers)


def test_a_run_that_was_broken_off_goes_on_with_the_texts_it_has(tmp_path: Path) -> None:
    path = tmp_path / "texts.jsonl"
    plan = Plan(tokens=128, parameter_tokens=64, length=32, only=("top_k",))
    with serving(SOUND) as url:
        first = asked(url, plan, path)
        lines = path.read_text().splitlines()
        path.write_text("\n".join(lines[:7]) + '\n{"question": "sam')
        again = asked(url, plan, path)
        whole = path.read_text().splitlines()
    assert first["sampling"].against.tokens >= 128
    assert 64 <= first["top_k"].came < 128
    assert again["sampling"].against.tokens >= 128
    assert whole[:7] == lines[:7]
    with serving(SOUND) as url, pytest.raises(InvalidConfigError, match="another folder"):
        asked(url, plan, path)


@contextmanager
def answering(answers: dict[str, Any]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """A server that answers routes as they are given.

    An answer is JSON, or (status, headers, JSON), several in turn, or a function of all bodies.
    """
    bodies: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            size = int(self.headers.get("Content-Length") or 0)
            bodies.append(json.loads(self.rfile.read(size) or "{}"))
            given = answers.get(self.path, (404, {}, {"error": {"message": "no such route"}}))
            if callable(given):
                given = given(bodies)
            if isinstance(given, list):
                given = given.pop(0) if len(given) > 1 else given[0]
            status, headers, found = given if isinstance(given, tuple) else (200, {}, given)
            data = json.dumps(found).encode()
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(data))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = answer

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1", bodies
    finally:
        server.shutdown()
        server.server_close()


MODELS = {"data": [{"id": "tiny"}]}


def choice(**fields: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "text": "a", "finish_reason": "length", **fields}]}


TOKENIZED = {"/v1/models": MODELS, "/tokenize": {"tokens": [1, 2]}}


def sure(bodies: list[dict[str, Any]]) -> dict[str, Any]:
    """An answer of one token again and again, which is nearly certain."""
    named = {f"token_id:{token}": -0.1 - 3 * (token - 1) for token in range(1, 21)}
    tops = {"top_logprobs": [named], "tokens": ["token_id:1"]}
    found = choice(logprobs=tops, token_ids=[1] * bodies[-1]["max_tokens"])
    return {"choices": found["choices"] * bodies[-1].get("n", 1)}


def test_equal_texts_are_a_fault_only_where_they_are_unlikely() -> None:
    with answering({**TOKENIZED, "/v1/completions": sure}) as (url, _), Endpoint(url) as engine:
        itself = EndpointReference(engine)
        for check in (promises.choices, promises.seed):
            # 16 and 24 tokens of a probability of .9 each, then of a model that rarely repeats one.
            assert check(engine, itself, PROMPTS)[0] == "undecided"
            unlikely = ModelReference(letters()[0], "letters")
            assert check(engine, unlikely, PROMPTS)[0] == "wrong"


def test_texts_of_a_seed_that_part_late_may_be_rounded_otherwise() -> None:
    def seeded(bodies: list[dict[str, Any]]) -> dict[str, Any]:
        if bodies[-1].get("seed") is None:
            return sure(bodies)
        texts = {11: [3, 4, 5 + len(bodies) % 2], 12: [6, 7]}
        return choice(token_ids=texts[bodies[-1]["seed"]])

    def cut(bodies: list[dict[str, Any]]) -> dict[str, Any]:
        if bodies[-1].get("seed") is None:
            return sure(bodies)
        texts = {11: [3, 4, 5][: 2 + len(bodies) % 2], 12: [6, 7]}
        return choice(token_ids=texts[bodies[-1]["seed"]])

    def at_once(bodies: list[dict[str, Any]]) -> dict[str, Any]:
        return choice(token_ids=[len(bodies)]) if bodies[-1].get("seed") else sure(bodies)

    for complete, verdict in ((seeded, "undecided"), (cut, "undecided"), (at_once, "ignored")):
        answers = {**TOKENIZED, "/v1/completions": complete}
        with answering(answers) as (url, _), Endpoint(url) as engine:
            found, said = promises.seed(engine, EndpointReference(engine), PROMPTS)
        assert found == verdict
        assert ("after 2 equal tokens" in said) == (verdict == "undecided")


def test_an_interrupted_run_says_how_it_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_: Certification) -> list[Answer]:
        raise KeyboardInterrupt

    monkeypatch.setattr(Certification, "answers", interrupted)
    with answering({**TOKENIZED, "/v1/completions": sure}) as (url, _):
        command = ["certify", "--endpoint", url, "--self", "--out", str(tmp_path)]
        assert main(command) == 130
    assert f"the same command goes on with the texts in {tmp_path}" in " ".join(
        capsys.readouterr().err.split()
    )


def refusal(url: str, **given: Any) -> str:
    with pytest.raises(EndpointError) as found, Endpoint(url, timeout_s=5, **given):
        pass
    return str(found.value)


def test_what_keeps_a_server_from_being_certified_is_described() -> None:
    assert "cannot be reached" in refusal("http://127.0.0.1:9")
    with answering({"/v1/models": MODELS, "/v1/completions": choice()}) as (url, _):
        assert "serves tiny; expected 'large' among them" in refusal(url, model="large")
        assert "names no token ids" in refusal(url)
    with answering({"/v1/models": (401, {}, {"error": {"message": "no key"}})}) as (url, _):
        assert "answers 401: no key; expected --key" in refusal(url)
    with answering({"/v1/models": MODELS}) as (url, _):
        assert "has no /v1/completions" in refusal(url)
    for address in ("me:secret@localhost:8000", "http://", "http://host:port", "http://[::1"):
        with pytest.raises(InvalidConfigError, match="such as http://localhost:8000/v1") as found:
            Endpoint(address)
        assert "secret" not in str(found.value)


def test_a_server_says_its_version() -> None:
    """By the route of vLLM or of llama.cpp, or not at all."""
    answers = {"/v1/models": MODELS, "/v1/completions": choice(token_ids=[3])}
    for route, found, version in (
        ("/version", {"version": "0.32"}, "0.32"),
        ("/props", {"build_info": "b9"}, "b9"),
        ("/other", {}, None),
    ):
        with answering({**answers, route: found}) as (url, _), Endpoint(url) as engine:
            assert engine.version == version


def test_llama_cpp_is_asked_by_a_route_that_names_every_token() -> None:
    """By OpenAI's it leaves out those within a letter."""
    counts = {"tokens_evaluated": 2, "tokens_predicted": 3}
    named = [{"id": 4, "logprob": -0.5}, {"id": 5, "logprob": -0.7}]
    answers = {
        "/v1/models": MODELS,
        "/v1/completions": choice(logprobs={"content": named}),
        "/completion": {"content": "x", "tokens": [3, 4, 5], "stop_type": "eos", **counts},
    }
    with answering(answers) as (url, bodies), Endpoint(url) as engine:
        (text,) = Texts(engine).ask(plain(64, 16), 0, (1, 2))
        assert (text.tokens, text.finish_reason) == ((3, 4, 5), "stop")
        assert text.usage == {"prompt_tokens": 2, "completion_tokens": 3}
        assert bodies[-1]["return_tokens"]
        (text,) = engine.complete((1, 2), SamplingParams(), logprobs=1)
        assert (text.tokens, text.logprobs) == ((4, 5), (-0.5, -0.7))


def test_a_listing_has_as_many_tokens_as_were_asked_for() -> None:
    """If it has fewer, and the drawn token besides, it depends on what is drawn."""

    def five(bodies: list[dict[str, Any]]) -> dict[str, Any]:
        tops: dict[str, Any] = {f"token_id:{token}": -1.0 - token for token in (0, 1, 2, 3, 4, 9)}
        tops["token_id:11"] = None  # as JSON has it of an impossible one
        return choice(logprobs={"top_logprobs": [tops]}, token_ids=[1])

    def two(_: list[dict[str, Any]]) -> dict[str, Any]:
        return choice(logprobs={"top_logprobs": [{"token_id:1": -0.1}]}, token_ids=[1])

    with answering({**TOKENIZED, "/v1/completions": five}) as (url, _), Endpoint(url) as engine:
        assert EndpointReference(engine).listed == 5
    with (
        answering({**TOKENIZED, "/v1/completions": two}) as (url, _),
        Endpoint(url) as engine,
        pytest.raises(EndpointError, match="gives no log-probabilities of likeliest tokens"),
    ):
        EndpointReference(engine)


@pytest.mark.parametrize(
    ("check", "tokens", "logprobs", "verdict"),
    [
        (promises.greedy, (), (), "undecided"),
        (promises.max_tokens, (), (), "undecided"),
        (promises.logprobs, (), (), "undecided"),
        (promises.logprobs, (3,), (0.0,), "wrong"),
        (promises.logprobs, (3,), (-1.0, -1.0), "wrong"),
    ],
)
def test_a_promise_of_which_nothing_was_seen_is_undecided(
    check: Any, tokens: Tokens, logprobs: tuple[float, ...], verdict: str
) -> None:
    text = Text(PROMPTS[0], tokens, "", "stop", {}, logprobs)
    engine = SimpleNamespace(complete=lambda *_, **__: [text])
    found, _ = check(engine, ModelReference(letters()[0], "letters"), PROMPTS)
    assert found == verdict


def test_zero_is_the_log_probability_of_a_certain_token() -> None:
    text = Text((1,), (2,), "", "stop", {}, (0.0,))
    engine: Any = SimpleNamespace(complete=lambda *_, **__: [text])
    certain = ModelReference(TabularModel(lambda _: np.eye(3)[2], 3), "certain")
    assert promises.logprobs(engine, certain, [(1,)])[0] == "honoured"


def test_tokens_that_end_texts_are_held_back_by_min_tokens_as_stop_tokens_are() -> None:
    text = Text((1,), (4, 4, 7), "", "stop", {})
    cut = replace(text, tokens=(4, 9), finish_reason="length")
    (question,) = parameters([text, cut], 64, 16, None, ["min_tokens"])
    assert {4, 7} <= set(question.params.stop_token_ids)
    assert question.ignored is not None
    assert question.params.stop_token_ids == question.ignored.stop_token_ids


def test_prompts_that_end_at_once_are_passed_over() -> None:
    def asked_of(ending: list[Tokens]) -> dict[str, Answer]:
        def ask(question: Question, number: int, prompt: Tokens) -> list[Text]:
            rng = np.random.default_rng(number)
            drawn = tuple(rng.integers(0, 26, question.params.max_tokens).tolist())
            return [Text(prompt, () if prompt in ending else drawn, "", None, {})]

        plan = Plan(tokens=64, parameter_tokens=32, length=8, concurrency=2, only=("top_k",))
        reference = ModelReference(letters()[0], "letters")
        answers = Certification(ask, reference, PROMPTS[:3], plan).answers()
        return {answer.question.name: answer for answer in answers}

    assert asked_of(PROMPTS[:2])["sampling"].came
    with pytest.raises(EndpointError, match="no text of 6 has two tokens or more"):
        asked_of(PROMPTS[:3])


def test_a_question_ends_where_its_answer_is_certain() -> None:
    with serving(FAULTS["a greedy draft reported as sampled"]) as url:
        found = asked(url, Plan(tokens=4096, parameter_tokens=16, length=48, only=("top_k",)))
    assert found["sampling"].verdict == "wrong"
    assert found["sampling"].came < 1000
    joint = found["simultaneous requests"]
    assert joint.cut
    # Equal greedy tokens of two texts speak against it as well: how much by then is chance.
    assert joint.verdict == ("wrong" if joint.rejected else "undecided")
    assert any(found["sampling"].rejects(value) for _, value in found["sampling"].against.curve)


def test_a_connection_that_was_dropped_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = {"/v1/models": MODELS, "/v1/completions": choice(token_ids=[3])}
    with answering(answers) as (url, _), Endpoint(url) as engine:
        request, dropped = engine._http.request, list[Any]()

        def once(*given: Any, **more: Any) -> Any:
            if not dropped:
                dropped.append(given)
                raise httpx.ReadError("connection reset by peer")
            return request(*given, **more)

        monkeypatch.setattr(engine._http, "request", once)
        assert engine.post("/completions", {})["choices"]
        assert dropped


def test_a_promise_that_a_server_fails_at_is_no_pass(tmp_path: Path) -> None:
    def complete(bodies: list[dict[str, Any]]) -> Any:
        if "response_format" in bodies[-1]:
            return 500, {}, {"error": {"message": "no grammar"}}
        return sure(bodies)

    answers = {**TOKENIZED, "/v1/completions": complete}
    flags = ["--only", "top_k", "--tokens", "16", "--parameter-tokens", "16", "--length", "8"]
    with answering(answers) as (url, _):
        command = ["certify", "--endpoint", url, "--self", "--out", str(tmp_path)]
        assert main([*command, *flags]) == 1
    found = json.loads((tmp_path / "certificate.json").read_text())
    failed = [each["name"] for each in found["promises"] if each["verdict"] == "failed"]
    assert failed == ["response_format"]


def test_rate_limits_are_waited_for() -> None:
    busy = (429, {"Retry-After": "0"}, {"error": {"message": "slow down"}})
    answers = {"/v1/models": MODELS, "/v1/completions": [busy, busy, choice(token_ids=[3])]}
    with answering(answers) as (url, bodies), Endpoint(url) as engine:
        assert engine.extra["return_token_ids"]
        assert len(bodies) > 3


def test_a_server_that_dies_half_way_leaves_its_texts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:

    def complete(bodies: list[dict[str, Any]]) -> Any:
        if bodies[-1].get("max_tokens") == 8 and len(bodies) > 60:
            return 500, {}, {"error": {"message": "out of memory"}}
        return sure(bodies)

    answers = {**TOKENIZED, "/v1/completions": complete}
    with answering(answers) as (url, _):
        status = main(
            ["certify", "--endpoint", url, "--self", "--out", str(tmp_path), "--length", "8"]
        )
    assert status == 2
    said = capsys.readouterr().err
    assert "out of memory" in said
    assert str(tmp_path) in said
    assert len((tmp_path / "texts.jsonl").read_text().splitlines()) > 1


def test_a_server_that_fails_under_a_parameter_is_certified_in_what_is_left(tmp_path: Path) -> None:
    """And the run may go on in its folder once the server is mended."""
    broken = [True]

    def complete(bodies: list[dict[str, Any]]) -> Any:
        if bodies[-1].get("top_k") == 3 and broken:
            return 500, {}, {"error": {"message": "no such dimension"}}
        return sure(bodies)

    answers = {**TOKENIZED, "/v1/completions": complete}
    flags = ["--only", "top_k", "--only", "min_p", "--tokens", "16", "--parameter-tokens", "16"]
    with answering(answers) as (url, _):
        command = ["certify", "--endpoint", url, "--self", "--out", str(tmp_path), *flags]
        assert main(command) == 1
        (failed, other) = json.loads((tmp_path / "certificate.json").read_text())["questions"][2:]
        assert failed["verdict"] == "failed"
        assert "no such dimension" in failed["failed"]
        assert other["verdict"] != "failed"
        broken.clear()
        main(command)
        assert main(command) == 2
    (mended, _) = json.loads((tmp_path / "certificate.json").read_text())["questions"][2:]
    assert mended["verdict"] != "failed"


def test_flags_that_do_not_go_together_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["certify", "--endpoint", "http://x"]) == 2
    assert "one of --reference-endpoint" in capsys.readouterr().err
    both = ["--self", "--reference-model", "demo"]
    assert main(["certify", "--endpoint", "http://x", *both]) == 2
    assert "--endpoint with --reference-model and --self; expected" in capsys.readouterr().err
    assert main(["certify", "--self"]) == 2
    assert "the address of the server" in capsys.readouterr().err
    with answering({"/v1/models": MODELS, "/v1/completions": choice(token_ids=[3])}) as (url, _):
        assert main(["certify", "--endpoint", url, "--reference-endpoint", url]) == 2
    assert "another server than --endpoint" in capsys.readouterr().err
    own = ["certify", "--endpoint", "http://x", "--self"]
    for flags, said in (
        (["--concurrency", "3"], "an even number"),
        (["--length", "2"], "--length 2 is not allowed"),
        (["--only", "top_q"], "top_q"),
    ):
        assert main([*own, *flags]) == 2
        assert said in capsys.readouterr().err


def test_the_reference_is_loaded_as_the_flags_of_models_say(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with answering({"/v1/models": MODELS, "/v1/completions": choice(token_ids=[3])}) as (url, _):
        command = ["certify", "--endpoint", url, "--reference-model", "demo"]
        assert main([*command, "--runtime", "transformers", "--weights", "int8"]) == 2
    assert "weights='int8' is not allowed" in capsys.readouterr().err


@pytest.mark.parametrize("line", ["[1, 2", " [1", "[1, x]", "[-1, 2]", "[1, 2.5]"])
def test_a_broken_list_of_token_ids_is_no_text(
    line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text(f"[3, 4]\n[1] a text\n{line}\n")
    with answering({"/v1/models": MODELS, "/v1/completions": choice(token_ids=[3])}) as (url, _):
        assert main(["certify", "--endpoint", url, "--self", "--prompts", str(prompts)]) == 2
    assert f"{prompts} line 3 begins like a list of token ids" in capsys.readouterr().err


@pytest.mark.parametrize("held", ["{}", "[]", "-----BEGIN"])
def test_a_folder_with_a_certificate_of_something_else_is_refused(
    held: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "certificate.json").write_text(held)
    assert main(["certify", "--endpoint", "http://x", "--self", "--out", str(tmp_path)]) == 2
    assert "a new folder: this one has a certificate" in capsys.readouterr().err
    assert (tmp_path / "certificate.json").read_text() == held


def test_a_password_in_an_address_is_sent_and_not_shown() -> None:
    answers = {"/v1/models": MODELS, "/v1/completions": choice(token_ids=[3])}
    with answering(answers) as (url, _), Endpoint(url.replace("//", "//me:secret@")) as engine:
        assert engine.url == url


def test_the_command_prints_and_writes_what_was_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("\n".join(map(str, map(list, PROMPTS))))
    fault = FAULTS["filters applied twice"]
    flags = ["--tokens", "64", "--parameter-tokens", "500", "--length", "32"]
    with serving(fault) as url, serving(SOUND) as other:
        command = ["certify", "--endpoint", url, "--reference-endpoint", other, *flags]
        command += ["--prompts", str(prompts)]
        status = main([*command, "--only", "temperature", "--out", str(tmp_path)])
    assert status == 1
    printed = " ".join(capsys.readouterr().out.split())
    assert "the draws are not what was asked for" in printed
    assert "wrong: temperature" in printed
    assert "20 texts; a text with its score took" in printed
    found = json.loads((tmp_path / "certificate.json").read_text())
    assert found["format"] == "outrider-endpoint/1"
    assert 0.1 < found["questions"][0]["distance_found"] < 1
    assert [each["verdict"] for each in found["questions"]][2] == "wrong"
    page = (tmp_path / "index.html").read_text()
    assert "<svg" in page
    assert page.count("border-left:.9rem solid hsl(") == 3
    assert "temperature: a request that shows it" in page
    assert "of sound servers a share of at most alpha, one in 100, ever sees so much" in page


def test_a_server_is_certified_by_another_where_torch_is_not_installed() -> None:
    program = """
import sys
from importlib.abc import MetaPathFinder

class Absent(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"torch", "transformers", "array_api_compat", "safetensors"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
from outrider.certify.endpoint.client import Endpoint
from outrider.cli import main
Endpoint.tokenize = lambda self, text: tuple(ord(letter) % 26 for letter in text[:6])
sys.exit(main(sys.argv[1:]))
"""
    flags = ["--tokens", "32", "--length", "16", "--parameter-tokens", "16", "--only", "top_k"]
    with serving(SOUND) as url, serving(SOUND) as other:
        command = ["certify", "--endpoint", url, "--reference-endpoint", other, *flags]
        done = subprocess.run(
            [sys.executable, "-c", program, *command], capture_output=True, text=True, timeout=120
        )
    assert done.returncode == 0, done.stderr
    assert "no fault in the draws" in done.stdout
