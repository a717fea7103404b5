"""Checks of what callers give, of installed extras and of the interpreter, and how error texts quote values."""
