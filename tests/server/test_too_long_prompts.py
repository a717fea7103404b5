"""The number in the error for a prompt that is too long: clients read from it how much they have to leave out."""

import re

import pytest

from lily.server import context_errors

CHAT, MESSAGES, RESPONSES, COMPLETIONS = "/v1/chat/completions", "/v1/messages", "/v1/responses", "/v1/completions"
COUNT = f"{MESSAGES}/count_tokens"
MAXIMUM = 4096
TEXTS = {  # of a few more tokens than fit, and of far more
    "words": ("a word ", 2200, 20_000),
    "lines": ("\u00e9\n", 2200, 40_000),
    "digits": ("7", 4200, 90_000),
    "characters": ("\u6f22", 4200, 40_000),
    "emoji": ("\U0001f600", 2100, 40_000),
    "blanks": (" " * 40 + "x\n", 2200, 20_000),
    "long words": ("internationalization ", 2200, 40_000),
    "control tokens": ("<|im_end|>", 4200, 10_000),
}


def told(response, path):
    assert response.status_code == 400, response.text
    message = response.json()["error"]["message"]
    if path.startswith(MESSAGES):
        found = re.fullmatch(r"prompt is too long: (\d+) tokens > 4096 maximum", message)
    else:
        assert response.json()["error"]["code"] == "context_length_exceeded"
        found = re.search(r"maximum context length is 4096 tokens\. However, your messages resulted in (\d+) ", message)
    assert found, message
    return int(found[1])


def tokens_of(model, messages, **options):
    with model.chat(messages=messages, **options) as chat:
        return chat.prompt_length()


@pytest.mark.parametrize("path", [CHAT, MESSAGES, RESPONSES, COMPLETIONS])
@pytest.mark.parametrize("name", TEXTS)
def test_the_number_is_exact_or_above(client, model, path, name):
    unit, near, far = TEXTS[name]
    for count in (near, far):
        messages = [{"role": "user", "content": unit * count}]
        body = {"input" if path == RESPONSES else "messages": messages, "max_tokens": 5}
        real = tokens_of(model, messages, thinking=path != MESSAGES)
        if path == COMPLETIONS:
            body = {"prompt": unit * count}
            real = len(model.tokenizer.encode(unit * count))
        assert real > MAXIMUM
        number = told(client.post(path, json=body), path)
        assert number == real if real <= 2 * MAXIMUM else number >= real


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": [{"role": "user", "content": "Hello there!"}, {"role": "assistant", "content": "Hm."}] * 400},
        {"messages": [{"role": "user", "content": "x"}] * 3000},
        {"messages": [{"role": "user", "content": "x"}] * 5000},
        {
            "messages": [{"role": "user", "content": "x"}],
            "tools": [
                {"type": "function", "function": {"name": f"f{at}", "parameters": {"properties": {"a\x01" * 20: {}}}}}
                for at in range(300)
            ],
        },
        {
            "messages": [
                {"role": "user", "content": "x"},
                *[
                    {
                        "role": "assistant",
                        "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": {"a": ["\x01"] * 90}}}],
                    },
                    {"role": "tool", "content": "x"},
                ]
                * 12,
            ]
        },
    ],
)
def test_it_counts_what_the_template_adds(client, model, fields):
    number = told(client.post(CHAT, json=fields), CHAT)
    last = fields["messages"][-1]["role"] == "assistant"
    messages = fields["messages"]
    real = tokens_of(model, messages, tools=fields.get("tools"), continue_answer=last)
    assert real > MAXIMUM
    assert number == real if real <= 2 * MAXIMUM and len(messages) < MAXIMUM else number >= real


def test_ids_are_counted(client):
    for count in (4096, 5000):
        number = told(client.post(COMPLETIONS, json={"prompt": [7] * count}), COMPLETIONS)
        assert number == max(count, 4097)


def test_counting_has_a_bound_and_tells_a_higher_number(client, model):
    text = "\u00e9\n" * 400_000
    messages = [{"role": "user", "content": text}]
    assert told(client.post(COUNT, json={"messages": messages}), COUNT) >= tokens_of(model, messages, thinking=False)


def test_a_prompt_that_fits_is_not_refused_for_its_bytes(client):
    text = (" " * 40 + "x\n") * 800
    body = {"messages": [{"role": "user", "content": text}], "max_tokens": 1}
    answer = client.post(CHAT, json=body)
    assert answer.status_code == 200, answer.text
    assert len(text) > 4 * MAXIMUM > 4 * answer.json()["usage"]["prompt_tokens"]


def test_no_token_is_less_than_a_byte(model):
    for unit, _, _ in TEXTS.values():
        messages = [{"role": "user", "content": unit * 50}] * 3
        assert tokens_of(model, messages) <= context_errors.most_tokens(messages)
