"""The fast part of the suite: `--quick` collects the files that tests/quick.txt lists, and no others."""

import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parent


def listed() -> list[str]:
    lines = (TESTS / "quick.txt").read_text(encoding="utf-8").splitlines()
    return [line for line in lines if not line.startswith("#")]


def test_the_list_names_each_file_once_and_all_exist() -> None:
    names = listed()
    assert len(names) == len(set(names)) > 20
    assert [name for name in names if not (TESTS / name).is_file()] == []


def test_other_files_are_left_out() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "--quick", "--collect-only", "-n", "0", "-p", "no:cacheprovider"]
    result = subprocess.run([*command, "tests/wheel", "tests/metal"], cwd=TESTS.parent, capture_output=True, text=True)
    found = {line.partition("::")[0].removeprefix("tests/") for line in result.stdout.splitlines() if "::" in line}
    assert found == {name for name in listed() if name.startswith(("wheel/", "metal/"))}
