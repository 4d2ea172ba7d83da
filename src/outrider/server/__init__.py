"""An OpenAI-compatible server: continuous batching, every parameter, a live page."""
