"""The fields that OpenAI's endpoints have in common: sampling, and the numbers in their answers."""

from __future__ import annotations

import dataclasses
from typing import Any

from lily.chat import Done, TokenLogprob
from lily.errors import InvalidArgumentError
from lily.sampling import Sampling
from lily.server.errors import ApiError
from lily.server.fields import Fields
from lily.text import checked_variables

__all__ = [
    "INF",
    "effort_of",
    "logprob_entry",
    "sampling_of",
    "template_options_of",
    "timings_body",
    "top_p_of",
    "usage_body",
]

INF = float("inf")
_LEAST_TOP_P = 1e-9
_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")


def sampling_of(fields: Fields, default: Sampling, vocabulary: int) -> Sampling:
    """The checkpoint's sampling, changed as the request says; top_k, min_p and repetition_penalty are extensions."""
    given: dict[str, Any] = {
        "temperature": fields.number("temperature", 0, INF),
        "top_p": top_p_of(fields),
        "top_k": fields.integer("top_k", -1),
        "min_p": fields.number("min_p", 0, 1),
        "presence_penalty": fields.number("presence_penalty", -2, 2),
        "frequency_penalty": fields.number("frequency_penalty", -2, 2),
        "repetition_penalty": fields.number("repetition_penalty", 0.01, 100),
        "seed": fields.integer("seed", -(1 << 63)),
        "logit_bias": _logit_bias(fields, vocabulary),
    }
    if given["seed"] is not None:
        given["seed"] %= 1 << 64
    if given["top_k"] == -1:
        given["top_k"] = 0
    return dataclasses.replace(default, **{name: value for name, value in given.items() if value is not None})


def top_p_of(fields: Fields) -> float | None:
    """top_p, of which the APIs allow 0: the most probable token alone."""
    top_p = fields.number("top_p", 0, 1)
    return _LEAST_TOP_P if top_p == 0 else top_p


def _logit_bias(fields: Fields, vocabulary: int) -> dict[int, float] | None:
    bias = fields.mapping("logit_bias")
    if not bias:
        return None
    if len(bias) > vocabulary:
        raise ApiError(
            400, f"logit_bias has {len(bias)} entries for {vocabulary} tokens", param="logit_bias", code="invalid_value"
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


def effort_of(fields: Fields, name: str) -> str | None:
    """How much to think. This model thinks or does not; all efforts but "none" are the same to it."""
    effort = fields.text(name)
    if effort is not None and effort not in _EFFORTS:
        raise fields.wrong(name, f"one of {', '.join(_EFFORTS)}", effort)
    return effort


def usage_body(dones: list[Done]) -> dict[str, Any]:
    """Usage of all choices of a request; they share the prompt, which the first one had to compute."""
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
