"""Tests of lily chat: one question, piped turns, the interactive loop, and what the session is given."""

import re

import pytest

from lily.cli import main
from lily.errors import ContextOverflowError

pytest.importorskip("typer")
from fake_model import FakeSampling, Interrupt

THOUGHT = "Let me see.\n</think>\n\nHello there!"


def test_one_question(fake, capsys):
    fake(THOUGHT)
    assert main(["chat", "-p", "Hi"]) == 0
    captured = capsys.readouterr()
    assert captured.out == "Hello there!\n"
    assert captured.err == ""  # quiet when piped


def test_thinking_is_shown_on_request(fake, capsys):
    fake(THOUGHT)
    assert main(["chat", "-p", "Hi", "--show-thinking"]) == 0
    assert capsys.readouterr().out == "Let me see.\n\nHello there!\n"


def test_no_thinking_reaches_the_template(fake, capsys):
    model = fake("Hello <think> there")
    assert main(["chat", "-p", "Hi", "--no-thinking", "--system", "Be kind."]) == 0
    assert capsys.readouterr().out == "Hello <think> there\n"
    assert model.template_options == [{"enable_thinking": False}]
    assert model.prompts == [[{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi"}]]


def test_a_stop_token_ends_the_answer(fake, capsys):
    fake("</think>\n\nOne.<|im_end|>\n<|im_start|>user\nTwo")
    assert main(["chat", "-p", "Hi"]) == 0
    assert capsys.readouterr().out == "One.\n"


def test_whole_characters_only(fake, capsys):
    model = fake("")
    byte = {model.tokenizer.token_bytes(token): token for token in range(4000)}
    model.answers[0] = [
        model.tokenizer.token_id("</think>"),
        *(byte[bytes([b])] for b in "č😀".encode()[:-1]),
    ]
    assert main(["chat", "-p", "Hi"]) == 0
    assert capsys.readouterr().out == "č\ufffd\n"


def test_running_out_inside_the_thinking_is_explained(fake, capsys):
    fake("I think and think and think and think")
    assert main(["chat", "-p", "Hi", "--max-tokens", "5"]) == 0
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "--max-tokens ended the thinking" in captured.err


def test_piped_lines_are_turns_of_one_conversation(fake, stdin, capsys):
    model = fake("r1\n</think>\n\nB", "r2\n</think>\n\nD")
    stdin("A\n\n  C  \n/quit\nnever asked\n")
    assert main(["chat"]) == 0
    assert capsys.readouterr().out == "B\nD\n"
    assert len(model.sessions) == 1
    assert model.prompts[1] == [
        {"role": "user", "content": "A"},
        {"role": "assistant", "content": "B", "reasoning_content": "r1\n"},
        {"role": "user", "content": "C"},
    ]


def test_reset_forgets_all_but_the_system_message(fake, stdin, capsys):
    model = fake("</think>\n\nB", "</think>\n\nD")
    stdin("A\n/reset\n/help\n/nonsense\nC\n")
    assert main(["chat", "--system", "S"]) == 0
    assert capsys.readouterr().out == "B\nD\n"
    assert model.prompts[1] == [{"role": "system", "content": "S"}, {"role": "user", "content": "C"}]


def test_an_error_ends_piped_chats(fake, stdin, capsys):
    fake([ContextOverflowError("the context is full")], "</think>\n\nnever")
    stdin("A\nB\n")
    assert main(["chat"]) == 1
    assert capsys.readouterr().err == "lily: the context is full\n"


def test_the_session_always_holds_the_rendered_prompt(fake, stdin):
    model = fake("r1\n</think>\n\nB<|im_end|>", "r2\n</think>\n\nD<|im_end|>")
    stdin("A\nC\n")
    assert main(["chat"]) == 0
    session = model.sessions[0]
    # This template drops earlier thinking, so the second prompt does not continue the session: all of it is
    # computed again, from an empty session.
    second = model.tokenizer.encode(model.template.render(model.prompts[1]))
    assert session.prefills[1] == second
    assert session.tokens[: len(second)] == second


def test_ids_that_continue_the_session_are_kept(fake, stdin):
    model = fake("r1\n</think>\n\nB<|im_end|>", "r2\n</think>\n\nD<|im_end|>")
    render = model.template.render
    model.template = type("Keeping", (), {"render": staticmethod(lambda m, **o: render(m, preserve_thinking=True))})
    stdin("A\nC\n")
    assert main(["chat"]) == 0
    session = model.sessions[0]
    assert session.resets == 1  # before the first turn only
    text = "<|im_end|>\n<|im_start|>user\nC<|im_end|>\n<|im_start|>assistant\n<think>\n"
    assert model.tokenizer.decode(session.prefills[1]) == text


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], FakeSampling()),
        (["--temperature", "0.3", "--top-k", "7"], FakeSampling(temperature=0.3, top_k=7)),
        (["--top-p", "0.5", "--min-p", "0.1"], FakeSampling(top_p=0.5, min_p=0.1)),
        (["--greedy"], FakeSampling(temperature=0.0)),
        (["--temperature", "0"], FakeSampling(temperature=0.0)),
        (["--greedy", "--temperature", "2"], FakeSampling(temperature=0.0)),
    ],
)
def test_sampling_options_change_the_recommended_ones(fake, arguments, expected):
    model = fake("</think>\n\nB")
    assert main(["chat", "-p", "A", "--seed", "17", *arguments]) == 0
    assert model.sessions[0].samplings == [expected]
    assert model.sessions[0].seed == 17


def test_interactive_chat(fake, stdin, terminal):
    output, errors = terminal()
    model = fake(THOUGHT, "</think>\n\nBye")
    stdin("Hi\n\n/help\n/reset\nSo long\n/quit\nnever asked\n", terminal=True)
    assert main(["chat"]) == 0
    assert [prompt[-1]["content"] for prompt in model.prompts] == ["Hi", "So long"]
    assert len(model.prompts[1]) == 1  # /reset
    shown = re.sub(r"\x1b\[\d+m", "", output.getvalue())
    assert "Let me see.\n\nHello there!\n" in shown
    assert "\x1b[2mLet me see.\n\x1b[0m\nHello" in output.getvalue()  # thinking is dimmed
    notes = errors.getvalue()
    assert len(re.findall(r"prefill \d+ tokens, [\d.]+ tok/s; decode \d+ tokens, [\d.]+ tok/s", notes)) == 2
    assert "Ctrl-C" in notes


def test_ctrl_c_stops_the_answer_and_not_the_program(fake, stdin, terminal):
    output, errors = terminal()
    model = fake(["</think>\n\nHalf an ans", Interrupt()], "</think>\n\nWhole")
    stdin("A\nB\n", terminal=True)
    assert main(["chat"]) == 0
    assert "Half an ans\n" in output.getvalue()
    assert "Whole\n" in output.getvalue()
    assert "stopped" in errors.getvalue()
    assert model.prompts[1][1] == {"role": "assistant", "content": "Half an ans"}


def test_ctrl_c_at_the_prompt_does_not_leave(fake, stdin, terminal, monkeypatch):
    output, errors = terminal()
    fake("</think>\n\nB")
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


def test_an_error_in_a_turn_keeps_the_conversation(fake, stdin, terminal):
    output, errors = terminal()
    fake([ContextOverflowError("the context is full")], "</think>\n\nWhole")
    stdin("A\nB\n", terminal=True)
    assert main(["chat"]) == 0
    assert "the context is full" in errors.getvalue()
    assert "Whole\n" in output.getvalue()


def test_control_characters_cannot_drive_the_terminal(fake, stdin, terminal):
    output, _ = terminal()
    fake("</think>\n\na\x1b]0;title\x07\tb\r\x9b1m")
    stdin("A\n", terminal=True)
    assert main(["chat"]) == 0
    shown = re.sub(r"\x1b\[\d+m", "", output.getvalue())
    assert "a\u241b]0;title\u2407\tb\u240d\ufffd1m" in shown


def test_no_color_is_respected(fake, stdin, terminal, monkeypatch):
    output, errors = terminal()
    monkeypatch.setenv("NO_COLOR", "1")
    fake(THOUGHT)
    stdin("A\n", terminal=True)
    assert main(["chat"]) == 0
    assert "\x1b[2m" not in output.getvalue() + errors.getvalue()


def test_a_long_prompt_shows_a_bar_on_a_terminal(fake, terminal):
    _, errors = terminal()
    fake("</think>\n\nB")
    assert main(["chat", "-p", "word " * 400]) == 0
    assert "prefill" in errors.getvalue().partition("tok/s")[0]
