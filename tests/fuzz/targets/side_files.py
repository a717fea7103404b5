"""A checkpoint's side files: tokenizer, its config, chat template and generation config, of any content and kind."""

from __future__ import annotations

import contextlib
import functools
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from fuzz.mutations import mutated_bytes, mutated_json
from fuzz.target import Attempt, Target
from lily.errors import LilyError
from lily.text import ChatTemplate, Tokenizer, read_generation_defaults, read_stop_tokens
from lily_tiny import CHECKPOINT

__all__ = ["TARGETS"]

_NAMES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json")
_TEXT = "Grüße <|im_end|> <think>\U0001f600\n"
_CONVERSATION = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": _TEXT}]},
    {"role": "assistant", "content": "Hi", "tool_calls": [{"function": {"name": "f", "arguments": {"a": [1]}}}]},
    {"role": "tool", "content": "4"},
]
_TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
_ORDINARY = st.just("file")
_KINDS = ("pipe", "zeros", "directory", "absent", "sparse", "loop")
_PARTS = [
    "{% for m in messages %}", "{% endfor %}", "{{ m.content }}", "{{ m['role'] | upper }}", "{% if m.tool_calls %}",
    "{% else %}", "{% endif %}", "{{ m.tool_calls | tojson }}", "{% set ns = namespace(a=1) %}",
    "{% set ns.a = ns.a * 9 %}",
    "{{ ns }}", "{% macro f(x) %}", "{{ f(1) }}", "{% endmacro %}", "{{ raise_exception('no') }}",
    "{{ range(9999) | list }}",
    "{{ messages | length }}", "{{ messages[0].content * 9 }}", "{{ messages | map(attribute='role') | join(',') }}",
    "{{ '%9999999d' % 1 }}", "{{ 'a'.join(range(9)) }}", "{{ strftime_now('%Y') }}", "{{ messages.__class__ }}",
    "{{ m | attr('__class__') }}", "{{ 9 ** 60 }}", "{% include 'x' %}", "{{ '{:>99999999}'.format(1) }}", "text",
    "{{ 'x' | center(99999999) }}", "{{ cycler(1).__init__ }}", "{{ self }}", "{{ loop.index }}", "{% generation %}",
    "{% endgeneration %}", "{% break %}", "{{ lipsum(n=9) }}", "{{ messages | batch(1) | list }}",
    "{{ tools | tojson(indent=9) }}",
]  # fmt: skip


@functools.lru_cache(maxsize=1)
def _contents() -> dict[str, bytes]:
    """lily-tiny's, with a tokenizer of single bytes: parsing the whole one takes most of the time."""
    contents = {name: (CHECKPOINT / name).read_bytes() for name in _NAMES}
    fields = json.loads(contents["tokenizer.json"])
    letters = sorted(fields["model"]["vocab"].items(), key=lambda item: item[1])
    fields["model"]["vocab"] = {text: at for at, text in enumerate(text for text, _ in letters if len(text) == 1)}
    fields["model"]["merges"] = []
    first = len(fields["model"]["vocab"])
    for at, token in enumerate(fields["added_tokens"]):
        token["id"] = first + at
    contents["generation_config.json"] = contents["generation_config.json"].replace(b"406", b"26")
    contents["tokenizer.json"] = json.dumps(fields, ensure_ascii=False).encode()
    return contents


@contextlib.contextmanager
def _prepare(folder: Path) -> Iterator[Attempt]:
    contents = _contents()
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    (folder / "config.json").write_text('{"eos_token_id": 260}')
    assert _read(folder) == "read"

    def attempt(value: dict[str, Any]) -> str:
        target = folder / value["file"]
        target.unlink()
        try:
            _make(target, value["content"], value["kind"])
            outcome = _read(folder)
            repeated = value["kind"] == "file" and target.suffix == ".json" and _repeats_a_key(value["content"])
            assert outcome == "refused" or not repeated, "two readers may take different values for one key"
            return outcome
        finally:
            target.rmdir() if target.is_dir() else target.unlink(missing_ok=True)
            target.write_bytes(contents[value["file"]])

    yield attempt
    assert _read(folder) == "read"


def _make(target: Path, content: bytes, kind: str) -> None:
    if kind == "file":
        target.write_bytes(content)
    elif kind == "pipe":
        os.mkfifo(target)
    elif kind == "zeros":
        target.symlink_to("/dev/zero")
    elif kind == "directory":
        target.mkdir()
    elif kind == "loop":
        target.symlink_to(target.name)
    elif kind == "sparse":
        target.write_bytes(content)
        os.truncate(target, 3 << 30)


def _repeats_a_key(content: bytes) -> bool:
    found = []
    try:
        json.loads(content, object_pairs_hook=lambda pairs: found.append(len(dict(pairs)) < len(pairs)))
    except (ValueError, RecursionError):
        return False
    return any(found)


def _read(folder: Path) -> str:
    tokenizer: Tokenizer | None = None
    refused = 0
    try:
        tokenizer = Tokenizer.from_directory(folder)
        for special in (True, False):
            ids = tokenizer.encode(_TEXT, parse_special=special)
            tokenizer.decode(ids)
            detokenizer = tokenizer.detokenizer()
            "".join(detokenizer.feed(token) for token in ids)
    except LilyError:
        refused += 1
    refused += _is_refused(lambda: read_stop_tokens(folder, vocab_size=300, tokenizer=tokenizer))
    refused += _is_refused(lambda: read_generation_defaults(folder))
    refused += _is_refused(lambda: ChatTemplate.from_directory(folder).render(_CONVERSATION, _TOOLS))
    return "refused" if refused else "read"


def _is_refused(read: Callable[[], object]) -> bool:
    try:
        read()
    except LilyError as error:
        str(error).encode()
        return True
    return False


def _inputs() -> st.SearchStrategy[dict[str, Any]]:
    contents = _contents()
    kinds = [
        _file(name, mutated_json(json.loads(contents[name])).map(lambda value: json.dumps(value).encode()))
        for name in _NAMES
        if name.endswith(".json")
    ]
    kinds += [_file(name, mutated_bytes(contents[name])) for name in _NAMES]
    template = st.lists(st.sampled_from(_PARTS), max_size=12).map("".join)
    kinds.append(_file("chat_template.jinja", template.map(str.encode)))
    kinds.append(
        _file("tokenizer_config.json", template.map(lambda text: json.dumps({"chat_template": text}).encode()))
    )
    kinds += [_file(name, st.just(b"{}"), st.sampled_from(_KINDS)) for name in _NAMES]
    return st.one_of(kinds)


def _file(
    name: str, content: st.SearchStrategy[bytes], kind: st.SearchStrategy[str] = _ORDINARY
) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({"file": st.just(name), "content": content, "kind": kind})


TARGETS = [Target("side_files", st.deferred(_inputs), _prepare, 300, frozenset({"refused", "read"}))]
