"""Native core of Lily; use the classes of the package lily instead."""

from collections.abc import Callable, Sequence
import enum
from typing import Annotated

import numpy
from numpy.typing import NDArray

from lily._core import (
    device as device,
    gpu as gpu,
    kernels as kernels
)


class LayerType(enum.Enum):
    linear_attention = 0

    full_attention = 1

class ModelConfig:
    """Dimensions of a qwen3_5_moe text model."""

    def __init__(self) -> None: ...

    def validate(self) -> None: ...

    @property
    def hidden_size(self) -> int: ...

    @hidden_size.setter
    def hidden_size(self, arg: int, /) -> None: ...

    @property
    def vocab_size(self) -> int: ...

    @vocab_size.setter
    def vocab_size(self, arg: int, /) -> None: ...

    @property
    def max_position_embeddings(self) -> int: ...

    @max_position_embeddings.setter
    def max_position_embeddings(self, arg: int, /) -> None: ...

    @property
    def layer_types(self) -> list[LayerType]: ...

    @layer_types.setter
    def layer_types(self, arg: Sequence[LayerType], /) -> None: ...

    @property
    def num_attention_heads(self) -> int: ...

    @num_attention_heads.setter
    def num_attention_heads(self, arg: int, /) -> None: ...

    @property
    def num_key_value_heads(self) -> int: ...

    @num_key_value_heads.setter
    def num_key_value_heads(self, arg: int, /) -> None: ...

    @property
    def head_dim(self) -> int: ...

    @head_dim.setter
    def head_dim(self, arg: int, /) -> None: ...

    @property
    def rotary_dim(self) -> int: ...

    @rotary_dim.setter
    def rotary_dim(self, arg: int, /) -> None: ...

    @property
    def rope_theta(self) -> float: ...

    @rope_theta.setter
    def rope_theta(self, arg: float, /) -> None: ...

    @property
    def linear_num_key_heads(self) -> int: ...

    @linear_num_key_heads.setter
    def linear_num_key_heads(self, arg: int, /) -> None: ...

    @property
    def linear_num_value_heads(self) -> int: ...

    @linear_num_value_heads.setter
    def linear_num_value_heads(self, arg: int, /) -> None: ...

    @property
    def linear_key_head_dim(self) -> int: ...

    @linear_key_head_dim.setter
    def linear_key_head_dim(self, arg: int, /) -> None: ...

    @property
    def linear_value_head_dim(self) -> int: ...

    @linear_value_head_dim.setter
    def linear_value_head_dim(self, arg: int, /) -> None: ...

    @property
    def linear_conv_kernel_dim(self) -> int: ...

    @linear_conv_kernel_dim.setter
    def linear_conv_kernel_dim(self, arg: int, /) -> None: ...

    @property
    def num_experts(self) -> int: ...

    @num_experts.setter
    def num_experts(self, arg: int, /) -> None: ...

    @property
    def num_experts_per_tok(self) -> int: ...

    @num_experts_per_tok.setter
    def num_experts_per_tok(self, arg: int, /) -> None: ...

    @property
    def moe_intermediate_size(self) -> int: ...

    @moe_intermediate_size.setter
    def moe_intermediate_size(self, arg: int, /) -> None: ...

    @property
    def shared_expert_intermediate_size(self) -> int: ...

    @shared_expert_intermediate_size.setter
    def shared_expert_intermediate_size(self, arg: int, /) -> None: ...

    @property
    def norm_topk_prob(self) -> bool: ...

    @norm_topk_prob.setter
    def norm_topk_prob(self, arg: bool, /) -> None: ...

    @property
    def rms_norm_eps(self) -> float: ...

    @rms_norm_eps.setter
    def rms_norm_eps(self, arg: float, /) -> None: ...

class ElementType(enum.Enum):
    bfloat16 = 0

    float16 = 1

    float32 = 2

class MatrixFormat(enum.Enum):
    affine4 = 0

    affine8 = 1

    plain = 2

class TensorSlice:
    """Bytes of a tensor inside a file."""

    def __init__(self, file: int, offset: int, stride: int) -> None: ...

class MatrixPart:
    """Consecutive matrices of the same shape."""

    def __init__(self, count: int, weight: TensorSlice, scales: TensorSlice, biases: TensorSlice) -> None: ...

class MatrixSource:
    """Where a weight matrix lies, and its format."""

    def __init__(self, name: str, format: MatrixFormat, element_type: ElementType, group_size: int, rows: int, columns: int, parts: Sequence[MatrixPart]) -> None: ...

class VectorSource:
    """Where a small tensor lies."""

    def __init__(self, name: str, element_type: ElementType, file: int, offset: int, size: int, add: float) -> None: ...

class FileIdentity:
    """Identifies a file and its content."""

    def __init__(self, device: int, inode: int, size: int, modified_ns: int, changed_ns: int) -> None: ...

class CheckpointSource:
    """Files of a checkpoint and every weight in them."""

    def __init__(self, files: Sequence[bytes], identities: Sequence[FileIdentity], matrices: Sequence[MatrixSource], vectors: Sequence[VectorSource]) -> None: ...

def report_mapping_faults() -> bool:
    """
    Makes SIGBUS name the truncated mapped file; False if the signal already has a handler.
    """

class Sampling:
    """Sampling parameters; see lily.Sampling."""

    def __init__(self, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0, presence_penalty: float = 0.0, frequency_penalty: float = 0.0, repetition_penalty: float = 1.0, logit_bias: Sequence[tuple[int, float]] = []) -> None: ...

    def validate(self) -> None: ...

class Sampler:
    """Chooses tokens from logits."""

    def __init__(self) -> None: ...

    def sample(self, logits: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], sampling: Sampling, seed: int, position: int, output: Sequence[int] = [], mask: Annotated[NDArray[numpy.uint32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None = None) -> int: ...

def uniform_at(seed: int, position: int) -> float: ...

class GpuOptions:
    """A switch for every mechanism of the GPU engine; see lily.GpuOptions."""

    def __init__(self) -> None: ...

    @property
    def dequantize_in_gemm(self) -> bool: ...

    @dequantize_in_gemm.setter
    def dequantize_in_gemm(self, arg: bool, /) -> None: ...

    @property
    def route_on_device(self) -> bool: ...

    @route_on_device.setter
    def route_on_device(self, arg: bool, /) -> None: ...

    @property
    def tile_rows(self) -> int: ...

    @tile_rows.setter
    def tile_rows(self, arg: int, /) -> None: ...

    @property
    def register_scan(self) -> bool: ...

    @register_scan.setter
    def register_scan(self, arg: bool, /) -> None: ...

    @property
    def token_handoff(self) -> bool: ...

    @token_handoff.setter
    def token_handoff(self, arg: bool, /) -> None: ...

    @property
    def concurrent_stages(self) -> bool: ...

    @concurrent_stages.setter
    def concurrent_stages(self, arg: bool, /) -> None: ...

    @property
    def fuse_expert_inputs(self) -> bool: ...

    @fuse_expert_inputs.setter
    def fuse_expert_inputs(self, arg: bool, /) -> None: ...

    @property
    def fuse_expert_outputs(self) -> bool: ...

    @fuse_expert_outputs.setter
    def fuse_expert_outputs(self, arg: bool, /) -> None: ...

    @property
    def fuse_attention_inputs(self) -> bool: ...

    @fuse_attention_inputs.setter
    def fuse_attention_inputs(self, arg: bool, /) -> None: ...

    @property
    def fuse_recurrent_norm(self) -> bool: ...

    @fuse_recurrent_norm.setter
    def fuse_recurrent_norm(self, arg: bool, /) -> None: ...

    @property
    def coalesced_cache(self) -> bool: ...

    @coalesced_cache.setter
    def coalesced_cache(self, arg: bool, /) -> None: ...

    @property
    def pack_query_heads(self) -> bool: ...

    @pack_query_heads.setter
    def pack_query_heads(self, arg: bool, /) -> None: ...

    @property
    def blocked_attention(self) -> bool: ...

    @blocked_attention.setter
    def blocked_attention(self, arg: bool, /) -> None: ...

    @property
    def blocked_attention_threshold(self) -> int: ...

    @blocked_attention_threshold.setter
    def blocked_attention_threshold(self, arg: int, /) -> None: ...

    @property
    def pass_seconds(self) -> float: ...

    @pass_seconds.setter
    def pass_seconds(self, arg: float, /) -> None: ...

    def validate(self) -> None: ...

class EngineOptions:
    """Options of a loaded model; 0 and "" mean the default."""

    def __init__(self) -> None: ...

    @property
    def backend(self) -> str: ...

    @backend.setter
    def backend(self, arg: str, /) -> None: ...

    @property
    def threads(self) -> int: ...

    @threads.setter
    def threads(self, arg: int, /) -> None: ...

    @property
    def prefill_chunk(self) -> int: ...

    @prefill_chunk.setter
    def prefill_chunk(self, arg: int, /) -> None: ...

    @property
    def max_context(self) -> int: ...

    @max_context.setter
    def max_context(self, arg: int, /) -> None: ...

    @property
    def weights(self) -> str: ...

    @weights.setter
    def weights(self, arg: str, /) -> None: ...

    @property
    def cpu_isa(self) -> str: ...

    @cpu_isa.setter
    def cpu_isa(self, arg: str, /) -> None: ...

    @property
    def kv_cache_type(self) -> str: ...

    @kv_cache_type.setter
    def kv_cache_type(self, arg: str, /) -> None: ...

    @property
    def gpu(self) -> GpuOptions: ...

    @gpu.setter
    def gpu(self, arg: GpuOptions, /) -> None: ...

    @property
    def copy_progress(self) -> Callable[[int, int], None]:
        """
        Called with (bytes copied, bytes in all) while weights are copied to a device; may be None.
        """

    @copy_progress.setter
    def copy_progress(self, arg: Callable[[int, int], None], /) -> None: ...

    @property
    def compile_progress(self) -> Callable[[int, int], None]:
        """
        Called with (pipelines made, pipelines in all) while a device compiles them; may be None.
        """

    @compile_progress.setter
    def compile_progress(self, arg: Callable[[int, int], None], /) -> None: ...

class Model:
    """A mapped checkpoint and the backend that runs it."""

    def __init__(self, config: ModelConfig, source: CheckpointSource, options: EngineOptions) -> None: ...

    @property
    def scratch_bytes(self) -> int: ...

    @property
    def options(self) -> EngineOptions: ...

def available_isas() -> list[str]: ...

def physical_core_count() -> int: ...

CPU_ARITHMETIC: int = 2

def gpu_arithmetic() -> str: ...

class TokenRequest:
    """What the next token of a session is chosen by."""

    def __init__(self, sampling: Sampling, seed: int, candidates: int, stops: Sequence[int], output_begin: int, logprobs: int | None) -> None: ...

class TokenChoice:
    """A chosen token."""

    @property
    def token(self) -> int: ...

    @property
    def stops(self) -> bool: ...

    @property
    def logprob(self) -> float: ...

    @property
    def top_logprobs(self) -> list[tuple[int, float]]: ...

class Session:
    """One sequence of a model; see lily.Session."""

    def __init__(self, model: Model) -> None: ...

    def prefill(self, ids: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], progress: object | None) -> Annotated[NDArray[numpy.float32], dict(shape=(None,), writable=False)]: ...

    def decode(self, token: int) -> Annotated[NDArray[numpy.float32], dict(shape=(None,), writable=False)]: ...

    def begin_generation(self) -> int: ...

    def next_token(self, request: TokenRequest, mask: Annotated[NDArray[numpy.uint32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None, expected_revision: int) -> TokenChoice: ...

    def cancel(self) -> None: ...

    def score(self, ids: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], progress: object | None, targets: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None = None) -> tuple[Annotated[NDArray[numpy.float32], dict(shape=(None,), writable=False)], Annotated[NDArray[numpy.int32], dict(shape=(None,), writable=False)]]: ...

    def reset(self) -> None: ...

    def close(self) -> None: ...

    def begin_close(self) -> None: ...

    @property
    def is_called_here(self) -> bool: ...

    @property
    def closed(self) -> bool: ...

    @property
    def position(self) -> int: ...

    @property
    def tokens(self) -> list[int]: ...

    @property
    def state_bytes(self) -> int: ...

    @property
    def logits(self) -> Annotated[NDArray[numpy.float32], dict(shape=(None,), writable=False)] | None: ...

class Snapshot:
    """A sequence frozen at one position; see lily.Snapshot."""

    @staticmethod
    def take(session: Session, with_pending: bool) -> Snapshot: ...

    def restore_into(self, session: Session) -> None: ...

    @property
    def position(self) -> int: ...

    @property
    def pending(self) -> int | None: ...

    @property
    def bytes(self) -> int: ...

    @property
    def own_bytes(self) -> int: ...

    @property
    def tokens(self) -> Annotated[NDArray[numpy.int32], dict(shape=(None,))]: ...

    @property
    def logits(self) -> Annotated[NDArray[numpy.float32], dict(shape=(None,))] | None: ...

    @property
    def has_logits(self) -> bool: ...

    def tensors(self) -> list[tuple[str, str, list[int]]]: ...

    def export_tensor(self, index: int) -> Annotated[NDArray[numpy.uint8], dict(shape=(None,))]: ...

    def non_finite(self) -> str | None:
        """
        Where the state first holds a value that is NaN or infinite; None if all are finite.
        """

def state_tensors(model: Model, position: int) -> list[tuple[str, str, list[int]]]:
    """The tensors of a state at a position: (name, type, shape)."""

def first_non_finite(values: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], type: str) -> int | None:
    """
    Index of the first value that is NaN or infinite; None if all are finite.
    """

class SnapshotBuilder:
    """Rebuilds a snapshot from the tensors of a file."""

    def __init__(self, model: Model, position: int) -> None: ...

    def tensors(self) -> list[tuple[str, str, list[int]]]: ...

    def import_tensor(self, index: int, values: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> None: ...

    def build(self, tokens: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], pending: int | None, logits: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> Snapshot: ...

class MemoryLedger:
    """Memory that a set of snapshots holds, each shared piece once."""

    def __init__(self) -> None: ...

    def add(self, snapshot: Snapshot) -> None: ...

    def remove(self, snapshot: Snapshot) -> None: ...

    @property
    def bytes(self) -> int: ...
