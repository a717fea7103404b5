"""Random inputs of the Gated DeltaNet kernels, and their argument struct."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from device_runner import from_bfloat16, pack, to_bfloat16
from lily_args import ARGS
from reference.blocks import delta_rule, l2_norm

EPSILON = 1e-6
KEY_DIM_CONSTANT = ARGS.kKeyDimIndex
SENTINEL = np.float32(-77.5)  # in outputs, so that an element left out is seen


@dataclass(frozen=True)
class Shape:
    """Sizes of one launch."""

    tokens: int
    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    kernel_size: int = 4

    @property
    def conv_dim(self) -> int:
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim

    def args(self) -> bytes:
        return pack(
            self.tokens,
            self.key_heads,
            self.value_heads,
            self.key_dim,
            self.value_dim,
            self.kernel_size,
            EPSILON,
        )

    def __str__(self) -> str:
        return f"{self.tokens}x{self.key_heads}:{self.value_heads}x{self.key_dim}:{self.value_dim}"


def ceil_divide(a: int, b: int) -> int:
    return -(-a // b)


def random_bfloat16(random: np.random.Generator, *shape: int) -> NDArray[np.uint16]:
    return to_bfloat16(random.standard_normal(shape, np.float32))


def sentinels(*shape: int) -> NDArray[np.float32]:
    return np.full(shape, SENTINEL, np.float32)


@dataclass
class Recurrence:
    """What the scans and the step read: queries and keys of the lengths that the convolution gives them."""

    shape: Shape
    seed: int
    query: NDArray[Any] = field(init=False)  # bf16 [tokens, key_heads, key_dim]
    key: NDArray[Any] = field(init=False)
    value: NDArray[Any] = field(init=False)  # bf16 [tokens, value_heads, value_dim]
    decay: NDArray[Any] = field(init=False)  # f32 [tokens, value_heads]
    beta: NDArray[Any] = field(init=False)
    state: NDArray[Any] = field(init=False)  # f32 [value_heads, value_dim, key_dim]

    def __post_init__(self) -> None:
        random = np.random.default_rng(self.seed)
        s = self.shape
        heads, gates = (s.tokens, s.key_heads, s.key_dim), (s.tokens, s.value_heads)
        self.query = to_bfloat16(l2_norm(random.standard_normal(heads)) / np.sqrt(s.key_dim))
        self.key = to_bfloat16(l2_norm(random.standard_normal(heads)))
        self.value = random_bfloat16(random, s.tokens, s.value_heads, s.value_dim)
        rates = 0.5 * 0.1 ** (np.arange(s.value_heads) % 3)  # heads that forget at once, and heads that remember
        self.decay = np.exp(-rates * random.exponential(1, gates)).astype(np.float32)
        self.beta = random.uniform(0.02, 0.98, gates).astype(np.float32)
        self.state = random.standard_normal((s.value_heads, s.value_dim, s.key_dim), np.float32)

    def buffers(self) -> dict[int, NDArray[Any]]:
        return dict(enumerate((self.query, self.key, self.value, self.decay, self.beta, self.state)))

    def reference(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Output [tokens, value_heads, value_dim] and next state, in float64."""
        owner = np.arange(self.shape.value_heads) * self.shape.key_heads // self.shape.value_heads
        query, key = (from_bfloat16(a).astype(np.float64)[:, owner] for a in (self.query, self.key))
        others = (from_bfloat16(self.value), self.decay, self.beta, self.state)
        value, decay, beta, state = (a.astype(np.float64) for a in others)
        return delta_rule(query, key, value, decay, beta, state)

    def part(self, first: int, count: int, state: NDArray[Any]) -> Recurrence:
        """Tokens `first` to `first + count - 1`, from `state` on."""
        s = self.shape
        shape = Shape(count, s.key_heads, s.value_heads, s.key_dim, s.value_dim)
        part = Recurrence(shape, 0)
        for name in ("query", "key", "value", "decay", "beta"):
            setattr(part, name, np.ascontiguousarray(getattr(self, name)[first : first + count]))
        part.state = state
        return part

    def bounds(self) -> NDArray[np.float64]:
        """How far the output and the state of each head may be from the reference, [value_heads].

        A token's update of a row rounds its sum over key_dim, the recalled value and each new element: in root mean
        square below 4 x 2^-24 of the greatest element reached. It does not stretch earlier errors, which decay with the
        state (beta <= 1, |key| = 1). The output is a product with a query of length key_dim^-0.5: no larger an error.
        """
        reached = max(np.abs(self.state).max(), np.abs(from_bfloat16(self.value)).max())
        error = np.zeros(self.shape.value_heads)
        largest = error
        for decay in self.decay.astype(np.float64):
            error = decay * error + 4 * 2.0**-24 * float(reached)
            largest = np.maximum(largest, error)
        return largest
