"""`python completions.py LIBRARY KIND PORT TARGET [DRAFT]`: a library as a server.

LIBRARY is transformers or openvino-genai. Answers OpenAI's /v1/completions, from token ids to token
ids, one request after another. KIND is plain, ngram (prompt look-ups) or, of transformers,
draft_model. It needs the library alone, so that it runs in an environment of its own; what the
library has no parameter for is refused.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock
from typing import Any

DEPTH = 3
"""Tokens of a draft."""

NEUTRAL = {"top_k": -1, "min_p": 0.0, "top_p": 1.0, "repetition_penalty": 1.0}
COMMON = {"model", "prompt", "max_tokens", "return_token_ids", "temperature", "seed", *NEUTRAL}

Generate = Callable[[dict[str, Any]], list[int]]
"""Takes the fields of a request, and returns the tokens of its text."""


def transformers_generate(kind: str, target: str, draft: str | None) -> tuple[Generate, set[str]]:
    """Load models of transformers; return what `generate` does, and further fields that it has."""
    import torch
    import transformers

    load = partial(transformers.AutoModelForCausalLM.from_pretrained, dtype=torch.float32)
    model: Any = load(target).eval()
    more: dict[str, Any] = {}
    if kind == "ngram":
        more = {"prompt_lookup_num_tokens": DEPTH}
    elif kind == "draft_model":
        more = {"assistant_model": load(draft or target).eval()}
        settings = more["assistant_model"].generation_config
        settings.num_assistant_tokens, settings.assistant_confidence_threshold = DEPTH, 0.0
        settings.num_assistant_tokens_schedule = "constant"

    def generate(asked: dict[str, Any]) -> list[int]:
        torch.manual_seed(asked["seed"])
        ids = torch.tensor([asked["prompt"]])
        if asked["temperature"]:
            named = {name: asked[name] for name in ("temperature", "top_p")}
            drawing = {**named, "top_k": max(0, asked["top_k"]), "min_p": asked["min_p"] or None}
        else:
            drawing = {}
        out = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=asked["max_tokens"],
            do_sample=bool(asked["temperature"]),
            repetition_penalty=asked["repetition_penalty"],
            pad_token_id=0,
            **drawing,
            **more,
        )
        return [int(token) for token in out[0, ids.shape[1] :]]

    return generate, set()


def genai_generate(kind: str, target: str, _: str | None) -> tuple[Generate, set[str]]:
    """Load a GGUF file into OpenVINO GenAI, in float32, for what is certified is its sampling."""
    import numpy
    import openvino
    import openvino_genai

    exact: dict[str, Any] = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}
    exact |= {"DYNAMIC_QUANTIZATION_GROUP_SIZE": "0"}
    more: dict[str, Any] = {"prompt_lookup": True} if kind == "ngram" else {}
    pipeline = openvino_genai.LLMPipeline(target, "CPU", **exact, **more)
    fields = {"presence_penalty", "frequency_penalty"}

    def generate(asked: dict[str, Any]) -> list[int]:
        config = openvino_genai.GenerationConfig(max_new_tokens=asked["max_tokens"])
        if asked["temperature"]:
            config.do_sample = True
            for name in ("temperature", "top_p", "min_p", *fields & asked.keys()):
                setattr(config, name, asked[name])
            if asked["top_k"] > 0:
                config.top_k = asked["top_k"]
        config.repetition_penalty = asked["repetition_penalty"]
        config.rng_seed = asked["seed"]
        if kind != "plain":
            config.num_assistant_tokens, config.max_ngram_size = DEPTH, 3
        made = pipeline.generate(openvino.Tensor(numpy.array([asked["prompt"]])), config)
        return [int(token) for token in made.tokens[0]]

    return generate, fields


LIBRARIES = {"transformers": transformers_generate, "openvino-genai": genai_generate}


class Handler(BaseHTTPRequestHandler):
    """Answers the two routes that certifying needs."""

    def __init__(self, generate: Generate, fields: set[str], lock: Lock, *args: Any) -> None:
        self.generate, self.fields, self.lock = generate, fields, lock
        super().__init__(*args)

    def do_GET(self) -> None:
        """List the model."""
        self.send(200, {"data": [{"id": "model"}]})

    def do_POST(self) -> None:
        """Complete a prompt of token ids."""
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        unknown = sorted(body.keys() - COMMON - self.fields)
        if self.path != "/v1/completions" or unknown:
            self.send(400, {"error": {"message": f"not known here: {unknown or self.path}"}})
            return
        asked = {"seed": random.getrandbits(31), "temperature": 1.0, **NEUTRAL, **body}
        try:
            with self.lock:
                tokens = self.generate(asked)
        except Exception as error:
            # Libraries fail as they like.
            self.send(500, {"error": {"message": f"{type(error).__name__}: {error}"}})
            return
        ended = "length" if len(tokens) >= asked["max_tokens"] else "stop"
        counts = {"prompt_tokens": len(body["prompt"]), "completion_tokens": len(tokens)}
        choice = {"index": 0, "text": "", "token_ids": tokens, "finish_reason": ended}
        self.send(200, {"choices": [choice], "usage": counts})

    def send(self, status: int, found: dict[str, Any]) -> None:
        """Send JSON."""
        data = json.dumps(found).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        """Write no line for each request."""


def main() -> None:
    """Serve until the process is ended."""
    library, kind, port, target, *draft = sys.argv[1:]
    generate, fields = LIBRARIES[library](kind, target, draft[0] if draft else None)
    handler = partial(Handler, generate, fields, Lock())
    ThreadingHTTPServer(("127.0.0.1", int(port)), handler).serve_forever()


if __name__ == "__main__":
    main()
