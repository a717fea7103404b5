"""The reference's blocks against slower, more literal restatements, and the properties they must have."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from oracles.random_models import AFFINE_SHAPES, PLAIN_SHAPES, Shape, quantize, random_tensors
from reference import ReferenceModel, blocks
from reference.config import parse_config
from reference.dequantize import dequantize, unpack_codes
from reference.tensor_files import from_bfloat16, to_bfloat16


def random_reference(shape: Shape, seed: int, dtype: type = np.float64) -> ReferenceModel:
    weights = {name: array.astype(dtype) for name, array in random_tensors(shape, seed).items()}
    weights.setdefault("lm_head", weights["embed_tokens"])
    return ReferenceModel(parse_config(shape.text_config()), weights)


@pytest.fixture
def random() -> np.random.Generator:
    return np.random.default_rng(20)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("group_size", [32, 64, 128])
def test_dequantize_reads_bits_one_by_one(bits: int, group_size: int, random: np.random.Generator) -> None:
    rows, columns = 3, 3 * group_size
    packed = random.integers(0, 2**32, (rows, columns * bits // 32), np.uint32)
    scales, biases = random.normal(size=(2, rows, 3)).astype(np.float32)
    values = dequantize(packed, scales, biases, group_size, bits)
    assert values.shape == (rows, columns)
    for row in range(rows):
        stream = sum(int(word) << 32 * i for i, word in enumerate(packed[row]))
        for column in range(columns):
            code = stream >> column * bits & (2**bits - 1)
            group = column // group_size
            assert values[row, column] == code * float(scales[row, group]) + float(biases[row, group])


@pytest.mark.parametrize("bits", [4, 8])
def test_quantize_then_dequantize_is_within_one_step(bits: int, random: np.random.Generator) -> None:
    values = random.normal(size=(5, 7, 128)).astype(np.float32)
    packed, scales, biases = quantize(values, 32, bits, random)
    assert (scales < 0).any() and (scales > 0).any()
    restored = dequantize(packed, scales, biases, 32, bits)
    steps = np.repeat(np.abs(scales.astype(np.float64)), 32, -1)
    # Half a step, and at the ends of the range what rounding scale and bias to bfloat16 takes away.
    assert (np.abs(restored - values) <= 0.5 * steps + 2.0**-7 * np.abs(values).max()).all()
    assert len(np.unique(unpack_codes(packed, bits))) > 2 ** (bits - 1)


def test_bfloat16_rounds_to_nearest_even(random: np.random.Generator) -> None:
    values = random.normal(size=1000).astype(np.float32)
    restored = from_bfloat16(to_bfloat16(values))
    assert (np.abs(restored - values) <= np.abs(values) * 2.0**-8).all()
    assert (to_bfloat16(restored) == to_bfloat16(values)).all()
    ties = np.array([0x3F808000, 0x3F818000], np.uint32).view(np.float32)
    assert to_bfloat16(ties).tolist() == [0x3F80, 0x3F82]


def test_activations_at_both_ends() -> None:
    x = np.array([-800.0, -1.5, 0.0, 1.5, 800.0])
    assert blocks.sigmoid(x) == pytest.approx([0, 1 / (1 + math.exp(1.5)), 0.5, 1 / (1 + math.exp(-1.5)), 1])
    assert blocks.softplus(x) == pytest.approx(
        [0, math.log1p(math.exp(-1.5)), math.log(2), math.log1p(math.exp(1.5)), 800]
    )
    assert blocks.softmax(x[None]).sum() == pytest.approx(1)


def test_norms_add_epsilon_where_the_formulas_say() -> None:
    tiny = np.full((1, 100), 1e-3)  # mean of squares 1e-6, sum of squares 1e-4
    assert blocks.rms_norm(tiny, np.ones(100), 1e-6)[0, 0] == pytest.approx(1 / math.sqrt(2))
    assert blocks.l2_norm(tiny)[0, 0] == pytest.approx(1e-3 / math.sqrt(1e-4 + 1e-6))


def test_rope_keeps_lengths_and_depends_on_distance_only(random: np.random.Generator) -> None:
    dim, rotary, theta = 40, 8, 1e4
    q, k = random.normal(size=(2, dim))
    repeated = np.broadcast_to(np.stack([q, k]), (50, 2, dim))
    turned = blocks.rotate(repeated, 7, rotary, theta)
    assert np.linalg.norm(turned, axis=-1) == pytest.approx(np.linalg.norm(repeated, axis=-1))
    assert (turned[..., rotary:] == repeated[..., rotary:]).all()
    products = turned[:, 0] @ turned[:, 1].T
    for distance in (0, 1, 13):
        assert np.ptp(np.diagonal(products, distance)) < 1e-9
    # Dimension 0 turns with dimension rotary / 2 by one radian per position.
    one = blocks.rotate(np.eye(1, dim)[None], 3, rotary, theta)[0, 0]
    assert (one[0], one[rotary // 2]) == pytest.approx((math.cos(3), math.sin(3)))


def test_convolution_is_causal_numpy_convolve(random: np.random.Generator) -> None:
    x, kernel, previous = random.normal(size=(9, 5)), random.normal(size=(5, 4)), random.normal(size=(3, 5))
    y, last = blocks.causal_convolution(x, kernel, previous)
    for channel in range(5):
        padded = np.concatenate([previous[:, channel], x[:, channel]])
        assert y[:, channel] == pytest.approx(np.convolve(padded, kernel[channel, ::-1], "valid"))
    assert (last == x[-3:]).all()


def test_delta_rule_in_scalar_loops(random: np.random.Generator) -> None:
    count, heads, key_dim, value_dim = 5, 2, 3, 4
    query, key = random.normal(size=(2, count, heads, key_dim))
    value = random.normal(size=(count, heads, value_dim))
    decay, beta = random.uniform(size=(2, count, heads))
    initial = random.normal(size=(heads, value_dim, key_dim))
    output, final = blocks.delta_rule(query, key, value, decay, beta, initial)
    for head in range(heads):
        state = initial[head].copy()
        for t in range(count):
            for i in range(value_dim):
                row = [decay[t, head] * s for s in state[i]]
                read = sum(r * k for r, k in zip(row, key[t, head], strict=True))
                delta = beta[t, head] * (value[t, head, i] - read)
                state[i] = [r + delta * k for r, k in zip(row, key[t, head], strict=True)]
                assert output[t, head, i] == pytest.approx(float(state[i] @ query[t, head]))
        assert final[head] == pytest.approx(state)


def test_delta_rule_with_full_writes_recalls_the_last_value() -> None:
    """With decay 1 and beta 1, an orthonormal key reads back exactly what was last written under it."""
    keys = np.eye(3)[[0, 1, 2, 1, 1]][:, None]
    values = np.arange(10.0).reshape(5, 1, 2)
    ones = np.ones((5, 1))
    _, state = blocks.delta_rule(keys, keys, values, ones, ones, np.zeros((1, 2, 3)))
    assert pytest.approx(values[[0, 4, 2], 0]) == state[0].T


@pytest.mark.parametrize("renormalize", [True, False])
def test_moe_as_a_sum_over_all_experts(renormalize: bool, random: np.random.Generator) -> None:
    shape = PLAIN_SHAPES[0]
    config = parse_config({**shape.text_config(), "norm_topk_prob": renormalize})
    weights = {name: array.astype(np.float64) for name, array in random_tensors(shape, 3).items()}
    x, prefix = random.normal(size=(11, shape.hidden)), "layers.1.mlp"
    output, margins = blocks.mixture_of_experts(x, weights, prefix, config)
    names = ("gate_proj", "up_proj", "down_proj")
    for row, given, margin in zip(x, output, margins, strict=True):
        p = np.exp(weights[f"{prefix}.gate"] @ row)
        p /= p.sum()
        order = sorted(range(len(p)), key=lambda e: -p[e])
        best = order[: config.num_experts_per_tok]
        assert margin == pytest.approx(1 - p[order[len(best)]] / p[best[-1]])
        total = sum(p[best]) if renormalize else 1.0
        expected = np.zeros(shape.hidden)
        for e in best:
            gate, up, down = (weights[f"{prefix}.experts.{name}"][e] for name in names)
            expected += p[e] / total * (down @ (blocks.silu(gate @ row) * (up @ row)))
        gate, up, down = (weights[f"{prefix}.shared_expert.{name}"] for name in names)
        share = 1 / (1 + math.exp(-float(weights[f"{prefix}.shared_expert_gate"][0] @ row)))
        assert given == pytest.approx(expected + share * (down @ (blocks.silu(gate @ row) * (up @ row))))


def test_attention_one_query_at_a_time(random: np.random.Generator) -> None:
    """Grouped heads, gate order, scale and causality, restated for each query and head alone."""
    shape = PLAIN_SHAPES[2]
    model = random_reference(shape, 4)
    config, w, prefix = model.config, model.weights, "layers.1.self_attn"
    x, dim = random.normal(size=(6, shape.hidden)), config.head_dim
    empty = np.zeros((0, config.num_key_value_heads, dim))
    output, (keys, values) = blocks.gated_attention(x, w, prefix, config, (empty, empty))
    for t in range(len(x)):
        parts = []
        for head in range(config.num_attention_heads):
            rows = w[f"{prefix}.q_proj"][2 * dim * head : 2 * dim * (head + 1)] @ x[t]
            query = blocks.rms_norm(rows[None, None, :dim], w[f"{prefix}.q_norm"], config.rms_norm_eps)
            query = blocks.rotate(query, t, config.rotary_dim, config.rope_theta)[0, 0]
            kv = head * config.num_key_value_heads // config.num_attention_heads
            scores = np.array([query @ keys[s, kv] / math.sqrt(dim) for s in range(t + 1)])
            shares = np.exp(scores) / np.exp(scores).sum()
            parts.append(sum(p * values[s, kv] for s, p in enumerate(shares)) / (1 + np.exp(-rows[dim:])))
        assert output[t] == pytest.approx(w[f"{prefix}.o_proj"] @ np.concatenate(parts))


@pytest.mark.parametrize("shape", PLAIN_SHAPES + AFFINE_SHAPES, ids=lambda shape: shape.name)
def test_pieces_give_the_same_logits_as_the_whole(shape: Shape, random: np.random.Generator) -> None:
    model = random_reference(shape, 5)
    ids = random.integers(0, shape.vocab, 37)
    whole = model.forward(ids)
    state, start, pieces = model.new_state(), 0, []
    for size in (1, 2, 3, 7, 1, 20, 3):
        pieces.append(model.forward(ids[start : start + size], state))
        start += size
    assert state.position == len(ids) == start
    assert np.abs(np.concatenate(pieces) - whole).max() <= 1e-9 * np.abs(whole).max()


def test_a_copied_state_is_independent(random: np.random.Generator) -> None:
    model = random_reference(PLAIN_SHAPES[0], 6)
    ids = random.integers(0, 131, 12)
    state = model.new_state()
    model.forward(ids, state)
    kept = state.copy()
    first = model.forward([5], state)
    model.forward([9, 9, 9], state)
    assert (model.forward([5], kept) == first).all()


def test_float32_is_close_to_float64(random: np.random.Generator) -> None:
    for shape in PLAIN_SHAPES:
        ids = random.integers(0, shape.vocab, 50)
        exact, single = (random_reference(shape, 7, dtype).forward(ids) for dtype in (np.float64, np.float32))
        assert single.dtype == np.float32
        assert np.abs(single - exact).max() <= 3e-4 * np.abs(exact).max()


def test_score_is_log_softmax(random: np.random.Generator) -> None:
    model = random_reference(PLAIN_SHAPES[1], 8)
    ids = random.integers(0, 257, 20)
    scores, chosen = model.score(ids)
    probabilities = blocks.softmax(model.forward(ids))
    assert np.exp(scores) == pytest.approx([probabilities[t, ids[t + 1]] for t in range(19)])
    assert (chosen == probabilities[:-1].argmax(-1)).all()


def test_layer_types_from_interval() -> None:
    text = PLAIN_SHAPES[0].text_config()
    del text["layer_types"]
    text.update(num_hidden_layers=7, full_attention_interval=3)
    kinds = [kind[0] for kind in parse_config({"text_config": text}).layer_types]
    assert "".join(kinds) == "llfllfl"


def test_package_does_not_import_lily() -> None:
    for path in (Path(__file__).parent / "reference").glob("*.py"):
        assert "import lily" not in path.read_text() and "from lily" not in path.read_text()
