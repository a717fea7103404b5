"""What Python says of the kernels' constants is what metal/lily_args.h says."""

from __future__ import annotations

from lily.verify import function_constants
from lily_args import ARGS, HEADER, read_constants


def test_references_know_the_function_constants() -> None:
    assert ARGS.kBitsIndex == function_constants.BITS
    assert ARGS.kGroupSizeIndex == function_constants.GROUP_SIZE
    assert ARGS.kVectorTypeIndex == function_constants.VECTOR_TYPE
    assert ARGS.kAccumulateIndex == function_constants.ACCUMULATE
    assert ARGS.kGroupedIndex == function_constants.GROUPED
    assert ARGS.kStoreDefault == function_constants.STORE_DEFAULT
    assert ARGS.kAccumulateFloat == function_constants.ACCUMULATE_FLOAT
    assert ARGS.kBfloatVector == 0  # references ask whether the constant is set


def test_every_constant_of_the_header_is_read() -> None:
    text = HEADER.read_text()
    enums = text[text.index("enum FunctionConstantIndex") : text.index("// embed_rows:")]
    assert len(read_constants(text)) == sum(line.startswith("  k") for line in enums.splitlines())
