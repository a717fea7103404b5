"""plan: the exact memory that a model needs at a context length, from its headers alone."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from lily import _core
from lily.checkpoint.config import ModelConfig
from lily.checkpoint.hub import resolve_source
from lily.checkpoint.reader import Checkpoint, read_checkpoint
from lily.checkpoint.source import CheckpointSource, MatrixFormat
from lily.checks.whole_numbers import whole_number
from lily.errors import InvalidArgumentError

KV_BLOCK_TOKENS = 256  # the cache grows by whole blocks
DEFAULT_PREFILL_CHUNK = 512
_BFLOAT16 = 2
_FLOAT32 = 4
_SCORED_ROWS = 32  # rows whose logits are held at once while scoring
_OUTPUTS = ("out_proj", "o_proj", "down_proj")  # matrices that do not read a block's normed input


@dataclass(frozen=True)
class Plan:
    """Bytes that a model and one session need at a context length."""

    context: int  # tokens
    prefill_chunk: int  # tokens
    threads: int
    weights: int  # tensors of the text model: mapped from the files, resident once touched
    vectors: int  # float32 copies of norms, convolutions and gate parameters
    kv_cache: int  # bfloat16 keys and values of the full-attention layers
    recurrent_state: int  # float32
    conv_state: int  # float32
    logits: int  # float32, one row
    scratch: int  # working memory of a chunk, an upper bound
    skipped: int  # tensors in the files that are never read; not in the total

    @property
    def session(self) -> int:
        """Bytes of one session at the full context."""
        return self.kv_cache + self.recurrent_state + self.conv_state + self.logits

    @property
    def total(self) -> int:
        """Bytes of the model and one session."""
        return self.weights + self.vectors + self.session + self.scratch

    def to_dict(self) -> dict[str, int]:
        """All figures by name, ready for JSON."""
        return {**asdict(self), "total": self.total}

    def __str__(self) -> str:
        rows = (
            ("weights", self.weights),
            ("converted vectors", self.vectors),
            (f"KV cache, {self.context:,} tokens", self.kv_cache),
            ("recurrent state", self.recurrent_state),
            ("convolution state", self.conv_state),
            ("logits", self.logits),
            (f"scratch, chunks of {self.prefill_chunk:,}", self.scratch),
            ("total", self.total),
            ("skipped tensors, not loaded", self.skipped),
        )
        return "\n".join(f"{name:32} {count:>18,} bytes {_human(count):>12}" for name, count in rows)


def plan(
    checkpoint: Checkpoint | str | Path,
    context: int,
    *,
    threads: int | None = None,
    prefill_chunk: int = DEFAULT_PREFILL_CHUNK,
) -> Plan:
    """The memory that a checkpoint needs with one session of `context` tokens.

    Parameters
    ----------
    checkpoint
        A checkpoint, or anything that `resolve_source` accepts.
    context
        Tokens that the session can hold, at most the model's max_position_embeddings.
    threads
        Threads of the CPU backend; by default as for `lily.Model.load`, one for each physical core that the process may
        run on.
    prefill_chunk
        Prompt tokens computed at a time.

    Raises
    ------
    InvalidArgumentError
        A number is not a positive whole number, or the context exceeds the model's.
    CheckpointError, ConfigError
        The checkpoint cannot be read.
    """
    count = _core.physical_core_count() if threads is None else threads
    for name, value in (("context", context), ("threads", count), ("prefill_chunk", prefill_chunk)):
        whole_number(name, value, 1, error_type=InvalidArgumentError)
    found = checkpoint if isinstance(checkpoint, Checkpoint) else read_checkpoint(resolve_source(checkpoint))
    config = found.config
    if context > config.max_position_embeddings:
        raise InvalidArgumentError(
            f"context {context} exceeds max_position_embeddings ({config.max_position_embeddings}); "
            "ask for a shorter context"
        )
    return Plan(
        context=context,
        prefill_chunk=prefill_chunk,
        threads=count,
        weights=found.text_bytes,
        vectors=_FLOAT32 * sum(vector.size for vector in found.source.vectors),
        kv_cache=kv_cache_bytes(config, context),
        recurrent_state=recurrent_state_bytes(config),
        conv_state=conv_state_bytes(config),
        logits=_FLOAT32 * config.vocab_size,
        scratch=scratch_bytes(config, prefill_chunk, count, input_formats(found.source)),
        skipped=found.ignored_bytes,
    )


def kv_cache_bytes(config: ModelConfig, context: int) -> int:
    """Keys and values of `context` tokens, rounded up to whole blocks."""
    tokens = -(-context // KV_BLOCK_TOKENS) * KV_BLOCK_TOKENS
    return config.num_full_attention_layers * tokens * 2 * config.key_value_dim * _BFLOAT16


def recurrent_state_bytes(config: ModelConfig) -> int:
    """[value heads, key head dim, value head dim] a layer."""
    return config.num_linear_layers * config.linear_value_dim * config.linear_key_head_dim * _FLOAT32


def conv_state_bytes(config: ModelConfig) -> int:
    """[kernel - 1, channels] a layer."""
    return config.num_linear_layers * (config.linear_conv_kernel_dim - 1) * config.linear_conv_dim * _FLOAT32


def input_formats(source: CheckpointSource) -> int:
    """Maximum number of formats among the quantized matrices that read one block's input: each reads its own copy."""
    formats: dict[str, set[tuple[MatrixFormat, int]]] = {}
    for matrix in source.matrices:
        *block, name = matrix.name.split(".")
        if name in _OUTPUTS or not matrix.format.is_affine:
            continue
        key = ".".join(block[:3]) or name  # layers.N.mlp holds the router, its experts and the shared one
        formats.setdefault(key, set()).add((matrix.format, matrix.group_size))
    return max(map(len, formats.values()), default=0)


def scratch_bytes(config: ModelConfig, prefill_chunk: int, threads: int, formats: int) -> int:
    """An upper bound of the CPU backend's working memory, which depends on the chunk but not on the prompt's length.

    The terms follow the buffers of src/lily_core/cpu/cpu_backend.h: the residual stream and its norm, and a workspace
    that the blocks of a layer, and the logits of scored rows, share one after another. `formats`: see `input_formats`.
    """
    hidden = config.hidden_size
    routed = config.num_experts_per_tok * config.moe_intermediate_size
    shared = config.shared_expert_intermediate_size
    blocks = [config.num_experts + 1 + routed + shared]
    mixed = []
    if config.num_linear_layers:
        mixed.append(config.linear_value_dim)
        blocks.append(config.linear_conv_dim + 2 * config.linear_value_dim + 2 * config.linear_num_value_heads)
    if config.num_full_attention_layers:
        mixed.append(config.query_dim)
        blocks.append(3 * config.query_dim + 2 * config.key_value_dim + config.rotary_dim)
    workspace = max(prefill_chunk * max(blocks), min(prefill_chunk, _SCORED_ROWS) * config.vocab_size)
    # Fixed-point copies: of the block's input for each format that reads it, of the shared expert's values, and, one
    # after another, of the outputs of mixer and routed experts.
    fixed_point = formats * _fixed_point_bytes(hidden, 1) + _fixed_point_bytes(shared, 1)
    outputs = [(columns, 1) for columns in mixed] + [(config.moe_intermediate_size, config.num_experts_per_tok)]
    fixed_point += max(_halves_bytes(*rows) for rows in outputs) + max(_group_bytes(*rows) for rows in outputs)
    padding = 6 * 64
    return (
        prefill_chunk * (_FLOAT32 * 2 * hidden + fixed_point)
        + _FLOAT32 * workspace
        + padding
        + threads * _thread_bytes(config, prefill_chunk, threads)
    )


def _fixed_point_bytes(columns: int, rows: int) -> int:
    return _halves_bytes(columns, rows) + _group_bytes(columns, rows)


def _halves_bytes(columns: int, rows: int) -> int:
    """Two int8 halves a value, rows padded."""
    return rows * 2 * ((columns + 63) // 128 * 128 + 64)


def _group_bytes(columns: int, rows: int) -> int:
    """A scale and a sum for each group, of 32 columns at least."""
    return rows * 2 * _FLOAT32 * (columns // 32)


def _thread_bytes(config: ModelConfig, prefill_chunk: int, threads: int) -> int:
    """Unpacked weight tiles and copied rows (those of AMX, the most), an output tile, one attention task's rows."""
    columns = max(
        config.hidden_size,
        config.linear_value_dim,
        config.query_dim,
        config.moe_intermediate_size,
        config.shared_expert_intermediate_size,
    )
    scales = 16 * _FLOAT32 * (columns // 32 + 8)
    tiles = 64 * columns + 128 * (columns + 128) + 16 * scales + 8192
    # Weight rows of a task: an expert's, or a thread's share of an output projection's.
    share = config.hidden_size // (8 * threads * 64) * 64
    output = max(64, min(256, max(config.moe_intermediate_size, config.shared_expert_intermediate_size, share)))
    heads_per_key = config.num_attention_heads // config.num_key_value_heads
    width = -(-config.head_dim // 32) * 32
    rows = min(max(256, heads_per_key), prefill_chunk * heads_per_key)
    attention = _FLOAT32 * (rows * (width + 64) + 32 * (width + 1) + 3 * (rows + 16)) + 2 * (rows + 64) * width
    return tiles + (output * prefill_chunk + 4 * 512) * _FLOAT32 + attention


def _human(count: int) -> str:
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.2f} {unit}"
        size /= 1024
    return f"{size:.2f} TiB"
