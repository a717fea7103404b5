"""Random small models, in every layout that the writer offers, against the NumPy reference."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lily
import reference
from engine_helpers import random_ids
from synthetic import random_config, text_config, write_checkpoint

ERROR = 1e-3
LENGTHS = (1, 2, 17, 64, 130)
DECODED = 3
PREFIXES = ("language_model.model.", "model.language_model.", "model.")
LAYOUTS: list[dict[str, Any]] = [
    {"bits": 4, "layout": "stacked", "group_size": 32},
    {"bits": 8, "layout": "per_expert", "group_size": 32, "scale_dtype": "F16", "router_bits": 4},
    {"bits": 4, "layout": "stacked", "group_size": 64, "scatter": True, "shards": 3, "index": False},
    {"bits": None, "layout": "fused", "plain_dtype": "BF16", "vector_dtype": "F32", "shards": 2},
    {"bits": None, "layout": "per_expert", "plain_dtype": "F16", "extra": ("vision", "mtp")},
    {"bits": None, "layout": "stacked", "plain_dtype": "F32", "odd_offsets": False, "a_log_dtype": "BF16"},
]


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize("number", range(len(LAYOUTS)))
def test_against_the_reference(number: int, prefix: str, tmp_path: Path) -> None:
    options = LAYOUTS[number]
    seed = 100 * number + PREFIXES.index(prefix)
    unit = options.get("group_size", 1)
    config = random_config(np.random.default_rng(seed), group_size=unit, nested=prefix != "model.")
    write_checkpoint(tmp_path, config, seed=seed, prefix=prefix, **options)
    ids = random_ids(LENGTHS[-1] + DECODED, seed, text_config(config)["vocab_size"])
    expected = reference.load(tmp_path).forward(ids)
    with lily.Model.load(tmp_path, threads=1, prefill_chunk=50) as model:
        for length in LENGTHS:
            with model.session() as session:
                found = [np.array(session.prefill(ids[:length]))]
                found += [np.array(session.decode(token)) for token in ids[length : length + DECODED]]
            wanted = expected[length - 1 : length + DECODED]
            error = np.abs(np.stack(found) - wanted).max() / np.abs(wanted).max()
            assert error <= ERROR, f"{length} tokens: {error:.2e}"
