"""Runs on the GPU of fake_cuda.c, each in a process of its own: python fake_gpu_runs.py RUN DRIVER FOLDER.

DRIVER is the compiled fake_cuda.c, found as libcuda.so.1, too; FOLDER is an empty one.
"""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import lily
from lily import _core
from lily.errors import BackendError, LilyError, MemoryLimitError

COUNT = 1001
OUT_OF_MEMORY, LAUNCH_FAILED, ILLEGAL_ADDRESS = 2, 719, 700
RNG = np.random.default_rng(17)
LARGE = RNG.integers(0, 256, (2 << 20) + 11, dtype=np.uint8).tobytes()  # goes through large blocks


class Fake:
    """What the fake driver tells."""

    def __init__(self, driver: str) -> None:
        self._library = ctypes.CDLL(driver)
        for name in ("fake_live", "fake_problem"):
            getattr(self._library, name).restype = ctypes.c_char_p
        for name in ("fake_calls", "fake_uses", "fake_compiled"):
            getattr(self._library, name).restype = ctypes.c_long
        self._library.fake_current.restype = ctypes.c_void_p
        self._library.fake_push.argtypes = [ctypes.c_void_p]
        self._library.fake_fail.argtypes = [ctypes.c_long, ctypes.c_int]

    def fail(self, at: int, code: int) -> None:
        """Count calls from 1; make the call number `at` fail (0: none)."""
        self._library.fake_fail(at, code)

    def tells(self, what: str) -> Any:
        found = getattr(self._library, f"fake_{what}")()
        return found.decode() if isinstance(found, bytes) else found

    def push(self, context: int) -> None:
        self._library.fake_push(context)

    def check(self, where: str) -> None:
        assert self.tells("problem") == "", f"{where}: {self.tells('problem')}"

    def check_all_freed(self, where: str) -> None:
        gc.collect()
        self.check(where)
        assert self.tells("live") == "", f"{where}: left: {self.tells('live')}"


def kernels(folder: Path) -> str:
    """A library with the one kernel that the fake driver computes."""
    library = folder / "kernels"
    library.mkdir(exist_ok=True)
    (library / "lily_msl.h").write_text("")
    (library / "scale.cu").write_text("the fake compiler takes anything")
    (library / "index.txt").write_text("scale\tscale\t0\t32\t0\t0r 1w 2b8\t\n")
    return str(library)


def open_device(folder: Path, **options: Any) -> Any:
    return _core.device.CudaDevice(library=kernels(folder), cache=str(folder / "cache"), **options)


def scale(device: Any, x: Any, y: Any, factor: float) -> Any:
    arguments = np.uint32(COUNT).tobytes() + np.float32(factor).tobytes()
    bindings = [(0, x, 0, 4 * COUNT, False), (1, y, 0, 4 * COUNT, True)]
    return _core.device.Dispatch(device.pipeline("scale"), bindings, 2, arguments, 0, (1, 1, 1), 32)


class PassError(Exception):
    """A pass ended with an error."""


class Chain:
    """Two scalings one after the other, through a private buffer."""

    def __init__(self, device: Any) -> None:
        self.device = device
        self.x, self.y = (device.allocate(4 * COUNT, name) for name in ("x", "y"))
        self.middle = device.allocate(4 * COUNT, "middle", False)

    def write(self) -> None:
        self.values = RNG.standard_normal(COUNT).astype(np.float32)
        self.x.contents().view(np.float32)[:] = self.values

    def run(self, factor: float) -> None:
        stages = [[scale(self.device, self.x, self.middle, 2.0)], [scale(self.device, self.middle, self.y, factor)]]
        _, error = self.device.run(stages)
        if error:
            raise PassError(error)
        expected = self.values * np.float32(2) * np.float32(factor)
        np.testing.assert_array_equal(self.y.contents().view(np.float32), expected)


def work(device: Any) -> None:
    """Memory, transfers of several sizes, passes that become graphs, graphs that change."""
    buffer = device.allocate(len(LARGE), "large", False)
    buffer.write(0, LARGE)
    assert buffer.read(0, len(LARGE)) == LARGE
    chain = Chain(device)
    for factor in (3.0, 3.0, 3.0, 5.0, 5.0, 7.0, 7.0, 9.0):
        chain.write()
        chain.run(factor)
    buffer.clear()
    assert buffer.read(11, 13) == bytes(13)


def each_call_fails(fake: Fake, folder: Path) -> None:
    """Whichever call fails: a clear error, nothing left behind, and the caller's own context stays current."""
    fake.push(0xBEEF)  # another library's
    for options, code in (({}, OUT_OF_MEMORY), ({"synchronous": True}, LAUNCH_FAILED)):
        at = 0
        failures = 0
        while True:
            at += 1
            where = f"call {at} fails with {code}, {options}"
            fake.fail(at, code)
            try:
                work(open_device(folder, **options))
            except (LilyError, PassError) as error:
                failures += 1
                assert "CUDA_ERROR" in str(error) or "no room" in str(error), f"{where}: {error}"
                if isinstance(error, LilyError):
                    kind = MemoryLimitError if code == OUT_OF_MEMORY else BackendError
                    assert type(error) is kind, f"{where}: {error!r}"
                del error
            calls = fake.tells("calls")
            fake.fail(0, 0)
            fake.check_all_freed(where)
            assert fake.tells("current") == 0xBEEF, where
            if calls < at:
                break
        assert failures > 50, failures


def a_failed_pass_can_be_repeated(fake: Fake, folder: Path) -> None:
    """What the host wrote before a pass that failed is still there for the next one."""
    device = open_device(folder)
    chain = Chain(device)
    for factor in (3.0, 3.0, 3.0, 5.0):
        at = 0
        while True:
            at += 1
            chain.write()
            fake.fail(at, LAUNCH_FAILED)
            try:
                chain.run(factor)
            except PassError as error:
                fake.fail(0, 0)
                if "cannot use it any more" in str(error):  # waiting has failed: the GPU is lost to this process
                    device = open_device(folder)
                    chain = Chain(device)
                    continue
                chain.run(factor)
            calls = fake.tells("calls")
            fake.fail(0, 0)
            if calls < at:
                break
    fake.check("repeated")


def a_lost_gpu_stays_lost(fake: Fake, folder: Path) -> None:
    """After a kernel's fault, which waiting tells, all later passes are refused with the first reason."""
    device = open_device(folder)
    chain = Chain(device)
    error = ""
    for at in range(1, 100):
        fake.fail(at, ILLEGAL_ADDRESS)
        chain.write()
        _, error = device.run([[scale(device, chain.x, chain.y, 2.0)]])
        if "cannot use it any more" in error:
            break
    assert "CUDA_ERROR_FAKE" in error
    fake.fail(0, 0)
    for _ in range(3):
        assert device.run([[scale(device, chain.x, chain.y, 2.0)]]) == (0.0, error)
    del chain, device
    fake.check_all_freed("lost")


def a_damaged_cache_is_not_used(fake: Fake, folder: Path) -> None:
    """Files cut short, changed, replaced by a folder, or in a place that cannot be written: compiled anew.

    What still begins as Lily's files do is mended; anything else in their place is somebody's, and stays.
    """

    def compiles() -> int:
        before = int(fake.tells("compiled"))
        chain = Chain(open_device(folder))
        chain.write()
        chain.run(2.0)
        return int(fake.tells("compiled")) - before

    assert compiles() == 1
    assert compiles() == 0
    (file,) = (folder / "cache").iterdir()
    whole = file.read_bytes()
    wrong: list[Callable[[], Any]] = [
        lambda: file.write_bytes(whole[:-1]),
        lambda: file.write_bytes(whole[:20]),
        lambda: file.write_bytes(whole[:60] + bytes([whole[60] ^ 1]) + whole[61:]),
        lambda: file.write_bytes(whole[:20] + os.urandom(len(whole) - 20)),
        file.unlink,
    ]
    for damage in wrong:
        damage()
        assert compiles() == 1
        assert file.read_bytes() == whole
        assert compiles() == 0
    for content in (b"", whole[:5], os.urandom(len(whole)), b"somebody's file"):
        file.write_bytes(content)
        assert compiles() == 1
        assert compiles() == 1
        assert file.read_bytes() == content
        assert [path.name for path in (folder / "cache").iterdir()] == [file.name]
    file.unlink()
    file.mkdir()
    assert compiles() == 1
    assert [path.name for path in (folder / "cache").iterdir()] == [file.name]
    file.rmdir()
    (folder / "cache").rmdir()
    (folder / "cache").write_text("a file in the place of the folder")
    assert compiles() == 1
    fake.check_all_freed("cache")


def two_models_share_the_gpu(fake: Fake, folder: Path) -> None:
    """Buffers and results may outlive their device, in any order, and threads have contexts of their own."""
    from concurrent.futures import ThreadPoolExecutor

    devices = [open_device(folder) for _ in range(2)]

    def use(index: int) -> None:
        fake.push(0xBEEF + index)  # of this thread
        work(devices[index % 2])
        assert fake.tells("current") == 0xBEEF + index

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(use, range(4)))
    kept = devices[0].allocate(100, "kept", False)
    kept.write(0, bytes(range(100)))
    del devices[0]
    gc.collect()
    assert kept.read(0, 100) == bytes(range(100))
    del kept
    devices.clear()
    fake.check_all_freed("two devices")


def importing_and_the_cpu_leave_cuda_alone(fake: Fake, folder: Path) -> None:
    """A process may import Lily and run models on the CPU, then fork children that use CUDA."""
    assert fake.tells("uses") == 0
    with lily.Model.load("lily-tiny", backend="cpu") as model, model.session() as session:
        session.prefill([1, 2, 3])
    assert fake.tells("uses") == 0
    assert "cuda" in lily.available_backends()
    assert fake.tells("uses") == 1


def a_model_names_what_failed(fake: Fake, folder: Path) -> None:
    """The engine above the device: errors have their kind, and closing the model frees everything."""
    os.environ["XDG_CACHE_HOME"] = str(folder)

    def generate() -> None:
        with lily.Model.load("lily-tiny", backend="cuda", prefix_cache_bytes=0) as model, model.session() as session:
            session.prefill(list(range(40)))
            for _ in session.generate(6, sampling=lily.Sampling.greedy(), stop_tokens=()):
                pass

    fake.fail(0, 0)
    generate()
    calls = int(fake.tells("calls"))
    fake.check_all_freed("model")
    for at in np.unique(np.geomspace(1, calls, 60).astype(int)).tolist():
        fake.fail(at, OUT_OF_MEMORY)
        try:
            generate()
        except MemoryLimitError as error:
            assert "CUDA_ERROR_OUT_OF_MEMORY" in str(error) or "no room" in str(error), str(error)
            del error
        except BackendError as error:  # waiting for a pass that failed: it is lost, whatever the code
            assert "cannot use it any more" in str(error), f"call {at}: {error!r}"
            del error
        fake.fail(0, 0)
        fake.check_all_freed(f"call {at} of {calls}")


def copying_is_told(fake: Fake, folder: Path) -> None:
    """Bytes copied grow up to all of them; an exception of the callable ends the loading and leaves nothing."""
    os.environ["XDG_CACHE_HOME"] = str(folder)
    told: list[tuple[str, int, int]] = []

    def load(progress: Callable[[str, int, int], None]) -> None:
        lily.Model.load("lily-tiny", backend="cuda", prefix_cache_bytes=0, progress=progress).close()

    load(lambda *what: told.append(what))
    copied = [(done, total) for what, done, total in told if what == "copying weights to the GPU"]
    totals = {total for _, total in copied}
    assert len(totals) == 1 and totals.pop() > 10_000_000, totals
    assert copied == sorted(set(copied)) and copied[-1][0] == copied[-1][1], copied
    fake.check_all_freed("told")

    def stop(what: str, done: int, total: int) -> None:
        raise KeyboardInterrupt

    try:
        load(stop)
    except KeyboardInterrupt:
        fake.check_all_freed("stopped")
    else:
        raise AssertionError("loading went on")


def opening(fake: Fake, folder: Path) -> None:
    """Prints why there is no device."""
    try:
        open_device(folder)
    except BackendError as error:
        print(error)


if __name__ == "__main__":
    globals()[sys.argv[1]](Fake(sys.argv[2]), Path(sys.argv[3]))
