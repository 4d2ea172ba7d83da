"""Logits to distributions: filters, penalties, processors, structured output, log-probabilities."""
