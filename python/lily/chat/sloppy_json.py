"""Rewrites models' faulty JSON as JSON if it can mean only one thing."""

from __future__ import annotations

import re

__all__ = ["as_json", "json_number"]

_NUMBER = re.compile(r"([+-]?)(0|[1-9][0-9]*|(?=\.[0-9]))(?:\.([0-9]*))?((?:[eE][+-]?[0-9]+)?)")
_PART = re.compile(
    r"""(?P<string>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')|(?P<space>\s+|//[^\n]*|\#[^\n]*|/\*.*?\*/)"""
    r"""|(?P<mark>[{}\[\]:,])|(?P<word>[\w$.+-]+)""",
    re.DOTALL,
)
_ESCAPED = re.compile(r"""\\(?:x[0-9a-fA-F]{2}|.)|["\x00-\x1f]""", re.DOTALL)
_KEY = re.compile(r"[A-Za-z_$][\w$-]*")
_WORDS = {"true": "true", "false": "false", "null": "null", "True": "true", "False": "false", "None": "null"}
_NO_NUMBERS = ("NaN", "Infinity", "-Infinity")
_UNCLEAR = "aNUv0123456789x"  # after a backslash: languages differ


def json_number(text: str) -> str | None:
    """A number as JSON writes it, or None; ``+3``, ``.5`` and ``5.`` are numbers, ``007`` and ``1_000`` are not."""
    match = _NUMBER.fullmatch(text)
    if match is None:
        return None
    sign, whole, fraction, exponent = match.groups()
    decimals = "" if fraction is None else f".{fraction or '0'}"
    return f"{sign.removeprefix('+')}{whole or '0'}{decimals}{exponent}"


def as_json(text: str, *, keep_no_numbers: bool = False) -> str:
    """JSON text for an array or object with extra commas, single quotes, unquoted keys, comments, or None.

    The result is JSON if the text had no other mistakes.

    Raises
    ------
    ValueError
        It holds something else.

    Parameters
    ----------
    text
        As the model wrote it.
    keep_no_numbers
        NaN and the infinities, which JSON does not have, become strings.
    """
    written: list[str] = []
    last = ""  # mark before; "" for a value
    at = 0
    while at < len(text):
        match = _PART.match(text, at)
        if match is None:
            raise ValueError(f"{text[at]!r} is not JSON")
        at = match.end()
        part = match[0]
        if match.lastgroup == "space":
            continue
        if part == "," and last in ("{", "[", ","):
            raise ValueError("a comma without a value before it")
        if last == "," and part not in ("}", "]"):
            written.append(",")
        if match.lastgroup == "string":
            part = '"' + _ESCAPED.sub(_escape, part[1:-1]) + '"'
        elif match.lastgroup == "word":
            part = _word(part, _is_key(text, at, last), keep_no_numbers)
        if part != ",":
            written.append(part)
        last = part if match.lastgroup == "mark" else ""
    return " ".join(written)  # parts with nothing between them stay separate


def _is_key(text: str, at: int, last: str) -> bool:
    return last in ("{", ",") and text[at : at + 80].lstrip()[:1] == ":"


def _word(word: str, is_key: bool, keep_no_numbers: bool) -> str:
    if is_key and _KEY.fullmatch(word):
        return f'"{word}"'
    known = _WORDS.get(word) or json_number(word)
    if known is None and keep_no_numbers and word in _NO_NUMBERS:
        return f'"{word}"'
    if known is None or is_key:
        raise ValueError(f"{word!r} is not JSON")
    return known


def _escape(match: re.Match[str]) -> str:
    """One character of a string, as JSON has it."""
    found = match[0]
    if len(found) == 1:
        return f"\\u{ord(found):04x}"
    if len(found) == 4:
        return f"\\u00{found[2:]}"
    character = found[1]
    if character in _UNCLEAR:
        raise ValueError(f"{found!r} may mean several things")
    if character == "\n":
        return ""
    if character == "'":
        return character
    return found if character in '"\\/bfnrtu' else f"\\{found}"
