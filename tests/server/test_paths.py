"""Base URLs with one ending too many or too few: the request arrives, or the answer says where it should have gone."""

import pytest

from lily.server.paths import known_form

CHAT = {"model": "lily-tiny", "messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 1}


@pytest.mark.parametrize("path", ["chat/completions", "v1/chat/completions", "v1/v1/chat/completions"])
@pytest.mark.parametrize("form", ["/{}", "/{}/", "//{}", "/{}//"])
def test_requests_arrive(client, path, form):
    response = client.post(str(client.base_url).rstrip("/") + form.format(path), json=CHAT)
    assert response.status_code == 200, response.text
    assert response.json()["object"] == "chat.completion"


@pytest.mark.parametrize("path", ["/messages", "/v1/v1/messages", "/v1/messages/"])
def test_errors_have_the_form_of_the_api(client, path):
    assert client.post(path, json={"max_tokens": 0}).json()["type"] == "error"


@pytest.mark.parametrize("path", ["/models", "/v1/models/", "/models/lily-tiny", "/v1/v1/models/lily-tiny/"])
def test_models(client, path):
    assert client.get(path).status_code == 200


@pytest.mark.parametrize(
    ("path", "hint"),
    [
        ("/v1/chat/completion", "Did you mean /v1/chat/completions?"),
        ("/chat/compeltions", "Did you mean /v1/chat/completions?"),
        ("/v1/embeddings", "GET /openapi.json lists the endpoints."),
        ("/" + "x" * 5000, "GET /openapi.json lists the endpoints."),
    ],
)
def test_paths_that_lead_nowhere(client, path, hint):
    response = client.post(path, json=CHAT)
    assert response.status_code == 404
    assert response.json()["error"]["message"] == f"There is no such endpoint. {hint}"


@pytest.mark.parametrize("path", ["/", "/health", "/openapi.json", "/v1/models/a/b", "/v1", "", "*", "/metrics"])
def test_other_paths_stay(path):
    assert known_form(path) == path


def test_keys_are_asked_for_on_all_forms(start):
    with start(api_keys=("one",)) as client:
        for path in ("/v1/models", "/models", "//v1//models/", "/v1/v1/models"):
            assert client.get(path).status_code == 401
