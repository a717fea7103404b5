"""The page on security names the server's limits with their defaults, and the command line's options for them."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

pytest.importorskip("starlette", reason="needs the extra for the server")
typer = pytest.importorskip("typer", reason="needs the extra for the command line")

from lily.server import ServerOptions  # noqa: E402

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "security.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\|[^|]+\| `(\w+)` \|([^|]*)\|([^|]*)\|", re.MULTILINE)
UNITS = {"MiB": 1 << 20, "s": 1, "": 1}
FIELDS = {field.name: field.default for field in dataclasses.fields(ServerOptions)}
ROWS = {field: (options.strip(), default.strip()) for field, options, default in ROW.findall(PAGE)}


def test_every_limit_is_there_with_its_default() -> None:
    limits = {name for name, value in FIELDS.items() if isinstance(value, (int, float)) and not isinstance(value, bool)}
    assert limits <= set(ROWS)
    for name in limits:
        number, _, unit = ROWS[name][1].partition(" ")
        assert float(number) * UNITS[unit] == FIELDS[name], name


def test_the_options_of_the_command_line_exist() -> None:
    from lily.cli.app import app

    serve = typer.main.get_command(app).commands["serve"]
    known = {text for parameter in serve.params for text in parameter.opts}
    named = {option for name in ROWS if name in FIELDS for option in re.findall(r"--[\w-]+", ROWS[name][0])}
    assert named and named <= known
