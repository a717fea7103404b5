"""A computation that ends in NaN fails its request with its cause and one line in the log, and the server goes on."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from starlette.testclient import TestClient

from lily import Model, Session
from lily.errors import NonFiniteError
from lily.server import ServerOptions, create_app
from lily_tiny import CHECKPOINT

BODIES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "Hello", "max_tokens": 3},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 3},
    "/v1/messages": {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 3},
    "/v1/responses": {"input": "Hello", "max_output_tokens": 3},
}


@pytest.mark.parametrize("path", BODIES)
def test_the_client_is_told_the_cause(
    path: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(self: Session, *_: object, **__: object) -> None:
        raise NonFiniteError("the logits of position 5 are NaN, first in layer 3; reset() the session")

    options = ServerOptions(allowed_hosts=("testserver",))
    with Model.load(CHECKPOINT, threads=1) as model, TestClient(create_app(model, options)) as client:
        with monkeypatch.context() as patch, caplog.at_level(logging.WARNING, "lily.server"):
            patch.setattr(Session, "generation", fail)
            answer = client.post(path, json=BODIES[path])
        assert answer.status_code == 500
        assert "position 5 are NaN, first in layer 3" in answer.text
        assert "reset()" not in answer.text
        told = [record.getMessage() for record in caplog.records if record.name == "lily.server"]
        assert len(told) == 1
        assert "NonFiniteError" in told[0]
        assert client.post(path, json=BODIES[path]).status_code == 200
        assert client.get("/health").status_code == 200
