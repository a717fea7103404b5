"""Times requests to `lily serve` with the bundled model, over one connection and over eight; prints JSON."""

import http.client
import json
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

WARM = 20  # requests before the clock starts
REQUESTS = 200


def main() -> None:
    """Start a server, send the requests, stop it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "lily", "serve", "lily-tiny", "--port", str(port), "--threads", "1"]
    began = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for(port)
        figures = {"lily serve until /health, ms": 1e3 * (time.perf_counter() - began)}
        for tokens, clients in ((1, 1), (16, 1), (1, 8), (16, 8)):
            send(port, tokens, clients, WARM)
            cpu, start = processor_seconds(process.pid), time.perf_counter()
            send(port, tokens, clients, REQUESTS)
            wall, cpu = time.perf_counter() - start, processor_seconds(process.pid) - cpu
            name = f"{tokens} token{'s' * (tokens > 1)}, {clients} client{'s' * (clients > 1)}"
            figures[f"{name}: a request, ms"] = 1e3 * wall / REQUESTS
            figures[f"{name}: server's processor, ms"] = 1e3 * cpu / REQUESTS
        print(json.dumps(figures))
    finally:
        process.terminate()
        process.wait()


def wait_for(port: int) -> None:
    """Return when the server answers."""
    while True:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        try:
            connection.request("GET", "/health")
            if connection.getresponse().status == 200:
                return
        except OSError:
            time.sleep(0.02)
        finally:
            connection.close()


def send(port: int, tokens: int, clients: int, requests: int) -> None:
    """Send requests of equal prompts over so many connections."""
    body = json.dumps(
        {
            "model": "lily-tiny",
            "messages": [{"role": "user", "content": "Hello, who are you?"}],
            "max_tokens": tokens,
            "temperature": 0,
        }
    )
    failures: list[Exception] = []

    def client() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        try:
            for _ in range(requests // clients):
                connection.request("POST", "/v1/chat/completions", body, {"content-type": "application/json"})
                answer = connection.getresponse()
                text = answer.read()
                if answer.status != 200:
                    raise RuntimeError(text.decode())
        except (OSError, RuntimeError, http.client.HTTPException) as error:
            failures.append(error)
        finally:
            connection.close()

    threads = [threading.Thread(target=client) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def processor_seconds(process: int) -> float:
    """What a process has used of all processors."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
