"""Sampling defaults that a checkpoint recommends in its generation_config.json."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lily.checkpoint.json_file import read_optional_json_object
from lily.checkpoint.read_file import GENERATION_CONFIG_LIMIT
from lily.checks.arguments import as_path
from lily.checks.quoting import quoted_json, quoted_path
from lily.errors import ConfigError

__all__ = ["GenerationDefaults", "read_generation_defaults"]


@dataclass(frozen=True)
class GenerationDefaults:
    """Recommended sampling; None where the checkpoint says nothing.

    Attributes
    ----------
    do_sample
        False asks for greedy decoding, whatever the other fields say.
    temperature
        At least 0; 0 means greedy.
    top_k
        At least 0; 0 means no limit.
    top_p
        In [0, 1]; 1 means no limit.
    min_p
        In [0, 1]; 0 means no limit.
    repetition_penalty
        Above 0; 1 means none.
    """

    do_sample: bool | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None

    @property
    def greedy(self) -> bool:
        """Whether the checkpoint asks for the most likely token each time."""
        return self.do_sample is False or self.temperature == 0


def read_generation_defaults(directory: Path | str) -> GenerationDefaults:
    """Read ``generation_config.json`` of a checkpoint directory; a missing file gives no defaults.

    Raises
    ------
    ConfigError
        The file is damaged, or a field has a wrong type or a value out of its range.
    """
    path = as_path("directory", directory, ConfigError) / "generation_config.json"
    fields = read_optional_json_object(path, ConfigError, limit=GENERATION_CONFIG_LIMIT, only_finite=False) or {}
    do_sample = fields.get("do_sample")
    if do_sample is not None and not isinstance(do_sample, bool):
        raise ConfigError(
            f"{quoted_path(path)}: do_sample must be true, false or null, but is {quoted_json(do_sample)}"
        )
    top_k = fields.get("top_k")
    if top_k is not None and (isinstance(top_k, bool) or not isinstance(top_k, int) or not 0 <= top_k < 1 << 63):
        raise ConfigError(
            f"{quoted_path(path)}: top_k must be an integer from 0 to 2^63 - 1 or null, but is {quoted_json(top_k)}"
        )
    penalty = _number(path, fields, "repetition_penalty", math.inf)
    if penalty == 0:
        raise ConfigError(f"{quoted_path(path)}: repetition_penalty must be above 0")
    return GenerationDefaults(
        do_sample=do_sample,
        temperature=_number(path, fields, "temperature", math.inf),
        top_k=top_k,
        top_p=_number(path, fields, "top_p", 1.0),
        min_p=_number(path, fields, "min_p", 1.0),
        repetition_penalty=penalty,
    )


def _number(path: Path, fields: dict[str, Any], name: str, highest: float) -> float | None:
    value = fields.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ConfigError(f"{quoted_path(path)}: {name} must be a number or null, but is {quoted_json(value)}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number) or not 0 <= number <= highest:
        limits = "at least 0" if highest == math.inf else f"from 0 to {highest:g}"
        raise ConfigError(f"{quoted_path(path)}: {name} must be a finite number, {limits}, but is {quoted_json(value)}")
    return number
