"""POST /v1/completions: continues raw prompts, without a chat template."""

from __future__ import annotations

import codecs
import math
import secrets
import time
from collections.abc import Iterator, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from lily.chat import ContentDelta, Done, TokenLogprob
from lily.chat.events import Event
from lily.server.answer_forms import form_of
from lily.server.chat_completions import stream_options
from lily.server.context_errors import too_long
from lily.server.continuations import RawRequest, raw_work
from lily.server.delivery import collect_answers, sse, start_stream
from lily.server.engine import PrefillProgress
from lily.server.errors import ApiError, openai_body, unsupported
from lily.server.fields import Fields
from lily.server.json_text import JsonResponse
from lily.server.openai_fields import sampling_of, stops_of, timings_body, token_limit, usage_body
from lily.server.request_rules import COMPLETION_RULES
from lily.server.request_warnings import Warnings
from lily.server.service import Service
from lily.server.steps import Steps
from lily.server.turns import encoded

__all__ = ["completions"]

_DEFAULT_MAX_TOKENS = 16  # as in OpenAI's API
_MOST_PROMPTS = 64
_ENTRY_BYTES = 400  # bytes for a token's log-probability, and for each alternative at its place
_AT_ONCE = 4096  # prompt tokens written at once, without blocking the event loop


async def completions(service: Service, request: Request, fields: Fields) -> Response:
    """Continue one or more prompts."""
    name, stream, include_usage, requests, prefixes = await service.prepare(request, _prepared, service, fields)
    head = {
        "id": f"cmpl-{secrets.token_hex(12)}",
        "object": "text_completion",
        "created": int(time.time()),
        "model": name,
    }
    work = raw_work(service.model, requests)
    scored = [len(one.ids) if one.scores_prompt else 0 for one in requests for _ in range(one.choices)]
    if stream:
        form = _TextFormat(head, prefixes, scored, include_usage, requests[0].choices, fields.warnings)
        return fields.warnings.put_into(await start_stream(service, request, work, form))
    replies, ticket = await collect_answers(service, request, work, len(prefixes))

    def body(_: Steps | None = None) -> JsonResponse:
        dones = [reply.answer.done for reply in replies]
        choices = []
        for index, (reply, prefix, count) in enumerate(zip(replies, prefixes, scored, strict=True)):
            entries = _joined(_entries(reply.logprobs[:count], 0), _entries(reply.logprobs[count:], len(prefix)))
            choices.append(_choice(index, prefix + reply.answer.content, reply.answer.finish_reason, entries))
        usage, timings = _usage(dones, requests[0].choices), timings_body(dones, ticket.queue_seconds)
        return JsonResponse(
            {**head, "choices": choices, "usage": usage, "timings": timings, **fields.warnings.body(dones)}
        )

    response = await service.prepare(request, body) if sum(scored) > _AT_ONCE else body()
    return fields.warnings.put_into(response)


def _prepared(steps: Steps, service: Service, fields: Fields) -> tuple[str, bool, bool, list[RawRequest], list[str]]:
    name = service.model_name(fields)
    stream = fields.flag("stream", False)
    include_usage = stream_options(service, fields, stream)
    echo = fields.flag("echo", False)
    requests = _requests(service, fields, steps, echo=echo)
    service.finish_fields(fields)
    decode = service.model.tokenizer.decode
    prefixes = [decode(one.ids) if echo else "" for one in requests for _ in range(one.choices)]
    return name, stream, include_usage, requests, prefixes


def _requests(service: Service, fields: Fields, steps: Steps, *, echo: bool) -> list[RawRequest]:
    """What to continue."""
    name = fields.take("max_tokens", "max_completion_tokens", "n_predict", "num_predict")
    limit = token_limit(fields, name)
    most = _DEFAULT_MAX_TOKENS if fields.any(name) is None else limit
    prompts = [_ids(service, prompt, steps, room=most != 0) for prompt in _prompts(fields)]
    count = fields.integer("n", 1, 16) or 1
    if (fields.integer("best_of", 1, 16) or count) != count:
        raise unsupported("best_of", "best_of must equal n")
    if form_of(fields) is not None:
        raise unsupported("response_format", "structured output needs /v1/chat/completions")
    sampling = sampling_of(fields, service.model.default_sampling, service.model.sampled_vocab_size)
    stop = stops_of(service, fields)
    given = fields.any("logprobs")
    logprobs = (1 if given else None) if isinstance(given, bool) else fields.integer("logprobs", 0, 20)
    COMPLETION_RULES.apply(fields, strict=service.options.strict)
    scores = echo and logprobs is not None
    if scores:
        steps.take(_ENTRY_BYTES * sum(map(len, prompts)) * (1 + (logprobs or 0)) * count)
    return [RawRequest(ids, sampling, most, stop, logprobs, choices=count, scores_prompt=scores) for ids in prompts]


def _prompts(fields: Fields) -> list[Any]:
    prompt = fields.required("prompt")
    if isinstance(prompt, str) or (isinstance(prompt, list) and prompt and _are_ids(prompt)):
        return [prompt]
    if not isinstance(prompt, list) or not prompt or not all(isinstance(one, str) or _are_ids(one) for one in prompt):
        raise fields.wrong("prompt", "a string, a list of token ids, or a list of these", prompt)
    if len(prompt) > _MOST_PROMPTS:
        raise ApiError(400, f"prompt contains more than {_MOST_PROMPTS} prompts", param="prompt", code="invalid_value")
    return prompt


def _are_ids(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, int) and not isinstance(one, bool) for one in value)


def _ids(service: Service, prompt: str | list[int], steps: Steps, *, room: bool) -> list[int]:
    """The ids of a prompt; if asked for, there must be room for one more token."""
    ids = encoded(service.model, prompt, steps) if isinstance(prompt, str) else prompt
    if not ids:
        raise ApiError(400, "prompt must not be empty", param="prompt", code="invalid_value")
    vocabulary = service.model.sampled_vocab_size
    wrong = next((token for token in ids if not 0 <= token < vocabulary), None)
    if wrong is not None:
        raise ApiError(400, f"prompt contains {wrong}, which is not a token id", param="prompt", code="invalid_value")
    most = service.model.max_context
    if len(ids) + room > most:
        raise too_long(len(ids), most, "prompt")
    return ids


def _usage(dones: list[Done], count: int) -> dict[str, Any]:
    usage = usage_body(dones)
    usage["prompt_tokens"] = sum(done.usage.prompt_tokens for done in dones) // count  # of each prompt once
    usage["total_tokens"] = usage["prompt_tokens"] + usage["completion_tokens"]
    return usage


def _choice(index: int, text: str, finish_reason: str | None, logprobs: dict[str, list[Any]] | None) -> dict[str, Any]:
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish_reason}


def _entries(logprobs: Sequence[TokenLogprob], start: int) -> dict[str, list[Any]] | None:
    """The field `logprobs` of tokens that spell a text from a character on; an unknown logarithm is null."""
    if not logprobs:
        return None
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    offsets = []
    for item in logprobs:
        offsets.append(start)
        start += len(decoder.decode(item.bytes))
    known = [not math.isnan(item.logprob) for item in logprobs]
    tops = ({one.token: one.logprob for one in item.top} for item in logprobs)
    return {
        "tokens": [item.token for item in logprobs],
        "token_logprobs": [item.logprob if one else None for item, one in zip(logprobs, known, strict=True)],
        "top_logprobs": [top if one else None for top, one in zip(tops, known, strict=True)],
        "text_offset": offsets,
    }


def _joined(first: dict[str, list[Any]] | None, rest: dict[str, list[Any]] | None) -> dict[str, list[Any]] | None:
    if first is None or rest is None:
        return rest if first is None else first
    return {name: values + rest[name] for name, values in first.items()}


class _TextFormat:
    """A stream of text completion chunks."""

    def __init__(
        self,
        head: dict[str, Any],
        prefixes: list[str],
        scored: list[int],
        include_usage: bool,
        count: int,
        warnings: Warnings,
    ) -> None:
        self._head = head
        self._prefixes = list(prefixes)
        self._scored = list(scored)  # tokens of the prompts that are reported
        self._lengths = [0] * len(prefixes)  # characters so far
        self._include_usage = include_usage
        self._count = count  # choices of each prompt
        self._warnings = warnings
        self._dones: list[Done] = []

    def begin(self, prefill: PrefillProgress | None) -> Iterator[bytes]:
        del prefill
        return iter(())

    def event(self, choice: int, event: Event) -> Iterator[bytes]:
        prefix, self._prefixes[choice] = self._prefixes[choice], ""
        if isinstance(event, Done):
            self._dones.append(event)
            yield self._chunk(_choice(choice, prefix, event.finish_reason, None), **self._warnings.body([event]))
        elif isinstance(event, ContentDelta):
            is_prompt, self._scored[choice] = self._scored[choice] > 0, 0
            start = self._lengths[choice] + (0 if is_prompt else len(prefix))
            self._lengths[choice] += len(prefix) + len(event.text)
            yield self._chunk(_choice(choice, prefix + event.text, None, _entries(event.logprobs, start)))

    def end(self, queue_seconds: float) -> Iterator[bytes]:
        if self._include_usage and self._dones:
            timings = timings_body(self._dones, queue_seconds)
            yield sse({**self._head, "choices": [], "usage": _usage(self._dones, self._count), "timings": timings})
        yield sse("[DONE]")

    def error(self, error: ApiError) -> bytes:
        return sse(openai_body(error))

    def _chunk(self, choice: dict[str, Any], **more: Any) -> bytes:
        body = {**self._head, "choices": [choice], **more}
        if self._include_usage:
            body["usage"] = None
        return sse(body)
