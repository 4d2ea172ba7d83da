"""Write the demo pair's target as GGUF files, float32 and float16, to compare with llama.cpp."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.support.gguf_files import byte_level, write_gguf
from transformers import AutoModelForCausalLM

import outrider_demo


def main(folder: Path) -> None:
    """Write both files into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    model = AutoModelForCausalLM.from_pretrained(str(outrider_demo.TARGET), dtype="float32")
    tokenizer = byte_level(outrider_demo.tokenizer())
    for name, half in (("f32", False), ("f16", True)):
        print(write_gguf(model, folder / f"demo-{name}.gguf", tokenizer, half=half))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
