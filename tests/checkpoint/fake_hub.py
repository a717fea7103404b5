"""A Hub of one repository on this machine: just enough of its HTTP interface for a snapshot to be fetched."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import urlparse

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@contextmanager
def serve(repository: str, folder: Path, requests: list[str]) -> Iterator[str]:
    """Serve a folder as a model repository; yields the endpoint. Paths asked for are added to `requests`."""

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self._answer(body=False)

        def do_GET(self) -> None:
            self._answer(body=True)

        def log_message(self, *_: object) -> None:
            pass

        def _answer(self, *, body: bool) -> None:
            path = urlparse(self.path).path
            requests.append(path)
            if path.startswith(f"/api/models/{repository}/tree/"):
                self._send(json.dumps([_entry(file, folder) for file in _files(folder)]).encode(), body)
            elif path in (f"/api/models/{repository}", f"/api/models/{repository}/revision/main"):
                siblings = [{"rfilename": str(file.relative_to(folder))} for file in _files(folder)]
                answer = {"id": repository, "sha": COMMIT, "siblings": siblings, "private": False, "tags": []}
                self._send(json.dumps({**answer, "downloads": 0, "likes": 0}).encode(), body)
            elif path.startswith(f"/{repository}/resolve/") and (folder / path.split("/", 5)[5]).is_file():
                data = (folder / path.split("/", 5)[5]).read_bytes()
                self._send(data, body, {"ETag": f'"{hashlib.sha1(data).hexdigest()}"'})
            else:
                self.send_response(404)
                self.send_header("X-Error-Code", "RepoNotFound")
                self.send_header("Content-Length", "0")
                self.end_headers()

        def _send(self, data: bytes, body: bool, headers: dict[str, str] | None = None) -> None:
            self.send_response(200)
            for name, value in {**(headers or {}), "X-Repo-Commit": COMMIT}.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if body:
                self.wfile.write(data)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _files(folder: Path) -> list[Path]:
    return sorted(file for file in folder.rglob("*") if file.is_file())


def _entry(file: Path, folder: Path) -> dict[str, object]:
    data = file.read_bytes()
    return {
        "type": "file",
        "path": str(file.relative_to(folder)),
        "size": len(data),
        "oid": hashlib.sha1(data).hexdigest(),
    }
