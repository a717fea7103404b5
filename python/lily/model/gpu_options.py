"""Options of the GPU engine: a switch for every mechanism, so that each can be measured by turning it off."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from lily import _core
from lily.checks.quoting import quoted
from lily.errors import ConfigError

__all__ = ["MECHANISMS", "GpuOptions", "Mechanism"]


@dataclass(frozen=True)
class GpuOptions:
    """Switches of the GPU engine; all mechanisms are on by default.

    Switching mechanisms off changes outputs only by rounding.

    Attributes
    ----------
    dequantize_in_gemm : bool
        P1: prompt products rebuild small tiles of weights on chip. Off: a bf16 matrix in memory.
    route_on_device : bool
        P2: rows are grouped by expert on the device. Off: on the CPU, with a wait for every layer.
    tile_rows : int
        P3: rows of an expert's tile, 16, 32 or 64; 0 chooses by the experts' load.
    register_scan : bool
        P4: the recurrent scan of a prompt keeps its state in registers. Off: state goes through memory.
    token_handoff : bool
        D2: the device picks the token and a step runs ahead. Off: a round trip to the CPU for every token.
    concurrent_stages : bool
        D3: barriers only between dependent kernels. Off: a barrier after every kernel.
    fuse_expert_inputs, fuse_expert_outputs, fuse_attention_inputs, fuse_recurrent_norm : bool
        D4: the four fused chains of decode. Off: separate kernels.
    coalesced_cache : bool
        D5: lanes read consecutive addresses of the KV cache.
    pack_query_heads : bool
        D6: query heads share a read of the KV cache.
    blocked_attention : bool
        D7: decode attention in fixed blocks from `blocked_attention_threshold` positions on.
    blocked_attention_threshold : int
        Positions.
    pass_seconds : float
        Seconds on the device that one pass of a prompt should not exceed; chunks shrink to stay within it. 0: the
        device's own limit.
    """

    dequantize_in_gemm: bool = True
    route_on_device: bool = True
    tile_rows: int = 0
    register_scan: bool = True
    token_handoff: bool = True
    concurrent_stages: bool = True
    fuse_expert_inputs: bool = True
    fuse_expert_outputs: bool = True
    fuse_attention_inputs: bool = True
    fuse_recurrent_norm: bool = True
    coalesced_cache: bool = True
    pack_query_heads: bool = True
    blocked_attention: bool = True
    blocked_attention_threshold: int = 32768
    pass_seconds: float = 0.0

    def without(self, *mechanisms: str) -> GpuOptions:
        """A copy with some mechanisms off, as in ``GpuOptions().without("P1", "D4")``; "all" turns off every one.

        Raises
        ------
        ConfigError
            There is no such mechanism; the message lists them.
        """
        changes: dict[str, bool | int] = {}
        for name in mechanisms:
            if not isinstance(name, str):
                raise ConfigError(f"a mechanism is named by a string such as 'D4', not {quoted(name)}")
            if name.upper() in _ELSEWHERE:
                raise ConfigError(_ELSEWHERE[name.upper()])
            prefix = "" if name.lower() == "all" else name.lower()
            found = [mechanism for key, mechanism in MECHANISMS.items() if key.lower().startswith(prefix)]
            if not found or len(prefix) == 1 or not name:
                raise ConfigError(f"there is no mechanism {quoted(name)}; the mechanisms are {', '.join(MECHANISMS)}")
            for mechanism in found:
                changes[mechanism.field] = mechanism.off
        return dataclasses.replace(self, **changes)  # type: ignore[arg-type]

    def to_core(self) -> _core.GpuOptions:
        """The core's copy of the options; ConfigError names a wrong one."""
        native = _core.GpuOptions()
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            try:
                setattr(native, field.name, value)
            except (TypeError, ValueError, OverflowError):
                kind = type(field.default).__name__
                raise ConfigError(f"option {field.name} must be of type {kind}, not {quoted(value)}") from None
        native.validate()
        return native


@dataclass(frozen=True)
class Mechanism:
    """One mechanism: the field of `GpuOptions` that switches it, its value when off, the phase it serves."""

    field: str
    phase: str
    title: str
    off: bool | int = False


# Mechanisms that have no field in these options.
_ELSEWHERE = {
    "P5": "P5, chunks of prompts, is prefill_chunk of Model.load: a chunk as long as the prompt turns it off",
    "D1": "D1, products in which lanes share a row, cannot be turned off: all others build on it",
}

#: The mechanisms by name. D4 stands for D4a to D4d.
MECHANISMS: dict[str, Mechanism] = {
    "P1": Mechanism("dequantize_in_gemm", "prefill", "dequantize inside the matrix product"),
    "P2": Mechanism("route_on_device", "prefill", "group rows by expert on the device"),
    "P3": Mechanism("tile_rows", "prefill", "tile rows by expert load", 16),
    "P4": Mechanism("register_scan", "prefill", "recurrent state in registers"),
    "D2": Mechanism("token_handoff", "decode", "token hand-off on the device"),
    "D3": Mechanism("concurrent_stages", "decode", "barriers only for true dependencies"),
    "D4a": Mechanism("fuse_expert_inputs", "decode", "fused expert input projections"),
    "D4b": Mechanism("fuse_expert_outputs", "decode", "fused expert output projection"),
    "D4c": Mechanism("fuse_attention_inputs", "decode", "fused query and key preparation"),
    "D4d": Mechanism("fuse_recurrent_norm", "decode", "fused recurrent update and norm"),
    "D5": Mechanism("coalesced_cache", "decode", "coalesced cache reads"),
    "D6": Mechanism("pack_query_heads", "decode", "query heads share cache reads"),
    "D7": Mechanism("blocked_attention", "decode", "fixed-block attention at long context"),
}
