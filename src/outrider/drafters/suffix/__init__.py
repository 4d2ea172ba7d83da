"""suffix."""
