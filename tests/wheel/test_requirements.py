"""The list of requirements for tools: that of pyproject.toml, without Lily itself, as words of a shell."""

import re

import pytest

pytest.importorskip("tomllib", reason="Python 3.11 reads TOML")

from requirements import requirements


def test_extras_of_extras_are_in_and_lily_is_not():
    found = requirements(["dev"])
    names = [re.match(r"[\w.-]+", one)[0] for one in found]
    assert {"numpy", "pytest", "ruff", "mkdocs", "starlette", "typer"} <= set(names)
    assert "lily-engine" not in names
    assert len(set(names)) == len(names)
    assert not any(re.search(r"\s", one) for one in found)


def test_without_extras_there_are_the_four_that_the_engine_needs():
    assert [re.match(r"\w+", one)[0] for one in requirements([])] == ["numpy", "safetensors", "tokenizers", "jinja2"]
    with pytest.raises(KeyError):
        requirements(["none such"])
