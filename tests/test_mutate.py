"""tools/mutate.py on a toy tree: faults planted in a copy, noticed, let pass, hung on, or no faults at all."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

pytest.importorskip("tomllib", reason="Python 3.11 reads TOML")
import mutate

SOURCE = "def larger(a: int, b: int) -> int:\n    while a < 0:\n        a += 1\n    return a if a > b else b\n"
TEST = "from toy import larger\n\ndef test_larger():\n    assert larger(3, 2) == 3\n    assert larger(-1, -5) == 0\n"


def entry(name: str, before: str, after: str, file: str = "python/toy.py", tests: str = "tests/test_toy.py") -> str:
    fields = {"name": name, "file": file, "before": before, "after": after}
    return "[[fault]]\n" + "".join(f"{key} = {value!r}\n" for key, value in fields.items()) + f"tests = [{tests!r}]\n"


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # they take seconds to import
    root = tmp_path / "toy"
    for name, text in {
        "python/toy.py": SOURCE,
        "tests/test_toy.py": TEST,
        "pyproject.toml": '[tool.pytest.ini_options]\naddopts = "-p xdist.plugin"\n',
        ".gitignore": "/build/\n__pycache__/\n",
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    (root / "tools" / "mutations").mkdir(parents=True)
    subprocess.run(["git", "init", "-q", str(root)], check=True)
    return root


def write_table(tree: Path, *entries: str) -> None:
    (tree / "tools" / "mutations" / "toy.toml").write_text("\n".join(entries))


def outcomes(printed: str) -> dict[str, str]:
    """The outcome of each fault, by its name."""
    lines = [line for line in printed.split("\n") if " s  python/toy.py: " in line]
    return {line.partition(": ")[2]: line[:15].strip() for line in lines}


def test_each_fault_is_planted_alone_and_judged(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_table(
        tree,
        entry("the smaller one", "a > b", "a < b"),
        entry("equal ones", "a > b", "a >= b"),
        entry("no end", "a += 1", "a += 0"),
        entry("no Python", "return a", "return a a"),
        entry("no such text", "a == b", "a != b"),
        entry("no single text", "a", "c"),
    )
    assert mutate.main(["--limit", "15"], tree) == 1
    printed = capsys.readouterr().out
    assert outcomes(printed) == {
        "the smaller one": "noticed",
        "equal ones": "survived",
        "no end": "hung",
        "no Python": "does not build",
        "no such text": "stale",
        "no single text": "stale",
    }
    assert "python/toy.py:4: equal ones [tests/test_toy.py]" in printed
    assert printed.endswith("1 of 6 faults were noticed\n")
    assert (tree / "python" / "toy.py").read_text() == SOURCE
    assert (tree / "build" / "mutate" / "tree" / "python" / "toy.py").read_text() == SOURCE


def test_the_copy_follows_the_tree_and_the_status_says_that_all_were_noticed(tree: Path) -> None:
    write_table(tree, entry("equal ones", "a > b", "a >= b"), entry("the smaller one", "a > b", "a < b"))
    assert mutate.main(["--name", "smaller"], tree) == 0
    assert mutate.main(["--name", "equal"], tree) == 1
    (tree / "python" / "toy.py").write_text(SOURCE.replace("a > b else b", "a > b else (b if a < b else -a)"))
    (tree / "tests" / "test_toy.py").write_text(TEST + "    assert larger(2, 2) == -2\n")
    assert mutate.main(["--name", "equal"], tree) == 0


def test_faults_are_chosen_by_name_and_file(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_table(tree, entry("one fault", "a > b", "a < b"), entry("other fault", "a > b", "a < b", "python/other.py"))
    assert mutate.main(["--list"], tree) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2
    assert mutate.main(["--list", "--file", "python/t*"], tree) == 0
    assert capsys.readouterr().out == "python/toy.py:4: one fault [tests/test_toy.py]\n"
    assert mutate.main(["--list", "--name", "other"], tree) == 0
    assert "python/other.py:?: other fault" in capsys.readouterr().out
    assert not (tree / "build").exists()


def test_tests_that_fail_without_a_fault_judge_nothing(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_table(tree, entry("the smaller one", "a > b", "a < b"))
    (tree / "tests" / "test_toy.py").write_text(TEST + "    assert larger(1, 2) == 3\n")
    assert mutate.main([], tree) == 2
    assert "fail, or hang, without any fault" in capsys.readouterr().err


def test_tests_that_are_not_there_judge_nothing(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_table(tree, entry("the smaller one", "a > b", "a < b", tests="tests/test_gone.py"))
    assert mutate.main([], tree) == 2
    assert "finds no such tests" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ((entry("twice", "a", "b"), entry("twice", "a", "b")), "'twice' is there twice"),
        ((entry("same", "a", "a"),), "changes nothing"),
        ((entry("more", "a", "b") + "line = 3\n",), "exactly the fields"),
        (("[[fault]]\nname = 'less'\n",), "exactly the fields"),
    ],
)
def test_tables_that_say_too_little_or_too_much(
    tree: Path, capsys: pytest.CaptureFixture[str], entries: tuple[str, ...], message: str
) -> None:
    write_table(tree, *entries)
    assert mutate.main([], tree) == 2
    assert message in capsys.readouterr().err


def test_the_tables_of_this_tree_can_be_read() -> None:
    assert len(mutate.read_faults(mutate.ROOT / "tools" / "mutations")) > 0
