"""Tools called in a loop: real rounds, errors told to the model, limits, results by hand."""

import pytest

from lily import Sampling
from lily.errors import InvalidArgumentError

GREEDY = Sampling.greedy()
CALL = "<tool_call>\n<function=throw_dice>\n<parameter=faces>\n{}\n</parameter>\n</function>\n</tool_call>"


def throw_dice(faces: int) -> int:
    """Throw a die with some sides.

    Args:
        faces: Number of sides
    """
    return 4


def test_real_tool_round(model):
    seen = []

    def throw_dice(faces: int) -> int:
        """Throw a die with some sides.

        Args:
            faces: Number of sides
        """
        seen.append(faces)
        return 4

    chat = model.chat(sampling=GREEDY)
    answer = chat.run("Throw a die with 6 sides", tools=[throw_dice])
    assert seen == [6]
    assert "4" in answer.content
    assert answer.finish_reason == "stop"


def test_errors_of_tools_are_told_to_the_model(model, script):
    def throw_dice(faces: int) -> int:
        """Throw."""
        raise ZeroDivisionError("no such die")

    unknown = CALL.format(1).replace("throw_dice", "fly")
    script(
        "</think>\n\n" + CALL.format(6) + "\n" + CALL.format(6).replace("faces", "sides") + "\n" + unknown,
        "</think>\n\nSorry.",
    )
    chat = model.chat()
    answer = chat.run("Throw.", tools=[throw_dice])
    assert answer.content == "Sorry."
    results = [message["content"] for message in chat.messages if message["role"] == "tool"]
    assert results[0] == "Error: ZeroDivisionError: no such die"
    assert results[1].startswith("Error: TypeError")
    assert results[2] == "Error: there is no tool 'fly'; the tools are throw_dice"


def test_rounds_are_limited(model, script):
    script(*["</think>\n\n" + CALL.format(6)] * 3)
    chat = model.chat(tools=[throw_dice])
    assert chat.run("Throw.", max_rounds=2).finish_reason == "tool_calls"
    assert [message["role"] for message in chat.messages] == ["user", "assistant", "tool", "assistant"]
    with pytest.raises(InvalidArgumentError, match="max_rounds"):
        chat.run("x", max_rounds=0)


def test_tools_that_only_the_caller_can_run_end_the_loop(model, script):
    script("</think>\n\n" + CALL.format(6))
    definition = model.chat(tools=[throw_dice]).tools[0]
    chat = model.chat(tools=[definition])
    answer = chat.run("Throw.")
    assert answer.finish_reason == "tool_calls"
    assert chat.messages[-1]["role"] == "assistant"


def test_results_by_hand_in_any_order(model, script):
    script("</think>\n\n" + CALL.format(6) + "\n" + CALL.format(8), "</think>\n\nDone.")
    chat = model.chat(tools=[throw_dice])
    first, second = chat.ask("Throw two.").tool_calls
    chat.add_tool_result(second, {"value": 8})
    with pytest.raises(InvalidArgumentError, match="no call with the id"):
        chat.add_tool_result(second, "again")
    chat.add_tool_result(first.id, "six")
    with pytest.raises(InvalidArgumentError, match="no call with the id"):
        chat.add_tool_result("call_x", "?")
    answer = chat.ask()
    assert answer.content == "Done."
    text = model.tokenizer.decode(chat.session.tokens)
    assert text.index("\nsix\n") < text.index('\n{"value": 8}\n')


# -- stops and limits ----------------------------------------------------------------------------------------------
