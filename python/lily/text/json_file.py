"""Reads one JSON object from a checkpoint's side file, with errors that name the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from lily.errors import LilyError

__all__ = ["read_json_object"]


def read_json_object(path: Path, error_type: type[LilyError]) -> dict[str, Any] | None:
    """Return the object in `path`, or None if there is no such file.

    Raises
    ------
    LilyError
        Of type `error_type`: the file cannot be read, is not UTF-8 JSON, or is not an object.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise error_type(f"{path}: cannot be read ({error.strerror or error})") from error
    except (ValueError, RecursionError) as error:
        raise error_type(f"{path}: not valid JSON ({error}); download the file again") from error
    if not isinstance(value, dict):
        raise error_type(f"{path}: must hold a JSON object, but holds a {type(value).__name__}")
    return value
