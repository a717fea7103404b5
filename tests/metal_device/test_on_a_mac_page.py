"""docs/on-a-mac.md: its commands have the options that it gives them, and its Python runs on the simulator."""

from __future__ import annotations

import ast
import re
import shlex
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

import lily

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "on-a-mac.md").read_text(encoding="utf-8")
BLOCKS = [(kind, textwrap.dedent(text)) for kind, text in re.findall(r"^ *```(\w+)\n(.*?)^ *```", PAGE, re.M | re.S)]
PYTHON = [text for kind, text in BLOCKS if kind == "python"]
# Long measurements in little.
SHORTER = {
    '"MODEL"': '"lily-tiny", backend="sim"',
    "(0.5, 1, 2, 4, 8)": "(0.5,)",
    "range(32000)": "range(70)",
    "prefill_chunk=8192": "prefill_chunk=64",
    "[1000] * 512": "[1000] * 70",
    "max_tokens=256": "max_tokens=4",
}


def commands() -> list[list[str]]:
    """Every command `lily ...` of the page, in blocks and in sentences."""
    lines = [line for kind, text in BLOCKS if kind == "sh" for line in text.splitlines()]
    lines += re.findall(r"`([^`\n]*lily [^`\n]+)`", re.sub(r"```.*?```", "", PAGE, flags=re.S))
    words = [shlex.split(line, comments=True) for line in lines]
    found = [line[line.index("lily") :] for line in words if "lily" in line]
    return [line[: line.index(">")] if ">" in line else line for line in found]


def test_commands_and_their_options_exist() -> None:
    typer = pytest.importorskip("typer", reason="needs the extra for the command line")
    from lily.cli.app import app

    known = typer.main.get_command(app).commands
    assert {line[1] for line in commands()} >= {"doctor", "verify", "bench", "ablate"}
    for _, name, *arguments in commands():
        options = {text for parameter in known[name].params for text in parameter.opts}
        assert {word for word in arguments if word.startswith("-")} <= options, (name, arguments)
        assert sum(not word.startswith("-") for word in arguments) <= 1, (name, arguments)


def test_variables_are_read_somewhere() -> None:
    files = [path for folder in ("src", "python") for path in (ROOT / folder).rglob("*.*")]
    sources = "".join(path.read_text(encoding="utf-8") for path in files if path.suffix in (".py", ".cpp", ".mm"))
    variables = set(re.findall(r"LILY_[A-Z_]+", PAGE))
    assert variables >= {"LILY_METAL_TENSOR", "LILY_METAL_SOURCES"}
    assert [name for name in variables if f'"{name}"' not in sources] == []


def test_files_exist() -> None:
    for name in re.findall(r"`((?:tests|tools|docs)/[\w/.]+)", PAGE):
        assert (ROOT / name).exists(), name
    for name in re.findall(r"`(test_\w+\.cpp)`", PAGE):
        assert (ROOT / "tests" / "cpp" / name).exists(), name


@pytest.mark.skipif("sim" not in lily.available_backends(), reason="needs the sim device")
@pytest.mark.parametrize("number", [i for i, text in enumerate(PYTHON) if "import Metal" not in text])
def test_python_runs(number: int, capsys: pytest.CaptureFixture[str]) -> None:
    text = PYTHON[number]
    for long, short in SHORTER.items():
        text = text.replace(long, short)
    exec(compile(text, f"block {number}", "exec"), {})
    assert capsys.readouterr().out


def test_python_for_a_mac_alone_is_python() -> None:
    alone = [text for text in PYTHON if "import Metal" in text]
    assert len(alone) == 1 and len(PYTHON) >= 4
    compile(alone[0], "block", "exec")


def calls_while_importing(tree: ast.AST) -> Iterator[str]:
    """Names of functions that a module calls when it is imported."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            continue
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func).rpartition(".")[2]
        yield from calls_while_importing(node)


def test_importing_touches_no_gpu() -> None:
    opening = {
        "available_backends",
        "choose_backend",
        "available_devices",
        "metal_facts",
        "diagnose",
        "model_on",
        "load",
    }
    files = list((ROOT / "python" / "lily").rglob("*.py"))
    for path in files:
        called = set(calls_while_importing(ast.parse(path.read_text(encoding="utf-8"))))
        assert not called & opening, (path, called & opening)
    assert len(files) > 50 and "rich" in list(calls_while_importing(ast.parse("class A:\n    x = a.rich(1)")))


def test_every_open_question_has_a_command() -> None:
    questions = re.split(r"^\d\. \*\*", PAGE.partition("## Open questions")[2], flags=re.M)[1:]
    assert len(questions) == 8
    for question in questions:
        assert "lily" in question or "```" in question, question[:60]
