"""Kept ids: an answer keeps its ids in later prompts, under exactly the text it belongs to."""

import pytest

from lily.chat import prompt_encoder
from lily.chat.prompt_encoder import PromptEncoder
from lily.errors import ContextOverflowError, InvalidArgumentError

END = "<|im_end|>\n"


@pytest.fixture
def encoder(tokenizer):
    return PromptEncoder(tokenizer)


def oddly(tokenizer, text):
    """Ids of a text that are not those the tokenizer gives: one for each character."""
    ids = [token for character in text for token in tokenizer.encode(character)]
    assert ids != tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    return ids


def conversation(template, *turns):
    messages = [{"role": role, "content": text} for role, text in zip(["user", "assistant"] * 9, turns, strict=False)]
    return template.render(messages, add_generation_prompt=len(turns) % 2 == 1, preserve_thinking=True)


def test_without_kept_turns_it_is_the_tokenizer(encoder, tokenizer, template):
    text = conversation(template, "Hello there", "thinking about nothing", "and now?")
    assert encoder.encode(text).ids == tokenizer.encode(text)


def test_kept_turns_keep_their_ids(encoder, tokenizer, template):
    first = conversation(template, "Hello")
    answer = oddly(tokenizer, "some thought\n</think>\n\nsome words")
    whole = conversation(template, "Hello", "<think>\nsome thought\n</think>\n\nsome words")
    encoder.remember(first, whole, END, answer)
    ids = [*tokenizer.encode(first), *answer, *tokenizer.encode(END)]
    assert encoder.encode(whole).ids == ids

    second = conversation(template, "Hello", "<think>\nsome thought\n</think>\n\nsome words", "Next")
    assert encoder.encode(second).ids == ids + tokenizer.encode(second[len(whole) :])
    longer = conversation(template, "Hello", "<think>\nsome thought\n</think>\n\nsome words", "Next", "more", "Last")
    more = oddly(tokenizer, "\n</think>\n\nmore")
    end = second + "\n</think>\n\nmore" + END
    encoder.remember(second, end, END, more)
    assert longer.startswith(end)
    expected = encoder.encode(second).ids + more + tokenizer.encode(END) + tokenizer.encode(longer[len(end) :])
    assert encoder.encode(longer).ids == expected
    assert tokenizer.decode(expected) == longer


def test_another_text_before_the_answer_has_nothing_to_do_with_it(encoder, tokenizer, template):
    first = conversation(template, "Hello")
    answer = oddly(tokenizer, "\n</think>\n\nsome words")
    encoder.remember(first, conversation(template, "Hello", "some words"), END, answer)
    for other in (("Hello!", "some words"), ("Hello", "some word"), ("", "some words")):
        text = conversation(template, *other)
        assert encoder.encode(text).ids == tokenizer.encode(text)


def test_answers_that_the_template_renders_otherwise_are_not_kept(encoder, tokenizer, template):
    first = conversation(template, "Hello")
    whole = conversation(template, "Hello!", "x")
    encoder.remember(first, whole, END, oddly(tokenizer, "words"))
    encoder.remember(first, first + "words", END, oddly(tokenizer, "words"))
    assert encoder.encode(whole).ids == tokenizer.encode(whole)


def test_lone_surrogates_are_refused(encoder, tokenizer, template):
    first = conversation(template, "Hello")
    encoder.remember(first, conversation(template, "Hello", "some words"), END, tokenizer.encode("x"))
    with pytest.raises(InvalidArgumentError, match="lone surrogate"):
        encoder.encode(conversation(template, "Q").replace("Q", "\ud800"))  # templates write none


def test_a_prompt_that_is_far_too_long_is_refused_by_its_beginning(encoder, tokenizer, template, monkeypatch):
    encoded = []
    count = encoder.guard.count
    monkeypatch.setattr(encoder.guard, "count", lambda text, most: encoded.append(len(text)) or count(text, most))
    for words in ("some words ", "<|im_end|>", "\u00e9\n", "\U0001f600"):
        text = conversation(template, words * 100_000)
        encoded.clear()
        with pytest.raises(ContextOverflowError, match="max_context"):
            encoder.encode(text, (), 1000)
        assert 0 < sum(encoded) <= (1 + 2 + 4) * 4 * 1000
        assert encoder.guard._known.bytes == 0  # nothing of it is kept
    # What fits is never refused, however many characters a token has.
    fitting = conversation(template, " " * 12_000 + "x")
    ids = encoder.encode(fitting).ids
    assert len(fitting) > 4 * len(ids)
    assert encoder.encode(fitting, (), len(ids)).ids == ids


def test_positions_of_borders(encoder, tokenizer, template):
    first = conversation(template, "Hello")
    answer = oddly(tokenizer, "\n</think>\n\nsome words")
    whole = conversation(template, "Hello", "some words")
    text = conversation(template, "Hello", "some words", "Next", "B", "C")
    border = text.index("<|im_start|>assistant", len(whole))
    for keep in (False, True):
        if keep:
            encoder.remember(first, whole, END, answer)
        encoded = encoder.encode(text, [border, len(whole), 0, len(text), 10**6])
        assert encoder.encode(text).ids == encoded.ids
        for offset, position in zip([len(whole), border], encoded.positions, strict=True):
            assert tokenizer.decode(encoded.ids[:position]) == text[:offset]


def test_memory_is_bounded_and_the_oldest_go_first(encoder, tokenizer, template, monkeypatch):
    monkeypatch.setattr(prompt_encoder, "_REMEMBERED_IDS", 100)
    first = [conversation(template, f"Hello {number}") for number in range(30)]
    whole = [conversation(template, f"Hello {number}", "some words") for number in range(30)]
    answer = oddly(tokenizer, "\n</think>\n\nsome words")
    for prompt, text in zip(first, whole, strict=True):
        encoder.remember(prompt, text, END, answer)
    kept = [encoder.encode(text).ids != tokenizer.encode(text) for text in whole]
    count = sum(kept)
    assert 1 <= count <= 100 // len(answer)
    assert kept == [False] * (30 - count) + [True] * count
