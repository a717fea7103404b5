"""A request of Anthropic's Messages API: the conversation in OpenAI's form, and how to answer it."""

from __future__ import annotations

from typing import Any

from lily.chat import TurnOptions
from lily.server.answer_forms import form_field, form_of, known_form
from lily.server.anthropic_history import added_tools, read_anthropic_messages, read_system
from lily.server.content_parts import PartReader
from lily.server.errors import ApiError, unsupported
from lily.server.fields import Fields
from lily.server.message_roles import message_list
from lily.server.openai_fields import sampling_of, token_limit
from lily.server.request_rules import MESSAGES_RULES
from lily.server.service import Service
from lily.server.steps import Steps
from lily.server.tool_definitions import RequestTools
from lily.server.turns import ChatRequest, errors_at
from lily.server.work_limits import check_counts

__all__ = ["anthropic_chat_request"]

_THINKING = ("enabled", "adaptive", "auto", "between_tools", "disabled")


def anthropic_chat_request(service: Service, fields: Fields, steps: Steps) -> ChatRequest:
    """The conversation, tools and options of a Messages request, without max_tokens."""
    strict = service.options.strict
    reader = PartReader(fields.warnings, strict=strict, check=steps.check)
    system = read_system(fields.any("system"), reader)
    given = fields.required("messages")
    given = message_list(given, strict=strict)
    if given is None:
        raise fields.wrong("messages", "a non-empty list", fields.any("messages"))
    check_counts(service.model, given, fields.any("tools"))
    history = read_anthropic_messages(system, given, reader, fields.warnings, strict=strict)
    begun = history.finish(strict=strict)
    tools = RequestTools(fields.warnings, strict=strict)
    tools.add_all("tools.{}", fields.items("tools") or [])
    for tool in added_tools(given):
        tools.add_late("messages", tool)
    tools.choose(fields.any("tool_choice"))
    choice = fields.any("tool_choice")
    parallel = not (isinstance(choice, dict) and Fields(choice).flag("disable_parallel_tool_use", False))
    thinking, budget = _thinking(service, fields)
    form = _format(service, fields)
    seen = tools.for_model(history.messages, with_form=form is not None)
    with errors_at(history.places, "output_config.format"):
        options = TurnOptions(
            stop=fields.strings(fields.take("stop_sequences", "stop"), 16),
            tool_choice=seen.choice,
            parallel_tool_calls=parallel,
            max_thinking_tokens=budget,
            response_format=form,
            sampling=sampling_of(fields, service.model.default_sampling, service.model.sampled_vocab_size),
            continue_answer=begun,
        )
    thread = fields.any("thread")
    if isinstance(thread, dict) and thread.get("type") == "create":
        fields.warnings.add("thread is ignored: this server keeps no conversations")
    elif thread is not None:
        raise unsupported("thread", "thread: this server keeps no conversations; send all messages")
    MESSAGES_RULES.apply(fields, strict=strict)
    return ChatRequest(
        messages=seen.messages,
        tools=seen.functions,
        thinking=thinking,
        options=options,
        later_system=service.options.later_system,
        places=history.places,
        format_field="output_config.format",
        tools_of_client=tools,
    )


def _thinking(service: Service, fields: Fields) -> tuple[bool, int | None]:
    given = fields.any("thinking")
    if not given or given is True:
        return bool(given), None
    inner = (
        Fields({"type": given}, "thinking.", fields.warnings) if isinstance(given, str) else fields.inner("thinking")
    )
    kind = inner.any("type", "enabled")
    if kind not in _THINKING:
        raise fields.wrong("thinking", f"an object whose type is one of {', '.join(_THINKING)}", given)
    budget = token_limit(inner, "budget_tokens")
    inner.ignore("block_binding")
    if inner.any("display") not in (None, "summarized"):
        inner.warnings.add("thinking.display is ignored: thinking is returned in full")
    inner.finish(strict=service.options.strict)
    return kind != "disabled", budget


def _format(service: Service, fields: Fields) -> dict[str, Any] | None:
    """The format of the answer; the API has had it in two places."""
    config = fields.inner("output_config")
    config.ignore("effort")  # this model can only think or not think
    config.ignore_warned({"task_budget": "use max_tokens and thinking.budget_tokens to limit an answer"})
    given = known_form(config, form_field(config, "format"))
    older = known_form(fields, form_field(fields, "output_format"))
    config.finish(strict=service.options.strict)
    peers = form_of(fields)
    form = given or older or peers
    if form is not None and not isinstance(form.get("type"), str):
        raise ApiError(400, "output_config.format: needs a type, json_schema", param="output_config.format")
    return form
