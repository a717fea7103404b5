"""Conversations on the bundled model: events, history, kept ids, reuse, stops, limits, cancellation."""

import threading

import numpy as np
import pytest

from lily import Sampling
from lily.chat import Chat, ContentDelta, Done, ReasoningDelta, ToolCallEvent, collect
from lily.errors import BusyError, ContextOverflowError, InvalidArgumentError, TemplateError

GREEDY = Sampling.greedy()


def throw_dice(faces: int) -> int:
    """Throw a die with some sides.

    Args:
        faces: Number of sides
    """
    return 4


def other_tool(text: str) -> str:
    """Do something else."""
    return text


CALL = "<tool_call>\n<function=throw_dice>\n<parameter=faces>\n{}\n</parameter>\n</function>\n</tool_call>"


def prompt_of(chat: Chat, **options) -> list[int]:
    """The ids of the conversation so far by plain rendering and encoding."""
    return chat.model.render_chat(chat.messages, add_generation_prompt=False, **options)


def cold_logits(model, tokens):
    with model.session() as session:
        return session.prefill(tokens)


# -- events and history --------------------------------------------------------------------------------------------


def test_events_add_up_to_the_message(model):
    chat = model.chat("Be friendly.", sampling=GREEDY)
    events = list(chat.send("Hello!"))
    assert isinstance(events[-1], Done)
    assert [type(event) for event in events].count(Done) == 1
    answer = collect(iter(events))
    assert answer.content
    assert answer.reasoning
    assert answer.finish_reason == "stop"
    assert chat.messages == [
        {"role": "system", "content": "Be friendly."},
        {"role": "user", "content": "Hello!"},
        {"role": "assistant", "content": answer.content, "reasoning_content": answer.reasoning},
    ]
    kinds = [type(event) for event in events[:-1]]
    assert kinds == sorted(kinds, key=[ReasoningDelta, ContentDelta].index)
    usage = answer.done.usage
    prompt = len(model.render_chat(chat.messages[:2]))
    assert (usage.prompt_tokens, usage.cached_tokens) == (prompt, 0)
    assert chat.session.position == usage.total_tokens
    assert 0 < usage.reasoning_tokens < usage.completion_tokens
    assert answer.done.timings.prefill_seconds > 0
    assert answer.done.timings.decode_seconds > 0


def test_the_prompt_is_what_the_template_renders(model):
    chat = model.chat("S", tools=[throw_dice], sampling=GREEDY, thinking=False)
    events = chat.send("Hello!", max_tokens=1)
    next(events)
    tools = [{"type": "function", "function": chat.tools[0]["function"]}]
    messages = [{"role": "system", "content": "S"}, {"role": "user", "content": "Hello!"}]
    expected = model.render_chat(messages, tools=tools, enable_thinking=False)
    assert chat.session.tokens[: len(expected)] == expected
    events.close()


@pytest.mark.parametrize("thinking", [True, False])
def test_answers_equal_those_of_a_plain_session(model, thinking):
    chat = model.chat(sampling=GREEDY, thinking=thinking)
    for question in ("Hello!", "What is 3 plus 4?", "Say the word apple."):
        prompt = model.render_chat([*chat.messages, {"role": "user", "content": question}], enable_thinking=thinking)
        with model.session() as session:
            session.prefill(prompt)
            expected = list(session.generate(200, sampling=GREEDY))
        chat.ask(question)
        assert chat.session.tokens == prompt + expected


def test_turn_whose_thinking_is_cut_off_has_reasoning_only(model):
    for tokens in (1, 5):
        chat = model.chat(sampling=GREEDY)
        answer = chat.ask("Hello!", max_tokens=tokens)
        assert answer.content == ""
        assert answer.reasoning
        assert answer.finish_reason == "length"
        assert answer.done.usage.completion_tokens == answer.done.usage.reasoning_tokens == tokens


def test_call_in_an_unclosed_thinking_block(model, script):
    script("plan...\n" + CALL.format(3))
    chat = model.chat(tools=[throw_dice])
    answer = chat.ask("Throw.")
    assert (answer.reasoning, answer.content) == ("plan...", "")
    assert [(call.name, call.arguments) for call in answer.tool_calls] == [("throw_dice", {"faces": 3})]
    assert answer.finish_reason == "tool_calls"
    assert chat.messages[-1]["tool_calls"][0]["function"]["arguments"] == '{"faces": 3}'


def test_call_that_is_cut_off_is_not_made(model, script):
    text = "x</think>\n\n" + CALL.format(3)[:-20]
    script(text + "<cut>")
    chat = model.chat(tools=[throw_dice])
    answer = chat.ask("Throw.", max_tokens=len(model.tokenizer.encode(text)))
    assert answer.tool_calls == ()
    assert answer.finish_reason == "length"
    assert answer.done.partial_tool_call.startswith("<function=throw_dice>")
    assert "tool_calls" not in chat.messages[-1]


def test_element_without_a_call_ends_with_stop_and_not_with_an_empty_list(model, script):
    script("x</think>\n\n<tool_call>\nnothing\n</tool_call>")
    answer = model.chat(tools=[throw_dice]).ask("Throw.")
    assert (answer.finish_reason, answer.tool_calls) == ("stop", ())


def test_control_tokens_are_not_text(model, script):
    script("x</think>\n\na<|im_start|>b<|vision_start|>c")
    assert model.chat().ask("Hi").content == "abc"


# -- kept ids and reuse --------------------------------------------------------------------------------------------


def test_tool_loop_of_25_rounds_never_computes_what_is_known(model, script):
    model.cache.clear()
    rounds = 25
    # White space and tags as no template writes them: only kept ids can match.
    texts = [f" hm {at}\n\n\n</think>\n\n\n" + CALL.format(f"{at + 2}.0") + "\n" * (at % 3) for at in range(rounds)]
    script(*texts, "done</think>\n\nFinished.")
    chat = model.chat("Use tools.", tools=[throw_dice])
    finishes, usages, lengths = [], [], []

    def watch(event):
        if isinstance(event, Done):
            finishes.append(event.finish_reason)
            usages.append(event.usage)
            lengths.append(chat.session.position)

    answer = chat.run("Go.", max_rounds=rounds + 1, on_event=watch)
    assert answer.content == "Finished."
    assert finishes == ["tool_calls"] * rounds + ["stop"]
    assert [message["role"] for message in chat.messages[2:]] == ["assistant", "tool"] * rounds + ["assistant"]
    assert usages[0].cached_tokens == 0
    for before, usage in zip(lengths, usages[1:], strict=False):
        assert usage.cached_tokens == before
        assert usage.prompt_tokens - before < 24  # the end of the turn, a result and the next header
    # The state is that of the ids, computed cold.
    tokens = chat.session.tokens[: lengths[-2]]
    assert np.array_equal(cold_logits(model, tokens), _logits_at(model, chat, lengths[-2]))


def _logits_at(model, chat, position):
    with model.session() as session:
        session.prefill(chat.session.tokens[: position - 7])
        for token in chat.session.tokens[position - 7 : position]:
            logits = session.decode(token)
        return logits.copy()


def test_second_turn_without_thinking_computes_the_answer_and_the_question_only(model):
    chat = model.chat(sampling=GREEDY, thinking=False)
    first = chat.ask("Tell me a story about a dog.").done.usage
    second = chat.ask("And now one about a cat.").done.usage
    question = len(model.tokenizer.encode("And now one about a cat."))
    computed = second.prompt_tokens - second.cached_tokens
    assert second.cached_tokens > 0
    assert computed <= first.completion_tokens + question + 16


def test_preserved_thinking_is_never_computed_twice(model):
    model.cache.clear()
    chat = model.chat(sampling=GREEDY, preserve_thinking=True)
    for question in ("Hello!", "What is 3 plus 4?", "Say the word apple."):
        position = 0 if chat.session is None else chat.session.position
        usage = chat.ask(question).done.usage
        assert usage.cached_tokens == position


def test_dropped_thinking_keeps_what_is_before_it(model):
    chat = model.chat("You are a helper.", sampling=GREEDY)
    first = chat.ask("Hello!").done.usage
    usage = chat.ask("What is 3 plus 4?").done.usage
    block = len(model.tokenizer.encode("<think>\n"))
    assert usage.cached_tokens == first.prompt_tokens - block


def test_stateless_requests_find_the_ids_and_the_state_of_earlier_ones(model, script):
    texts = [f"odd  {at}\n\n\n</think>\n\n" + CALL.format(at) for at in range(3)]
    script(*texts)
    messages = [{"role": "user", "content": "A stateless conversation."}]
    position = 0
    for _ in range(3):
        with model.chat(messages=messages, tools=[throw_dice]) as chat:
            answer = chat.ask()
            assert answer.finish_reason == "tool_calls"
            assert answer.done.usage.cached_tokens == position
            position = chat.session.position
            messages = [*chat.messages, {"role": "tool", "tool_call_id": "?", "content": "ok"}]


def test_two_chats_share_system_and_tools(model):
    system = "You are the second helper of this test, with a long description. " * 4
    with model.chat(system, tools=[throw_dice], sampling=GREEDY) as first:
        first.ask("Hello!", max_tokens=2)
    block = (
        model.render_chat(
            [{"role": "system", "content": system}, {"role": "user", "content": "x"}], tools=first.tools
        ).index(model.tokenizer.token_id("<|im_end|>"))
        + 2
    )
    second = model.chat(system, tools=[throw_dice], sampling=GREEDY)
    assert second.ask("Something else", max_tokens=2).done.usage.cached_tokens == block


def test_edited_history_is_computed_as_it_is(model):
    chat = model.chat(sampling=GREEDY, thinking=False)
    chat.ask("Hello!")
    messages = chat.messages
    messages[1]["content"] = "Good day."
    chat.reset(messages)
    chat.ask("What is 3 plus 4?", max_tokens=3)
    prompt = model.render_chat(chat.messages[:3], enable_thinking=False)
    assert chat.session.tokens[: len(prompt)] == prompt


# -- tools ---------------------------------------------------------------------------------------------------------


def test_stop_string_across_tokens(model, script):
    script("thinking STOP here</think>\n\nHello to the world, my friends.")
    chat = model.chat()
    events = list(chat.send("Hi", stop=["the wor", "friends"]))
    answer = collect(iter(events))
    assert answer.content == "Hello to "
    assert answer.reasoning == "thinking STOP here"
    assert (answer.finish_reason, answer.done.stop_string) == ("stop", "the wor")
    assert chat.messages[-1]["content"] == "Hello to "


def test_text_that_only_begins_like_a_stop_string_is_delivered(model, script):
    script("</think>\n\nHello to the wo")
    assert model.chat(stop="the wor").ask("Hi").content == "Hello to the wo"


def test_turn_after_a_stop_string_renders_what_was_said(model, script):
    script("</think>\n\nHello to the world.", "</think>\n\nYes.")
    chat = model.chat(preserve_thinking=True)
    chat.ask("Hi", stop="wor")
    messages = [*chat.messages, {"role": "user", "content": "And?"}]
    chat.ask("And?")
    prompt = model.render_chat(messages, preserve_thinking=True)
    assert chat.session.tokens[: len(prompt)] == prompt


def test_context_that_is_full(model):
    chat = model.chat()
    with pytest.raises(ContextOverflowError):
        chat.ask("word " * 5000)
    assert chat.messages == []
    assert chat.ask("Hi", max_tokens=1).finish_reason == "length"


def test_no_tokens(model):
    chat = model.chat()
    answer = chat.ask("Hi", max_tokens=0)
    assert (answer.content, answer.reasoning, answer.finish_reason) == ("", "", "length")
    assert chat.messages == []


# -- seeds, logprobs -----------------------------------------------------------------------------------------------


def test_seed_decides_whatever_the_cache_holds(model):
    texts = set()
    for run in range(3):
        if run == 2:
            model.cache.clear()
        with model.chat(seed=11, sampling=Sampling(temperature=6.0), thinking=False) as chat:
            texts.add(chat.ask("Tell me a story.", max_tokens=24).content)
    assert len(texts) == 1
    with model.chat(seed=12, sampling=Sampling(temperature=6.0), thinking=False) as chat:
        assert chat.ask("Tell me a story.", max_tokens=24).content not in texts


def test_logprobs_come_with_the_text_they_belong_to(model):
    chat = model.chat(sampling=GREEDY, logprobs=2)
    events = [event for event in chat.send("Hello!") if isinstance(event, (ReasoningDelta, ContentDelta))]
    for kind in (ReasoningDelta, ContentDelta):
        tokens = [token for event in events if isinstance(event, kind) for token in event.logprobs]
        text = b"".join(token.bytes for token in tokens).decode()
        assert "".join(event.text for event in events if isinstance(event, kind)) in text
        assert all(token.logprob <= 0 and len(token.top) == 2 for token in tokens)
        assert all(token.top[0].id == token.id for token in tokens)  # greedy


# -- cancellation, threads, errors ---------------------------------------------------------------------------------


def test_cancel_ends_the_turn_with_a_whole_history(model):
    chat = model.chat(sampling=GREEDY)
    events = []
    for event in chat.send("Tell me a story about a dog."):
        events.append(event)
        if len(events) == 3:
            chat.cancel()
    assert events[-1].finish_reason == "cancelled"
    assert len(events) <= 6
    assert chat.messages[-1]["role"] == "assistant"
    assert chat.ask("Hello!").finish_reason == "stop"


def test_cancel_from_another_thread(model):
    chat = model.chat(sampling=Sampling(temperature=2.0, logit_bias={4065: -100.0, 4063: -100.0}))
    timer = threading.Timer(0.2, chat.cancel)
    timer.start()
    answer = chat.ask("Hello!", max_tokens=3000)
    timer.join()
    assert answer.finish_reason == "cancelled"
    assert answer.done.usage.completion_tokens < 3000


def test_cancel_while_the_prompt_is_computed(model):
    chat = model.chat(sampling=GREEDY)
    events = list(chat.send("word " * 1500, progress=lambda done, total: chat.cancel()))
    assert [type(event) for event in events] == [Done]
    assert events[0].finish_reason == "cancelled"
    assert chat.messages == []
    assert chat.ask("Hello!").finish_reason == "stop"


def test_leaving_early_keeps_the_turn(model):
    chat = model.chat(sampling=GREEDY)
    for event in chat.send("Hello!"):
        if isinstance(event, ReasoningDelta):
            break
    assert [message["role"] for message in chat.messages] == ["user", "assistant"]
    assert chat.messages[1]["reasoning_content"] == event.text
    assert chat.ask("Hello again!").finish_reason == "stop"


def test_interrupt_leaves_a_usable_chat(model, monkeypatch):
    chat = model.chat(sampling=GREEDY)
    events = chat.send("Hello!")
    next(events)
    with pytest.raises(KeyboardInterrupt):
        events.throw(KeyboardInterrupt())
    assert chat.messages[-1]["role"] == "assistant"
    assert chat.ask("Hello again!").finish_reason == "stop"


def test_second_caller_is_refused(model):
    chat = model.chat(sampling=GREEDY)
    events = chat.send("Hello!")
    next(events)
    for call in (lambda: chat.ask("x"), lambda: chat.reset(), lambda: chat.close(), lambda: chat.run("x", tools=[])):
        with pytest.raises(BusyError, match="of this chat is running"):
            call()
    assert list(events)[-1].finish_reason == "stop"


def test_chats_of_one_model_in_several_threads_do_not_mix(model):
    questions = ["Hello!", "What is 3 plus 4?", "Say the word apple.", "Tell me a story about a dog."]
    expected = [model.chat(sampling=GREEDY).ask(question).content for question in questions]
    results = [None] * 8

    def work(at):
        results[at] = model.chat(sampling=GREEDY).ask(questions[at % 4]).content

    threads = [threading.Thread(target=work, args=(at,)) for at in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == expected * 2


def test_errors_come_before_anything_is_computed(model):
    chat = model.chat()
    with pytest.raises(InvalidArgumentError, match="unknown option 'max_token'"):
        chat.send("x", max_token=3)
    image = [{"type": "image_url", "image_url": {"url": "data:,"}}]
    with pytest.raises(TemplateError, match="message 0, part 0 is of type 'image_url'"):
        chat.ask(image)
    assert chat.messages == []
    assert chat.session is None
    chat.ask("Hi", max_tokens=2)
    with pytest.raises(InvalidArgumentError, match="ends with an answer"):
        chat.ask()


def test_later_system_messages(model):
    messages = [{"role": "user", "content": "Hi"}, {"role": "system", "content": "Be brief."}]
    with pytest.raises(TemplateError, match="message 1 is a system message"):
        model.chat(messages=messages).ask()
    assert model.chat(messages=messages, later_system="convert").ask(max_tokens=1).finish_reason == "length"


def test_reset_and_close(model):
    chat = model.chat("S", sampling=GREEDY)
    chat.ask("Hello!", max_tokens=2)
    chat.reset()
    assert chat.messages == [{"role": "system", "content": "S"}]
    chat.close()
    assert chat.session is None
    assert chat.ask("Hello!", max_tokens=2).finish_reason == "length"
    assert "messages=3" in repr(chat)


def test_event_kinds_of_a_call(model, script):
    script("a</think>\n\nb\n\n" + CALL.format(2))
    kinds = [type(event) for event in model.chat(tools=[throw_dice, other_tool]).send("x")]
    assert kinds == [ReasoningDelta, ContentDelta, ToolCallEvent, Done]
