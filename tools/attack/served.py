"""A real `lily serve` in a process of its own, and what can be seen of it from outside: its health, memory and log."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .figures import Figures
from .machine import busy
from .memory import peak_bytes, reset_peak, rss_bytes

__all__ = ["Served", "idle_end", "serving"]

ROOT = Path(__file__).resolve().parents[2]
PYTHON_PATH = os.pathsep.join(path for path in sys.path if path)  # the lily that is attacked here, installed or not
START_SECONDS, SETTLE_SECONDS = 60, 20
HEALTH_INTERVAL, HEALTH_SECONDS = 0.2, 30


class Served:
    """The server's process."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.log_path = folder / "log"
        self.log = self.log_path.open("wb")
        command = [sys.executable, "-m", "lily", "serve", "lily-tiny", "--port", "0", "--threads", "1", *options]
        environment = {**os.environ, "LILY_CACHE_DIR": str(folder), "PYTHONPATH": PYTHON_PATH}
        self.process = subprocess.Popen(command, stdout=self.log, stderr=self.log, env=environment, cwd=ROOT)
        self.worst_health = 0.0
        self._watching = threading.Event()
        self._watcher: threading.Thread | None = None
        self.port = self._wait_for_port()

    @property
    def text(self) -> str:
        """What it logged."""
        return self.log_path.read_text(errors="replace")

    def _wait_for_port(self) -> int:
        end = time.monotonic() + START_SECONDS
        while time.monotonic() < end and self.process.poll() is None:
            found = re.search(r"http://127\.0\.0\.1:(\d+)", self.text)
            with contextlib.suppress(OSError, http.client.HTTPException):
                if found and self.get("/health", port=int(found[1])):
                    return int(found[1])
            time.sleep(0.1)
        self.process.kill()
        raise RuntimeError(f"the server did not start: {self.text[-2000:]}")

    def get(self, path: str, *, port: int | None = None) -> bytes:
        """The body of a page, over a connection of its own."""
        connection = http.client.HTTPConnection("127.0.0.1", port or self.port, timeout=HEALTH_SECONDS)
        try:
            connection.request("GET", path)
            return connection.getresponse().read()
        finally:
            connection.close()

    def post(self, path: str, body: Any, *, seconds: float = 120) -> tuple[int, bytes]:
        """Status and body of one request."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=seconds)
        text = body if isinstance(body, bytes) else json.dumps(body).encode()
        try:
            connection.request("POST", path, text, {"content-type": "application/json"})
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def watch(self) -> None:
        """Ask for its health from now on, again and again."""
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        self._watcher.start()

    def _watch(self) -> None:
        while not self._watching.wait(HEALTH_INTERVAL):
            started = time.monotonic()
            try:
                self.get("/health")
                took = time.monotonic() - started
            except (OSError, http.client.HTTPException):
                if self._watching.is_set() or self.process.poll() is not None:
                    return
                took = max(HEALTH_SECONDS, time.monotonic() - started)
            self.worst_health = max(self.worst_health, took)

    def stop_watching(self) -> None:
        """No more questions for its health."""
        self._watching.set()
        if self._watcher is not None:
            self._watcher.join(HEALTH_SECONDS + 5)

    def signal(self, number: int = signal.SIGTERM) -> None:
        """Send it a signal."""
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(number)

    def end(self, seconds: float = 30) -> float:
        """SIGTERM; the seconds until it was gone, or infinity, and then it is killed."""
        started = time.monotonic()
        self.signal()
        return self.gone(started, seconds)

    def gone(self, started: float, seconds: float) -> float:
        """Seconds from `started` until it has ended; infinity if it had to be killed."""
        try:
            self.process.wait(max(0.1, started + seconds - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            return float("inf")
        return time.monotonic() - started

    def settled_bytes(self, target: int) -> int:
        """Its memory once it has fallen to `target`, or after a while."""
        end = time.monotonic() + SETTLE_SECONDS
        while rss_bytes(self.process.pid) > target and time.monotonic() < end:
            time.sleep(0.5)
        return rss_bytes(self.process.pid)


@contextlib.contextmanager
def serving(figures: Figures, *options: str, most_health: float = 5.0, grows: int | None = None) -> Iterator[Served]:
    """A server that is watched; its health, memory, log and end are judged afterwards.

    `most_health` are the seconds that /health may take on an idle machine.
    `grows` is how many bytes more it may hold in the end than at first.
    """
    with tempfile.TemporaryDirectory(prefix="lily-attack-") as folder:
        server = Served(Path(folder), *options)
        try:
            _warm_up(server)
            pid = server.process.pid
            before = rss_bytes(pid)
            reset_peak(pid)
            server.watch()
            yield server
            if server.process.poll() is not None:
                figures.crashes += 1
                figures.broken(f"the server ended with {server.process.returncode}: {server.text[-500:]}")
            server.stop_watching()
            after = rss_bytes(pid) if grows is None else server.settled_bytes(before + grows)
            figures.saw(before, peak_bytes(pid), after)
            figures.health = max(figures.health, server.worst_health)
            if grows is not None and after > before + grows:
                figures.broken(f"memory stayed at {after >> 20} MiB, {before >> 20} before")
            if server.worst_health > most_health * busy():
                figures.broken(f"/health took {server.worst_health:.1f} s")
            took = server.end()
            if took == float("inf"):
                figures.hangs += 1
                figures.broken("the server did not end")
            for line in dict.fromkeys(
                re.findall(r".*(?:Traceback|failed for an unknown reason|Error:).*", server.text)
            ):
                figures.broken(f"log: {line[:300]}")
        finally:
            server.stop_watching()
            server.process.kill()
            server.process.wait()
            server.log.close()


def idle_end(*options: str) -> float:
    """Seconds that a server with nothing to do takes to end on this machine, as busy as it is now."""
    with tempfile.TemporaryDirectory(prefix="lily-attack-") as folder:
        server = Served(Path(folder), *options)
        try:
            _warm_up(server)
            return server.end()
        finally:
            server.process.kill()
            server.log.close()


def _warm_up(server: Served) -> None:
    """Load what is loaded with the first request of each kind, so that memory is compared with that."""
    body = {"model": "lily-tiny", "max_tokens": 4, "messages": [{"role": "user", "content": "Hello"}]}
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    server.post("/v1/chat/completions", body)
    server.post("/v1/chat/completions", {**body, "response_format": form})
    server.post("/v1/messages", body)
    server.post("/v1/responses", {"model": "lily-tiny", "input": "Hello", "max_output_tokens": 4})
