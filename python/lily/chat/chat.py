"""A conversation with a model: messages in, typed events out, the session and the generated ids kept between turns."""

from __future__ import annotations

import contextlib
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, get_args

from lily.chat.argument_values import ToolSchemas
from lily.chat.chat_session import ChatSession
from lily.chat.events import Answer, Event, ToolCall, collect, observed
from lily.chat.functions import as_definitions
from lily.chat.options import TurnOptions
from lily.chat.rendering import Rendering
from lily.chat.roles import LaterSystem, copied_messages
from lily.chat.side_by_side import side_by_side
from lily.chat.tool_results import as_text, open_calls, result_of
from lily.chat.turn_prompt import SEEDS, PrefillCancelledError, reseeded
from lily.checks.arguments import as_flag, check_callable, one_of
from lily.checks.quoting import quoted
from lily.checks.whole_numbers import as_count, whole_number
from lily.errors import BusyError, InvalidArgumentError
from lily.sampling import check_seed
from lily.session import Progress, Session
from lily.session.progress import checked_progress
from lily.text import answerable, checked_variables

if TYPE_CHECKING:
    from lily.model import Model

__all__ = ["Chat"]

Tool = Mapping[str, Any] | Callable[..., Any]
_MOST_ALTERNATIVES = 1024


class Chat:
    """One conversation. Made by `Model.chat`.

    A chat serves one caller at a time, from any thread; a second caller gets `BusyError`. Chats of one model may be
    used from several threads at once.

    Examples
    --------
    >>> import lily
    >>> chat = lily.Model.load("lily-tiny").chat(thinking=False, sampling=lily.Sampling.greedy())
    >>> for event in chat.send("Hello!"):
    ...     if isinstance(event, lily.chat.ContentDelta):
    ...         text = event.text
    """

    def __init__(
        self,
        model: Model,
        options: TurnOptions,
        *,
        system: str | None = None,
        tools: Sequence[Tool] | None = None,
        messages: Sequence[Mapping[str, Any]] = (),
        thinking: bool | None = True,
        preserve_thinking: bool = False,
        later_system: LaterSystem = "refuse",
        seed: int | None = None,
        template_options: Mapping[str, Any] | None = None,
    ) -> None:
        """See `Model.chat`."""
        self._model = model
        self._first: list[dict[str, Any]] = [] if system is None else [{"role": "system", "content": system}]
        self._messages: list[dict[str, Any]] = [*self._first, *copied_messages(messages)]
        one_of("later_system", later_system, get_args(LaterSystem))
        self._seed = secrets.randbits(64) if seed is None else check_seed(seed)
        self._options = options
        variables = checked_variables({} if template_options is None else template_options)
        if thinking is not None:
            variables["enable_thinking"] = as_flag("thinking", thinking)
        if as_flag("preserve_thinking", preserve_thinking):
            variables["preserve_thinking"] = True
        definitions, self._functions = as_definitions(tools)
        self._lock = threading.Lock()
        self._cancelled = threading.Event()
        self._rendering = Rendering(model, definitions, variables, later_system, self._cancelled.is_set)
        self._session = ChatSession(model, self._seed, self._cancelled.is_set)

    # -- turns -----------------------------------------------------------------------------------------------------

    def send(
        self,
        content: str | Sequence[Mapping[str, Any]] | None = None,
        *,
        progress: Progress | None = None,
        **options: Any,
    ) -> Iterator[Event]:
        """Send a message and generate the answer.

        Nothing is computed before the first event is requested. Once a token has been generated, the turn is part of
        the conversation, even if the caller stops early; before that, neither the message nor the answer is.

        Parameters
        ----------
        content : str or sequence of parts, optional
            The user's message; None answers the conversation as it is, for example tool results.
        progress : callable, optional
            Called as ``progress(done, total)`` in tokens of the prompt, first with those already computed.
        **options
            Fields of `lily.chat.TurnOptions`, for this turn only.

        Yields
        ------
        ReasoningDelta, ContentDelta, ToolCallEvent, Done
            `Done` is always the last one.

        Raises
        ------
        TemplateError
            The messages are not a conversation that the model can answer; the error names the message's index.
        InvalidArgumentError
            An option is not valid.
        ContextOverflowError
            The prompt does not fit in the context.
        BusyError, ClosedError
            Another turn of this chat is in progress; or the model is closed.
        """
        message = None if content is None else {"role": "user", "content": content}
        return self._turn(message, self._options.changed(options), checked_progress(progress))

    def alternatives(
        self,
        content: str | Sequence[Mapping[str, Any]] | None = None,
        *,
        count: int,
        progress: Progress | None = None,
        **options: Any,
    ) -> Iterator[tuple[int, Event]]:
        """Several answers to one message, generated side by side; the prompt is computed once.

        The conversation stays unchanged; `reset` can continue from the answer that the caller chooses.

        Parameters
        ----------
        content, progress, **options
            As in `send`.
        count : int
            How many answers, at most 1,024. The first is what `send` would give; each further one has a seed one
            higher.

        Yields
        ------
        (int, Event)
            An answer's index and one of its events, the answers in rotation; each ends with its `Done`. Errors as for
            `send`.
        """
        number = whole_number("count", count, 1, _MOST_ALTERNATIVES, InvalidArgumentError)
        message = None if content is None else {"role": "user", "content": content}
        return self._alternatives(message, number, self._options.changed(options), checked_progress(progress))

    def ask(self, content: str | Sequence[Mapping[str, Any]] | None = None, **options: Any) -> Answer:
        """Like `send`, but returns the whole answer at once."""
        return collect(self.send(content, **options))

    def add_tool_result(self, call: ToolCall | str, result: Any) -> None:
        """Add the result of a tool call. When all are there, `send` without content continues.

        Parameters
        ----------
        call : ToolCall or str
            The call, or its id.
        result : any
            A string is used unchanged; anything else becomes JSON, or ``str(result)`` if it has no JSON form.

        Raises
        ------
        InvalidArgumentError
            The latest answer made no such call, or the call already has its result.
        """
        call_id = call.id if isinstance(call, ToolCall) else call
        with self._exclusive():
            if not isinstance(call_id, str) or call_id not in open_calls(self._messages):
                raise InvalidArgumentError(
                    f"the latest answer has no call with the id {quoted(call_id)} without a result"
                )
            self._messages.append({"role": "tool", "tool_call_id": call_id, "content": as_text(result)})

    def run(
        self,
        content: str | Sequence[Mapping[str, Any]] | None = None,
        *,
        tools: Sequence[Tool] | None = None,
        max_rounds: int = 16,
        on_event: Callable[[Event], object] | None = None,
        **options: Any,
    ) -> Answer:
        """Send a message, call the Python functions that the model asks for, and repeat until it answers.

        The model is told of exceptions that a function raises, of unknown functions and of wrong arguments.

        Parameters
        ----------
        content : str or sequence of parts, optional
            As in `send`.
        tools : sequence of functions, optional
            Replace the chat's tools from now on.
        max_rounds : int
            Maximum number of the model's turns. The last answer is returned even if it asks for more calls; its
            `finish_reason` is then "tool_calls".
        on_event : callable, optional
            Called with every event of every turn.
        **options
            As in `send`, applied to each turn.
        """
        max_rounds = whole_number("max_rounds", max_rounds, 1, error_type=InvalidArgumentError)
        check_callable("on_event", on_event)
        if tools is not None:
            with self._exclusive():
                self._rendering.tools, self._functions = as_definitions(tools)
        for turn in range(max_rounds):
            answer = collect(observed(self.send(content, **options), on_event))
            if answer.finish_reason != "tool_calls" or turn == max_rounds - 1:
                break
            names = ToolSchemas(self._rendering.tools).names
            if any(call.name in names and call.name not in self._functions for call in answer.tool_calls):
                break  # a tool that only the caller can run
            for call in answer.tool_calls:
                self.add_tool_result(call, result_of(call, self._functions))
            content = None
        return answer

    def prompt_length(self, most: int | None = None) -> int:
        """Number of tokens of the prompt that `send` without content would answer, even if too many; errors as for it.

        Parameters
        ----------
        most
            Raise ContextOverflowError without encoding the whole prompt if it is certain to have more tokens than this.
        """
        limit = None if most is None else as_count("most", most)
        with self._exclusive():
            return len(self._rendering.prompt(self._with(None, self._options), self._options, limit).encoded.ids)

    def cancel(self) -> None:
        """End the running turn within one token, or one chunk of its prompt; may be called from any thread."""
        self._cancelled.set()
        if (session := self._session.current) is not None:
            session.cancel()

    # -- state -----------------------------------------------------------------------------------------------------

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The conversation in OpenAI's form, with ``reasoning_content``; a copy."""
        return [dict(message) for message in self._messages]

    @property
    def tools(self) -> list[dict[str, Any]]:
        """Definitions of the tools, in OpenAI's form; a copy."""
        return [dict(tool) for tool in self._rendering.tools]

    @property
    def model(self) -> Model:
        """The model."""
        return self._model

    @property
    def session(self) -> Session | None:
        """The session of the latest turn; None before the first one. It belongs to the chat."""
        return self._session.current

    def reset(self, messages: Sequence[Mapping[str, Any]] = ()) -> None:
        """Clear the conversation except for the system message, and continue from `messages`."""
        with self._exclusive():
            self._messages = [*self._first, *copied_messages(messages)]

    def close(self) -> None:
        """Free the session; its computed states stay in the model's prefix cache."""
        with self._exclusive():
            self._session.close()

    def __enter__(self) -> Chat:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<lily.Chat messages={len(self._messages)} tools={len(self._rendering.tools)}>"

    def _repr_html_(self) -> str:
        from lily.display import chat_html

        return chat_html(self)

    # -- one turn --------------------------------------------------------------------------------------------------

    def _turn(self, message: dict[str, Any] | None, options: TurnOptions, progress: Progress | None) -> Iterator[Event]:
        with self._exclusive():
            messages = self._with(message, options)
            try:
                prompt = self._rendering.prompt(messages, options, self._model.max_context)
                session, cached, seconds = self._session.bring(prompt.encoded, progress)
            except PrefillCancelledError as cancelled:
                yield cancelled.done
                return
            turn = prompt.start(session, prompt.sampling, self._cancelled.is_set)
            try:
                yield from turn.events()
            finally:
                if turn.tokens or turn.tool_calls or turn.ended_by_model:
                    self._messages = prompt.answered(messages, turn.message)
                self._rendering.remember(prompt, turn)
            yield turn.done(len(prompt.encoded.ids), cached, seconds)

    def _alternatives(
        self, message: dict[str, Any] | None, count: int, options: TurnOptions, progress: Progress | None
    ) -> Iterator[tuple[int, Event]]:
        with self._exclusive(), contextlib.ExitStack() as at_end:
            try:
                prompt = self._rendering.prompt(self._with(message, options), options, self._model.max_context)
                session, cached, seconds = self._session.bring(prompt.encoded, progress)
            except PrefillCancelledError as cancelled:
                yield from ((index, cancelled.done) for index in range(count))
                return
            streams: list[Iterator[Event]] = []
            for index in range(count):
                branch = session if index == 0 else session.fork(seed=(self._seed + index) % SEEDS)
                if index:
                    at_end.callback(self._session.keep, branch)
                turn = prompt.start(branch, reseeded(prompt.sampling, index), self._cancelled.is_set)
                total = len(prompt.encoded.ids)
                streams.append(turn.whole(total, *((cached, seconds) if index == 0 else (total, 0.0))))
                at_end.callback(self._rendering.remember, prompt, turn)
            yield from side_by_side(streams)

    def _with(self, message: dict[str, Any] | None, options: TurnOptions) -> list[dict[str, Any]]:
        """The conversation to answer."""
        self._cancelled.clear()
        messages = answerable([*self._messages, *([] if message is None else [message])])
        if messages and messages[-1].get("role") == "assistant" and not options.continue_answer:
            raise InvalidArgumentError("the conversation ends with an answer; send a message to continue")
        return messages

    # -- helpers ---------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _exclusive(self) -> Iterator[None]:
        if not self._lock.acquire(blocking=False):
            raise BusyError("another turn of this chat is running; use one chat per conversation")
        try:
            yield
        finally:
            self._lock.release()
