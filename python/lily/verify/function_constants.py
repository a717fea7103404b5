"""The function constants that references use, numbered as in metal/lily_args.h."""

from __future__ import annotations

__all__ = ["ACCUMULATE", "ACCUMULATE_FLOAT", "BITS", "GROUPED", "GROUP_SIZE", "STORE_DEFAULT", "VECTOR_TYPE"]

BITS, GROUP_SIZE, VECTOR_TYPE, ACCUMULATE, GROUPED = 0, 1, 4, 5, 6
STORE_DEFAULT, ACCUMULATE_FLOAT = 0, 1  # values of ACCUMULATE
