"""API fields that this server does not implement: which are ignored, get a warning, or are refused, and why.

Any other field that is not read is unknown, see `Fields.finish`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from lily.server.fields import Fields

__all__ = ["CHAT_RULES", "COMPLETION_RULES", "MESSAGES_RULES", "RESPONSES_RULES", "FieldRules"]


@dataclass(frozen=True)
class FieldRules:
    """How an API's fields are treated.

    Attributes
    ----------
    silent : tuple of str
        They make no difference to an answer of this server.
    warned : mapping
        They are ignored with a warning, which says why.
    refused : mapping
        Ignoring them would change the meaning of the answer; the reason.
    """

    silent: tuple[str, ...] = ()
    warned: Mapping[str, str] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)

    def apply(self, fields: Fields, *, strict: bool) -> None:
        """Raise ApiError if a refused field is given or, with `strict`, one that would get a warning."""
        fields.ignore(*self.silent)
        fields.refuse(self.refused)
        if strict:
            fields.refuse(self.warned)
        fields.ignore_warned(self.warned)


_ACCOUNT = (
    "metadata",
    "prompt_cache_key",
    "prompt_cache_options",
    "prompt_cache_retention",
    "safety_identifier",
    "service_tier",
    "store",
    "user",
)
_GRAMMARS = {
    "structural_tag": "it is not supported; give tools, or a response_format",
}
_MODERATION = "this server does no moderation"
_VERBOSITY = "ask in the prompt for the length that you want"
_SEARCH = "this server does not search the web"
_SAMPLERS = {
    "min_tokens": "an answer ends when the model ends it",
    "ignore_eos": "an answer ends when the model ends it",
    "typical_p": "this sampler is not supported; use top_p, top_k or min_p",
}

CHAT_RULES = FieldRules(
    silent=(*_ACCOUNT, "prediction"),
    warned={"moderation": _MODERATION, "verbosity": _VERBOSITY, "web_search_options": _SEARCH, **_SAMPLERS},
    refused={"audio": "this server writes text only", **_GRAMMARS},
)
RESPONSES_RULES = FieldRules(
    silent=(*_ACCOUNT, "max_tool_calls"),
    warned={
        "access_programs": "this server has none",
        "background": "the response is complete when it is returned",
        "background_options": "the response is complete when it is returned",
        "context_management": "when the context is full, leave out items or summarize them",
        "image": "this model reads text only",
        "moderation": _MODERATION,
        **_SAMPLERS,
    },
    refused={
        "conversation": "this server keeps responses but no conversations; send previous_response_id, or the earlier "
        "items in input",
        "prompt": "stored prompts are not supported; send instructions and input",
        **_GRAMMARS,
    },
)
COMPLETION_RULES = FieldRules(
    silent=("user",),
    warned=_SAMPLERS,
    refused={"suffix": "text between a prefix and a suffix is not supported; send a prompt", **_GRAMMARS},
)
MESSAGES_RULES = FieldRules(
    silent=(
        "betas",
        "billing_policy",
        "diagnostics",
        "fallback_credit_token",
        "inference_geo",
        "metadata",
        "service_tier",
        "user_profile_id",
        "workspace_id",
    ),
    warned={
        "cache_control": "every prompt is cached automatically",
        "container": "this server runs no containers",
        "context_management": "messages are used unchanged",
        "fallbacks": "this server has one model",
        "mcp_servers": "this server calls no other servers; the client's own tools work",
        "speed": "this server has only one speed",
    },
    refused={"compaction": "this server does not summarize conversations; ask for a summary in a message"},
)
