"""Models: functions from token prefixes to logits, with their caches as a private affair."""
