"""Names by which the server may be called, pages that may call it, keys, and who counts as one client."""

import http.client

import pytest

pytest.importorskip("lily._core", reason="needs the built package")
pytest.importorskip("starlette", reason="needs the extra for the server")

from lily.errors import InvalidArgumentError
from lily.server import ServerOptions, gate, uvicorn_options
from lily.server.engine import Engine

CHAT = "/v1/chat/completions"
HELLO = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
PATHS = ("/v1/models", "/metrics", "/health", "/openapi.json", "/nowhere")


def status(client, host, path="/v1/models", **headers):
    return client.get(path, headers={"host": host, **headers}).status_code


@pytest.mark.parametrize(
    "host",
    ["localhost", "LOCALHOST:8080", "localhost.", "127.0.0.1", "127.0.0.1:1", "[::1]", "[::1]:80", "my.example:5", ""],
)
def test_names_of_this_machine(start, host):
    with start(allowed_hosts=("my.example",)) as client:
        assert status(client, host) == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "localhost.evil.example",
        "127.0.0.1.nip.io",
        "my.example.evil",
        "10.0.0.1",
        "[::2]",
        "[",
        "a:b:c",
    ],
)
@pytest.mark.parametrize("path", PATHS)
def test_a_name_that_was_made_to_point_here(client, host, path):
    """A page of another site whose name resolves to this machine (DNS rebinding) reads nothing."""
    response = client.get(path, headers={"host": host})
    assert response.status_code == 403
    assert "--allowed-host" in response.json()["error"]["message"]


def test_the_refusal_has_the_shape_of_the_api(client):
    response = client.post("/v1/messages", json={}, headers={"host": "evil.example"})
    assert response.status_code == 403
    assert response.json()["type"] == "error"


def test_names_that_are_allowed(start):
    with start(allowed_hosts=("*.lan",)) as client:
        assert status(client, "mac.lan:8080") == 200
        assert status(client, "lan") == status(client, "evillan") == 403
    with start(allowed_hosts=("*",)) as client:
        assert status(client, "evil.example") == 200


def test_a_key_opens_under_any_name(start):
    """No page of another site has it."""
    with start(api_keys=("secret",)) as client:
        assert status(client, "mac.lan", authorization="Bearer secret") == 200
        assert status(client, "mac.lan", authorization="Bearer secre") == 403
        assert status(client, "mac.lan", path="/health") == 403
        assert status(client, "localhost") == 401


def test_a_client_without_a_host(client):
    port = client.base_url.port
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection._http_vsn, connection._http_vsn_str = 10, "HTTP/1.0"
    connection.putrequest("GET", "/health", skip_host=True)
    connection.endheaders()
    assert connection.getresponse().status == 200
    connection.close()


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({}, 200),
        ({"sec-fetch-site": "none"}, 200),
        ({"sec-fetch-site": "same-origin"}, 200),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"sec-fetch-site": "Cross-Site", "sec-fetch-mode": "no-cors"}, 403),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "http://good.example"}, 200),
        ({"origin": "http://good.example", "sec-fetch-site": "cross-site"}, 200),
        ({"origin": "http://evil.example", "sec-fetch-site": "same-origin"}, 403),
    ],
)
@pytest.mark.parametrize("path", ["/v1/models", "/health"])
def test_pages_of_other_sites(start, path, headers, expected):
    with start(cors_origins=("http://good.example",)) as client:
        assert client.get(path, headers=headers).status_code == expected


@pytest.mark.parametrize("name", ["allowed_hosts", "cors_origins", "names"])
def test_texts_of_the_options_are_checked(name):
    for wrong in ("text", ("",), (5,), ["list"]):
        with pytest.raises(InvalidArgumentError, match=name):
            ServerOptions(**{name: wrong})


@pytest.mark.parametrize("name", ["max_queue", "body_seconds", "max_pending_bytes", "shutdown_seconds"])
def test_limits_of_the_options_are_checked(name):
    for wrong in (0, -1, float("nan"), float("inf"), "5", None, True):
        with pytest.raises(InvalidArgumentError, match=name):
            ServerOptions(**{name: wrong})


def clients_of(monkeypatch):
    names = []
    submit = Engine.submit
    monkeypatch.setattr(Engine, "submit", lambda self, work, client: names.append(client) or submit(self, work, client))
    return names


def test_invented_keys_are_no_clients_of_their_own(client, monkeypatch):
    names = clients_of(monkeypatch)
    for headers in (
        {"authorization": "Bearer one"},
        {"authorization": "Bearer two"},
        {"x-api-key": "three"},
        {},
    ):
        assert client.post(CHAT, json=HELLO, headers=headers).status_code == 200
    assert set(names) == {"127.0.0.1"}
    assert uvicorn_options(ServerOptions())["proxy_headers"] is False  # nor are invented addresses


def test_keys_are_compared_in_the_same_time_whatever_they_are(start, monkeypatch):
    compared = []
    monkeypatch.setattr(gate.hmac, "compare_digest", lambda one, other: compared.append((one, other)) or one == other)
    keys = ("first", "a much longer second key", "schlüssel")
    with start(api_keys=keys) as client:
        given = ["", "f", "first", "x" * 5000, "schlüssel".encode()]
        answers = [client.get("/v1/models", headers={"x-api-key": key}).status_code for key in given]
    assert answers == [401, 401, 200, 401, 200]
    assert {len(one) for pair in compared for one in pair} == {32}
    assert len(compared) % len(keys) == 0
