"""The policy about roles: what is merged, converted, put in order, and refused with its index and reason."""

import pytest

from lily.chat import normalize_messages
from lily.errors import TemplateError


def message(role, content="x", **fields):
    return {"role": role, "content": content, **fields}


def test_leading_system_messages_are_merged():
    merged = normalize_messages(
        [message("system", "A"), message("developer", "B"), message("system", ""), message("user")]
    )
    assert merged == [message("system", "A\n\nB"), message("user")]


def test_developer_is_system_at_the_beginning():
    assert normalize_messages([message("developer", "A"), message("user")])[0] == message("system", "A")


@pytest.mark.parametrize("role", ["system", "developer"])
def test_later_system_message_is_refused_with_its_index_or_converted(role):
    messages = [message("system"), message("user"), message("assistant"), message(role, "late")]
    with pytest.raises(TemplateError, match=r"message 3 is a (system|developer) message .*later_system"):
        normalize_messages(messages)
    assert normalize_messages(messages, later_system="convert")[3] == message("user", "late")


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([], "there are no messages"),
        ([message("system")], "only system messages"),
        ([message("assistant")], "no user message"),
        ([message("assistant"), message("tool")], "no user message"),
        ([message("tool"), message("user")], "message 0 is the result of a tool"),
        ([message("system"), message("tool"), message("user")], "message 1 is the result of a tool"),
        ([message("narrator")], "message 0 has the role 'narrator'"),
        (["x"], "message 0 must be a mapping"),
        ("x", "must be a list"),
        ([message("user", None)], "message 0: a user message must have content"),
        ([message("user", 3)], "message 0: content must be a string"),
        ([message("user", [3])], "message 0, part 0 must be a mapping"),
        ([message("user", [{"type": "text"}])], "message 0, part 0: text must be a string"),
    ],
)
def test_what_no_model_can_answer_is_refused_with_the_reason(messages, reason):
    with pytest.raises(TemplateError, match=reason):
        normalize_messages(messages)


@pytest.mark.parametrize("kind", ["image_url", "image", "input_image", "input_audio", "file", "video"])
def test_images_and_the_like_are_refused_and_never_dropped(kind):
    parts = [{"type": "text", "text": "see"}, {"type": kind, kind: {"url": "data:..."}}]
    with pytest.raises(TemplateError, match=rf"message 1, part 1 is of type '{kind}'.*text only"):
        normalize_messages([message("system"), message("user", parts)])


def test_text_parts_are_joined():
    parts = [{"type": "text", "text": "a "}, {"type": "input_text", "text": "b"}, "c"]
    assert normalize_messages([message("user", parts)])[0]["content"] == "a bc"
    refused = message("assistant", [{"type": "refusal", "refusal": "I must not."}])
    assert normalize_messages([message("user"), refused])[1]["content"] == "I must not."


def test_results_are_put_into_the_order_of_their_calls():
    calls = [{"id": name, "function": {"name": "f", "arguments": "{}"}} for name in "abc"]
    results = [message("tool", name, tool_call_id=name) for name in "cab"]
    messages = [message("user"), message("assistant", None, tool_calls=calls), *results, message("user", "next")]
    normal = normalize_messages(messages)
    assert [entry["content"] for entry in normal[2:]] == ["a", "b", "c", "next"]
    assert [entry["content"] for entry in messages[2:]] == ["c", "a", "b", "next"]


def test_results_of_unknown_calls_stay_where_they_are():
    results = [message("tool", name, tool_call_id=name) for name in "cab"]
    messages = [message("user"), message("assistant", "", tool_calls=[{"id": "a"}]), *results]
    assert [entry["content"] for entry in normalize_messages(messages)[2:]] == ["c", "a", "b"]


def test_result_that_is_no_text_becomes_json():
    messages = [message("user"), message("assistant"), message("tool", {"č": [1, None]})]
    assert normalize_messages(messages)[2]["content"] == '{"č": [1, null]}'
