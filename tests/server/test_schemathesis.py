"""Requests that schemathesis makes up from the served OpenAPI document: no failure of the server, errors in shape."""

import pytest

schemathesis = pytest.importorskip("schemathesis", reason="needs the extra for tests")
from hypothesis import HealthCheck, Phase, given, settings  # noqa: E402
from schemathesis.checks import CHECKS  # noqa: E402

CHECKED = ("not_a_server_error", "status_code_conformance", "content_type_conformance", "response_schema_conformance")
LIMITS = {"/v1/chat/completions": "max_tokens", "/v1/responses": "max_output_tokens", "/v1/messages": "max_tokens"}
PATHS = [
    "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/v1/messages/count_tokens",
    "/v1/responses/input_tokens", "/v1/responses/{response_id}", "/v1/responses/{response_id}/input_items",
    "/v1/responses/{response_id}/cancel",
    "/tokenize", "/detokenize", "/v1/models", "/v1/models/{name}", "/", "/health", "/metrics",
]  # fmt: skip
examples = settings(
    max_examples=30,
    deadline=None,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture(scope="module")
def schema(client):
    return schemathesis.openapi.from_url(f"{client.base_url}/openapi.json")


def shortened(body, path):
    """Let a request be answered soon: what is computed is not the point here."""
    if not isinstance(body, dict):
        return
    if path in LIMITS:
        body.setdefault(LIMITS[path], 2)
    for name in ("max_tokens", "max_completion_tokens", "max_output_tokens", "n"):
        if isinstance(body.get(name), int) and body[name] > 2:
            body[name] = 2


def test_every_path_is_in_the_document(client, schema):
    served = {route.path.replace(":path", "") for route in client.app.routes}
    assert served - {"/openapi.json"} == set(PATHS) == set(schema.raw_schema["paths"])


@pytest.mark.parametrize("path", PATHS)
def test_every_answer_is_as_the_document_says(schema, path):
    checks = [check for check in CHECKS.get_all() if check.__name__ in CHECKED]
    assert len(checks) == len(CHECKED)
    operation = schema[path]["GET" if "get" in schema.raw_schema["paths"][path] else "POST"]
    answered = []

    @examples
    @given(case=operation.as_strategy())
    def try_one(case):
        shortened(case.body, path)
        answered.append(case.call_and_validate(checks=checks, timeout=60).status_code)

    try_one()
    assert answered
