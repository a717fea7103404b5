"""Regular expressions and Lark grammars as forms of an answer: compiled and followed, or refused, in bounded work."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from fuzz.target import Attempt, Target
from lily import Model
from lily.errors import LilyError
from lily_tiny import CHECKPOINT

__all__ = ["TARGETS"]

_atoms = st.sampled_from([
    "a", "[a-z]", ".", "\\d", "(a|b)", "\\p{L}", "[^\\x00]", "/", "\\/", "é", "(?i:x)", "(?=a)", "\\b", "(?P<n>a)",
    "\\1", "[\U0001f600-\U0001f64f]", "\n", "(", "]", "\\",
])  # fmt: skip
_repeats = st.sampled_from(["", "", "*", "+", "?", "{2}", "{0,999}", "{999}", "{1,99999999}", "{2,1}", "*?", "**"])
_expressions = st.recursive(
    st.builds(str.__add__, _atoms, _repeats),
    lambda inner: st.one_of(
        st.builds(lambda one, times: f"({one}){times}", inner, _repeats),
        st.lists(inner, min_size=1, max_size=4).map("".join),
        st.lists(inner, min_size=1, max_size=4).map("|".join),
    ),
    max_leaves=12,
)
_rule_names = ["start", "a", "b", "c", "A", "B", "_x", "1"]
_words = [
    *_rule_names, '"x"', '""', "<[5]>", "<[99999999]>", "<|im_end|>", "%json {}", '%json {"$ref": "#"}', "@a", "(", ")",
    "|", "~9", "~9..99999999", "\n", "[capture]", "[max_tokens=3]", "%import common.INT", "%ignore /x/", "/(a|aa)+/",
]  # fmt: skip
_parts = st.one_of(
    st.sampled_from(_words),
    st.builds(str.__add__, st.sampled_from(["a", "b", "A", '"y"', "(a b)"]), st.sampled_from("*+?")),
    _expressions.map(lambda text: "/" + text.replace("/", "\\/") + "/"),
)
_rules = st.builds(
    lambda name, parts: f"{name}: {' '.join(parts)}", st.sampled_from(_rule_names), st.lists(_parts, max_size=6)
)
_grammars = st.builds(
    lambda first, rules: "\n".join([f"start: {' '.join(first)}", *rules]),
    st.lists(_parts, min_size=1, max_size=4), st.lists(_rules, max_size=6),
)  # fmt: skip
_inputs = st.one_of(
    st.fixed_dictionaries({"type": st.just("regex"), "regex": _expressions}),
    st.fixed_dictionaries({"type": st.just("grammar"), "grammar": _grammars | st.text(max_size=30)}),
)


@contextlib.contextmanager
def _prepare(_: Path) -> Iterator[Attempt]:
    with Model.load(CHECKPOINT, threads=1, max_context=1024) as model:

        def attempt(value: dict[str, Any]) -> str:
            chat = model.chat(thinking=False, max_tokens=4)
            try:
                chat.ask("Hi", response_format=value)
            except LilyError as error:
                assert len(str(error)) < 4000
                return "refused"
            finally:
                chat.close()
            return "written"

        yield attempt
        assert model.chat(thinking=False, max_tokens=3).ask("Hi").content


TARGETS = [Target("grammars", _inputs, _prepare, 250, frozenset({"refused", "written"}))]
