"""The public functions and methods, each with arguments that work: what is attacked one argument at a time."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Objects", "public_calls"]

MESSAGES = [{"role": "user", "content": "Hello"}]
TOOLS = [
    {
        "type": "function",
        "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "string"}}}},
    }
]
# Calls that wait for somebody, end the object, or are made by Lily only.
SKIPPED = {"serve", "close", "cancel", "references"}
# Arguments that work, by the names of parameters.
GOOD: dict[str, Any] = {
    **{
        "ids": [1, 2, 3],
        "token": 5,
        "max_tokens": 3,
        "text": "Hello",
        "messages": MESSAGES,
        "tools": TOOLS,
        "content": "Hello",
    },
    **{
        "options": None,
        "source": "lily-tiny",
        "name": "f",
        "parameter": "a",
        "arguments": {"a": "b"},
        "count": 2,
        "most": 100,
    },
    **{
        "prompt": "x",
        "reasoning": False,
        "later_system": "convert",
        "context": 64,
        "vocab_size": 4160,
        "phase": "decode",
    },
    **{
        "stop": (),
        "result": "x",
        "call": "c",
        "changes": {"max_tokens": 3},
        "variables": {"a": 1},
        "system": "Be brief.",
    },
    **{
        "progress": None,
        "seed": 1,
        "top_k": 3,
        "max_rounds": 1,
        "tokenizer": None,
        "snapshot_at": (2,),
        "events": (),
        "truncated": False,
    },
}


@dataclass
class Objects:
    """What the methods are called on; new for each attempt, but for the model."""

    model: Any
    checkpoint: Path
    folder: Path

    def __post_init__(self) -> None:
        self.session = self.model.prefill([1, 2, 3, 4])
        self.before = self.session.tokens
        self.chat = self.model.chat("Be brief.", max_tokens=3)
        self.saved = self.folder / "saved"
        if not self.saved.exists():
            self.session.save(self.saved)

    def close(self) -> None:
        """Free what was made."""
        self.session.close()
        self.chat.close()


@dataclass(frozen=True)
class Call:
    """One function: where it is found, and how its good arguments are made."""

    name: str
    function: Callable[[Objects], Callable[..., Any]]
    parameters: tuple[str, ...]
    good: Callable[[Objects], dict[str, Any]]


def _modules() -> list[Any]:
    import lily.chat
    import lily.notebook
    import lily.server
    import lily.text

    return [lily, lily.text, lily.chat, lily.server]


def _functions() -> dict[str, Callable[[Objects], Callable[..., Any]]]:
    """Functions, and classes that take arguments of the caller's; not records of results."""
    import lily.checkpoint
    import lily.notebook

    found: dict[str, Callable[[Objects], Callable[..., Any]]] = {}
    records = {
        "Answer",
        "ContentDelta",
        "Done",
        "ReasoningDelta",
        "Timings",
        "TokenLogprob",
        "ToolCallDelta",
        "ToolCallEvent",
        "Usage",
    }
    records |= {
        "Model",
        "Session",
        "Snapshot",
        "Plan",
        "StreamingDetokenizer",
        "GenerationDefaults",
        "TokenizerConfig",
        "Event",
        "ToolCall",
    }
    for module in _modules():
        for name in module.__all__:
            value = getattr(module, name)
            if (
                callable(value)
                and name not in records | SKIPPED
                and not (isinstance(value, type) and issubclass(value, BaseException))
            ):
                found[f"{module.__name__}.{name}"] = lambda objects, value=value: value
    found["lily.checkpoint.read_checkpoint"] = lambda objects: lily.checkpoint.read_checkpoint
    found["lily.checkpoint.resolve_source"] = lambda objects: lily.checkpoint.resolve_source
    found["lily.notebook.show"] = lambda objects: lily.notebook.show
    for kind, names in (
        (lily.Model, ("load",)),
        (lily.Sampling, ("profile",)),
        (lily.text.Tokenizer, ("from_file", "from_directory")),
        (lily.text.ChatTemplate, ("from_directory",)),
        (lily.chat.TurnOptions, ("of",)),
    ):
        for name in names:
            found[f"{kind.__name__}.{name}"] = lambda objects, kind=kind, name=name: getattr(kind, name)
    return found


def _methods() -> dict[str, Callable[[Objects], Callable[..., Any]]]:
    """Methods of objects."""
    import lily.chat

    makers: dict[str, Callable[[Objects], Any]] = {
        "model": lambda objects: objects.model,
        "session": lambda objects: objects.session,
        "cache": lambda objects: objects.model.cache,
        "chat": lambda objects: objects.chat,
        "tokenizer": lambda objects: objects.model.tokenizer,
        "detokenizer": lambda objects: objects.model.tokenizer.detokenizer(),
        "chat_template": lambda objects: objects.model.chat_template,
        "text_guard": lambda objects: objects.model.text_guard,
        "generation": lambda objects: objects.session.generation(5),
        "options": lambda objects: lily.Options(),
        "turn_options": lambda objects: lily.chat.TurnOptions(),
        "parser": lambda objects: lily.chat.OutputParser(reasoning=True),
        "schemas": lambda objects: lily.chat.ToolSchemas(TOOLS),
        "python_tool": lambda objects: lily.chat.PythonTool(_tool),
    }
    kinds = {
        "model": lily.Model,
        "session": lily.Session,
        "cache": lily.cache.PrefixCache,
        "chat": lily.chat.Chat,
        "tokenizer": lily.text.Tokenizer,
        "detokenizer": lily.text.StreamingDetokenizer,
        "chat_template": lily.text.ChatTemplate,
        "text_guard": lily.text.TextGuard,
        "generation": lily.session.Generation,
        "options": lily.Options,
        "turn_options": lily.chat.TurnOptions,
        "parser": lily.chat.OutputParser,
        "schemas": lily.chat.ToolSchemas,
        "python_tool": lily.chat.PythonTool,
    }
    found = {}
    for owner, kind in kinds.items():
        for name, function in vars(kind).items():
            if inspect.isfunction(function) and not name.startswith("_") and name not in SKIPPED:
                found[f"{owner}.{name}"] = lambda objects, owner=owner, name=name: getattr(makers[owner](objects), name)
    return found


def _tool(a: str = "x") -> str:
    """A tool.

    Parameters
    ----------
    a : str
        A text.
    """
    return a


def _special(name: str, objects: Objects) -> dict[str, Any]:
    """Good arguments that depend on the function."""
    model = objects.model
    own: dict[str, dict[str, Any]] = {
        "model.load_session": {"path": objects.saved},
        "model.decode": {"session": objects.session},
        "session.save": {"path": objects.folder / "again"},
        "session.restore": {"snapshot": objects.session.snapshot()},
        "cache.insert": {"session": objects.session},
        "lily.chat.PythonTool": {"function": _tool},
        "lily.text.ChatTemplate": {"source": "{{ messages }}"},
        "lily.text.Tokenizer": {"source": "{}"},
        "lily.text.TextGuard": {"tokenizer": model.tokenizer},
        "lily.plan": {"checkpoint": objects.checkpoint},
        "lily.ablate": {"model": model, "decode": 1, "runs": 1, "mechanisms": (), "context": (4,), "prompt": (4,)},
        "lily.step_report": {"config": objects.checkpoint},
        "lily.server.create_app": {"model": model, "options": None},
        "Sampling.profile": {"name": "coding"},
        "Tokenizer.from_file": {"path": objects.checkpoint / "tokenizer.json"},
        "text_guard.render": {"template": model.chat_template},
        "lily.chat.Chat": {"model": model},
        "TurnOptions.of": {"options": {"max_tokens": 3}},
    }
    return {"directory": objects.checkpoint, "model": model, "path": objects.checkpoint, **own.get(name, {})}


def public_calls(objects: Objects) -> list[Call]:
    """All of them."""
    calls = []
    for name, function in {**_functions(), **_methods()}.items():
        try:
            signature = inspect.signature(function(objects))
        except ValueError:
            continue
        kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        names = [parameter.name for parameter in signature.parameters.values() if parameter.kind not in kinds]
        if any(parameter.kind == inspect.Parameter.VAR_KEYWORD for parameter in signature.parameters.values()):
            names += [
                "max_tokens",
                "stop",
                "response_format",
                "seed",
                "enable_thinking",
                "later_system",
                "template_options",
            ]
        required = [
            p.name
            for p in signature.parameters.values()
            if p.default is inspect.Parameter.empty and p.kind not in kinds
        ]

        def good(objects: Objects, name: str = name, required: list[str] = required) -> dict[str, Any]:
            given = {**GOOD, **_special(name, objects)}
            return {one: given.get(one) for one in required}

        if names:
            calls.append(Call(name, function, tuple(names), good))
    return calls
