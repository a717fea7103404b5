"""Requests that ask for endless work: each is answered, others are answered meanwhile, and SIGTERM ends it all."""

from __future__ import annotations

import contextlib
import http.client
import random
import threading
import time

from .figures import MIB, Figures
from .heavy_bodies import HEAVY, heavy_request
from .limits import Limits
from .memory import cpu_seconds, peak_bytes
from .served import idle_end, serving

__all__ = ["attack", "attack_ends"]

AT_ONCE = 2
MOST_SECONDS = 20.0  # that the server computes for one request; templates alone may take five
MOST_WAIT = 180  # until there is an answer, however busy the machine is
MOST_HEALTH = 5.0
GROWS = 400 * MIB  # compiled grammars take up to 256 MB
PEAK = 2048 * MIB
SHUTDOWN_SECONDS = 3
MARGIN_SECONDS = 1.5  # besides twice the time of an idle server
PROPER = {200, 400, 413, 429, 503}


def attack(limits: Limits) -> Figures:
    """Send the heavy bodies one after the other, two of each at once."""
    figures = Figures("hangs")
    with serving(figures, "--context", "4096", "--cache-gb", "0.05", most_health=MOST_HEALTH, grows=GROWS) as server:
        slowest = (0.0, "")
        for name in list(HEAVY)[limits.first : limits.first + limits.count]:
            if limits.is_over:
                break
            path, body = heavy_request(name)
            results: list[int] = []
            before = cpu_seconds(server.process.pid)
            others = [threading.Thread(target=_send, args=(server.port, path, body, results)) for _ in range(AT_ONCE)]
            for other in others:
                other.start()
            for other in others:
                other.join()
            seconds = (cpu_seconds(server.process.pid) - before) / AT_ONCE
            for status in results:
                proper = "fine" if status == 200 else "refused" if status in PROPER else f"raw: status {status}"
                figures.count("hang" if seconds > MOST_SECONDS or status == 0 else proper, f"{name}, {seconds:.0f} s")
                slowest = max(slowest, (seconds, name))
            if server.process.poll() is not None:
                break
        figures.notes.append(f"most work: {slowest[1]}, {slowest[0]:.1f} s of computing")
        peak = peak_bytes(server.process.pid)
        if peak > PEAK:
            figures.broken(f"it took {peak / MIB:.0f} MiB")
    return figures


def attack_ends(limits: Limits) -> Figures:
    """SIGTERM while heavy bodies are at work, at any time within their first second."""
    figures = Figures("ends")
    names = list(HEAVY)
    most = SHUTDOWN_SECONDS + MARGIN_SECONDS + 2 * idle_end("--shutdown-timeout", str(SHUTDOWN_SECONDS))
    for seed in limits.seeds():
        if limits.is_over:
            break
        rng = random.Random(seed)
        name = names[seed * 7 % len(names)]
        path, body = heavy_request(name)
        options = ("--context", "4096", "--shutdown-timeout", str(SHUTDOWN_SECONDS))
        seen = Figures("")
        with serving(seen, *options, most_health=MOST_HEALTH) as server:
            threads = [
                threading.Thread(target=_send, args=(server.port, path, body, []), daemon=True) for _ in range(3)
            ]
            for thread in threads:
                thread.start()
            time.sleep(rng.random())
            server.stop_watching()
            took = server.end()
            figures.count("hang" if took > most else "fine", f"{name}: ended after {took:.1f} s")
            figures.notes = [
                f"slowest end: {max(took, float(figures.notes[0].split()[2]) if figures.notes else 0):.1f} s"
            ]
        figures.health = max(figures.health, server.worst_health)
    return figures


def _send(port: int, path: str, body: bytes, results: list[int]) -> None:
    """One request; its status, or 0 if no answer came."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=MOST_WAIT)
    status = 0
    with contextlib.suppress(OSError, http.client.HTTPException):
        connection.request("POST", path, body, {"content-type": "application/json"})
        answer = connection.getresponse()
        status = answer.status
        answer.read()
    connection.close()
    results.append(status)
