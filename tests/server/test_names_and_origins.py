"""Whom the server answers: model names, the probes of clients, web pages and desktop applications."""

import pytest

from lily.server import run

CHAT = "/v1/chat/completions"
BODY = {"model": "claude-haiku", "messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 1}
DESKTOP = (
    "app://obsidian.md",
    "tauri://localhost",
    "vscode-webview://0abc",
    "null",
    "https://tauri.localhost",
    "capacitor://localhost",
)
PAGES = ("https://example.org", "http://localhost:3000", "chrome-extension://abc", "http://tauri.localhost.example.org")


def test_a_request_without_a_name_gets_the_served_model(client, start):
    with start(any_model=True) as open_client:
        for one in (client, open_client):
            for given in ({}, {"model": None}, {"model": ""}):
                body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1, **given}
                assert one.post("/v1/chat/completions", json=body).json()["model"] == "lily-tiny"


def test_any_model(client, start):
    assert client.post(CHAT, json=BODY).status_code == 404
    assert "--any-model" in client.post(CHAT, json=BODY).json()["error"]["message"]
    with start(any_model=True) as open_client:
        for path, body in (
            (CHAT, BODY),
            ("/v1/messages", BODY),
            ("/v1/responses", {"model": BODY["model"], "input": "Hi"}),
        ):
            assert open_client.post(path, json=body).json()["model"] == "claude-haiku"
        assert open_client.get("/v1/models/claude-haiku").json()["id"] == "claude-haiku"
        assert [one["id"] for one in open_client.get("/v1/models").json()["data"]] == ["lily-tiny"]


@pytest.mark.parametrize(
    ("host", "given", "allowed"),
    [
        ("127.0.0.1", None, True),
        ("::1", None, True),
        ("0.0.0.0", None, False),
        ("127.0.0.1", False, False),
        ("0.0.0.0", True, True),
    ],
)
def test_any_model_is_allowed_where_only_this_machine_can_connect(model, monkeypatch, host, given, allowed):
    apps = []

    def run_nothing(server):
        apps.append(server.config.app)
        server.started = True

    monkeypatch.setattr(run._Server, "run", run_nothing)
    run.serve(model, run.ServerOptions(names=("lily-tiny",), any_model=given), host=host)
    assert apps[0].state.service.options.any_model is allowed


def test_probes_and_lists_of_clients(client):
    anthropic = pytest.importorskip("anthropic")
    for path in ("/", "/v1/messages", "/v1/models", "/health"):
        assert client.head(path).status_code == 200
    with anthropic.Anthropic(base_url=str(client.base_url), api_key="none", max_retries=0) as api:
        assert [(one.id, one.type) for one in api.models.list()] == [("lily-tiny", "model")]
        assert api.models.retrieve("lily-tiny").created_at.year > 2020
    assert client.get("/v1/models").json()["object"] == "list"


def test_desktop_applications(client, start):
    with start(allow_desktop=True) as open_client:
        for origin in DESKTOP:
            refused = client.post(CHAT, json={**BODY, "model": "lily-tiny"}, headers={"origin": origin})
            assert refused.status_code == 403
            assert "--allow-desktop" in refused.json()["error"]["message"]
            answered = open_client.post(CHAT, json={**BODY, "model": "lily-tiny"}, headers={"origin": origin})
            assert answered.status_code == 200
            assert answered.headers["access-control-allow-origin"] == origin
            asks = {
                "origin": origin,
                "access-control-request-method": "POST",
                "access-control-request-headers": "x-api-key",
            }
            assert open_client.options(CHAT, headers=asks).status_code == 200
        for origin in PAGES:
            refused = open_client.get("/v1/models", headers={"origin": origin})
            assert refused.status_code == 403
            assert "--cors-origin" in refused.json()["error"]["message"]
            assert "access-control-allow-origin" not in refused.headers
