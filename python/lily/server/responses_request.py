"""A request of OpenAI's Responses API: the conversation in the form of chat completions, and how to answer it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lily.chat import TurnOptions
from lily.chat.grammars import check_response_format
from lily.errors import InvalidArgumentError
from lily.server.answer_forms import form_field, form_of, known_form
from lily.server.content_parts import PartReader
from lily.server.errors import as_api_error, unsupported
from lily.server.fields import Fields
from lily.server.openai_fields import sampling_of, stops_of, template_options_of, thinking_of, token_limit
from lily.server.request_rules import RESPONSES_RULES
from lily.server.response_store import ResponseStore
from lily.server.responses_history import ResponsesReader
from lily.server.service import Service
from lily.server.steps import Steps
from lily.server.tool_definitions import RequestTools
from lily.server.turns import ChatRequest, errors_at
from lily.server.work_limits import check_counts

__all__ = ["WITH_SEALED_REASONING", "input_items", "responses_chat_request"]

WITH_LOGPROBS = "message.output_text.logprobs"
WITH_SEALED_REASONING = "reasoning.encrypted_content"


def input_items(fields: Fields) -> list[Any]:
    """The request's own items; a string is the user's message."""
    given = fields.any("input")
    if isinstance(given, str):
        part = {"type": "input_text", "text": given}
        return [{"type": "message", "role": "user", "content": [part]}]
    if given is None and not fields.any("previous_response_id"):
        given = fields.required("input")
    if isinstance(given, dict):
        return [given]
    if given is not None and not isinstance(given, list):
        raise fields.wrong("input", "a string or a list of items", given)
    return given or []


def responses_chat_request(
    service: Service, fields: Fields, store: ResponseStore, owner: str, steps: Steps
) -> ChatRequest:
    """The conversation, tools and options of a request, except whether it streams."""
    strict = service.options.strict
    items = input_items(fields)
    check_counts(service.model, items, fields.any("tools"))
    tools = _tools(fields, strict)
    reader = ResponsesReader(
        PartReader(fields.warnings, strict=strict, check=steps.check),
        fields.warnings,
        tools,
        lambda name: store.item(name, owner),
        strict=strict,
    )
    reader.add_system(fields.any("instructions"))
    previous = fields.text("previous_response_id")
    if previous:  # empty in some clients' first request: none
        before = store.conversation(previous, owner)
        check_counts(service.model, [*before, *items])
        reader.read("previous_response_id", before)
    reader.read("input", items)
    history = reader.history
    if not any(message["role"] != "system" for message in history.messages):
        history.add("input", {"role": "user", "content": ""})  # an empty input: the instructions are the question
    template_options = template_options_of(fields)
    begun = history.finish(strict=strict, keep_thinking=template_options.get("preserve_thinking") is True)
    thinking, budget = thinking_of(service, fields, template_options)
    _check_reasoning(service, fields)
    top, with_logprobs = _logprobs(fields)
    _check_shape(fields, strict)
    form = _format(service, fields)
    RESPONSES_RULES.apply(fields, strict=strict)
    seen = tools.for_model(history.messages, with_form=form is not None)
    limits = ("max_output_tokens", "max_completion_tokens", "max_tokens", "n_predict")
    with errors_at(history.places, "text.format"):
        options = TurnOptions(
            sampling=sampling_of(fields, service.model.default_sampling, service.model.sampled_vocab_size),
            max_tokens=token_limit(fields, *limits, low=1),
            max_thinking_tokens=budget,
            stop=stops_of(service, fields),
            response_format=form,
            tool_choice=seen.choice,
            parallel_tool_calls=fields.flag("parallel_tool_calls", True),
            logprobs=(top or 0) if with_logprobs else None,
            continue_answer=begun,
        )
    return ChatRequest(
        messages=seen.messages,
        tools=seen.functions,
        thinking=thinking,
        options=options,
        preserve_thinking=template_options.pop("preserve_thinking", False) is True,
        later_system=service.options.later_system,
        template_options=template_options,
        places=history.places,
        format_field="text.format",
        tools_of_client=tools,
    )


def _check_shape(fields: Fields, strict: bool) -> None:
    if fields.integer("n", 1) not in (None, 1):
        raise unsupported("n", "this API has one answer; use /v1/chat/completions for several")
    if fields.any("truncation", "disabled") != "disabled":
        if strict:
            raise unsupported("truncation", "only truncation 'disabled' is supported; leave out items that do not fit")
        fields.warnings.add("truncation is ignored: a conversation that does not fit is refused")


def _tools(fields: Fields, strict: bool) -> RequestTools:
    """The tools, including those that items of the input add."""
    tools = RequestTools(fields.warnings, strict=strict)
    tools.add_all("tools[{}]", fields.items("tools") or [])
    for at, item in enumerate(input_items(fields)):
        more = item.get("tools") if isinstance(item, Mapping) else None
        if isinstance(more, list) and item.get("type") in ("additional_tools", "tool_search_output"):
            for one, tool in enumerate(more):
                tools.add_late(f"input[{at}].tools[{one}]", tool)
    tools.choose(fields.any("tool_choice"))
    return tools


def _check_reasoning(service: Service, fields: Fields) -> None:
    if not isinstance(fields.any("reasoning"), dict):
        return
    reasoning = fields.inner("reasoning")
    reasoning.ignore("effort", "enabled", "type", "max_tokens", "budget_tokens")
    reasoning.ignore("summary", "generate_summary", "context", "mode")
    service.finish_fields(reasoning)


def _logprobs(fields: Fields) -> tuple[int | None, bool]:
    include = fields.items("include") or []
    for name in include:
        if name not in (WITH_LOGPROBS, WITH_SEALED_REASONING):
            fields.warnings.add(f"include: {str(name)[:80]} is ignored: this server has nothing of that name")
    top = fields.integer("top_logprobs", 0, 20)
    return top, WITH_LOGPROBS in include or bool(top)


def _format(service: Service, fields: Fields) -> dict[str, Any] | None:
    text = fields.inner("text")
    if text.any("verbosity") not in (None, "medium"):
        fields.warnings.add("text.verbosity is ignored: ask in the prompt for the length that you want")
    given = form_field(text, "format")
    service.finish_fields(text)
    given = form_of(fields) if given is None else known_form(fields, given)
    try:
        check_response_format(given)
    except InvalidArgumentError as error:
        raise as_api_error(error, format_field="text.format") from error
    return given
