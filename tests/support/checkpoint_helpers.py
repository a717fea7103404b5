"""What every successfully read checkpoint must satisfy, and its values by canonical name."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lily.checkpoint import Checkpoint, LayerType, MatrixSource, TensorSlice
from source_values import matrix_values, vector_values


def all_values(checkpoint: Checkpoint) -> dict[str, NDArray[np.float64]]:
    """Matrices [count, rows, columns] and vectors [size] by canonical name."""
    source = checkpoint.source
    values = {matrix.name: matrix_values(source, matrix) for matrix in source.matrices}
    values.update({vector.name: vector_values(source, vector) for vector in source.vectors})
    return values


def expected_shapes(checkpoint: Checkpoint) -> dict[str, tuple[int, int, int]]:
    """(count, rows, columns) of every matrix, from the config alone."""
    config = checkpoint.config
    hidden, shared = config.hidden_size, config.shared_expert_intermediate_size
    experts, inner = config.num_experts, config.moe_intermediate_size
    key = config.linear_num_key_heads * config.linear_key_head_dim
    value = config.linear_num_value_heads * config.linear_value_head_dim
    query, key_value = (count * config.head_dim for count in (config.num_attention_heads, config.num_key_value_heads))
    shapes = {
        "embed_tokens": (1, config.vocab_size, hidden),
        "lm_head": (1, config.vocab_size, hidden),
    }
    for layer, kind in enumerate(config.layer_types):
        if kind is LayerType.linear_attention:
            block = {
                "linear_attn.in_proj_qkv": (1, 2 * key + value, hidden),
                "linear_attn.in_proj_z": (1, value, hidden),
                "linear_attn.in_proj_a": (1, config.linear_num_value_heads, hidden),
                "linear_attn.in_proj_b": (1, config.linear_num_value_heads, hidden),
                "linear_attn.out_proj": (1, hidden, value),
            }
        else:
            block = {
                "self_attn.q_proj": (1, 2 * query, hidden),
                "self_attn.k_proj": (1, key_value, hidden),
                "self_attn.v_proj": (1, key_value, hidden),
                "self_attn.o_proj": (1, hidden, query),
            }
        block |= {
            "mlp.gate": (1, experts, hidden),
            "mlp.shared_expert_gate": (1, 1, hidden),
            "mlp.shared_expert.gate_proj": (1, shared, hidden),
            "mlp.shared_expert.up_proj": (1, shared, hidden),
            "mlp.shared_expert.down_proj": (1, hidden, shared),
            "mlp.experts.gate_proj": (experts, inner, hidden),
            "mlp.experts.up_proj": (experts, inner, hidden),
            "mlp.experts.down_proj": (experts, hidden, inner),
        }
        shapes |= {f"layers.{layer}.{name}": shape for name, shape in block.items()}
    return shapes


def assert_valid(checkpoint: Checkpoint) -> None:
    """Every matrix has the shape that the config implies, and every byte range lies within its file."""
    source = checkpoint.source
    found = {matrix.name: (matrix.count, matrix.rows, matrix.columns) for matrix in source.matrices}
    assert len(found) == len(source.matrices)
    assert found == expected_shapes(checkpoint)
    for matrix in source.matrices:
        _assert_inside(checkpoint, matrix)
    assert len({vector.name for vector in source.vectors}) == len(source.vectors)
    for vector in source.vectors:
        assert 8 < vector.offset <= source.file_sizes[vector.file] - vector.total_bytes
        assert vector.size > 0
        assert vector.add in (0.0, 1.0)


def _assert_inside(checkpoint: Checkpoint, matrix: MatrixSource) -> None:
    def inside(place: TensorSlice, count: int, size: int) -> None:
        assert size > 0
        assert place.stride >= size or count == 1
        end = place.offset + (count - 1) * place.stride + size
        assert 8 < place.offset < end <= checkpoint.source.file_sizes[place.file]

    for part in matrix.parts:
        inside(part.weight, part.count, matrix.weight_bytes)
        if matrix.format.is_affine:
            assert matrix.columns % matrix.group_size == 0
            inside(part.scales, part.count, matrix.scale_bytes)
            inside(part.biases, part.count, matrix.scale_bytes)
