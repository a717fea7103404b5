"""Names of tensors and modules: one canonical name inside Lily, whatever prefix a writer used."""

from __future__ import annotations

import re
from collections.abc import Iterable

# Prefixes of the vendor, transformers and mlx-lm; longer ones first.
_PREFIXES = (
    "model.language_model.model.",
    "language_model.model.",
    "model.language_model.",
    "language_model.",
    "model.",
    "",
)
_TEXT = re.compile(r"(?:layers|embed_tokens|norm|lm_head)(?:\.|$)")
_MAX_LISTED = 20  # names or ranges in one error
_SKIPPED = re.compile(
    r"(?:model\.)?(?:language_model\.)?(?:model\.)?"
    r"(?:vision_tower|vision_model|visual|image_newline|multi_modal_projector|mm_projector"
    r"|audio_tower|audio_model|talker|code2wav|token2wav|mtp|mtp_head)(?:\.|$)"
)


def is_skipped(raw: str) -> bool:
    """Whether a tensor belongs to a part of the checkpoint that the text model does not use."""
    return _SKIPPED.match(raw) is not None or raw.endswith("rotary_emb.inv_freq")


def split_prefix(raw: str) -> tuple[str, str] | None:
    """(prefix, canonical name) of a tensor or module of the text model, or None for any other name.

    >>> split_prefix("language_model.model.layers.3.mlp.gate.weight")
    ('language_model.model.', 'layers.3.mlp.gate.weight')
    """
    for prefix in _PREFIXES:
        if raw.startswith(prefix) and _TEXT.match(raw, len(prefix)):
            return prefix, raw[len(prefix) :]
    return None


def summarise(names: Iterable[str]) -> str:
    """A short list of names: those that differ only in their layer or expert number become one entry.

    >>> summarise(["layers.0.norm", "layers.1.norm", "layers.3.norm", "head"])
    'layers.{0-1,3}.norm, head'
    """
    by_expert: dict[str, list[int]] = {}
    for name in names:
        _collect(by_expert, name, r"(?<=\.experts\.)\d{1,9}(?=\.|$)", "{experts}")
    by_layer: dict[str, list[int]] = {}
    for pattern, numbers in by_expert.items():
        merged = pattern.replace("{experts}", _ranges(numbers))
        _collect(by_layer, merged, r"(?<=layers\.)\d{1,9}(?=\.|$)", "{layers}")
    patterns = list(by_layer.items())
    listed = ", ".join(pattern.replace("{layers}", _ranges(numbers)) for pattern, numbers in patterns[:_MAX_LISTED])
    return listed if len(patterns) <= _MAX_LISTED else f"{listed} and {len(patterns) - _MAX_LISTED} more"


def _collect(groups: dict[str, list[int]], name: str, number: str, mark: str) -> None:
    match = re.search(number, name)
    if match is None:
        groups.setdefault(name, [])
    else:
        pattern = name[: match.start()] + mark + name[match.end() :]
        groups.setdefault(pattern, []).append(int(match.group()))


def _ranges(numbers: list[int]) -> str:
    if len(numbers) == 1:
        return str(numbers[0])
    parts: list[list[int]] = []
    for number in sorted(set(numbers)):
        if parts and parts[-1][1] == number - 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    listed = ",".join(str(a) if a == b else f"{a}-{b}" for a, b in parts[:_MAX_LISTED])
    return "{" + listed + (",..." if len(parts) > _MAX_LISTED else "") + "}"
