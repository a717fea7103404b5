"""Session files: what is accepted goes on as the session that was saved, the rest is refused, in little memory."""

from __future__ import annotations

import contextlib
import functools
import json
import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from hypothesis import strategies as st

from fuzz.mutations import mutate_json, mutated_bytes, mutated_json
from fuzz.target import Attempt, Target
from fuzz.targets.checkpoints import write_small_checkpoint
from lily import Model
from lily.errors import LilyError

__all__ = ["TARGETS"]

_TOKENS = [1, 0, 2, 1, 3, 2, 0]


@functools.lru_cache(maxsize=1)
def _content() -> bytes:
    with TemporaryDirectory() as name, _model(Path(name)) as model:
        with model.prefill(_TOKENS) as session:
            session.save(Path(name) / "saved")
        return (Path(name) / "saved").read_bytes()


def _model(folder: Path) -> Model:
    write_small_checkpoint(folder)
    return Model.load(folder, threads=1, max_context=512, prefix_cache_bytes=0)


@contextlib.contextmanager
def _prepare(folder: Path) -> Iterator[Attempt]:
    path = folder / "session"
    with _model(folder) as model:
        with model.prefill(_TOKENS) as session:
            logits = np.array(session.decode(1))

        def attempt(value: dict[str, Any]) -> str:
            path.write_bytes(value["content"])
            if value["size"] is not None:
                os.truncate(path, value["size"])
            try:
                session = model.load_session(path)
            except LilyError as error:
                assert len(str(error)) < 20_000
                str(error).encode()
                return "refused"
            finally:
                path.unlink()
            with session:
                assert session.tokens == _TOKENS
                np.testing.assert_array_equal(session.decode(1), logits)
            return "resumed"

        assert attempt({"content": _content(), "size": None}) == "resumed"
        yield attempt
        assert attempt({"content": _content(), "size": None}) == "resumed"


def _inputs() -> st.SearchStrategy[dict[str, Any]]:
    content = _content()
    end = 8 + int.from_bytes(content[:8], "little")
    table, data = json.loads(content[8:end]), content[end:]

    def packed(header: dict[str, Any]) -> bytes:
        text = json.dumps(header).encode()
        return len(text).to_bytes(8, "little") + text + data

    def inner(header: Any, rng: Any) -> None:
        """Mutate Lily's own header, a JSON text within the metadata, too."""
        try:
            fields = json.loads(header["__metadata__"]["lily"])
        except (KeyError, TypeError, ValueError):
            return
        if isinstance(fields, dict) and rng.randrange(2):
            mutate_json(fields, rng)
            header["__metadata__"]["lily"] = json.dumps(fields)

    contents = [
        mutated_json(table, inner).map(packed),
        mutated_json(table).map(packed),
        mutated_bytes(content),
        mutated_bytes(content[8:end]).map(lambda text: len(text).to_bytes(8, "little") + text + data),
        st.just(content),
    ]
    sizes = st.none() | st.integers(0, len(content)) | st.sampled_from([len(content), len(content) + 1, 1 << 33])
    whole = st.fixed_dictionaries({"content": st.one_of(contents), "size": st.none() | sizes})
    return whole | _giant_tensors(table, len(data))


def _giant_tensors(table: dict[str, Any], length: int) -> st.SearchStrategy[dict[str, Any]]:
    """Sparse files, some kilobytes on disk, whose tensors have any size that the header gives them."""
    names = [name for name in table if name != "__metadata__"]

    def enlarged(name: str, gigabytes: int, kind: str) -> dict[str, Any]:
        header = json.loads(json.dumps(table))
        size = gigabytes << 30
        header[name] = {"dtype": kind, "shape": [size // {"I32": 4, "U8": 1, "F16": 2}[kind]]}
        header[name]["data_offsets"] = [length, length + size]
        start, stop = table.get(name, header[name])["data_offsets"]
        if name in table:  # the others stay as they are, and no byte is left over
            header["rest"] = {"dtype": "U8", "shape": [stop - start], "data_offsets": [start, stop]}
        text = json.dumps(header).encode()
        content = len(text).to_bytes(8, "little") + text  # all values are zeros, in a hole of the file
        return {"content": content, "size": len(content) + length + size}

    kinds = st.sampled_from(["I32", "U8", "F16"])
    return st.builds(enlarged, st.sampled_from([*names, "more"]), st.integers(1, 6), kinds)


TARGETS = [Target("sessions", st.deferred(_inputs), _prepare, 300, frozenset({"refused", "resumed"}))]
