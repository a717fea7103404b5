"""Tests of lily generate: raw text in, its continuation out."""

import json

import pytest

from lily.cli import main

pytest.importorskip("typer")


def test_the_prompt_is_encoded_as_it_is(fake, capsys):
    model = fake(" a time.<|im_end|>")
    assert main(["generate", "-p", " Once upon "]) == 0
    assert capsys.readouterr().out == " a time.\n"
    assert model.sessions[0].prefills == [model.tokenizer.encode(" Once upon ")]


def test_special_tokens_in_the_prompt(fake):
    model = fake("x", "x")
    end = model.tokenizer.token_id("<|im_end|>")
    assert main(["generate", "-p", "a<|im_end|>"]) == 0
    assert model.sessions[-1].prefills[0][-1] == end
    assert main(["generate", "-p", "a<|im_end|>", "--no-special"]) == 0
    assert end not in model.sessions[-1].prefills[0]


def test_json(fake, capsys):
    model = fake("č and so on<|im_end|>never")
    assert main(["generate", "-p", "Hi", "--json", "--seed", "5"]) == 0
    result = json.loads(capsys.readouterr().out)
    tokens = model.tokenizer.encode("č and so on")
    assert result["text"] == "č and so on"
    assert result["tokens"] == tokens
    assert result["generated_tokens"] == len(tokens)
    assert result["prompt_tokens"] == len(model.tokenizer.encode("Hi"))
    assert result["finish_reason"] == "stop"
    assert result["prefill_tokens_per_second"] > 0
    assert result["decode_tokens_per_second"] > 0


def test_max_tokens(fake, capsys):
    model = fake("one two three four five six seven")
    assert main(["generate", "-p", "Hi", "--json", "--max-tokens", "3"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["finish_reason"] == "length"
    assert len(result["tokens"]) == 3
    assert result["text"] == model.tokenizer.decode(result["tokens"])


def test_ignore_stop(fake, capsys):
    fake("a<|im_end|>b")
    assert main(["generate", "-p", "Hi", "--ignore-stop"]) == 0
    assert capsys.readouterr().out == "a<|im_end|>b\n"


def test_the_text_can_be_piped_in(fake, stdin, capsys):
    model = fake("x")
    stdin("two\nlines\n")
    assert main(["generate"]) == 0
    assert model.sessions[0].prefills == [model.tokenizer.encode("two\nlines\n")]


def test_a_terminal_without_a_prompt_is_wrong_usage(fake, stdin, capsys):
    fake("x")
    stdin("", terminal=True)
    assert main(["generate"]) == 2
    assert "-p" in capsys.readouterr().err
