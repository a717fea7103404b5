"""Fixtures of the server tests: a real server on a free loopback port, in a thread."""

import contextlib
import socket
import threading
import time

import pytest

pytest.importorskip("lily._core", reason="needs the built package")
pytest.importorskip("starlette", reason="needs the extra for the server")
httpx = pytest.importorskip("httpx")

import uvicorn  # noqa: E402

import lily_tiny  # noqa: E402
from lily import Model  # noqa: E402
from lily.server import ServerOptions, create_app  # noqa: E402
from lily.server.run import uvicorn_options  # noqa: E402
from scripted_answers import scripted  # noqa: E402


@pytest.fixture(scope="session")
def model():
    with Model.load(lily_tiny.CHECKPOINT, threads=1, max_context=4096) as loaded:
        yield loaded


@contextlib.contextmanager
def running(model, options):
    app = create_app(model, options)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=2, **uvicorn_options(options))
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        while not server.started and thread.is_alive():
            time.sleep(0.01)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        try:
            with httpx.Client(base_url=url, timeout=60) as client:
                client.app, client.service = app, app.state.service
                yield client
        finally:
            server.should_exit = True
            thread.join()


@pytest.fixture(scope="session")
def start(model):
    return lambda **options: running(model, ServerOptions(names=("lily-tiny",), **options))


@pytest.fixture(scope="session")
def client(start):
    with start() as client:
        yield client


@pytest.fixture(scope="session")
def strict_client(start):
    with start(strict=True) as client:
        yield client


@pytest.fixture
def prompt_of(client, model, monkeypatch):
    """The text of the prompt that a request makes, which must be answered."""
    cached_session = Model.cached_session
    asked = []
    monkeypatch.setattr(
        Model, "cached_session", lambda self, ids, **more: asked.append(list(ids)) or cached_session(self, ids, **more)
    )
    limits = {"/v1/responses": "max_output_tokens"}

    def text(path, body, **headers):
        asked.clear()
        given = {"model": "lily-tiny", limits.get(path, "max_tokens"): 1, "stream": False, **body}
        response = client.post(path, json=given, headers=headers)
        assert response.status_code == 200, response.text
        return model.tokenizer.decode(asked[-1])

    return text


@pytest.fixture
def script(monkeypatch, model):
    """Makes the model say the given texts, one for each turn."""
    return scripted(monkeypatch, model)
