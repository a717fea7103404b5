"""What OpenAI's endpoints have in common: sampling fields, and the numbers in answers."""

from __future__ import annotations

import dataclasses
from typing import Any

from lily.chat import Done, TokenLogprob
from lily.errors import InvalidArgumentError
from lily.sampling import Sampling
from lily.server.errors import ApiError
from lily.server.fields import Fields
from lily.server.service import Service
from lily.text import checked_variables

__all__ = [
    "INF",
    "logprob_entry",
    "sampling_of",
    "stops_of",
    "template_options_of",
    "thinking_of",
    "timings_body",
    "token_limit",
    "top_p_of",
    "usage_body",
]

INF = float("inf")
_LEAST_TOP_P = 1e-9
_OFF = ("none", "off", "disabled", "disable", "false", "no", "0")


def sampling_of(fields: Fields, default: Sampling, vocabulary: int) -> Sampling:
    """The checkpoint's sampling, changed as the request says; top_k, min_p and repetition_penalty are extensions."""
    given: dict[str, Any] = {
        "temperature": fields.number("temperature", 0, INF),
        "top_p": top_p_of(fields),
        "top_k": fields.integer("top_k", -1),
        "min_p": fields.number("min_p", 0, 1),
        "presence_penalty": fields.number("presence_penalty", -2, 2),
        "frequency_penalty": fields.number("frequency_penalty", -2, 2),
        "repetition_penalty": fields.number(fields.take("repetition_penalty", "repeat_penalty"), 0.01, 100),
        "seed": fields.integer("seed", -(1 << 63)),
        "logit_bias": _logit_bias(fields, vocabulary),
    }
    if given["seed"] == -1:  # other servers' value for a new seed each time
        given["seed"] = None
    if given["seed"] is not None:
        given["seed"] %= 1 << 64
    if given["top_k"] == -1:
        given["top_k"] = 0
    return dataclasses.replace(default, **{name: value for name, value in given.items() if value is not None})


def top_p_of(fields: Fields) -> float | None:
    """top_p. The APIs allow 0, which means the most probable token alone."""
    top_p = fields.number("top_p", 0, 1)
    return _LEAST_TOP_P if top_p == 0 else top_p


def _logit_bias(fields: Fields, vocabulary: int) -> dict[int, float] | None:
    bias = fields.mapping("logit_bias")
    if not bias:
        return None
    if len(bias) > vocabulary:
        raise ApiError(
            400,
            f"logit_bias has {len(bias)} entries, but the vocabulary has {vocabulary} tokens",
            param="logit_bias",
            code="invalid_value",
        )
    checked = {}
    for token, value in bias.items():
        if not token.isdecimal() or len(token) > 9 or isinstance(value, bool) or not isinstance(value, (int, float)):
            raise fields.wrong("logit_bias", "an object that maps token ids to numbers", {token: value})
        if not -100 <= value <= 100:
            raise fields.wrong("logit_bias", "of values from -100 to 100", value)
        checked[int(token)] = -INF if value == -100 else float(value)  # -100 is a ban in this API
    return checked


def template_options_of(fields: Fields) -> dict[str, Any]:
    """The fields of chat_template_kwargs, which become variables of the chat template."""
    given = fields.mapping("chat_template_kwargs") or {}
    try:
        return checked_variables(given)
    except InvalidArgumentError as error:
        message = str(error).replace("template_options", "chat_template_kwargs")
        raise ApiError(400, message, param="chat_template_kwargs", code="invalid_value") from error


def token_limit(fields: Fields, *names: str, low: int = 0) -> int | None:
    """A token limit, under any of its names; -1 means no limit."""
    name = fields.take(*names)
    value = fields.integer(name, -2)
    if value is None or value < 0:
        return None
    return fields.integer(name, low)


def thinking_of(service: Service, fields: Fields, template_options: dict[str, Any]) -> tuple[bool, int | None]:
    """Whether to think, and at most how many tokens.

    This model can only think or not think: all efforts but "none" are equal. Other servers have other names for the
    switch: `enable_thinking`, `thinking`, `think`, and `reasoning` with `effort`, `enabled` or `max_tokens`.
    """
    budget = token_limit(fields, "max_thinking_tokens", "thinking_budget", "thinking_budget_tokens", "reasoning_budget")
    chosen: bool | None = None
    for name in ("enable_thinking", "thinking", "think", "reasoning", "reasoning_effort"):
        value = fields.any(name)
        switch = _switch(value)
        chosen = switch if chosen is None else chosen
        if isinstance(value, dict):
            budget = budget if budget is not None else _budget(Fields(value, f"{name}."))
    chosen = service.options.thinking if chosen is None else chosen
    if isinstance(template_options.get("thinking"), bool):  # the name in other models' templates
        chosen = template_options["thinking"]
    chosen = template_options.pop("enable_thinking", chosen)
    if isinstance(chosen, str) and chosen.lower() in ("true", "false"):
        chosen = chosen.lower() == "true"
    if not isinstance(chosen, bool):
        raise fields.wrong("chat_template_kwargs", "an object whose enable_thinking is true or false", chosen)
    return chosen, budget


def _switch(value: Any) -> bool | None:
    """What a value says about thinking, if anything."""
    if isinstance(value, dict):
        given = (_switch(value.get(name)) for name in ("enabled", "type", "effort"))
        return next((one for one in given if one is not None), None)
    if isinstance(value, str):
        return value.lower() not in _OFF if value else None
    return None if value is None else bool(value)


def _budget(fields: Fields) -> int | None:
    return token_limit(fields, "max_tokens", "budget_tokens")


def stops_of(service: Service, fields: Fields) -> tuple[str, ...]:
    """Strings that end the answer; stop token ids count as the texts of their tokens."""
    stops = fields.strings("stop", 16)
    model = service.model
    for token in fields.items("stop_token_ids") or []:
        if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < model.sampled_vocab_size:
            raise fields.wrong("stop_token_ids", f"a list of token ids below {model.sampled_vocab_size}", token)
        text = model.tokenizer.decode([token])
        if token in model.stop_tokens or not text:
            continue
        if model.tokenizer.is_special(token) or "\ufffd" in text:
            fields.warnings.add(f"stop_token_ids: {token} is ignored, because it has no text")
        elif text not in stops:
            stops = (*stops, text)
    return stops


def usage_body(dones: list[Done]) -> dict[str, Any]:
    """Usage of all choices of a request; they share the prompt, which only the first one computed."""
    prompt = dones[0].usage.prompt_tokens
    completion = sum(done.usage.completion_tokens for done in dones)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": min(done.usage.cached_tokens for done in dones)},
        "completion_tokens_details": {"reasoning_tokens": sum(done.usage.reasoning_tokens for done in dones)},
    }


def timings_body(dones: list[Done], queue_seconds: float) -> dict[str, Any]:
    """Seconds of a request, and rates; an extension."""
    prefill = sum(done.timings.prefill_seconds for done in dones)
    decode = sum(done.timings.decode_seconds for done in dones)
    computed = sum(done.usage.prompt_tokens - done.usage.cached_tokens for done in dones)
    tokens = sum(done.usage.completion_tokens for done in dones)
    return {
        "queue_seconds": round(queue_seconds, 6),
        "prefill_seconds": round(prefill, 6),
        "decode_seconds": round(decode, 6),
        "prefill_tokens_per_second": round(computed / prefill, 3) if prefill else None,
        "decode_tokens_per_second": round(tokens / decode, 3) if decode else None,
    }


def logprob_entry(item: TokenLogprob) -> dict[str, Any]:
    """A token's entry in a chat completion's logprobs."""
    top = [{"token": one.token, "logprob": one.logprob, "bytes": list(one.bytes)} for one in item.top]
    return {"token": item.token, "logprob": item.logprob, "bytes": list(item.bytes), "top_logprobs": top}
