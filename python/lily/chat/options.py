"""The options of a turn, checked."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lily.chat.stop_strings import as_stop_strings
from lily.checks.arguments import as_flag, check_text
from lily.checks.quoting import quoted
from lily.checks.whole_numbers import as_count
from lily.errors import InvalidArgumentError
from lily.sampling import Sampling

if TYPE_CHECKING:
    from lily.model import Model

__all__ = ["DEFAULT_THINKING_END", "TurnOptions", "resolve_sampling"]

# The text with which this model family ends its thinking on request.
DEFAULT_THINKING_END = (
    "\n\nConsidering the limited time by the user, I have to give the solution based on the thinking directly now.\n"
)


@dataclass(frozen=True)
class TurnOptions:
    """How a turn is generated. All of them may be given to `Model.chat` and, for one turn, to `Chat.send`.

    Attributes
    ----------
    max_tokens : int, optional
        Maximum tokens of a turn, thinking included; None: as many as fit in the context.
    sampling : Sampling or str
        "auto": the checkpoint's generation_config.json; or the name of a profile of `Sampling.profile`; or a complete
        `Sampling`.
    stop : str or iterable of str
        Strings that end the answer; searched for in its content, but not in thinking, in calls or across calls.
    response_format : mapping, optional
        The format of the answer, see `lily.chat.grammars.answer_grammar`. It applies after the thinking.
    tool_choice : str or mapping, optional
        "auto", "none", "required", or a mapping that names a tool.
    parallel_tool_calls : bool
        False: the answer ends with its first call.
    max_thinking_tokens : int, optional
        Ends the thinking after that many tokens with `thinking_end`; the answer follows.
    thinking_end : str
        The model's words before it stops thinking.
    logprobs : int, optional
        Report the log-probability of each token and of that many most probable alternatives; see `TokenLogprob`.
    call_deltas : bool
        Yield pieces of tool calls as they are written, besides the complete calls.
    continue_answer : bool
        If the last message is the assistant's, it is the beginning of the answer, which continues it. The events have
        only the rest, `Chat.messages` the whole.
    """

    max_tokens: int | None = None
    sampling: Sampling | str = "auto"
    stop: tuple[str, ...] = ()
    response_format: Mapping[str, Any] | None = None
    tool_choice: str | Mapping[str, Any] | None = None
    parallel_tool_calls: bool = True
    max_thinking_tokens: int | None = None
    thinking_end: str = DEFAULT_THINKING_END
    logprobs: int | None = None
    call_deltas: bool = False
    continue_answer: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "stop", as_stop_strings(self.stop))
        for name in ("max_tokens", "max_thinking_tokens", "logprobs"):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, as_count(name, value))
        if not isinstance(self.sampling, (Sampling, str)):
            raise InvalidArgumentError(f"sampling must be a lily.Sampling or a name, not {quoted(self.sampling)}")
        if isinstance(self.sampling, str) and self.sampling != "auto":
            object.__setattr__(self, "sampling", Sampling.profile(self.sampling))
        for name in ("parallel_tool_calls", "call_deltas", "continue_answer"):
            object.__setattr__(self, name, as_flag(name, getattr(self, name)))
        check_text("thinking_end", self.thinking_end)
        if not isinstance(self.response_format, (Mapping, type(None))):
            given = quoted(self.response_format)
            raise InvalidArgumentError(f"response_format must be a mapping with a type, not {given}")
        for name in ("type", "regex", "grammar"):
            value = (self.response_format or {}).get(name)
            if not isinstance(value, (str, type(None))):
                raise InvalidArgumentError(f"response_format.{name} must be a string, not {quoted(value)}")

    def changed(self, changes: Mapping[str, Any]) -> TurnOptions:
        """A copy with some options changed.

        Raises
        ------
        InvalidArgumentError
            There is no such option, or its value is out of range.
        """
        return dataclasses.replace(self, **_known(changes))

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> TurnOptions:
        """From the options by name; errors as for `changed`."""
        return cls(**_known(options))


def resolve_sampling(model: Model, sampling: Sampling | str) -> Sampling:
    """The sampling parameters of a turn's option."""
    if isinstance(sampling, Sampling):
        return sampling
    return model.default_sampling if sampling == "auto" else Sampling.profile(sampling)


def _known(options: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(options, Mapping):
        raise InvalidArgumentError(f"options must be a mapping, not a {type(options).__name__}")
    names: Iterable[str] = [field.name for field in dataclasses.fields(TurnOptions)]
    for name in options:
        if name not in names:
            raise InvalidArgumentError(f"unknown option {quoted(name)}; the options are {', '.join(names)}")
    return dict(options)
