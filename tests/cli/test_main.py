"""Tests of the command line as a whole: exit codes, messages, help, and life without the extra."""

import subprocess
import sys

import pytest

from lily._version import DISTRIBUTION, __version__
from lily.cli import main
from lily.errors import CheckpointError


def test_missing_packages_give_the_install_hint(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "typer", None)
    assert main(["--version"]) == 1
    error = capsys.readouterr().err
    assert f"pip install '{DISTRIBUTION}[cli]'" in error
    assert "Traceback" not in error


def test_the_entry_module_imports_nothing_optional():
    code = (
        "import sys; sys.modules['typer'] = sys.modules['rich'] = None; import importlib.util as u;"
        "s = u.spec_from_file_location('c', sys.argv[1]); m = u.module_from_spec(s); s.loader.exec_module(m);"
        "print(callable(m.main))"
    )
    file = sys.modules["lily.cli"].__file__
    done = subprocess.run([sys.executable, "-c", code, file], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"


typer = pytest.importorskip("typer", reason="the rest of the command line needs typer and rich")


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"lily {__version__}\n"


@pytest.mark.parametrize("command", ["chat", "generate", "info", "perplexity"])
def test_help_has_examples(capsys, command):
    assert main([command, "--help"]) == 0
    text = capsys.readouterr().out
    assert f"  lily {command} " in text.partition("Examples:")[2]
    assert "\b" not in text


def test_top_level_help_lists_the_commands(capsys):
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(f"\n  {command} " in text for command in ("chat", "generate", "info", "perplexity"))


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"],
        ["chat", "--no-such-option"],
        ["chat", "--temperature", "-1"],
        ["chat", "--top-p", "1.5"],
        ["chat", "--max-tokens", "0"],
        ["chat", "a", "b"],
        ["generate", "--seed", "x"],
        ["info"],
        ["perplexity"],
    ],
)
def test_wrong_usage_is_2(fake, capsys, arguments):
    model = fake("never used")
    assert main(arguments) == 2
    assert "Traceback" not in capsys.readouterr().err
    assert not model.loaded_with


def test_a_lily_error_is_one_line_and_1(talker, capsys):
    talker([CheckpointError("model.safetensors: is truncated")])
    assert main(["chat", "-p", "Hi"]) == 1
    captured = capsys.readouterr()
    assert captured.err == "lily: model.safetensors: is truncated\n"


def test_debug_shows_the_traceback(talker, capsys):
    talker([CheckpointError("model.safetensors: is truncated")])
    assert main(["chat", "-p", "Hi", "--debug"]) == 1
    error = capsys.readouterr().err
    assert "Traceback" in error
    assert "CheckpointError: model.safetensors: is truncated" in error


def test_other_errors_are_not_hidden(talker):
    talker([ZeroDivisionError("a fault of Lily's own")])
    with pytest.raises(ZeroDivisionError):
        main(["chat", "-p", "Hi"])


@pytest.mark.parametrize("command", ["chat", "generate"])
def test_an_interruption_is_130(fake, talker, capsys, command):
    from fake_model import Interrupt

    {"chat": talker, "generate": fake}[command](["</think>\n\nHalf", Interrupt()])
    assert main([command, "-p", "Hi"]) == 130
    captured = capsys.readouterr()
    assert captured.out.endswith("Half\n")
    assert captured.err == ""


def test_loading_options_reach_the_model(talker):
    talk = talker("</think>\n\nHello")
    assert main(["chat", "some/where", "-p", "Hi", "--threads", "3", "--context", "77", "--backend", "cpu"]) == 0
    assert talk.loaded_with == {"source": "some/where", "threads": 3, "max_context": 77, "backend": "cpu"}
