"""Options of a turn hold on every path: one call only, stop strings, limits and log-probabilities around calls."""

import pytest

import lily
from lily.chat import ContentDelta, ReasoningDelta, ToolCallDelta, ToolCallEvent
from parsing import call_text, tool

GREEDY = lily.Sampling.greedy()
DICE = tool("throw_dice", ["faces"], faces={"type": "integer"})
NAMED = tool("say", ["text"], text={"type": "string"})
TOOLS = [DICE, NAMED]
CALL, OTHER = call_text("throw_dice", faces=6), call_text("throw_dice", faces=8)
DRAFT = call_text("say", text="rm -rf build")


def events_of(model, **options):
    with model.chat(sampling=GREEDY, tools=TOOLS, **options) as chat:
        events = list(chat.send("Go"))
    return events, events[-1]


def faces_of(events):
    return [event.call.arguments.get("faces") for event in events if isinstance(event, ToolCallEvent)]


def text_of(events, kind=ContentDelta):
    return "".join(event.text for event in events if isinstance(event, kind))


# -- one call only -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("deltas", [False, True])
@pytest.mark.parametrize("between", ["\n", "", "\n\nAnd:\n\n"])
def test_generation_ends_behind_the_one_call_that_is_allowed(model, script, deltas, between):
    script(f"x</think>\n\nA\n\n{CALL}{between}{OTHER}")
    events, done = events_of(model, parallel_tool_calls=False, call_deltas=deltas)
    assert faces_of(events) == [6]
    assert done.finish_reason == "tool_calls"
    assert text_of(events) == "A"
    spoken = f"x</think>\n\nA\n\n{CALL}"
    assert done.usage.completion_tokens == len(model.tokenizer.encode(spoken))
    assert len({event.id for event in events if isinstance(event, ToolCallDelta)}) == deltas


def test_several_calls_are_made_where_they_are_allowed(model, script):
    script(f"x</think>\n\n{CALL}\n{OTHER}")
    assert faces_of(events_of(model)[0]) == [6, 8]


@pytest.mark.parametrize(
    "output",
    [
        f"x</think>\n\n{CALL.removesuffix('</tool_call>')}{OTHER.removeprefix('<tool_call>')}",
        f"x\n\n{CALL}\n{OTHER}",
        f"x</think>\n\nSure.{CALL}\n{OTHER}",
        '</think>\n\n<tool_call>\n[{"name": "throw_dice", "arguments": {"faces": 6}}, {"name": "say"}]\n</tool_call>',
        '</think>\n\n<tool_call>\n{"name": "throw_dice", "arguments": {"faces": 6}}\n{"name": "say"}\n</tool_call>',
        f"</think>\n\n<tool_call>\n<function=throw_dice>\n<parameter=faces>\n6\n{OTHER}",
        f"</think>\n\n{CALL[12:-13]}\n\n{OTHER[12:-13]}",
    ],
)
@pytest.mark.parametrize("deltas", [False, True])
def test_one_call_whatever_the_calls_look_like(model, script, output, deltas):
    script(output)
    events, done = events_of(model, parallel_tool_calls=False, call_deltas=deltas)
    assert faces_of(events) == [6]
    assert done.finish_reason == "tool_calls"
    assert len({event.id for event in events if isinstance(event, ToolCallDelta)}) == deltas


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (CALL.removesuffix("</tool_call>"), "<function=say>\n<parameter=text>\n"),
        ('<tool_call>\n{"name": "throw_dice", "arguments": {"faces": 6}}\n', '{"name": "say", "arguments": {"text": "'),
    ],
)
def test_a_second_call_in_the_same_wrapper_is_not_waited_for(model, script, first, second):
    begun = f"x</think>\n\n{first}"
    script(begun + second + "more " * 20)
    events, done = events_of(model, parallel_tool_calls=False)
    assert faces_of(events) == [6]
    assert done.usage.completion_tokens <= len(model.tokenizer.encode(begun)) + 8


def test_one_call_of_a_forced_turn(model):
    pytest.importorskip("llguidance")
    options = {"tool_choice": {"name": "throw_dice"}, "parallel_tool_calls": False, "thinking": False}
    events, done = events_of(model, max_tokens=200, **options)
    assert len(faces_of(events)) == 1
    assert done.finish_reason == "tool_calls"


def test_one_call_in_every_alternative(model, script):
    script(*[f"x</think>\n\n{CALL}\n{OTHER}"] * 2)
    with model.chat(sampling=GREEDY, tools=TOOLS, parallel_tool_calls=False) as chat:
        events = list(chat.alternatives("Go", count=2))
    for index in range(2):
        assert faces_of([event for at, event in events if at == index]) == [6]
    assert [event.finish_reason for _, event in events if isinstance(event, lily.chat.Done)] == ["tool_calls"] * 2


def test_the_conversation_goes_on_behind_the_one_call(model, script):
    with model.chat(sampling=GREEDY, tools=TOOLS, parallel_tool_calls=False) as chat:
        script(f"x</think>\n\n{CALL}\n{OTHER}", "y</think>\n\nDone.")
        answer = chat.ask("Go")
        chat.add_tool_result(answer.tool_calls[0], 3)
        again = chat.ask()
        assert again.content == "Done."
        spoken = answer.done.usage
        assert again.done.usage.cached_tokens >= spoken.prompt_tokens + spoken.completion_tokens - 1
        assert len(chat.messages[1]["tool_calls"]) == 1


# -- the thinking --------------------------------------------------------------------------------------------------


def test_a_draft_is_no_call_of_the_turn(model, script):
    script(f"I could run\n\n{DRAFT}\n\nNo.\n</think>\n\nShall I delete it?")
    events, done = events_of(model, call_deltas=True)
    assert not [event for event in events if isinstance(event, (ToolCallEvent, ToolCallDelta))]
    assert text_of(events) == "Shall I delete it?"
    assert text_of(events, ReasoningDelta) == f"I could run\n\n{DRAFT}\n\nNo."
    assert (done.finish_reason, done.warnings) == ("stop", ())


@pytest.mark.parametrize(
    ("output", "reason", "warned"),
    [
        ("I think", "stop", True),
        (f"I think {DRAFT} no", "stop", True),
        ("I think<cut>", "length", False),
        ("I think</think>\n\nYes.", "stop", False),
        (f"I think\n\n{CALL}", "tool_calls", False),
    ],
)
def test_an_answer_that_ends_in_its_thinking_is_flagged(model, script, output, reason, warned):
    script(output)
    limit = len(model.tokenizer.encode(output.removesuffix("<cut>"))) if output.endswith("<cut>") else None
    _, done = events_of(model, max_tokens=limit)
    assert done.finish_reason == reason
    assert done.warnings == (("the answer ended inside its thinking",) if warned else ())


# -- no calls, cut calls, stop strings -----------------------------------------------------------------------------


def test_a_call_where_none_is_allowed_is_text(model, script):
    script(f"x</think>\n\n{CALL}")
    events, done = events_of(model, tool_choice="none", call_deltas=True)
    assert text_of(events) == CALL
    assert done.finish_reason == "stop"


def test_a_call_that_the_limit_cuts_off_is_none(model, script):
    output = f"x</think>\n\nA\n\n{CALL}"
    ids = model.tokenizer.encode(output)
    for limit in range(len(model.tokenizer.encode("x</think>\n\nA\n\n")) + 1, len(ids)):
        script(output)
        events, done = events_of(model, max_tokens=limit)
        if "</function>" in model.tokenizer.decode(ids[:limit]):
            break
        assert (faces_of(events), done.finish_reason, text_of(events)) == ([], "length", "A")
        assert done.partial_tool_call


def test_stop_strings_are_looked_for_in_content_only(model, script):
    spoken = call_text("say", text="STOP")
    script(f"STOP</think>\n\nA\n\n{spoken}\n\nand STOP more")
    events, done = events_of(model, stop="STOP")
    assert [event.call.arguments for event in events if isinstance(event, ToolCallEvent)] == [{"text": "STOP"}]
    assert (text_of(events), done.finish_reason, done.stop_string) == ("A\n\nand ", "stop", "STOP")


def test_no_stop_string_reaches_across_a_call(model, script):
    script(f"x</think>\n\nA ST\n\n{CALL}\nOP and more")
    events, done = events_of(model, stop="ST\n\nOP", call_deltas=True)
    assert text_of(events) == "A ST\n\nOP and more"
    assert done.stop_string is None
    first = next(at for at, event in enumerate(events) if isinstance(event, ToolCallDelta))
    assert text_of(events[:first]) == "A ST"


def test_a_stop_string_before_a_call_ends_the_turn(model, script):
    script(f"x</think>\n\nA STOP\n\n{CALL}")
    events, done = events_of(model, stop="STOP")
    assert (text_of(events), faces_of(events), done.finish_reason) == ("A ", [], "stop")


# -- log-probabilities ---------------------------------------------------------------------------------------------

OUTPUTS = [
    "Let me think.\n</think>\n\nThe answer is \u010desk\u00fd \U0001f600!",
    f"x\n\n{DRAFT}\n\nno\n</think>\n\nText before.\n\n{CALL}\n\nText after.\n",
    f"x\n\n{CALL}",
    "x</think>\n\n\n\n  Indented.\n\n\nEnd  \n\n",
    f"x</think>\n\n```\n{CALL}\n```\n\nSee `<tool_call>`?",
    "x</think>\n\nA stop here",
]


@pytest.mark.parametrize("output", OUTPUTS)
@pytest.mark.parametrize("stop", [(), ("top he",), ("swer", "xt af")])
def test_logprobs_spell_the_text_that_they_come_with(model, script, output, stop):
    script(output)
    assert_spelled(events_of(model, logprobs=2, stop=stop)[0])


@pytest.mark.parametrize("thinking", [0, 1, 5])
def test_logprobs_spell_words_that_were_put_in(model, thinking):
    events, _ = events_of(model, logprobs=1, max_tokens=60, max_thinking_tokens=thinking)
    assert_spelled(events)
    put_in = [
        token for event in events if isinstance(event, ReasoningDelta) for token in event.logprobs if not token.top
    ]
    assert "".join(token.token for token in put_in) in text_of(events, ReasoningDelta)
    assert ("limited time" in text_of(events, ReasoningDelta)) == bool(thinking)


def assert_spelled(events):
    texts = [event for event in events if isinstance(event, (ContentDelta, ReasoningDelta))]
    assert texts
    for event in texts:
        data = b"".join(token.bytes for token in event.logprobs)
        assert data.decode("utf-8", "replace") == event.text
        assert "".join(token.token for token in event.logprobs) == event.text
        assert all(token.logprob <= 0 for token in event.logprobs)


def test_logprobs_spell_nothing_where_they_were_not_asked_for(model, script):
    script(OUTPUTS[0])
    events, _ = events_of(model)
    assert all(event.logprobs == () for event in events if isinstance(event, (ContentDelta, ReasoningDelta)))
