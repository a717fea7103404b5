"""Attacks on Lily, written from what its documents promise: `python -m tools.attack NAME`."""
