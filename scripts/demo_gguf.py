"""Write the demo pair's target as GGUF files, float32 and float16, to compare with llama.cpp."""

from __future__ import annotations

import sys
from pathlib import Path

from gguf import GGMLQuantizationType
from tests.support.gguf_files import byte_level, write_gguf
from transformers import AutoModelForCausalLM

import outrider_demo


def main(folder: Path) -> None:
    """Write both files into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    model = AutoModelForCausalLM.from_pretrained(str(outrider_demo.TARGET), dtype="float32")
    tokenizer = byte_level(outrider_demo.tokenizer())
    for kind in (GGMLQuantizationType.F32, GGMLQuantizationType.F16):
        path = folder / f"demo-{kind.name.lower()}.gguf"
        print(write_gguf(model, path, tokenizer, matrices=kind))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
