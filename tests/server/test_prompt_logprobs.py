"""Completions with `echo` and `logprobs`: the prompt's log-probabilities, as evaluations of models ask for them."""

import json
import math

import numpy as np
import pytest

from lily import Sampling

COMPLETIONS = "/v1/completions"
TEXT = "Lilies are pale: \u6f22 \U0001f600 and <|im_end|> so on."
FIELDS = {"model": "lily-tiny", "echo": True, "temperature": 0, "max_tokens": 1}


def choices_of(client, **fields):
    response = client.post(COMPLETIONS, json={**FIELDS, **fields})
    assert response.status_code == 200, response.text
    return response.json()["choices"]


@pytest.fixture(scope="module")
def ids(model):
    return model.tokenizer.encode(TEXT)


@pytest.fixture(scope="module")
def expected(model, ids):
    """Logarithms of all tokens at each position but the first, from the model's own logits."""
    rows = []
    with model.session() as session:
        for token in ids:
            logits = session.prefill([token]).astype(np.float64)
            rows.append(logits - np.logaddexp.reduce(logits))
    return rows


@pytest.mark.parametrize("top", [0, 1, 3])
@pytest.mark.parametrize("limit", [0, 1, 4])
@pytest.mark.parametrize("form", ["text", "ids"])
def test_the_prompt_s_tokens_have_their_log_probabilities(client, model, ids, expected, top, limit, form):
    prompt = TEXT if form == "text" else ids
    [choice] = choices_of(client, prompt=prompt, logprobs=top, max_tokens=limit)
    logprobs = choice["logprobs"]
    count = len(ids)
    assert len(logprobs["tokens"]) == count + limit
    assert {len(values) for values in logprobs.values()} == {count + limit}
    assert logprobs["token_logprobs"][0] is None
    assert logprobs["top_logprobs"][0] is None
    for at in range(1, count):
        row = expected[at - 1]
        assert logprobs["token_logprobs"][at] == pytest.approx(row[ids[at]], abs=1e-4)
        best = np.argsort(-row)[:top]
        values = sorted(logprobs["top_logprobs"][at].values(), reverse=True)
        texts = {model.tokenizer.token_bytes(int(token)).decode("utf-8", "replace") for token in best}
        assert set(logprobs["top_logprobs"][at]) == texts
        if len(texts) == top:
            assert values == pytest.approx(row[best], abs=1e-4)
    assert choice["text"].startswith(TEXT)
    if limit == 0:
        assert choice["text"] == TEXT
        assert choice["finish_reason"] == "length"


def test_offsets_are_places_in_the_text(client, ids):
    [choice] = choices_of(client, prompt=ids, logprobs=1, max_tokens=5)
    logprobs, text = choice["logprobs"], choice["text"]
    ends = [*logprobs["text_offset"][1:], len(text)]
    for token, begin, end in zip(logprobs["tokens"], logprobs["text_offset"], ends, strict=True):
        assert token == text[begin:end] or "\ufffd" in token
    assert logprobs["text_offset"][0] == 0
    assert logprobs["text_offset"][len(ids)] == len(TEXT)


def test_several_prompts_and_choices(client, ids):
    prompts = [ids, ids[:3], [ids[0]]]
    choices = choices_of(client, prompt=prompts, logprobs=1, n=2, max_tokens=2)
    assert [choice["index"] for choice in choices] == list(range(6))
    for choice in choices:
        given = prompts[choice["index"] // 2]
        assert len(choice["logprobs"]["tokens"]) == len(given) + 2
        assert choice["logprobs"]["token_logprobs"][0] is None
        [alone] = choices_of(client, prompt=given, logprobs=1, max_tokens=0)
        assert choice["logprobs"]["token_logprobs"][: len(given)] == alone["logprobs"]["token_logprobs"]
    usage = client.post(COMPLETIONS, json={**FIELDS, "prompt": prompts, "logprobs": 1, "max_tokens": 0}).json()["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (len(ids) + 4, 0)


@pytest.mark.parametrize("top", [1, 2])
def test_a_stream_has_the_same(client, ids, top):
    fields = {**FIELDS, "prompt": [ids, ids[:4]], "logprobs": top, "max_tokens": 5}
    whole = client.post(COMPLETIONS, json=fields).json()["choices"]
    lines = client.post(COMPLETIONS, json={**fields, "stream": True}).text.splitlines()
    parts = [json.loads(line[6:])["choices"][0] for line in lines if line.startswith("data: {")]
    for choice in whole:
        own = [part for part in parts if part["index"] == choice["index"]]
        assert "".join(part["text"] for part in own) == choice["text"]
        for name, values in choice["logprobs"].items():
            assert [one for part in own if part["logprobs"] for one in part["logprobs"][name]] == values


def test_the_token_that_ends_the_text_is_there(client, script, ids):
    """Evaluations leave out one token behind the prompt, whichever it is."""
    script("")
    [choice] = choices_of(client, prompt=ids, logprobs=1)
    assert choice["text"] == TEXT
    assert choice["logprobs"]["tokens"][len(ids) :] == ["<|im_end|>"]
    assert choice["logprobs"]["text_offset"][-1] == len(TEXT)


def test_as_lm_evaluation_harness_reads_it(client, model, ids, expected):
    """Its sum of the continuation's logarithms, and whether the model would have said the same."""
    context = 5
    greedy = [*ids[:context]]
    with model.session() as session:
        session.prefill(greedy)
        greedy += list(session.generate(3, sampling=Sampling.greedy(), stop_tokens=()))
        session.reset()
        assert math.isfinite(session.score(greedy).sum())
    for given, is_greedy in ((ids, False), (greedy, True)):
        [choice] = choices_of(client, prompt=[given], logprobs=1, seed=1234)
        logprobs = choice["logprobs"]["token_logprobs"][context:-1]
        tops = choice["logprobs"]["top_logprobs"][context:-1]
        assert len(logprobs) == len(given) - context
        assert all(one == max(top.values()) for one, top in zip(logprobs, tops, strict=True)) is is_greedy
        with model.session() as session:
            assert sum(logprobs) == pytest.approx(float(session.score(given)[context - 1 :].sum()), abs=1e-3)


def test_what_it_takes_is_part_of_the_memory_budget(start):
    with start(max_pending_bytes=4 << 20) as small:
        for top, status in ((0, 200), (5, 413)):
            response = small.post(COMPLETIONS, json={**FIELDS, "prompt": [7] * 2000, "logprobs": top, "max_tokens": 0})
            assert response.status_code == status, response.text


@pytest.mark.parametrize("fields", [{"echo": False, "logprobs": 1}, {"echo": True}])
def test_without_echo_or_logprobs_the_prompt_is_not_scored(client, ids, fields):
    [choice] = choices_of(client, prompt=ids, **fields)
    assert (choice["logprobs"] is None) == ("logprobs" not in fields)
    if "logprobs" in fields:
        assert len(choice["logprobs"]["tokens"]) == 1
        assert choice["logprobs"]["text_offset"] == [0]
