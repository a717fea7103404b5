"""expert_gate_up, expert_down and expert_gemv against float64, in every format and for uneven sizes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from quantized import Matrix, random_bfloat16, random_matrix

from device_runner import from_bfloat16, pack, run, sim
from lily_args import ARGS

ROWS, THREADS = ARGS.kGemvRows, ARGS.kGemvThreads
EPS = 1e-6
EXPERTS = 13
BFLOAT_ROUNDING = 2.0**-8  # 8 significant bits
# A sum passes through at most 64 roundings of float32 (2^-24 each): up to 16 products and 4 sums in a lane's part, the
# bias's and the weight's, up to 14 parts, 5 levels between lanes, 14 experts, the norm's factor. Their directions are
# random, so that they add up to 8 of them at most in practice.
ROUNDING = 2.0**-21
FORMATS = [(4, 32), (4, 64), (4, 128), (8, 32), (8, 64), (8, 128), (16, 64)]

Halves = NDArray[np.uint16]
Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]


def blocks(rows: int) -> int:
    return -(-rows // ROWS)


def normalize(x: Floats, weight: Floats) -> Doubles:
    wide = x.astype(np.float64)
    return wide / np.sqrt(np.mean(wide**2) + EPS) * weight


def product(matrix: Matrix, x: Doubles, expert: int | None = None) -> tuple[Doubles, Doubles]:
    """A product in float64, and the most that float32 may be off."""
    values = matrix.values if expert is None else matrix.values[expert]
    magnitudes = matrix.magnitudes if expert is None else matrix.magnitudes[expert]
    return values @ x, ROUNDING * (magnitudes @ np.abs(x))


def silu(x: Doubles) -> Doubles:
    return x / (1.0 + np.exp(-x))


@dataclass
class Layer:
    """A token's vector, its experts and their matrices."""

    gate: Matrix
    up: Matrix
    down: Matrix
    shared_gate: Matrix
    shared_up: Matrix
    shared_down: Matrix
    x: Floats
    norm_weight: Floats
    chosen: NDArray[np.int32]
    weights: Floats
    shared_logit: Floats
    act: Halves
    shared_act: Halves

    def args(self) -> bytes:
        hidden_size, intermediate = self.down.values.shape[1:]
        shared_intermediate = self.shared_down.values.shape[1]
        return pack(hidden_size, intermediate, shared_intermediate, len(self.chosen), EPS)

    def gate_up(self, device: Any) -> tuple[Halves, Halves]:
        count = len(self.chosen)
        out = np.zeros((count, self.gate.values.shape[1]), np.uint16)
        shared_out = np.zeros(self.shared_gate.values.shape[0], np.uint16)
        buffers = {**self.gate.slots(0), **self.up.slots(3), **self.shared_gate.slots(6), **self.shared_up.slots(9)}
        buffers |= {12: self.x, 13: self.norm_weight, 14: self.chosen, 15: out, 16: shared_out}
        run(
            device,
            "expert_gate_up",
            buffers,
            args=self.args() + pack(self.gate.expert_words, self.gate.expert_scales),
            threadgroups=(blocks(max(out.shape[1], len(shared_out))), count + 1),
            threads=THREADS,
            constants=self.gate.constants,
        )
        return out, shared_out

    def down_sum(self, device: Any) -> Floats:
        hidden = self.x.copy()
        buffers = {**self.down.slots(0), **self.shared_down.slots(3), 6: self.act, 7: self.shared_act}
        buffers |= {8: self.chosen, 9: self.weights, 10: self.shared_logit, 11: hidden}
        run(
            device,
            "expert_down",
            buffers,
            args=self.args() + pack(self.down.expert_words, self.down.expert_scales),
            threadgroups=(-(-len(hidden) // ARGS.kDownRows),),
            threads=ARGS.kDownThreads,
            constants=self.down.constants,
        )
        return hidden

    def gemv(self, device: Any, matrix: Matrix, x: NDArray[Any], norm_input: bool) -> Halves:
        rows, columns = matrix.values.shape[1:]
        out = np.zeros((len(self.chosen), rows), np.uint16)
        run(
            device,
            "expert_gemv",
            {**matrix.slots(0), 3: x, 4: self.norm_weight if norm_input else x, 5: self.chosen, 6: out},
            args=pack(rows, columns, len(self.chosen), EPS, matrix.expert_words, matrix.expert_scales),
            threadgroups=(blocks(rows), len(self.chosen)),
            threads=THREADS,
            constants={
                **matrix.constants,
                ARGS.kVectorTypeIndex: ARGS.kResidualVector if norm_input else ARGS.kBfloatVector,
            },
        )
        return out


def make_layer(
    bits: int, group_size: int, hidden_size: int, intermediate: int, shared_intermediate: int, count: int = 3
) -> Layer:
    rng = np.random.default_rng([bits, group_size, hidden_size, intermediate, shared_intermediate, count])

    def matrix(rows: int, columns: int, experts: int | None = EXPERTS) -> Matrix:
        return random_matrix(rng, rows, columns, bits, group_size, experts)

    return Layer(
        gate=matrix(intermediate, hidden_size),
        up=matrix(intermediate, hidden_size),
        down=matrix(hidden_size, intermediate),
        shared_gate=matrix(shared_intermediate, hidden_size, None),
        shared_up=matrix(shared_intermediate, hidden_size, None),
        shared_down=matrix(hidden_size, shared_intermediate, None),
        x=rng.normal(0.3, 3.0, hidden_size).astype(np.float32),
        # Small, so that silu is not only tested where it saturates.
        norm_weight=(rng.normal(1.0, 0.3, hidden_size) / np.sqrt(hidden_size)).astype(np.float32),
        chosen=rng.permutation(EXPERTS)[:count].astype(np.int32),
        weights=rng.dirichlet(np.ones(count)).astype(np.float32),
        shared_logit=rng.normal(0.0, 1.0, 1).astype(np.float32),
        act=random_bfloat16(rng, (count, intermediate)),
        shared_act=random_bfloat16(rng, (shared_intermediate,)),
    )


def check_close(out: Halves, expected: Doubles, bound: Doubles) -> None:
    """Within `bound`, which float32 accounts for, and the rounding of the result to bfloat16."""
    allowed = bound + BFLOAT_ROUNDING * (np.abs(expected) + bound)
    assert np.all(np.abs(from_bfloat16(out) - expected) <= allowed)


def check_gate_up(layer: Layer, out: Halves, shared_out: Halves) -> None:
    x = normalize(layer.x, layer.norm_weight)
    triples = [(out[i], layer.gate, layer.up, int(expert)) for i, expert in enumerate(layer.chosen)]
    for result, gate, up, expert in [*triples, (shared_out, layer.shared_gate, layer.shared_up, None)]:
        gates, gate_bound = product(gate, x, expert)
        ups, up_bound = product(up, x, expert)
        expected = silu(gates) * ups
        # silu has a slope below 1.1; its own rounding is a few units of float32.
        bound = (
            1.1 * gate_bound * (np.abs(ups) + up_bound) + np.abs(silu(gates)) * up_bound + 2.0**-21 * np.abs(expected)
        )
        check_close(result, expected, bound)


def check_down(layer: Layer, hidden: Floats) -> None:
    expected = layer.x.astype(np.float64)
    bound = ROUNDING * np.abs(expected)
    scale = 1.0 / (1.0 + np.exp(-float(layer.shared_logit[0])))
    parts = [(*product(layer.shared_down, from_bfloat16(layer.shared_act).astype(np.float64)), scale)]
    for i, expert in enumerate(layer.chosen):
        act = from_bfloat16(layer.act[i]).astype(np.float64)
        parts.append((*product(layer.down, act, int(expert)), float(layer.weights[i])))
    for values, part_bound, weight in parts:
        expected = expected + weight * values
        bound = bound + weight * part_bound
    assert np.all(np.abs(hidden - expected) <= bound)


def check_gemv(layer: Layer, matrix: Matrix, x: NDArray[Any], norm_input: bool, out: Halves) -> None:
    for i, expert in enumerate(layer.chosen):
        vector = normalize(x, layer.norm_weight) if norm_input else from_bfloat16(x[i]).astype(np.float64)
        check_close(out[i], *product(matrix, vector, int(expert)))


def check_all(layer: Layer, device: Any) -> None:
    check_gate_up(layer, *layer.gate_up(device))
    check_down(layer, layer.down_sum(device))
    check_gemv(layer, layer.up, layer.x, True, layer.gemv(device, layer.up, layer.x, True))
    check_gemv(layer, layer.down, layer.act, False, layer.gemv(device, layer.down, layer.act, False))


@pytest.mark.parametrize(("bits", "group_size"), FORMATS)
def test_formats(bits: int, group_size: int) -> None:
    check_all(make_layer(bits, group_size, 256, 128, 256), sim())


# (hidden_size, intermediate, shared_intermediate): more and fewer shared than routed rows, rows that end inside a
# simdgroup's four, columns that do not fill the last step of a simdgroup, several steps.
@pytest.mark.parametrize(
    ("bits", "group_size", "hidden_size", "intermediate", "shared_intermediate"),
    [
        (4, 32, 96, 32, 64),
        (4, 32, 544, 160, 32),
        (4, 64, 1088, 576, 64),
        (8, 32, 544, 96, 128),
        (16, 64, 264, 40, 24),
        (16, 64, 266, 38, 22),
        (16, 64, 26, 6, 14),
        (16, 64, 2, 2, 2),
    ],
)
def test_uneven_sizes(
    bits: int, group_size: int, hidden_size: int, intermediate: int, shared_intermediate: int
) -> None:
    check_all(make_layer(bits, group_size, hidden_size, intermediate, shared_intermediate), sim())


@pytest.mark.parametrize("count", [1, 2, 8, 9, 13])
def test_number_of_experts(count: int) -> None:
    check_all(make_layer(4, 64, 192, 128, 64, count), sim())


@pytest.mark.parametrize("logit", [-40.0, 0.0, 40.0])
def test_shared_gate(logit: float) -> None:
    layer = make_layer(4, 64, 128, 64, 64)
    layer.shared_logit[0] = logit
    check_down(layer, layer.down_sum(sim()))


@pytest.mark.parametrize("scale", [0.0, 1e-8, 3e-4, 1e4])
@pytest.mark.parametrize(("bits", "group_size", "hidden_size"), [(4, 64, 192), (8, 32, 96), (16, 64, 40), (16, 64, 26)])
def test_residuals_of_any_magnitude(bits: int, group_size: int, hidden_size: int, scale: float) -> None:
    """The norm's eps is nothing beside large residuals, much beside small ones, and all there is beside zeros."""
    layer = make_layer(bits, group_size, hidden_size, 64, 64 if bits < 16 else 22)
    layer.x *= np.float32(scale)
    check_gate_up(layer, *layer.gate_up(sim()))
    check_gemv(layer, layer.up, layer.x, True, layer.gemv(sim(), layer.up, layer.x, True))


# From nine experts on, expert_down takes another turn in the same memory.
@pytest.mark.parametrize(
    ("bits", "group_size", "hidden_size", "count"),
    [(4, 64, 576, 2), (8, 32, 544, 2), (16, 64, 66, 2), (4, 64, 192, 9), (16, 64, 26, 9), (4, 32, 96, 13)],
)
def test_order_of_threads_does_not_matter(bits: int, group_size: int, hidden_size: int, count: int) -> None:
    layer = make_layer(bits, group_size, hidden_size, 64, 128, count)

    def bits_of(device: Any) -> list[bytes]:
        results = [*layer.gate_up(device), layer.down_sum(device), layer.gemv(device, layer.up, layer.x, True)]
        return [result.tobytes() for result in [*results, layer.gemv(device, layer.down, layer.act, False)]]

    forward = bits_of(sim(order="forward"))
    assert forward == bits_of(sim(order="reverse"))
    assert forward == bits_of(sim(order="random", seed=9))
    assert forward == bits_of(sim(order="random", seed=10))


@pytest.mark.parametrize(
    ("bits", "group_size", "hidden_size", "intermediate"),
    [(4, 32, 96, 32), (8, 32, 96, 64), (16, 64, 40, 24), (16, 64, 26, 14)],
)
def test_stays_inside_its_buffers(bits: int, group_size: int, hidden_size: int, intermediate: int) -> None:
    check_all(make_layer(bits, group_size, hidden_size, intermediate, 64 if bits < 16 else 18, 2), sim(checked=True))


@pytest.mark.parametrize("count", [9, 13])
@pytest.mark.parametrize("options", [{}, {"order": "random", "seed": 6}])
def test_more_experts_than_a_turn_takes(count: int, options: dict[str, Any]) -> None:
    layer = make_layer(4, 64, 128, 64, 64, count)
    check_down(layer, layer.down_sum(sim(checked=True, **options)))
