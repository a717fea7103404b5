"""The prefix cache: what each prompt computes, and that every answer equals a cold run, token for token."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from cache_helpers import assert_like_cold, assert_same_logits, cold_greedy, greedy, session_files

from lily.errors import ContextOverflowError, InvalidArgumentError

SYSTEM = {"role": "system", "content": "You answer in one short sentence and never use a list."}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "The weather of a place on a day",
            "parameters": {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]},
        },
    }
]


def computed(model, before):
    return model.cache.stats().computed_tokens - before.computed_tokens


def user(text):
    return {"role": "user", "content": text}


def assistant(text):
    return {"role": "assistant", "content": text}


def render(model, messages, **options):
    """(ids of the prompt, end of the last user turn in it)."""
    ids = model.render_chat(messages, enable_thinking=False, **options)
    without = model.render_chat(messages, enable_thinking=False, add_generation_prompt=False, **options)
    assert ids[: len(without)] == without
    return ids, len(without)


def test_the_same_prompt_again_computes_nothing(load, prompt):
    model = load()
    ids = prompt(600)
    cold = model.prefill(ids)
    first = model.cached_session(ids)
    before = model.cache.stats()
    second = model.cached_session(ids)
    assert first.cached_tokens == 0
    assert second.cached_tokens >= len(ids) - 1
    assert computed(model, before) <= 1
    for session in (first, second):
        assert_same_logits(session, cold)
        assert_like_cold(model, session, 20)
    # What was generated after the prompt is no part of its snapshot.
    assert_like_cold(model, model.cached_session(ids), 20)


def test_second_turn_computes_the_answer_and_the_new_message(load):
    model = load()
    messages = [user("What is the tallest mountain on Earth, and who was first at its top?")]
    ids, end = render(model, messages)
    first = model.cached_session(ids, snapshot_at=[end])
    answer = model.tokenizer.decode(greedy(first, 40))
    follow = [*messages, assistant(answer), user("And the second tallest one?")]
    ids, _ = render(model, follow)
    before = model.cache.stats()
    second = model.cached_session(ids)
    new = len(model.tokenizer.encode(answer)) + len(model.tokenizer.encode("And the second tallest one?"))
    assert second.cached_tokens > 0
    assert computed(model, before) <= new + 16
    assert second.cached_tokens + computed(model, before) == len(ids)
    assert_like_cold(model, second, 20)


@pytest.mark.parametrize("others", [{}, {"kv_cache_type": "bfloat16"}, {"prefix_cache_bytes": 0}])
def test_a_session_of_another_model_is_refused(load, prompt, tmp_path, others):
    """Also one of the same weights: neither memory nor the directory ever holds its state."""
    model, other = load(prefix_cache_dir=tmp_path), load(**others)
    ids = prompt(100)
    with other.prefill(ids) as session:
        with pytest.raises(InvalidArgumentError, match="another model"):
            model.cache.insert(session)
        with load(prefix_cache_bytes=0) as off, pytest.raises(InvalidArgumentError, match="another model"):
            off.cache.insert(session)
        other.cache.insert(session)
    assert model.cache.flush(60)
    assert model.cache.stats().snapshots == 0 and not session_files(tmp_path)
    with model.cached_session(ids) as session:
        assert session.cached_tokens == 0
        model.cache.insert(session)


def test_the_end_of_a_generation_is_reused(load, prompt):
    model = load()
    session = model.cached_session(prompt(120))
    greedy(session, 30)
    model.cache.insert(session)
    follow = [*session.tokens, *prompt(20)]
    before = model.cache.stats()
    second = model.cached_session(follow)
    assert computed(model, before) <= 21  # the last token of a generation is not computed yet
    assert_like_cold(model, second)


@pytest.mark.parametrize("grow", [1, 37, 200])
def test_growing_conversation_computes_only_what_is_new(load, prompt, grow):
    model = load()
    ids: list[int] = []
    for step in range(20):
        ids.extend(prompt(grow).tolist())
        before = model.cache.stats()
        session = model.cached_session(ids)
        assert computed(model, before) <= grow + 32
        if step % 5 == 4:
            assert_like_cold(model, session, 2)
        session.close()


def test_growing_chat_of_twenty_turns(load):
    """Real turns, greedy answers, nothing but the end of each user turn named."""
    model = load()
    messages = [SYSTEM]
    for turn in range(20):
        messages.append(user(f"Question number {turn}: what comes after {turn}?"))
        ids, end = render(model, messages)
        before = model.cache.stats()
        session = model.cached_session(ids, snapshot_at=[end])
        answer = model.tokenizer.decode(greedy(session, 12))
        assert greedy(model.prefill(ids), 12) == session.tokens[len(ids) :]
        if turn:
            new = len(model.tokenizer.encode(messages[-1]["content"])) + len(
                model.tokenizer.encode(messages[-2]["content"])
            )
            assert computed(model, before) <= new + 32
        messages.append(assistant(answer))


def test_two_clients_share_system_prompt_and_tools(load):
    model = load()
    ids, _ = render(model, [SYSTEM, user("Is it cold in Oslo?")], tools=TOOLS)
    other, _ = render(model, [SYSTEM, user("Will it rain in Lima tomorrow?")], tools=TOOLS)
    # The system block ends where the first user turn begins.
    opening = model.tokenizer.encode("<|im_start|>user\n")
    border = next(at for at in range(len(ids)) if ids[at : at + len(opening)] == opening)
    assert ids[:border] == other[:border] and border > 100
    model.cached_session(ids, snapshot_at=[border])
    second = model.cached_session(other, snapshot_at=[border])
    assert second.cached_tokens == border
    assert_like_cold(model, second, 20)


def test_a_block_inserted_in_the_middle(load, prompt):
    model = load()
    a, b, c = prompt(210), prompt(330), prompt(95)
    model.cached_session([*a, *b], snapshot_at=[len(a)])
    session = model.cached_session([*a, *c, *b])
    assert session.cached_tokens == len(a)
    assert_like_cold(model, session, 20)


def test_a_branch_that_nobody_named_hits_on_the_third_try(load, prompt):
    model = load()
    shared = prompt(300)
    cached = [model.cached_session([*shared, 1 + index, *prompt(40)]).cached_tokens for index in range(3)]
    assert cached == [0, 0, 300]


def test_interval_snapshots_in_long_prompts(load, prompt):
    model = load(snapshot_interval=100, prefill_chunk=64)
    ids = prompt(1050)
    model.cached_session(ids)
    for length in (1049, 1000, 999, 101, 100, 99):
        other = [*ids[:length], 1, 2, 3]
        assert ids[length] != 1
        session = model.cached_session(other)
        assert session.cached_tokens >= length // 100 * 100
        assert_like_cold(model, session, 3)


@pytest.mark.parametrize("chunk", [1, 7, 64, 256, 1000])
def test_results_do_not_depend_on_chunks_or_borders(load, prompt, chunk):
    ids = prompt(260 if chunk == 1 else 1000)
    model = load(prefill_chunk=chunk, snapshot_interval=170)
    session = model.cached_session(ids, snapshot_at=[3, 64, 65, 255])
    with load(prefill_chunk=513, prefix_cache_bytes=0).prefill(ids) as cold:
        assert_same_logits(session, cold)
        assert greedy(session, 32) == greedy(cold, 32)


def test_off(load, prompt):
    model = load(prefix_cache_bytes=0)
    ids = prompt(90)
    for _ in range(2):
        session = model.cached_session(ids, snapshot_at=[30])
        assert session.cached_tokens == 0
        model.cache.insert(session)
    assert len(model.cache) == 0 and not model.cache.enabled
    assert model.cache.stats().bytes == 0
    assert_like_cold(model, session)


def test_clear(load, prompt):
    model = load()
    ids = prompt(90)
    model.cached_session(ids)
    model.cache.clear()
    assert len(model.cache) == 0 and model.cache.stats().bytes == 0
    assert model.cached_session(ids).cached_tokens == 0
    assert model.cached_session(ids).cached_tokens == 90


def test_progress_begins_with_what_is_cached(load, prompt):
    model = load(prefill_chunk=50)
    ids = prompt(230)
    seen = []
    model.cached_session(ids[:100])
    model.cached_session(ids, snapshot_at=[120], progress=lambda done, total: seen.append((done, total)))
    assert seen == [(100, 230), (120, 230), (170, 230), (220, 230), (230, 230)]


def test_an_interrupted_prompt_goes_on_where_it_stopped(load, prompt):
    model = load(prefill_chunk=50)
    ids = prompt(400)

    def stop(done, total):
        if done >= 150:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        model.cached_session(ids, progress=stop)
    session = model.cached_session(ids)
    assert session.cached_tokens == 150
    assert_like_cold(model, session)


def test_wrong_prompts_are_refused_before_any_work(load, prompt):
    model = load(max_context=300)
    ids = prompt(250)

    def never(done, total):
        raise AssertionError("something was computed")

    with pytest.raises(ContextOverflowError, match="301"):
        model.cached_session(prompt(301), progress=never)
    with pytest.raises(InvalidArgumentError, match="index 249"):
        model.cached_session([*ids[:249], 99999], progress=never, snapshot_at=[100])
    for wrong in ([251], [-1], ["a"], 5, [1.5]):
        with pytest.raises(InvalidArgumentError, match="snapshot_at"):
            model.cached_session(ids, snapshot_at=wrong)
    assert len(model.cache) == 0
    assert_like_cold(model, model.cached_session(ids, snapshot_at=(0, 250, 3, 3)))


def test_counters(load, prompt):
    model = load()
    ids = prompt(100).tolist()
    for given, cached in ((ids, 0), (ids, 100), ([*ids, *prompt(7)], 100), (prompt(50), 0)):
        assert model.cached_session(given).cached_tokens == cached
    stats = model.cache.stats()
    assert (stats.hits, stats.misses, stats.evictions) == (2, 2, 0)
    assert (stats.cached_tokens, stats.computed_tokens) == (200, 157)
    assert stats.snapshots == len(model.cache) == 3
    model.cache.clear()
    assert model.cache.stats().hits == 2 and model.cache.stats().bytes == 0


def test_explain_names_the_first_difference(load):
    model = load()
    encode, decode = model.tokenizer.encode, model.tokenizer.decode
    stored = encode("The report was written on Monday in Paris and signed by three people.")
    given = encode("The report was written on Friday in Paris and signed by three people.")
    first = next(at for at, (a, b) in enumerate(zip(stored, given, strict=False)) if a != b)
    model.cached_session(stored, snapshot_at=[2])
    found = model.cache.explain(given, model.tokenizer)
    assert (found.total_tokens, found.matched_tokens, found.cached_tokens) == (len(given), first, 2)
    assert found.recompute_tokens == len(given) - 2
    assert (found.given_token, found.stored_token) == (given[first], stored[first])
    assert found.text_before == decode(stored[:first])
    assert found.given_text == decode(given[first : first + 24])
    assert found.stored_text == decode(stored[first : first + 24])
    assert str(first) in str(found) and found.given_text in str(found)
    # What it says is what happens.
    before = model.cache.stats()
    assert model.cached_session(given).cached_tokens == found.cached_tokens
    assert computed(model, before) == found.recompute_tokens


def test_explain_without_a_difference(load, prompt):
    model = load()
    ids = prompt(50)
    nothing = model.cache.explain(ids)
    assert (nothing.matched_tokens, nothing.cached_tokens, nothing.stored_token) == (0, 0, None)
    assert nothing.given_token == ids[0] and nothing.text_before is None
    model.cached_session(ids)
    same = model.cache.explain(ids)
    assert (same.matched_tokens, same.cached_tokens, same.recompute_tokens) == (50, 50, 0)
    assert same.given_token is None and same.stored_token is None
    shorter = model.cache.explain(ids[:30])
    assert (shorter.matched_tokens, shorter.cached_tokens, shorter.given_token) == (30, 0, None)
    longer = model.cache.explain([*ids, 7])
    assert (longer.matched_tokens, longer.cached_tokens, longer.given_token, longer.stored_token) == (50, 50, 7, None)
    assert model.cache.stats().hits == 0  # asking is not using


def test_many_threads_get_their_own_answers(load, prompt):
    """Sixteen prompts with shared beginnings at once, twice each, while snapshots are dropped all the time."""
    shared = prompt(60)
    prompts = [np.concatenate([shared[: 20 + 10 * (index % 4)], prompt(9 + 5 * index)]) for index in range(16)]
    model = load(prefix_cache_bytes=12 << 20)
    expected = [cold_greedy(model, ids, 10) for ids in prompts]

    def answer(ids):
        with model.cached_session(ids, snapshot_at=[20]) as session:
            tokens = greedy(session, 10)
            model.cache.insert(session)
            return tokens

    with ThreadPoolExecutor(16) as pool:
        results = list(pool.map(answer, prompts * 2))
    assert results == expected * 2
    stats = model.cache.stats()
    assert stats.hits > 0 and stats.evictions > 0 and stats.bytes <= stats.limit_bytes
