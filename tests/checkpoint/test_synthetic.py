"""The writer of synthetic checkpoints: the format's own library reads its files, and values are sane."""

from __future__ import annotations

import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open

import synthetic
from checkpoint_helpers import all_values
from lily.checkpoint import read_checkpoint
from synthetic import Options, random_config, tensors, text_config, with_layers, write_checkpoint


@pytest.mark.parametrize("layout", ["stacked", "per_expert", "fused"])
def test_the_formats_own_library_reads_the_files(layout: str, tmp_path: Path) -> None:
    config = random_config(np.random.default_rng(61))
    options = Options(
        bits=None if layout == "fused" else 8, group_size=32, layout=layout, shards=3, extra=("vision", "mtp")
    )
    write_checkpoint(tmp_path, config, options)
    expected = {tensor.name: (tensor.dtype, list(tensor.shape)) for tensor in tensors(config, options)}
    found: dict[str, tuple[str, list[int]]] = {}
    for path in sorted(tmp_path.glob("*.safetensors")):
        with safe_open(path, "np") as file:
            for name in file.keys():  # noqa: SIM118 (a safe_open is no mapping)
                part = file.get_slice(name)
                found[name] = (part.get_dtype(), part.get_shape())
    assert found == expected
    assert len(list(tmp_path.glob("*.safetensors"))) == 3


def test_names_and_count_of_the_real_model() -> None:
    everything = list(tensors(synthetic.REAL_CONFIG, Options()))
    assert len(everything) == 1757
    names = {tensor.name: tensor for tensor in everything}
    stacked = names["language_model.model.layers.39.mlp.switch_mlp.down_proj.weight"]
    assert (stacked.dtype, stacked.shape) == ("U32", (256, 2048, 64))
    assert names["language_model.model.layers.0.mlp.gate.weight"].shape == (256, 512)  # 8 bits
    assert names["language_model.model.layers.0.linear_attn.conv1d.weight"].shape == (8192, 4, 1)
    assert "language_model.lm_head.scales" in names


def test_data_begins_at_the_offsets_asked_for(tmp_path: Path) -> None:
    config = random_config(np.random.default_rng(67))
    for odd in (True, False):
        write_checkpoint(tmp_path, config, group_size=32, odd_offsets=odd, index=False)
        length = int.from_bytes((tmp_path / "model.safetensors").read_bytes()[:8], "little")
        assert length % 8 == 0 if not odd else length % 2 == 1


def test_same_seed_same_bytes(tmp_path: Path) -> None:
    config = random_config(np.random.default_rng(71))
    files = []
    for place, seed in enumerate((5, 5, 6)):
        write_checkpoint(tmp_path / str(place), config, group_size=32, seed=seed, index=False)
        files.append((tmp_path / str(place) / "model.safetensors").read_bytes())
    assert files[0] == files[1]
    assert files[0] != files[2]


@pytest.mark.parametrize("bits", [4, 8, None])
def test_outputs_of_matrices_are_of_order_one(bits: int | None, tmp_path: Path) -> None:
    config = random_config(np.random.default_rng(73), group_size=64, tied=False)
    text_config(config).update(hidden_size=256, vocab_size=257)
    values = all_values(read_checkpoint(write_checkpoint(tmp_path, config, bits=bits, index=False)))
    assert abs(values["embed_tokens"].std() - 1.0) < 0.1
    inputs = np.random.default_rng(1).standard_normal(256)
    for name, gain in (("lm_head", 2.0), ("layers.0.mlp.experts.up_proj", 1.0), ("layers.0.mlp.gate", 2.0)):
        assert 0.5 * gain < (values[name] @ inputs).std() < 1.6 * gain, name
    assert ("layers.0.mlp.gate" in values) and values["lm_head"].min() < 0 < values["lm_head"].max()


def test_scales_of_both_signs(tmp_path: Path) -> None:
    config = random_config(np.random.default_rng(79))
    for negative in (True, False):
        options = Options(group_size=32, negative_scales=negative, scale_dtype="F32")
        scales = next(tensor for tensor in tensors(config, options) if tensor.name.endswith(".scales"))
        block = next(iter(scales.blocks()))
        assert bool((block < 0).any()) is negative
        assert (block > 0).any()


def test_memory_stays_bounded(tmp_path: Path) -> None:
    config = with_layers(synthetic.REAL_CONFIG, 1)
    text_config(config).update(
        vocab_size=60_001, num_experts=6, num_experts_per_tok=3
    )  # an embedding of 492 MB as float32
    tracemalloc.start()
    try:
        write_checkpoint(tmp_path, config, index=False)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 200 << 20
    assert read_checkpoint(tmp_path).text_bytes > 130 << 20


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    small = with_layers(synthetic.REAL_CONFIG, 4)
    text_config(small).update(vocab_size=131, hidden_size=128, num_experts=3, num_experts_per_tok=2)
    monkeypatch.setattr(synthetic, "REAL_CONFIG", small)
    for layout, bits in (("stacked", "4"), ("fused", "16"), ("per_expert", "8")):
        out = tmp_path / layout
        arguments = [
            "--layers",
            "5",
            "--layout",
            layout,
            "--bits",
            bits,
            "--group-size",
            "32",
            "--out",
            str(out),
        ]
        monkeypatch.setattr(sys, "argv", ["synthetic.py", *arguments])
        synthetic.main()
        checkpoint = read_checkpoint(out)
        assert checkpoint.config.num_hidden_layers == 5
        assert f"{checkpoint.text_bytes:,} bytes" in capsys.readouterr().out
        assert (out / "model.safetensors.index.json").is_file()
