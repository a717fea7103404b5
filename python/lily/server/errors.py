"""Failures as HTTP answers: the status, and the body in the shape of each API."""

from __future__ import annotations

import logging
import os
import re
import traceback
from collections.abc import Sequence
from typing import Any

from lily.errors import (
    BusyError,
    CancelledError,
    CheckpointError,
    ClosedError,
    ContextOverflowError,
    InvalidArgumentError,
    MemoryLimitError,
    MissingExtraError,
    NonFiniteError,
    TemplateError,
)

__all__ = ["ApiError", "anthropic_body", "as_api_error", "one_line", "openai_body", "unsupported", "without_frames"]

logger = logging.getLogger("lily.server")

_OPENAI_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}
_LONGEST_LOGGED = 200  # characters
_LONGEST_TOLD = 1000
_PLACE = "_lily_place"  # attribute of an exception: where it was raised
_MESSAGE_INDEX = re.compile(r"message (\d+)")
# Fields with which the library's messages begin, or which they name.
_FIELD = re.compile(
    r"\b(temperature|top_p|top_k|min_p|presence_penalty|frequency_penalty|repetition_penalty|logit_bias|seed|stop|"
    r"max_tokens|max_thinking_tokens|logprobs|tool_choice|tools(?:\[\d+\])?|response_format(?:\.\w+)*)(?!\w)"
)


class ApiError(Exception):
    """A request that is not answered as asked."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after: int | None = None,
        anthropic_message: str | None = None,
    ) -> None:
        message = message if len(message) <= _LONGEST_TOLD else f"{message[: _LONGEST_TOLD - 3]}..."
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = None if param is None else param[:_LONGEST_LOGGED]
        self.code = code
        self.anthropic_message = anthropic_message  #: other wording by which that API's clients recognise an error
        self.headers = {} if retry_after is None else {"retry-after": str(retry_after)}


def unsupported(param: str, what: str) -> ApiError:
    """The error for a part of the API that this server does not have."""
    return ApiError(400, what, param=param, code="unsupported_parameter")


def openai_body(error: ApiError) -> dict[str, Any]:
    """The body of OpenAI's errors."""
    kind = _OPENAI_TYPES.get(error.status, "invalid_request_error" if error.status < 500 else "server_error")
    return {"error": {"message": error.message, "type": kind, "param": error.param, "code": error.code}}


def anthropic_body(error: ApiError) -> dict[str, Any]:
    """The body of Anthropic's errors; their messages begin with the parameter's name."""
    kind = _ANTHROPIC_TYPES.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
    named = error.param is None or error.message.startswith(error.param)
    message = error.anthropic_message or (error.message if named else f"{error.param}: {error.message}")
    return {"type": "error", "error": {"type": kind, "message": message}}


def as_api_error(
    error: BaseException, places: Sequence[str] | None = None, *, format_field: str = "response_format"
) -> ApiError:
    """What a client is told about an exception.

    `places` name the messages of the conversation in the request, `format_field` its response format.
    """
    if isinstance(error, ApiError):
        return error
    text = str(error)[:_LONGEST_TOLD]
    if isinstance(error, ContextOverflowError):
        from lily.server.context_errors import as_too_long

        return as_too_long(text)
    if isinstance(error, MemoryLimitError):
        return ApiError(413, text, code="memory_limit_exceeded")
    if isinstance(error, TemplateError):
        return _template_error(text, places)
    if isinstance(error, RecursionError):
        return ApiError(400, "the request is nested too deeply", code="invalid_value")
    if isinstance(error, (InvalidArgumentError, MissingExtraError)):
        field = _FIELD.search(text)
        if field is not None and field[1].startswith("response_format") and format_field != "response_format":
            return ApiError(
                400, text.replace("response_format", format_field), param=format_field, code="invalid_value"
            )
        param = "messages" if text.startswith("the conversation") else None if field is None else field[1]
        return ApiError(400, text, param=param, code="invalid_value")
    if isinstance(error, (CancelledError, ClosedError, BusyError)):
        return ApiError(503, "the server is shutting down", code="unavailable", retry_after=5)
    if isinstance(error, CheckpointError):
        name, _, what = text.partition(": ")
        what = f"{name.rpartition(os.sep)[2]}: {what}"  # clients must not learn where the files are
        message = f"the model cannot be used any more; restart the server: {what}"
        return ApiError(503, message, code="unavailable")
    if isinstance(error, NonFiniteError):
        logger.error("a request failed: %s", one_line(error))
        what = text.partition(";")[0]  # the rest is advice for callers of the library
        return ApiError(500, f"the model computed values that are not finite: {what}", code="model_failure")
    if isinstance(error, (RecursionError, UnicodeError, OverflowError)):
        what = "is nested too deeply" if isinstance(error, RecursionError) else "holds text or numbers out of range"
        logger.warning("a request was refused: %s", one_line(error))
        return ApiError(400, f"the request {what}", code="invalid_value")
    logger.error("a request failed: %s", one_line(error))
    return ApiError(500, "the server failed to answer this request; its log says why", code="internal_error")


def without_frames(error: BaseException) -> BaseException:
    """The same error without its traceback and causes, whose frames keep the whole request alive."""
    if not hasattr(error, _PLACE):
        setattr(error, _PLACE, _place_of(error))
        logger.debug("an error in the work of a request", exc_info=error)
    error.__traceback__ = error.__context__ = error.__cause__ = None
    return error


def _place_of(error: BaseException) -> str:
    place = "an unknown place"
    for frame, line in traceback.walk_tb(error.__traceback__):
        place = f"{frame.f_code.co_filename}:{line}"
    return place


def one_line(error: BaseException) -> str:
    """An error for the log: bounded text without control characters, and where it was raised."""
    text = str(error)[:_LONGEST_LOGGED].encode("unicode_escape").decode()[:_LONGEST_LOGGED]
    return f"{type(error).__name__} at {getattr(error, _PLACE, None) or _place_of(error)}: {text}"


def _template_error(text: str, places: Sequence[str] | None) -> ApiError:
    found = _MESSAGE_INDEX.search(text)
    if found is None:
        return ApiError(400, text, param="messages", code="invalid_value")
    index = int(found[1])
    if places is None:
        return ApiError(400, text, param=f"messages[{index}]", code="invalid_value")
    place = places[index] if index < len(places) else "messages"
    return ApiError(400, f"{text[: found.start()]}{place}{text[found.end() :]}", param=place, code="invalid_value")
