"""The parts of the library that work alone, given what nobody should give: one of Lily's errors, and at once."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import lily
from lily.chat import OutputParser, PythonTool, ToolSchemas, collect
from lily.checkpoint import read_checkpoint
from lily.notebook import show
from lily.server import ServerOptions, create_app, serve, uvicorn_options
from lily.text import TextGuard, answerable, read_generation_defaults, read_stop_tokens, read_tokenizer_config

HOSTILE = [3, 0.5, b"a", [1], {"a": 1}, {1}, memoryview(b"a"), object(), itertools.count()]
TOOL = {"name": "f", "parameters": {"properties": {"a": {"type": "integer"}}}}


def tool(a: int = 0) -> int:
    """Return it."""
    return a


def not_int(value: Any) -> Any:
    return -1 if isinstance(value, int) else value


CALLS: dict[str, Callable[[lily.Model, Path, Any], Any]] = {
    "ToolSchemas.parameters": lambda model, tiny, value: ToolSchemas([TOOL]).parameters(value),
    "ToolSchemas.properties": lambda model, tiny, value: ToolSchemas([TOOL]).properties(value),
    "ToolSchemas.references": lambda model, tiny, value: ToolSchemas([TOOL]).references(value),
    "ToolSchemas.convert, tool": lambda model, tiny, value: ToolSchemas([TOOL]).convert(value, "a", "1"),
    "ToolSchemas.convert, parameter": lambda model, tiny, value: ToolSchemas([TOOL]).convert("f", value, "1"),
    "ToolSchemas.convert, text": lambda model, tiny, value: ToolSchemas([TOOL]).convert("f", "a", value),
    "ToolSchemas.is_text": lambda model, tiny, value: ToolSchemas([TOOL]).is_text("f", value),
    "ToolSchemas.fitted": lambda model, tiny, value: ToolSchemas([TOOL]).fitted("f", [value]),  # type: ignore[arg-type]
    "PythonTool.call": lambda model, tiny, value: PythonTool(tool).call([value]),  # type: ignore[arg-type]
    "OutputParser.feed": lambda model, tiny, value: OutputParser(reasoning=False).feed(value),
    "OutputParser.finish": lambda model, tiny, value: OutputParser(reasoning=False).finish(truncated=not_int(value)),
    "collect": lambda model, tiny, value: collect(itertools.repeat(value)),
    "show": lambda model, tiny, value: show(itertools.repeat(value)),
    "ServerOptions": lambda model, tiny, value: ServerOptions(max_queue=[value]),  # type: ignore[arg-type]
    "answerable": lambda model, tiny, value: answerable("" if hasattr(value, "__iter__") else value),
    "read_tokenizer_config": lambda model, tiny, value: read_tokenizer_config(value),
    "read_generation_defaults": lambda model, tiny, value: read_generation_defaults(value),
    "read_stop_tokens": lambda model, tiny, value: read_stop_tokens(value, vocab_size=4096),
    "read_stop_tokens, rows": lambda model, tiny, value: read_stop_tokens(tiny, vocab_size=not_int(value)),
    "read_stop_tokens, tokenizer": lambda model, tiny, value: read_stop_tokens(tiny, vocab_size=4096, tokenizer=value),
    "read_checkpoint": lambda model, tiny, value: read_checkpoint(value),
    "Tokenizer.count": lambda model, tiny, value: model.tokenizer.count("a", not_int(value)),
    "Tokenizer.longest_part": lambda model, tiny, value: model.tokenizer.longest_part(value),
    "Tokenizer.encode": lambda model, tiny, value: model.tokenizer.encode("a", check=value),
    "TextGuard": lambda model, tiny, value: TextGuard(value),
    "TextGuard.render": lambda model, tiny, value: model.text_guard.render(value, []),
    "TextGuard.encode": lambda model, tiny, value: model.text_guard.encode(value),
    "TextGuard.count": lambda model, tiny, value: model.text_guard.count(value, 5),
    "TextGuard.count, most": lambda model, tiny, value: model.text_guard.count("a", not_int(value)),
    "TextGuard.plain": lambda model, tiny, value: model.text_guard.plain(value),
    "Chat.prompt_length": lambda model, tiny, value: model.chat("Hi").prompt_length(not_int(value)),
    "create_app": lambda model, tiny, value: create_app(value),
    "create_app, options": lambda model, tiny, value: create_app(model, value),
    "serve, options": lambda model, tiny, value: serve(model, value, port=0),
    "serve, host": lambda model, tiny, value: serve(model, host=value, port=0),
    "serve, port": lambda model, tiny, value: serve(model, port=not_int(value)),
    "serve, log level": lambda model, tiny, value: serve(model, port=0, log_level=value),
    "uvicorn_options": lambda model, tiny, value: uvicorn_options(value),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_one_of_lilys_errors_says_what_is_wrong(name: str, model: lily.Model, tiny: Path) -> None:
    for value in HOSTILE:
        with pytest.raises(lily.LilyError):
            CALLS[name](model, tiny, value)


def test_no_options_are_the_defaults(model: lily.Model) -> None:
    assert create_app(model, None).state.service.options == ServerOptions()
