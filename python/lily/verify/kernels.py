"""Every kernel that the GPU engine launches, compared with its reference on the model's own weights and activations.

The engine runs on a device that stops at single launches. A launch's inputs go into a reference in NumPy's double
precision, and its outputs must agree within the rounding that the reference allows.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from lily import _core
from lily.model.gpu_options import GpuOptions
from lily.model.native import native_config, native_source
from lily.sampling import Sampling
from lily.verify import matrices, mixers, rows
from lily.verify.comparison import Comparison, equal
from lily.verify.values import Arguments, Constants, Slots, floats, integers

if TYPE_CHECKING:
    from lily.checkpoint import Checkpoint
    from lily.model import Model

__all__ = ["REFERENCES", "KernelCheck", "check_kernels"]

Reference = Callable[[Constants, Slots, Slots, bytes], list[Comparison]]
Report = Callable[[str], None]

LAUNCHES = 2  # of a kernel with the same constants
PROMPTS = (141, 40, 9)  # tokens: one for each tile of the dense products, none a multiple of one
LONGEST = 512


def _sample_token(constants: Constants, before: Slots, after: Slots, data: bytes) -> list[Comparison]:
    """The CPU sampler's choice for the same logits."""
    args = Arguments(data, "candidates scale:f top_k top_p min_p seed_low seed_high")
    temperature = 2.0**24 * math.log2(math.e) / args.scale
    sampling = _core.Sampling(temperature, args.top_k, args.top_p / 2.0**31, args.min_p / 2.0**31)
    logits = np.array(floats(before[0])[: args.candidates])
    seed = args.seed_low | args.seed_high << 32
    token = _core.Sampler().sample(logits, sampling, seed, int(integers(before[2])[0]))
    return [equal("token", integers(after[1])[:1], np.array([token]))]


REFERENCES: Mapping[str, Reference] = {
    **{name: getattr(matrices, name) for name in matrices.__all__ if name != "gemm_affine"},
    **{f"gemm_affine_{tile}": matrices.gemm_affine for tile in ("m16", "m32", "m64", "tensor_m32", "tensor_m64")},
    **{name: getattr(rows, name) for name in rows.__all__},
    **dict.fromkeys(("gdn_scan", "gdn_scan_blocked"), mixers.gdn_scan),
    **{
        f"{name}{suffix}": partial(getattr(mixers, name), bfloat_input=bool(suffix))
        for name in ("gdn_conv", "attention_prepare", "attention_norm_rope", "attention_cache_write")
        for suffix in ("", "_bf16")
    },
    "gdn_norm": partial(mixers.gdn_norm, bfloat_gate=True),
    "gdn_norm_f32z": partial(mixers.gdn_norm, bfloat_gate=False),
    "gdn_step": mixers.gdn_step,
    "attention_prefill": mixers.attention_prefill,
    "attention_decode": partial(mixers.attention_decode, blocked=False),
    "attention_decode_blocked": partial(mixers.attention_decode, blocked=True),
    "attention_reduce": mixers.attention_reduce,
    "sample_token": _sample_token,
}


@dataclasses.dataclass
class KernelCheck:
    """One kernel with one set of constants: its worst launch."""

    kernel: str
    constants: dict[int, int]
    launches: int = 0
    values: int = 0
    worst: float = 0.0
    problem: str = ""

    @property
    def passed(self) -> bool:
        """Whether every launch agreed."""
        return not self.problem

    def to_dict(self) -> dict[str, Any]:
        """All figures, ready for JSON."""
        return {**dataclasses.asdict(self), "worst": float(f"{self.worst:.3g}"), "passed": self.passed}


class Inspector:
    """Chooses launches and compares them."""

    def __init__(self) -> None:
        self.checks: dict[tuple[str, tuple[tuple[int, int], ...]], KernelCheck] = {}

    def check_of(self, kernel: str, constants: Mapping[int, int]) -> KernelCheck:
        key = (kernel, tuple(sorted(constants.items())))
        return self.checks.setdefault(key, KernelCheck(kernel, dict(key[1])))

    def wants(self, kernel: str, constants: dict[int, int]) -> bool:
        return self.check_of(kernel, constants).launches < LAUNCHES

    def show(
        self, kernel: str, constants: dict[int, int], before: dict[int, bytes], after: dict[int, bytes], data: bytes
    ) -> None:
        check = self.check_of(kernel, constants)
        check.launches += 1
        reference = REFERENCES.get(kernel)
        if reference is None:
            check.problem = "there is no reference for it"
            return
        try:
            with np.errstate(all="ignore"):
                comparisons = reference(constants, before, after, data)
        except (LookupError, ValueError) as error:
            check.problem = f"the launch is not what its reference expects: {error!r}"
            return
        for comparison in comparisons:
            check.values += comparison.values
            check.worst = max(check.worst, comparison.worst)
            if not comparison.agrees and not check.problem:
                check.problem = f"{comparison.what}: {comparison.worst:.3g} times the error that rounding accounts for"


def _configurations() -> Iterator[tuple[str, GpuOptions, Sampling]]:
    """Switches of the engine that together launch every kernel."""
    greedy, drawn = Sampling.greedy(), Sampling(temperature=0.8, top_k=20, top_p=0.95, min_p=0.01)
    yield "all mechanisms on", GpuOptions(), greedy
    yield "tiles of 64 rows, fixed-block attention", GpuOptions(tile_rows=64, blocked_attention_threshold=1), drawn
    yield "tiles of 32 rows, scalar cache reads", GpuOptions(tile_rows=32, coalesced_cache=False), drawn
    yield "all mechanisms off", GpuOptions().without("all"), greedy


def check_kernels(checkpoint: Checkpoint, backend: str, report: Report) -> list[KernelCheck]:
    """Runs prompts and steps on the backend's device, and checks the kernels that they launch.

    Parameters
    ----------
    checkpoint : Checkpoint
        The model.
    backend : str
        Name of the device.
    report : callable
        Called with a line of text about the current work.
    """
    from lily.model import Model

    inspector = Inspector()
    device = _core.device.InspectingDevice(_core.device.open(backend), inspector.wants, inspector.show)
    options = _core.EngineOptions()
    options.backend = backend
    options.max_context = min(LONGEST, checkpoint.config.max_position_embeddings)
    native = _core.gpu.model_on(device, native_config(checkpoint.config), native_source(checkpoint.source), options)
    with Model(checkpoint, native) as model:
        for what, switches, sampling in _configurations():
            started = time.perf_counter()
            _core.gpu.set_options(native, switches.to_core())
            _run(model, sampling)
            report(f"kernels with {what}: {time.perf_counter() - started:.1f} s")
    return sorted(inspector.checks.values(), key=lambda check: (check.kernel, sorted(check.constants.items())))


def _run(model: Model, sampling: Sampling) -> None:
    random = np.random.default_rng(5)
    for length in PROMPTS:
        ids = random.integers(0, model.sampled_vocab_size, min(length, model.max_context - 8)).tolist()
        with model.session(seed=7) as session:
            session.prefill(ids[:-2])
            session.prefill(ids[-2:])  # after a past
            for _ in session.generate(max_tokens=3, sampling=sampling, stop_tokens=()):
                pass
            with session.fork() as branch:  # one of the two continues in a copy of the cache
                branch.decode(ids[0])
                session.decode(ids[1])
