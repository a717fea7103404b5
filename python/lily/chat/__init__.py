"""Chats: messages in, typed events out. `Model.chat` makes one.

The parts can also be used alone: the parser of answers, the conversion of arguments, the role policy, Python functions
as tools, and grammars.
"""

from __future__ import annotations

from lily.chat.argument_values import ToolSchemas
from lily.chat.chat import Chat
from lily.chat.events import (
    Answer,
    ContentDelta,
    Done,
    Event,
    ReasoningDelta,
    Timings,
    TokenLogprob,
    ToolCall,
    ToolCallDelta,
    ToolCallEvent,
    Usage,
    collect,
)
from lily.chat.functions import PythonTool
from lily.chat.options import TurnOptions
from lily.chat.output_parser import OutputParser, thinking_is_open
from lily.chat.roles import normalize_messages

__all__ = [
    "Answer",
    "Chat",
    "ContentDelta",
    "Done",
    "Event",
    "OutputParser",
    "PythonTool",
    "ReasoningDelta",
    "Timings",
    "TokenLogprob",
    "ToolCall",
    "ToolCallDelta",
    "ToolCallEvent",
    "ToolSchemas",
    "TurnOptions",
    "Usage",
    "collect",
    "normalize_messages",
    "thinking_is_open",
]
