"""decode_bytes: the bytes that a decoded token must read and write, from a checkpoint's headers."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from lily.checkpoint import Checkpoint
from lily.checkpoint.memory_plan import conv_state_bytes, recurrent_state_bytes

__all__ = ["DecodeBytes", "decode_bytes"]

_KV_BYTES = 2  # float16 or bfloat16


@dataclass(frozen=True)
class DecodeBytes:
    """Bytes of memory traffic of one decoded token."""

    dense: int  # every matrix that each token uses, and one row of the embedding
    experts: int  # the chosen experts
    vectors: int  # float32
    state: int  # recurrent and convolution state, read and written
    kv: int  # keys and values of the whole context

    @property
    def total(self) -> int:
        """The total."""
        return self.dense + self.experts + self.vectors + self.state + self.kv

    def to_dict(self) -> dict[str, int]:
        """All figures by name, ready for JSON."""
        return {**asdict(self), "total": self.total}


def decode_bytes(checkpoint: Checkpoint, context: int) -> DecodeBytes:
    """The traffic of one token after `context` tokens."""
    config = checkpoint.config
    dense = experts = 0
    for matrix in checkpoint.source.matrices:
        if ".experts." in matrix.name:
            experts += matrix.total_bytes * config.num_experts_per_tok // config.num_experts
        elif "embed_tokens" in matrix.name:
            dense += matrix.total_bytes // matrix.rows
        else:
            dense += matrix.total_bytes
    return DecodeBytes(
        dense=dense,
        experts=experts,
        vectors=4 * sum(vector.size for vector in checkpoint.source.vectors),
        state=2 * (recurrent_state_bytes(config) + conv_state_bytes(config)),
        kv=config.num_full_attention_layers * context * 2 * config.key_value_dim * _KV_BYTES,
    )
