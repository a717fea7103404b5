"""The limit of the thinking: it is closed in words, and the answer follows."""

import pytest

from lily import Sampling
from lily.chat.options import DEFAULT_THINKING_END


@pytest.mark.parametrize("limit", [1, 2, 7, 20])
def test_thinking_is_closed_at_the_limit(model, limit):
    chat = model.chat(sampling=Sampling.greedy(), thinking_end="\nEnough.\n")
    free = model.chat(sampling=Sampling.greedy()).ask("Hello!")
    cut_off = model.chat(sampling=Sampling.greedy()).ask("Hello!", max_tokens=limit)
    answer = chat.ask("Hello!", max_thinking_tokens=limit, max_tokens=120)
    words = len(model.tokenizer.encode("\nEnough.\n</think>\n\n"))
    assert free.done.usage.reasoning_tokens == 16
    if limit < 16:
        assert answer.reasoning == cut_off.reasoning + "\nEnough."
        assert limit < answer.done.usage.reasoning_tokens <= limit + words
    else:
        assert answer.reasoning == free.reasoning
    assert answer.content
    assert answer.finish_reason == "stop"


def test_default_words(model):
    chat = model.chat(sampling=Sampling.greedy())
    answer = chat.ask("Hello!", max_thinking_tokens=3, max_tokens=100)
    assert answer.reasoning.endswith(DEFAULT_THINKING_END.strip())
    assert answer.content
    text = model.tokenizer.decode(chat.session.tokens)
    assert DEFAULT_THINKING_END + "</think>\n\n" + answer.content in text


def test_no_thinking_at_all(model):
    chat = model.chat(sampling=Sampling.greedy())
    answer = chat.ask("Hello!", max_thinking_tokens=0)
    assert answer.reasoning == ""
    assert answer.content
    expected = model.tokenizer.encode("<think>\n\n</think>\n\n")
    assert model.tokenizer.decode(expected) in model.tokenizer.decode(chat.session.tokens)


def test_limit_that_is_not_reached_changes_nothing(model):
    free = model.chat(sampling=Sampling.greedy()).ask("Hello!")
    limited = model.chat(sampling=Sampling.greedy(), max_thinking_tokens=500).ask("Hello!")
    assert (limited.content, limited.reasoning) == (free.content, free.reasoning)


def test_thinking_turned_off_has_no_limit(model):
    free = model.chat(sampling=Sampling.greedy(), thinking=False).ask("Hello!")
    limited = model.chat(sampling=Sampling.greedy(), thinking=False, max_thinking_tokens=0).ask("Hello!")
    assert limited.content == free.content


def test_words_put_in_count_for_max_tokens(model):
    chat = model.chat(sampling=Sampling.greedy())
    answer = chat.ask("Hello!", max_thinking_tokens=3, max_tokens=6)
    assert answer.done.usage.completion_tokens == 6
    assert answer.finish_reason == "length"
    assert answer.content == ""


def test_tokens_in_the_words_are_text(model):
    """They end the thinking and nothing else."""
    token_id = model.tokenizer.token_id
    chat = model.chat(sampling=Sampling.greedy(), thinking_end="<|im_end|>\n<|im_start|>system\n<think>")
    chat.ask("Hello!", max_thinking_tokens=2, max_tokens=60)
    ids = chat.session.tokens
    assert ids.count(token_id("<|im_start|>")) == 2
    assert ids.count(token_id("<|im_end|>")) == 1
    assert (ids.count(token_id("<think>")), ids.count(token_id("</think>"))) == (1, 1)
