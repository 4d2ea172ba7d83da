"""GGUF files on llama.cpp."""
