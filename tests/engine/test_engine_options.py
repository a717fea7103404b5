"""Options of Model.load: defaults, limits, and errors that name the option before anything is mapped."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lily
from engine_helpers import CONTEXT, THREADS, expect_success, fresh_logits, random_ids, run_python
from lily import _core
from lily.errors import BackendError, ConfigError, MemoryLimitError

NOT_POSITIVE: list[Any] = [0, -1, "2", 2.0, True, 1 << 70, [1]]


def mappings() -> int:
    return Path("/proc/self/maps").read_text().count(".safetensors")


@pytest.mark.parametrize("value", NOT_POSITIVE)
@pytest.mark.parametrize("option", ["threads", "max_context", "prefill_chunk", "memory_limit"])
def test_positive_integers(checkpoint: Path, option: str, value: Any) -> None:
    before = mappings()
    with pytest.raises(ConfigError, match=f"{option} must be a whole number of at least 1"):
        lily.Model.load(checkpoint, **{option: value})
    assert mappings() <= before


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"threads": 1025}, ConfigError, "between 1 and 1024"),
        ({"max_context": CONTEXT + 1}, ConfigError, "4,096"),
        ({"max_context": CONTEXT + 1, "memory_limit": 1 << 40}, ConfigError, "4,096"),
        ({"cpu_isa": "sse9"}, ConfigError, r"sse9.*portable"),
        ({"cpu_isa": 3}, ConfigError, "cpu_isa must be a string"),
        ({"kv_cache_type": "int8"}, ConfigError, r"float16.*bfloat16.*int8"),
        ({"kv_cache_type": 5}, ConfigError, "kv_cache_type must be a string"),
        ({"backend": "metal2"}, BackendError, r'metal2.*"cpu"'),
        ({"backend": 1}, BackendError, "backend"),
    ],
)
def test_wrong_values(checkpoint: Path, options: dict[str, Any], error: type, message: str) -> None:
    before = mappings()
    with pytest.raises(error, match=message):
        lily.Model.load(checkpoint, **options)
    assert mappings() <= before


def test_defaults(checkpoint: Path) -> None:
    with lily.Model.load(checkpoint) as model:
        assert model.threads == _core.physical_core_count() >= 1
        assert model.max_context == CONTEXT
        assert model.cpu_isa in _core.available_isas()


def test_integers_of_numpy(checkpoint: Path) -> None:
    with lily.Model.load(checkpoint, threads=np.int64(1), max_context=np.int32(64), prefill_chunk=np.uint8(9)) as model:
        assert (model.threads, model.max_context) == (1, 64)
        assert model.plan().prefill_chunk == 9


def test_a_chunk_is_never_longer_than_the_context(checkpoint: Path) -> None:
    with lily.Model.load(checkpoint, max_context=40, prefill_chunk=1 << 40, threads=1) as model:
        assert model.plan().prefill_chunk == 40


def test_memory_limit(checkpoint: Path) -> None:
    options: dict[str, Any] = {"threads": THREADS, "max_context": 512, "prefill_chunk": 32}
    needed = lily.plan(checkpoint, 512, threads=THREADS, prefill_chunk=32).total
    before = mappings()
    with pytest.raises(MemoryLimitError) as caught:
        lily.Model.load(checkpoint, memory_limit=needed - 1, **options)
    assert f"{needed:,} bytes" in str(caught.value) and f"{needed - 1:,}" in str(caught.value)
    assert "512 tokens" in str(caught.value) and "max_context" in str(caught.value)
    assert mappings() <= before
    with lily.Model.load(checkpoint, memory_limit=needed, **options) as model:
        assert len(fresh_logits(model, random_ids(9))) == model.config.vocab_size


def test_state_stays_within_the_plan(checkpoint: Path) -> None:
    with lily.Model.load(checkpoint, threads=1, max_context=600) as model, model.session() as session:
        plan = model.plan()
        sizes = [session.state_bytes]
        for _ in range(6):
            session.prefill(random_ids(100))
            sizes.append(session.state_bytes)
        assert sizes == sorted(sizes) and sizes[0] < sizes[-1]
        assert sizes[-1] == plan.kv_cache + plan.recurrent_state + plan.conv_state


@pytest.mark.parametrize("isa", ["portable", _core.available_isas()[0]])
def test_instruction_set_of_the_environment(checkpoint: Path, isa: str) -> None:
    code = "import sys, lily; print(lily.Model.load(sys.argv[1]).cpu_isa)"
    result = run_python(code, checkpoint, environment={"LILY_CPU_ISA": isa})
    expect_success(result)
    assert result.stdout.split() == [isa]


def test_unknown_instruction_set_of_the_environment(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LILY_CPU_ISA", "sse9")
    with pytest.raises(ConfigError, match=r"sse9.*LILY_CPU_ISA"):
        lily.Model.load(checkpoint)
    with lily.Model.load(checkpoint, cpu_isa="portable") as model:
        assert model.cpu_isa == "portable"


def test_loading_is_logged(checkpoint: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "lily"), lily.Model.load(checkpoint, threads=1, cpu_isa="portable"):
        pass
    assert "portable kernels, 1 threads" in caplog.text


def test_the_old_name_of_the_gpu_options() -> None:
    with pytest.warns(DeprecationWarning, match="GpuOptions"):
        assert lily.Options is lily.GpuOptions
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = lily.Nothing
