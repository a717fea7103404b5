"""Message parts of all three APIs as text; a placeholder replaces what the model cannot read."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from lily.server.errors import ApiError
from lily.server.request_warnings import Warnings

__all__ = ["PartReader", "in_lines", "is_part", "placeholder"]

_TEXT_FIELDS = {
    "text": "text",
    "input_text": "text",
    "output_text": "text",
    "summary_text": "text",
    "reasoning_text": "text",
    "refusal": "refusal",
    "thinking": "thinking",
    "logs": "logs",
}
#: Images and sound: a model that cannot perceive them would answer a different question.
_MEDIA = {
    "image": "image",
    "image_url": "image",
    "input_image": "image",
    "computer_screenshot": "image",
    "audio": "audio",
    "audio_url": "audio",
    "input_audio": "audio",
    "video": "video",
    "video_url": "video",
    "input_video": "video",
}
_FILES = ("file", "input_file", "document")
#: Fields that tell a model nothing: cache keys, signatures, opaque contents.
_SILENT = ("cache_control", "prompt_cache_breakpoint", "signature", "caller", "citations", "annotations", "logprobs")
_DEPTH = 16


class PartReader:
    """Turns the contents of a request's messages into text.

    Parameters
    ----------
    warnings
        Receives each kind of part that became a placeholder.
    strict
        Refuse such parts.
    check
        Called before each content; an exception ends the reading.
    """

    def __init__(self, warnings: Warnings, *, strict: bool, check: Callable[[], None] | None = None) -> None:
        self._check = check
        self._warnings = warnings
        self._strict = strict

    def text(
        self, place: str, content: Any, *, asked: bool = False, join: Callable[[Iterable[str]], str] = "".join
    ) -> str:
        """The text of a content: a string, a part, or a list of them; null is empty, and other values are JSON.

        Parameters
        ----------
        place
            Where it is in the request, for errors.
        asked
            Whether it belongs to the user's current message, in which images and sound are refused.
        join
            Joins the texts of the parts; by default as chat templates do, with nothing between them.
        """
        if self._check is not None:
            self._check()
        if content is None:
            return ""
        if isinstance(content, str):
            return content
        if isinstance(content, Sequence):
            dot = f"{place}." if "[" not in place and place.startswith("messages.") else f"{place}["
            close = "" if dot.endswith(".") else "]"
            return join(self.part(f"{dot}{at}{close}", part, asked=asked) for at, part in enumerate(content))
        if isinstance(content, Mapping) and is_part(content):
            return self.part(place, content, asked=asked)
        return json.dumps(content, ensure_ascii=False)

    def part(self, place: str, part: Any, *, asked: bool = False) -> str:
        """The text of one part; `place` and `asked` as for `text`."""
        if part is None or isinstance(part, str):
            return part or ""
        if not isinstance(part, Mapping):
            return json.dumps(part, ensure_ascii=False)
        kind = part.get("type")
        if not isinstance(kind, str):
            if not isinstance(part.get("text"), str):
                return _nested(part)
            kind = "text"
        if kind in _TEXT_FIELDS:
            text = part.get(_TEXT_FIELDS[kind])
            return text or "" if isinstance(text, (str, type(None))) else json.dumps(text, ensure_ascii=False)
        if kind in _MEDIA:
            return self._unreadable(place, _MEDIA[kind], part, refused=asked)
        known = _readable(kind, part)
        if known is None and not self._strict:
            known = next((part[name] for name in ("text", "content", kind) if isinstance(part.get(name), str)), None)
        return known if known is not None else self._unreadable(place, kind, part, refused=False)

    def _unreadable(self, place: str, kind: str, part: Mapping[str, Any], *, refused: bool) -> str:
        if refused or self._strict:
            raise ApiError(
                400,
                f"{place} is of type {kind[:80]!r}, but this model reads text only: no images, sound or video",
                param=place,
                code="unsupported_content",
            )
        self._warnings.add(f"{place} is of type {kind[:80]!r}, which this model cannot read: a note replaces it")
        return placeholder(kind, part)


def in_lines(texts: Iterable[str]) -> str:
    """Joins independent texts, with a new line wherever no white space separates them."""
    joined: list[str] = []
    for text in filter(None, texts):
        if joined and not joined[-1][-1].isspace() and not text[0].isspace():
            joined.append("\n")
        joined.append(text)
    return "".join(joined)


def is_part(content: Mapping[str, Any]) -> bool:
    """Whether an object in place of a list is a part, and not the data that a tool returned."""
    kind = content.get("type")
    if not isinstance(kind, str):
        return kind is None and isinstance(content.get("text"), str)
    return kind in _TEXT_FIELDS or kind in _MEDIA or kind in _FILES or _readable(kind, content) is not None


def placeholder(kind: str, part: Mapping[str, Any]) -> str:
    """What the model sees in place of a part that it cannot read."""
    inner = part.get(kind)
    sources = [part, inner if isinstance(inner, Mapping) else {}]
    names = [source.get(field) for source in sources for field in ("filename", "title", "name", "file_id")]
    name = next((one for one in names if isinstance(one, str) and one), "")
    return f"[{kind[:80]}{f' {name[:80]}' if name else ''}: not readable here]"


def _readable(kind: str, part: Mapping[str, Any]) -> str | None:
    """The text of parts that hold text in some other form; None for others."""
    if kind in _FILES:
        return _file_text(part)
    if kind == "search_result":
        return _joined([part.get("title"), part.get("source"), _nested(part.get("content"))])
    if kind in ("tool_reference", "tool_addition", "tool_removal"):
        return f"[{kind}: {_tool_name(part)}]"
    if kind in ("redacted_thinking", "reasoning", "fallback"):
        return ""
    if kind.endswith(("_result", "_use", "_listing", "_state", "compaction")):
        name = part.get("name")
        return _joined([f"[{kind}{f' {name}' if isinstance(name, str) else ''}]", _nested(part)])
    return None


def _tool_name(part: Mapping[str, Any]) -> str:
    tool = part.get("tool")
    holder: Mapping[str, Any] = tool if isinstance(tool, Mapping) else part
    inner = holder.get("definition")
    holder = inner if isinstance(inner, Mapping) else holder
    name = holder.get("tool_name") or holder.get("name") or holder.get("server_name")
    return name[:80] if isinstance(name, str) else "unnamed"


def _file_text(part: Mapping[str, Any]) -> str | None:
    """The text of a document; None if it holds no text that can be read here."""
    source = part.get("source")
    holder = part.get("file")
    text: str | None = None
    if isinstance(source, Mapping):
        if source.get("type") == "text" and isinstance(source.get("data"), str):
            text = source["data"]
        elif source.get("type") == "content":
            text = _nested(source.get("content"))
        elif str(source.get("media_type")).startswith("text/"):
            text = _decoded(source.get("data"))
    else:
        holder = holder if isinstance(holder, Mapping) else part
        data = holder.get("file_data")
        if isinstance(data, str) and data.startswith("data:text/"):
            head, _, payload = data.partition(",")
            text = _decoded(payload) if head.endswith(";base64") else payload
        name = holder.get("filename")
        return None if text is None else _joined([name, text])
    return None if text is None else _joined([part.get("title"), part.get("context"), text])


def _decoded(data: Any) -> str | None:
    try:
        return base64.b64decode(data, validate=True).decode()
    except (TypeError, ValueError, binascii.Error):
        return None


def _nested(value: Any, depth: int = _DEPTH) -> str:
    """The texts within a value, one a line; what is opaque is left out."""
    if isinstance(value, str):
        return value
    if depth == 0 or value is None or isinstance(value, bool):
        return ""
    if isinstance(value, Mapping):
        kind = value.get("type")
        if isinstance(kind, str) and kind in _MEDIA:
            return placeholder(_MEDIA[kind], value)
        items = [
            (
                json.dumps(item, ensure_ascii=False)
                if key in ("input", "arguments", "action")
                else _nested(item, depth - 1)
            )
            for key, item in value.items()
            if key not in _SILENT
            and key not in ("type", "name", "id")
            and not key.startswith("encrypted_")
            and not key.endswith("_id")
        ]
        return _joined(items)
    if isinstance(value, (list, tuple)):
        return _joined([_nested(item, depth - 1) for item in value])
    return str(value)


def _joined(texts: Sequence[Any]) -> str:
    return "\n".join(text for text in texts if isinstance(text, str) and text)
