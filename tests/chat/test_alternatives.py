"""Several answers from one prompt: computed once, side by side, each as if it were alone."""

import pytest

from lily import Sampling, Session
from lily.chat import ContentDelta, Done, collect
from lily.errors import InvalidArgumentError

WARM = Sampling(temperature=3.0, top_k=50, seed=11)


def answers_of(pairs, count):
    events = [[] for _ in range(count)]
    for index, event in pairs:
        events[index].append(event)
    assert all(isinstance(of_one[-1], Done) for of_one in events)
    return [collect(of_one) for of_one in events]


@pytest.mark.parametrize("sampling", [WARM, Sampling(temperature=3.0, top_k=50)])
def test_each_answer_is_the_one_of_its_seed(model, sampling):
    options = {"sampling": sampling, "max_tokens": 25, "thinking": False}
    chat = model.chat(seed=5, **options)
    answers = answers_of(chat.alternatives("Tell me a story.", count=3), 3)
    assert chat.messages == []
    assert len({answer.content for answer in answers}) == 3
    for index, answer in enumerate(answers):
        seeded = {**options, "sampling": Sampling(temperature=3.0, top_k=50, seed=(sampling.seed or 5) + index)}
        assert model.chat(**seeded).ask("Tell me a story.").content == answer.content


def test_the_prompt_is_computed_once_and_answers_come_in_turns(model, monkeypatch):
    computed = []
    prefill = Session.prefill

    def counted(self, ids, **options):
        computed.append(len(ids))
        return prefill(self, ids, **options)

    monkeypatch.setattr(Session, "prefill", counted)
    text = "An uncommon prompt about hedgehogs and lamps. " * 8
    chat = model.chat(thinking=False, sampling=Sampling.greedy())
    pairs = list(chat.alternatives(text, count=4, max_tokens=12))
    total = pairs[-1][1].usage.prompt_tokens
    assert sum(computed) <= total
    first = [index for index, event in pairs if isinstance(event, ContentDelta)][:4]
    assert first == [0, 1, 2, 3]
    answers = answers_of(pairs, 4)
    assert len({answer.content for answer in answers}) == 1  # greedy
    assert [answer.done.usage.cached_tokens == total for answer in answers] == [False, True, True, True]


def test_leaving_and_cancelling(model):
    endless = {model.tokenizer.token_id(token): -1000.0 for token in ("<|im_end|>", "<|endoftext|>")}
    chat = model.chat(thinking=False, sampling=Sampling(temperature=3.0, top_k=50, seed=11, logit_bias=endless))
    pairs = chat.alternatives("Count to a thousand.", count=3)
    next(pairs)
    pairs.close()
    for answer in answers_of(_cancelling(chat, chat.alternatives("Count to a thousand.", count=3)), 3):
        assert answer.finish_reason == "cancelled"
    assert chat.ask("hi", max_tokens=3, sampling=Sampling.greedy()).content


def _cancelling(chat, pairs):
    for at, pair in enumerate(pairs):
        if at == 5:
            chat.cancel()
        yield pair


def test_counts_that_are_none(model):
    for count in (0, -1, True, "2"):
        with pytest.raises(InvalidArgumentError):
            model.chat().alternatives("hi", count=count)
