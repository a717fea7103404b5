"""How models, sessions, chats and answers look in a notebook: HTML and Markdown."""

from __future__ import annotations

import contextlib
import html
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lily.errors import BusyError

if TYPE_CHECKING:
    from lily.chat import Answer, Chat
    from lily.model import Model
    from lily.session import Session

__all__ = ["answer_markdown", "chat_html", "model_html", "session_html"]

_PREVIEW_TOKENS = 60
_PRE = 'style="white-space: pre-wrap; margin: 0; text-align: left"'


def answer_markdown(answer: Answer, *, thinking_is_open: bool = False) -> str:
    """An answer with its thinking folded away, its calls as JSON, and its speed."""
    parts = []
    if answer.reasoning:
        folded = "" if not thinking_is_open or answer.content else " open"
        thought = html.escape(answer.reasoning)
        parts.append(f"<details{folded}><summary>Thinking</summary><pre {_PRE}>{thought}</pre></details>")
    if answer.content:
        parts.append(answer.content)
    for call in answer.tool_calls:
        arguments = json.dumps(call.arguments, ensure_ascii=False, indent=2).replace("```", "``\u200b`")
        parts.append(f"**{html.escape(call.name)}**\n\n```json\n{arguments}\n```")
    usage, timings = answer.done.usage, answer.done.timings
    if usage.completion_tokens:
        rate = f", {usage.completion_tokens / timings.decode_seconds:.0f} tokens/s" if timings.decode_seconds else ""
        cached = f" ({usage.cached_tokens} from the cache)" if usage.cached_tokens else ""
        parts.append(
            f"<small>{usage.prompt_tokens} + {usage.completion_tokens} tokens{cached}{rate}, "
            f"{answer.finish_reason}</small>"
        )
    return "\n\n".join(parts)


def model_html(model: Model) -> str:
    """A table of what was loaded and how much memory it needs."""
    name = model.checkpoint.directory.name
    if model.closed:
        return f"<b>{html.escape(name)}</b> (closed)"
    config = model.config
    kinds = {kind.value: config.layer_types.count(kind) for kind in dict.fromkeys(config.layer_types)}
    cache = model.cache.stats()
    plan = model.plan()
    return _table(
        name,
        {
            "layers": ", ".join(f"{count} {kind.replace('_', ' ')}" for kind, count in kinds.items()),
            "backend": f"cpu, {model.cpu_isa}, {model.threads} threads" if model.backend == "cpu" else model.backend,
            "context": f"{model.max_context:,} tokens",
            "memory at full context": _size(plan.total),
            "prefix cache": f"{cache.snapshots} snapshots, {_size(cache.bytes)}",
        },
    )


def session_html(session: Session) -> str:
    """A table of a session's contents, with the last tokens as text."""
    try:
        tokens = session.tokens
        rows = {"position": f"{len(tokens):,} of {session.model.max_context:,} tokens"}
        rows |= {"from the prefix cache": f"{session.cached_tokens:,}", "state": _size(session.state_bytes)}
    except BusyError:
        return "<b>Session</b> (in use)"
    except Exception:  # closed, or its model is
        return "<b>Session</b> (closed)"
    with contextlib.suppress(Exception):  # a model without a tokenizer
        rows["ends with"] = repr(session.model.tokenizer.decode(tokens[-_PREVIEW_TOKENS:]))
    return _table("Session", rows)


def chat_html(chat: Chat) -> str:
    """The messages of a chat."""
    rows = "".join(_row(str(message.get("role")), _message(message)) for message in chat.messages)
    return f"<table>{rows}</table>" if rows else "<b>Chat</b> without messages"


def _message(message: Mapping[str, Any]) -> str:
    texts = []
    if message.get("reasoning_content"):
        thought = html.escape(str(message["reasoning_content"]))
        texts.append(f"<details><summary>Thinking</summary><pre {_PRE}>{thought}</pre></details>")
    content = message.get("content")
    if isinstance(content, list):
        content = "".join(str(part.get("text", "")) if isinstance(part, Mapping) else str(part) for part in content)
    if content:
        texts.append(f"<pre {_PRE}>{html.escape(str(content))}</pre>")
    for call in message.get("tool_calls") or ():
        function = call.get("function", call)
        texts.append(
            f"<code>{html.escape(str(function.get('name')))}({html.escape(str(function.get('arguments')))})</code>"
        )
    return "".join(texts)


def _table(title: str, rows: Mapping[str, str]) -> str:
    body = "".join(_row(name, html.escape(value)) for name, value in rows.items())
    return f"<table><caption><b>{html.escape(title)}</b></caption>{body}</table>"


def _row(name: str, value: str) -> str:
    return f'<tr><th style="text-align: left">{html.escape(name)}</th><td style="text-align: left">{value}</td></tr>'


def _size(count: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"
