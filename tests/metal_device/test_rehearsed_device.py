"""The Metal device's submitting, waiting and failing on the simulator: what errors of command buffers do to sessions.

Everything above Metal's own calls is the code that a Mac runs: passes in parts, chained by an event, on a thread of the
device's; errors by Metal's numbers; memory counted against a working set; pipelines made while the model is loaded.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lily
from lily import _core, _test_doubles
from lily.checkpoint import read_checkpoint
from lily.errors import BackendError, LilyError, MemoryLimitError
from lily.model.native import native_config, native_source

pytestmark = pytest.mark.skipif("sim" not in lily.available_backends(), reason="needs the sim device")

PROMPT = np.random.default_rng(8).integers(0, 40, 45).tolist()
TIMEOUT, PAGE_FAULT, REVOKED, OUT_OF_MEMORY, REMOVED, INTERACTIVITY = 2, 3, 4, 8, 11, 14


def rehearsed(**limits: int) -> Any:
    return _test_doubles.RehearsedDevice(_core.device.SimDevice(), **limits)


def load(device: Any, folder: Path, options: lily.GpuOptions | None = None, **changes: Any) -> lily.Model:
    checkpoint = read_checkpoint(folder)
    native = _core.EngineOptions()
    native.backend = "rehearsed"
    native.gpu = (options or lily.GpuOptions()).to_core()
    for name, value in changes.items():
        setattr(native, name, value)
    return lily.Model(
        checkpoint,
        _core.gpu.model_on(device, native_config(checkpoint.config), native_source(checkpoint.source), native),
    )


@pytest.fixture(scope="module")
def expected(small_checkpoint: Path) -> tuple[np.ndarray[Any, Any], list[int]]:
    """Logits after the prompt, and greedy tokens behind it."""
    with lily.Model.load(small_checkpoint, backend="sim") as model:
        session = model.prefill(PROMPT)
        logits = session.logits.copy()
        return logits, generate(session, 12)


def generate(session: lily.Session, count: int) -> list[int]:
    return list(session.generate(max_tokens=count, sampling=lily.Sampling.greedy(), stop_tokens=()))


def in_time(work: Callable[[], None], seconds: float = 60.0) -> None:
    """Fails when the work hangs."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(seconds)
    assert not thread.is_alive(), "it hangs"


def test_passes_in_command_buffers_compute_what_whole_ones_do(small_checkpoint: Path, expected: Any) -> None:
    # A barrier after each kernel: more stages than one command buffer takes while its time is unknown.
    with load(rehearsed(), small_checkpoint, lily.GpuOptions(concurrent_stages=False)) as model:
        for _ in range(2):  # in parts, then whole
            session = model.prefill(PROMPT)
            assert np.array_equal(session.logits, expected[0])
            assert generate(session, 12) == expected[1]


@pytest.mark.parametrize(
    ("code", "description", "error", "words"),
    [
        (TIMEOUT, "", BackendError, "pass_seconds"),
        (1, "(0000000e:kIOGPUCommandBufferCallbackErrorImpactingInteractivity)", BackendError, "display"),
        (PAGE_FAULT, "", BackendError, "outside its buffers"),
        (OUT_OF_MEMORY, "", MemoryLimitError, "iogpu.wired_limit_mb"),
        (1, "(00000005:kIOGPUCommandBufferCallbackErrorInnocentVictim)", BackendError, "try again"),
    ],
)
@pytest.mark.parametrize("part", [0, 1])
def test_a_failed_prompt_leaves_the_session_where_it_was(
    small_checkpoint: Path, expected: Any, part: int, code: int, description: str, error: type[LilyError], words: str
) -> None:
    device = rehearsed()
    with load(device, small_checkpoint, lily.GpuOptions(concurrent_stages=False)) as model, model.session() as session:
        device.fail_after(part, code, description)
        with pytest.raises(error, match=words):
            session.prefill(PROMPT)
        assert session.tokens == []
        session.prefill(PROMPT)
        assert np.array_equal(session.logits, expected[0])
        assert generate(session, 12) == expected[1]


@pytest.mark.parametrize(("code", "error"), [(TIMEOUT, BackendError), (OUT_OF_MEMORY, MemoryLimitError)])
@pytest.mark.parametrize("step", [0, 1, 5])
def test_a_failed_step_is_an_error_and_never_a_wrong_token(
    small_checkpoint: Path, expected: Any, code: int, error: type[LilyError], step: int
) -> None:
    device = rehearsed()
    with load(device, small_checkpoint) as model:
        other = model.prefill(PROMPT)
        generate(model.prefill(PROMPT), 12)  # the time of a step is known: it is one command buffer
        session = model.prefill(PROMPT)
        device.fail_after(step, code)
        tokens: list[int] = []
        with pytest.raises(error):
            tokens.extend(session.generate(max_tokens=12, sampling=lily.Sampling.greedy(), stop_tokens=()))
        assert tokens == expected[1][: len(tokens)] and len(tokens) < 12
        device.recover()
        # The step behind the failed one has begun to write over the state.
        with pytest.raises(BackendError, match=r"reset\(\)"):
            session.decode(7)
        session.reset()
        session.prefill(PROMPT)
        assert np.array_equal(session.logits, expected[0])
        assert generate(other, 12) == expected[1]  # another session does not notice


@pytest.mark.parametrize("code", [REVOKED, REMOVED])
def test_a_lost_device_refuses_all_that_follows_and_lets_go(small_checkpoint: Path, code: int) -> None:
    device = rehearsed()
    model = load(device, small_checkpoint)
    session, other = model.prefill(PROMPT), model.prefill(PROMPT[:9])
    device.fail_after(1, code)
    with pytest.raises(BackendError, match=r"again|restart"):
        generate(session, 12)
    device.recover()  # the driver might; what runs on it may not, as its memory's contents are unknown
    for use in (lambda: other.decode(1), lambda: model.prefill(PROMPT), lambda: generate(session, 2)):
        with pytest.raises(BackendError, match=r"lost|reset\(\)"):
            use()
    in_time(model.close)
    assert device.allocated_bytes == 0


def test_no_waiter_hangs_when_everything_fails(small_checkpoint: Path) -> None:
    device = rehearsed()
    with load(device, small_checkpoint) as model:
        sessions = [model.prefill(PROMPT[: 5 + i]) for i in range(4)]
        device.fail_after(7, TIMEOUT, lasting=True)
        errors: list[str] = []

        def run(session: lily.Session) -> None:
            try:
                generate(session, 30)
            except BackendError as error:
                errors.append(str(error))

        threads = [threading.Thread(target=run, args=(session,), daemon=True) for session in sessions]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert not any(thread.is_alive() for thread in threads) and len(errors) == 4
        device.recover()
        with model.session() as fresh:
            fresh.prefill(PROMPT)


def test_closing_with_a_failing_step_in_flight(small_checkpoint: Path) -> None:
    device = rehearsed()
    model = load(device, small_checkpoint)
    session = model.prefill(PROMPT)
    tokens = session.generate(max_tokens=30, sampling=lily.Sampling.greedy(), stop_tokens=())
    next(tokens)
    device.fail_after(0, TIMEOUT, lasting=True)
    in_time(tokens.close)
    in_time(model.close)
    assert device.allocated_bytes == 0


def test_an_interrupted_generation_goes_on(small_checkpoint: Path, expected: Any) -> None:
    with load(rehearsed(), small_checkpoint) as model:
        session = model.prefill(PROMPT)
        first = []
        for token in session.generate(max_tokens=12, sampling=lily.Sampling.greedy(), stop_tokens=()):
            first.append(token)
            if len(first) == 5:
                break
        assert first + generate(session, 7) == expected[1]


def test_memory_that_runs_out_while_running(small_checkpoint: Path, expected: Any) -> None:
    device = rehearsed()
    sizes = {"max_context": 64, "prefill_chunk": 64}
    with load(device, small_checkpoint, **sizes) as model, model.prefill(PROMPT) as session:
        generate(session, 2)
        wrapped = sum(path.stat().st_size for path in small_checkpoint.glob("*.safetensors"))
        needed = device.allocated_bytes + wrapped
    with load(rehearsed(working_set=4 * needed), small_checkpoint, **sizes) as model:
        sessions: list[lily.Session] = []
        with pytest.raises(MemoryLimitError, match="close sessions"):
            sessions.extend(model.prefill(PROMPT) for _ in range(10_000))
        assert len(sessions) > 1
        for session in sessions[1:]:
            session.close()
        assert generate(sessions[0], 12) == expected[1]
        assert np.array_equal(model.prefill(PROMPT).logits, expected[0])


def test_one_buffer_has_a_limit_of_its_own(small_checkpoint: Path) -> None:
    shard = max(path.stat().st_size for path in small_checkpoint.glob("*.safetensors"))
    with pytest.raises(MemoryLimitError, match="smaller shards"):
        load(rehearsed(buffer=shard - 1), small_checkpoint)


# -- pipelines ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        lily.GpuOptions(),
        lily.GpuOptions().without("all"),
        lily.GpuOptions(tile_rows=32, blocked_attention_threshold=20),
    ],
    ids=["on", "off", "mixed"],
)
def test_nothing_is_compiled_after_loading(small_checkpoint: Path, options: lily.GpuOptions) -> None:
    device = rehearsed()
    told: list[tuple[int, int]] = []
    progress = lambda done, total: told.append((done, total))  # noqa: E731
    with load(device, small_checkpoint, options, compile_progress=progress) as model:
        assert device.compiled_ahead > 20 and device.compiled_late == []
        assert told[-1] == (device.compiled_ahead, device.compiled_ahead)
        assert [done for done, _ in told] == sorted({done for done, _ in told})
        assert model.core.options.compile_progress is None  # not kept
        for length in (1, 2, 9, 17, 40, 97, 130, 200, 300):
            with model.session(seed=3) as session:
                ids = np.random.default_rng(length).integers(0, 40, length).tolist()
                session.prefill(ids)
                session.prefill(ids[:2])
                generate(session, 3)
                list(session.generate(max_tokens=3, sampling=lily.Sampling(temperature=0.9), stop_tokens=()))
                with session.fork() as branch:
                    branch.decode(1)
                    session.decode(2)
        assert device.compiled_late == []


def test_an_interrupt_ends_compiling(small_checkpoint: Path) -> None:
    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    device = rehearsed()
    with pytest.raises(KeyboardInterrupt):
        load(device, small_checkpoint, compile_progress=interrupt)
    assert device.allocated_bytes == 0
    with load(device, small_checkpoint) as model:
        model.prefill(PROMPT)


def test_loading_tells_how_far_compiling_is(small_checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    device = rehearsed()

    def on_device(*arguments: Any) -> Any:
        return _core.gpu.model_on(device, *arguments)

    monkeypatch.setattr(_core, "Model", on_device)
    told: list[tuple[str, int, int]] = []
    with lily.Model.load(small_checkpoint, backend="sim", progress=lambda *what: told.append(what)):
        assert told[-1] == ("compiling kernels", device.compiled_ahead, device.compiled_ahead)
    for quiet in (False, None):  # signals are still seen while it compiles
        seen = []
        monkeypatch.setattr("lily.model.loading._no_progress", lambda what, done, total, seen=seen: seen.append(done))
        with lily.Model.load(small_checkpoint, backend="sim", progress=quiet):
            assert seen[-1] == device.compiled_ahead


def test_bars_count_kernels_in_pieces_and_downloads_in_bytes() -> None:
    pytest.importorskip("rich")
    from rich.progress import Progress

    from lily.cli.progress import _Amount

    bars = Progress(_Amount())
    bars.add_task("compiling kernels", completed=3, total=47)
    bars.add_task("shard", completed=3_000_000, total=47_000_000)
    texts = [bars.columns[0](task).plain for task in bars.tasks]  # type: ignore[operator, union-attr]
    assert texts[0].split() == ["3/47"] and "MB" in texts[1]
