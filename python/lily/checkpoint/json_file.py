"""Strict JSON from a checkpoint's files: one clear error for every way in which a file can be wrong."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any, NoReturn

from lily.errors import CheckpointError, ConfigError

ErrorType = type[CheckpointError] | type[ConfigError]


def check_regular_file(path: Path, error_type: ErrorType, remedy: str) -> int:
    """Size in bytes of a regular file; symbolic links are followed."""
    try:
        status = path.stat()
    except FileNotFoundError as error:
        raise error_type(f"{show(path)}: no such file; {remedy}") from error
    except (OSError, ValueError) as error:
        raise error_type(f"{show(path)}: cannot be read ({reason(error)}); {remedy}") from error
    if not stat.S_ISREG(status.st_mode):
        kind = "a directory" if stat.S_ISDIR(status.st_mode) else "not a regular file"
        raise error_type(f"{show(path)}: is {kind} where a file is expected; {remedy}")
    return status.st_size


def read_json_object(path: Path, error_type: ErrorType, *, limit: int) -> dict[str, Any]:
    """The JSON object in a file of at most `limit` bytes."""
    size = check_regular_file(path, error_type, "restore the file from the checkpoint's source")
    if size > limit:
        raise error_type(
            f"{show(path)}: {size} bytes are too large for such a file (limit {limit}); "
            "restore the file from the checkpoint's source"
        )
    try:
        with path.open("rb") as file:
            data = file.read(size)
    except OSError as error:
        raise error_type(f"{show(path)}: cannot be read ({reason(error)}); check its permissions") from error
    return parse_json_object(data, str(path), error_type)


def parse_json_object(data: bytes, where: str, error_type: ErrorType) -> dict[str, Any]:
    """Parse UTF-8 JSON whose top level is an object; `where` names the file in errors.

    Duplicate keys and non-finite numbers are errors, so that no two readers can see different values.
    """
    remedy = "the file is damaged: restore it from the checkpoint's source"

    def fail(what: str, cause: BaseException | None = None) -> NoReturn:
        raise error_type(f"{show(where)}: {what}; {remedy}") from cause

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        table = dict(pairs)
        if len(table) != len(pairs):
            seen: set[str] = set()
            for key, _ in pairs:
                if key in seen:
                    fail(f"the key {show(key)} appears twice in one JSON object")
                seen.add(key)
        return table

    def constant(name: str) -> NoReturn:
        fail(f"{name} is not a finite number")

    def finite(text: str) -> float:
        value = float(text)
        if value in (float("inf"), float("-inf")):
            fail(f"{text[:40]} is not a finite number")
        return value

    try:
        parsed = json.loads(data.decode("utf-8"), object_pairs_hook=unique, parse_constant=constant, parse_float=finite)
    except error_type:
        raise
    except UnicodeDecodeError as error:
        fail(f"is not UTF-8 text ({error.reason} at byte {error.start})", error)
    except ValueError as error:
        fail(f"is not JSON ({error})", error)
    except RecursionError as error:
        fail("nests its JSON too deeply", error)
    except MemoryError as error:
        fail("is too large to parse", error)
    if not isinstance(parsed, dict):
        fail(f"holds a JSON {type(parsed).__name__} where an object is expected")
    return parsed


def show(text: object) -> str:
    """A name from a file, safe to print: control characters and lone surrogates escaped, long ones cut."""
    plain = str(text)
    if len(plain) > 400:
        plain = plain[:200] + "..." + plain[-150:]
    return plain if plain.isprintable() else repr(plain)[1:-1]


def reason(error: Exception) -> str:
    """What the operating system said, without the path that the message names already."""
    return getattr(error, "strerror", None) or str(error)
