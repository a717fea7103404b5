"""Tests of lily chat: one question, piped turns, the interactive loop, and the conversation that comes of it."""

import dataclasses
import re

import pytest

from lily.cli import main
from lily.errors import ContextOverflowError

pytest.importorskip("typer")
from fake_model import Interrupt

THOUGHT = "Let me see.\n</think>\n\nHello there!"


def test_one_question(talker, capsys):
    talker(THOUGHT)
    assert main(["chat", "-p", "Hi"]) == 0
    captured = capsys.readouterr()
    assert captured.out == "Hello there!\n"
    assert captured.err == ""  # quiet when piped


def test_thinking_is_shown_on_request(talker, capsys):
    talker(THOUGHT)
    assert main(["chat", "-p", "Hi", "--show-thinking"]) == 0
    assert capsys.readouterr().out == "Let me see.\n\nHello there!\n"


def test_no_thinking_reaches_the_template(talker, capsys):
    talk = talker("Hello <think> there")
    assert main(["chat", "-p", "Hi", "--no-thinking", "--system", "Be kind."]) == 0
    assert capsys.readouterr().out == "Hello <think> there\n"
    messages = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi"}]
    assert talk.messages[:-1] == messages
    assert talk.prompts == [talk.model.render_chat(messages, enable_thinking=False)]


def test_a_stop_token_ends_the_answer(talker, capsys):
    talker("</think>\n\nOne.<|im_end|>\n<|im_start|>user\nTwo")
    assert main(["chat", "-p", "Hi"]) == 0
    assert capsys.readouterr().out == "One.\n"


def test_whole_characters_only(talker, capsys):
    talk = talker("")
    byte = {talk.model.tokenizer.token_bytes(token): token for token in range(4000)}
    talk.answers[0][:0] = [
        talk.model.tokenizer.token_id("</think>"),
        *(byte[bytes([b])] for b in "č😀".encode()[:-1]),
    ]
    assert main(["chat", "-p", "Hi"]) == 0
    assert capsys.readouterr().out == "č\ufffd\n"


def test_running_out_inside_the_thinking_is_explained(talker, capsys):
    talker("I think and think and think and think")
    assert main(["chat", "-p", "Hi", "--max-tokens", "5"]) == 0
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "--max-tokens ended the thinking" in captured.err


def test_piped_lines_are_turns_of_one_conversation(talker, stdin, capsys):
    talk = talker("r1\n</think>\n\nB", "r2\n</think>\n\nD")
    stdin("A\n\n  C  \n/quit\nnever asked\n")
    assert main(["chat"]) == 0
    assert capsys.readouterr().out == "B\nD\n"
    assert talk.messages == [
        {"role": "user", "content": "A"},
        {"role": "assistant", "content": "B", "reasoning_content": "r1"},
        {"role": "user", "content": "C"},
        {"role": "assistant", "content": "D", "reasoning_content": "r2"},
    ]
    # This template drops earlier thinking.
    assert talk.prompts == [talk.model.render_chat(talk.messages[:end]) for end in (1, 3)]


def test_reset_forgets_all_but_the_system_message(talker, stdin, capsys):
    talk = talker("</think>\n\nB", "</think>\n\nD")
    stdin("A\n/reset\n/help\n/nonsense\nC\n")
    assert main(["chat", "--system", "S"]) == 0
    assert capsys.readouterr().out == "B\nD\n"
    assert talk.messages[:-1] == [{"role": "system", "content": "S"}, {"role": "user", "content": "C"}]
    assert talk.prompts[1] == talk.model.render_chat(talk.messages[:-1])


def test_an_error_ends_piped_chats(talker, stdin, capsys):
    talker([ContextOverflowError("the context is full")], "</think>\n\nnever")
    stdin("A\nB\n")
    assert main(["chat"]) == 1
    assert capsys.readouterr().err == "lily: the context is full\n"


@pytest.mark.parametrize(
    ("arguments", "changes"),
    [
        ([], {}),
        (["--temperature", "0.3", "--top-k", "7"], {"temperature": 0.3, "top_k": 7}),
        (["--top-p", "0.5", "--min-p", "0.1"], {"top_p": 0.5, "min_p": 0.1}),
        (["--greedy"], {"temperature": 0.0}),
        (["--temperature", "0"], {"temperature": 0.0}),
        (["--greedy", "--temperature", "2"], {"temperature": 0.0}),
    ],
)
def test_sampling_options_change_the_recommended_ones(talker, arguments, changes):
    talk = talker("</think>\n\nB")
    assert main(["chat", "-p", "A", "--seed", "17", *arguments]) == 0
    assert talk.samplings == [dataclasses.replace(talk.model.default_sampling, **changes)]
    assert talk.options["seed"] == 17


def test_interactive_chat(talker, stdin, terminal):
    output, errors = terminal()
    talk = talker(THOUGHT, "</think>\n\nBye")
    stdin("Hi\n\n/help\n/reset\nSo long\n/quit\nnever asked\n", terminal=True)
    assert main(["chat"]) == 0
    questions = [[{"role": "user", "content": text}] for text in ("Hi", "So long")]  # /reset between them
    assert talk.prompts == [talk.model.render_chat(messages) for messages in questions]
    shown = re.sub(r"\x1b\[\d+m", "", output.getvalue())
    assert "Let me see.\n\nHello there!\n" in shown
    assert "\x1b[2mLet me see.\x1b[0m\n\nHello" in output.getvalue()  # thinking is dimmed
    notes = errors.getvalue()
    assert (
        len(re.findall(r"prefill \d+ tokens(?: \(\d+ reused\))?, [\d.]+ tok/s; decode \d+ tokens, [\d.]+ tok/s", notes))
        == 2
    )
    assert "Ctrl-C" in notes


def test_ctrl_c_stops_the_answer_and_not_the_program(talker, stdin, terminal):
    output, errors = terminal()
    talk = talker(["</think>\n\nHalf an ans", Interrupt()], "</think>\n\nWhole")
    stdin("A\nB\n", terminal=True)
    assert main(["chat"]) == 0
    assert "Half an ans\n" in output.getvalue()
    assert "Whole\n" in output.getvalue()
    assert "stopped" in errors.getvalue()
    assert talk.messages[1] == {"role": "assistant", "content": "Half an ans"}


def test_ctrl_c_at_the_prompt_does_not_leave(talker, stdin, terminal, monkeypatch):
    output, errors = terminal()
    talker("</think>\n\nB")
    lines = iter([KeyboardInterrupt(), "A", EOFError()])

    def type_line(prompt):
        line = next(lines)
        if isinstance(line, BaseException):
            raise line
        return line

    monkeypatch.setattr("builtins.input", type_line)
    stdin("", terminal=True)
    assert main(["chat"]) == 0
    assert "B\n" in output.getvalue()
    assert "/quit or Ctrl-D leaves" in errors.getvalue()


def test_an_error_in_a_turn_keeps_the_conversation(talker, stdin, terminal):
    output, errors = terminal()
    talker([ContextOverflowError("the context is full")], "</think>\n\nWhole")
    stdin("A\nB\n", terminal=True)
    assert main(["chat"]) == 0
    assert "the context is full" in errors.getvalue()
    assert "Whole\n" in output.getvalue()


def test_control_characters_cannot_drive_the_terminal(talker, stdin, terminal):
    output, _ = terminal()
    talker("</think>\n\na\x1b]0;title\x07\tb\r\x9b1m")
    stdin("A\n", terminal=True)
    assert main(["chat"]) == 0
    shown = re.sub(r"\x1b\[\d+m", "", output.getvalue())
    assert "a\u241b]0;title\u2407\tb\u240d\ufffd1m" in shown


def test_no_color_is_respected(talker, stdin, terminal, monkeypatch):
    output, errors = terminal()
    monkeypatch.setenv("NO_COLOR", "1")
    talker(THOUGHT)
    stdin("A\n", terminal=True)
    assert main(["chat"]) == 0
    assert "\x1b[2m" not in output.getvalue() + errors.getvalue()


def test_a_long_prompt_shows_a_bar_on_a_terminal(talker, terminal):
    _, errors = terminal()
    talker("</think>\n\nB")
    assert main(["chat", "-p", "word " * 400]) == 0
    assert "prefill" in errors.getvalue().partition("tok/s")[0]
