"""Peer, PeerProcess: another engine, in its own process, which measures one round after another."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from lily.bench.errors import BenchError

__all__ = ["Peer", "PeerProcess", "PeerRound", "llama_cpp", "mlx_lm"]

_FOLDER = Path(__file__).parent
_DRIVER = _FOLDER / "peer_driver.py"


@dataclass(frozen=True)
class Peer:
    """Another engine and how it is opened.

    `modes` maps a mode's name ("" for the only one) to the fields of its job besides `file`.
    """

    name: str
    package: str
    engine_file: Path
    model: Path
    files: tuple[Path, ...]
    modes: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: {"": {}})

    def label(self, mode: str) -> str:
        """The name of a column."""
        return f"{self.name}, {mode}" if mode else self.name


@dataclass(frozen=True)
class PeerRound:
    """One round's figures by measurement, "prefill N" and "decode N"."""

    seconds: Mapping[str, float]
    major_faults: Mapping[str, int]


def llama_cpp(gguf: Path, backend: str) -> Peer:
    """llama.cpp with a GGUF file, on the same kind of device as Lily's `backend`.

    On a CPU it can use a copy of the weights repacked for its kernels (its default), or the mapped weights. On a GPU
    its prompt speed depends on the number of tokens computed at once: 2048, or 512 (its default).
    """
    if backend in ("cpu", "sim"):
        options = {"gpu": False, "ubatch": 512}
        modes = {"repacked": {**options, "repack": True}, "as mapped": {**options, "repack": False}}
    else:
        options = {"gpu": True, "repack": True}
        modes = {"ubatch 2048": {**options, "ubatch": 2048}, "ubatch 512": {**options, "ubatch": 512}}
    return Peer("llama.cpp", "llama-cpp-python", _FOLDER / "peer_llama_cpp.py", gguf, (gguf,), modes)


def mlx_lm(directory: Path) -> Peer:
    """mlx-lm with a checkpoint's directory."""
    files = tuple(sorted(directory.glob("*.safetensors")))
    return Peer("mlx-lm", "mlx-lm", _FOLDER / "peer_mlx_lm.py", directory, files)


class PeerProcess:
    """A peer in one of its modes, loaded and warmed up.

    Parameters
    ----------
    python : str
        An interpreter that has the peer's package.
    peer : Peer
        The engine.
    mode : str
        One of `peer.modes`.
    job : dict
        threads, longest (tokens of a context), warm_up (tokens of a prompt).

    Raises
    ------
    BenchError
        The interpreter or the peer failed; the message has the end of its output.
    """

    def __init__(self, python: str, peer: Peer, mode: str, job: Mapping[str, Any]) -> None:
        self._label = f"{peer.name} ({mode})" if mode else peer.name
        self._package = peer.package
        self._errors: IO[str] = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 (closed by `close`)
        try:
            # Isolated (-I): the driver's folder must not shadow the peer's modules.
            self._process = subprocess.Popen(
                [python, "-I", str(_DRIVER), str(peer.engine_file)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                encoding="utf-8",
                errors="replace",
            )
        except OSError as error:
            self._errors.close()
            raise BenchError(
                f"{python}: cannot be run ({error.strerror}); name an interpreter with {peer.package}"
            ) from error
        try:
            self.version = str(self._ask({**job, **peer.modes[mode], "file": str(peer.model)}, "version")["version"])
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> PeerProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def run(self, job: Mapping[str, Any]) -> PeerRound:
        """One round.

        `job` has prompt (lengths), context (lengths), decode (tokens) and prompt_seconds: prompts that would take
        longer are left out.
        """
        answer = self._ask(job, "seconds")
        return PeerRound(answer["seconds"], answer["major_faults"])

    def close(self) -> None:
        """End the process."""
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            with contextlib.suppress(BrokenPipeError):  # it has already ended
                stream.close()
        try:
            self._process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._errors.close()

    def _ask(self, job: Mapping[str, Any], wanted: str) -> dict[str, Any]:
        assert self._process.stdin is not None and self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # then the missing answer is reported
            self._process.stdin.write(json.dumps(job) + "\n")
            self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise BenchError(self._reason(self._process.wait()))
        answer: Any = None
        with contextlib.suppress(ValueError):
            answer = json.loads(line)
        if not isinstance(answer, dict) or wanted not in answer:
            raise BenchError(f"{self._label} gave no result but: {line[-200:]!r}")
        return answer

    def _reason(self, code: int) -> str:
        self._errors.seek(0)
        text = self._errors.read().strip()
        hint = f"; install {self._package} there" if "ModuleNotFoundError" in text else ""
        if code == -signal.SIGILL:
            hint = f"; illegal instruction, perhaps built for another processor: build {self._package} on this machine"
        if code == -signal.SIGKILL:
            hint = "; killed, perhaps because memory ran out"
        if code == 0:
            return f"{self._label} ended without an answer; --peer-python must name a Python with {self._package}"
        last = " | ".join(text.splitlines()[-3:])
        return f"{self._label} failed with exit code {code}{hint}" + (f": {last}" if last else "")
