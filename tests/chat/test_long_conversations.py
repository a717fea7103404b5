"""Long conversations cost what is new in them: renderings and encodings are counted, not timed."""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lily import Model
from lily.chat.options import TurnOptions
from lily.text import ChatTemplate
from lily.text.known_pieces import KnownPieces

TOOLS = [
    {"type": "function", "function": {"name": f"tool_{at}", "description": "Does <this> " * 9, "parameters": {}}}
    for at in range(100)
]
WORDS = ("if x < 3 and y > 4:\n", "word ", "čau ", "<td>", "</think", "\U0001f600", "return ", "  ")


def text(luck, size):
    return "".join(luck.choice(WORDS) for _ in range(size // 4))


def conversation(turns, seed=1, size=80):
    luck = random.Random(seed)
    messages = [{"role": "system", "content": text(luck, size)}]
    for turn in range(turns):
        call = {"id": f"c{turn}", "function": {"name": "tool_1", "arguments": json.dumps({"a": text(luck, size)})}}
        messages += [
            {"role": "user", "content": f"{turn} {text(luck, size)}"},
            {"role": "assistant", "content": "", "reasoning_content": text(luck, size), "tool_calls": [call]},
            {"role": "tool", "tool_call_id": f"c{turn}", "content": text(luck, size)},
            {"role": "assistant", "content": f"{text(luck, size)}."},
        ]
    return [*messages, {"role": "user", "content": "And now?"}]


def prompt_of(model, messages, **options):
    chat = model.chat(messages=messages, **options)
    return chat._rendering.prompt(chat._with(None, TurnOptions()), TurnOptions(), None)


def expected_borders(chat, messages, prompt):
    """Borders found by rendering beginnings of the conversation."""

    def behind_header(border):
        block = prompt.find("<think>", border, border + 64)
        return border if block < 0 else block

    query = max(at for at, message in enumerate(messages) if message["role"] == "user")
    borders = [behind_header(len(chat._rendering.render(messages[: query + 1], generation=False)))]
    if messages[0]["role"] == "system" or chat.tools:
        borders.append(prompt.find("<|im_end|>\n") + len("<|im_end|>\n"))
    if query + 1 < len(messages):
        borders.append(behind_header(len(chat._rendering.render(messages, generation=False))))
    return {border for border in borders if prompt[border : border + 1] == "<"}


@pytest.fixture
def long_model(tiny):
    with Model.load(tiny, threads=1) as loaded:
        yield loaded


@pytest.fixture
def counted(monkeypatch, long_model):
    """Numbers of renderings, and of characters that were encoded."""
    counts = {"renderings": 0, "characters": 0}
    render, encode = ChatTemplate.render, type(long_model.tokenizer).encode

    def counting_render(self, messages, *arguments, **options):
        messages = list(messages)
        counts["renderings"] += len(messages) > 1
        return render(self, messages, *arguments, **options)

    def counting_encode(self, given_text, **options):
        counts["characters"] += len(given_text)
        return encode(self, given_text, **options)

    monkeypatch.setattr(ChatTemplate, "render", counting_render)
    monkeypatch.setattr(type(long_model.tokenizer), "encode", counting_encode)
    return counts


def test_a_turn_renders_twice_and_encodes_what_is_new(long_model, counted):
    messages = conversation(60, size=800)
    long_model.chat_support  # noqa: B018 -- what all chats share
    counted.update(renderings=0, characters=0)
    first = prompt_of(long_model, messages, tools=TOOLS)
    assert len(first.text) > 200_000
    assert counted["renderings"] <= 2  # marked and unmarked, to compare
    assert counted["characters"] < len(first.text)
    call = {"id": "n", "function": {"name": "tool_1", "arguments": "{}"}}
    turns = [
        [{"role": "assistant", "content": "", "tool_calls": [call]}, {"role": "tool", "content": "result " * 20}],
        [{"role": "assistant", "content": "Yes, x < 3."}, {"role": "user", "content": "Next <question>?"}],
    ]
    for new in turns:
        messages = [*messages, *new]
        counted.update(renderings=0, characters=0)
        second = prompt_of(long_model, messages, tools=TOOLS)
        assert counted["renderings"] <= 2
        assert counted["characters"] < 12_000  # pieces of a few characters are not worth a look
        assert second.encoded.ids == long_model.tokenizer.encode(second.text)


def test_costs_grow_with_the_length(long_model, counted):
    """Four times the messages: four times the characters, and as many renderings."""
    work = []
    for turns in (25, 100):
        counted.update(renderings=0, characters=0)
        prompt = prompt_of(long_model, conversation(turns, seed=turns), tools=TOOLS[:1])
        work.append((counted["renderings"], counted["characters"] / len(prompt.text)))
    assert work[0][0] == work[1][0]
    assert work[1][1] < 1.2 * work[0][1]


@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_ids_and_positions_are_those_of_a_fresh_rendering(model, tokenizer, data):
    luck = random.Random(data.draw(st.integers(0, 1 << 30)))
    turns = conversation(data.draw(st.integers(1, 3)), luck.random(), 40)
    messages = turns[0 if data.draw(st.booleans()) else 1 :]
    options = {
        "tools": TOOLS[:1] if data.draw(st.booleans()) else None,
        "thinking": data.draw(st.sampled_from([True, False, None])),
        "preserve_thinking": data.draw(st.booleans()),
    }
    ends = [at for at, message in enumerate(messages) if message["role"] in ("user", "tool")]
    for end in data.draw(st.permutations(ends)):
        chat = model.chat(messages=messages[: end + 1], **options)
        prompt = chat._rendering.prompt(chat._with(None, TurnOptions()), TurnOptions(), None)
        ids = model.render_chat(prompt.normal, tools=options["tools"], **chat._rendering.template_options)
        assert prompt.encoded.ids == ids == tokenizer.encode(prompt.text)
        offsets = sorted(expected_borders(chat, prompt.normal, prompt.text))
        assert [tokenizer.decode(ids[:at]) for at in prompt.encoded.positions] == [prompt.text[:at] for at in offsets]


def test_templates_whose_opening_depends_on_the_conversation(model, tiny, monkeypatch):
    source = ChatTemplate.from_directory(tiny).source + "{{ messages | length if add_generation_prompt else '' }}"
    monkeypatch.setitem(model.__dict__, "chat_template", ChatTemplate(source))
    monkeypatch.delitem(model.__dict__, "chat_support", raising=False)
    chat = model.chat(messages=conversation(1), thinking=True)
    prompt = chat._rendering.prompt(chat._with(None, TurnOptions()), TurnOptions(), None)
    assert prompt.text.endswith("<think>\n6")
    offsets = sorted(expected_borders(chat, prompt.normal, prompt.text))
    assert [model.tokenizer.decode(prompt.encoded.ids[:at]) for at in prompt.encoded.positions] == [
        prompt.text[:at] for at in offsets
    ]


def test_known_pieces_are_bounded_and_the_oldest_go_first():
    asked = []

    def encode(piece):
        asked.append(piece)
        return [ord(character) for character in piece]

    pieces = KnownPieces(encode, limit_bytes=10_000)
    texts = [f"{at:03}" * 40 for at in range(40)]
    for piece in texts:
        assert pieces.ids(piece) == encode(piece)
        assert pieces.bytes <= 10_000
        pieces.ids(texts[0])  # stays in use
    asked.clear()
    pieces.ids(texts[0])
    pieces.ids(texts[-1])
    assert asked == []
    pieces.ids(texts[1])
    pieces.ids("x" * 20)
    pieces.ids("x" * 20)
    pieces.ids("x" * 10_000)
    assert asked == [texts[1], "x" * 20, "x" * 20, "x" * 10_000]
    assert pieces.bytes <= 10_000
    known = pieces.ids(texts[0])
    known.append(5)
    assert pieces.ids(texts[0]) == known[:-1]  # a caller's list is its own
