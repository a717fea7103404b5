"""Files of states: changed, of another model, of replaced weights; none is accepted with a state that is wrong."""

from __future__ import annotations

import json
import os
import random
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .checkpoints import small_checkpoint
from .figures import MIB, Figures
from .file_mutations import mutate_bytes, replace_by_another_kind, resize
from .isolated import attempt_all, outcome_of
from .json_mutations import mutated_json
from .limits import Limits

__all__ = ["attack"]

SECONDS_EACH, BYTES_EACH = 30, 256 * MIB
IDS = [7 * number % 4000 + 1 for number in range(150)]
CACHE_NAME = "*.lily-session"


class WrongStateError(Exception):
    """A state was accepted that is not the one of its tokens."""


def attack(limits: Limits) -> Figures:
    """Change session files and the prefix cache's files, in turns."""
    return attempt_all("states", prepare, attempt, limits, seconds_each=SECONDS_EACH, bytes_each=BYTES_EACH)


@dataclass(frozen=True)
class Base:
    """Two models with files of theirs."""

    folder: Path
    model: Any
    other: Any
    session: bytes
    other_session: bytes
    cached: dict[str, bytes]  # files of the cache directory by name
    other_cached: dict[str, bytes]


def load(checkpoint: Path, **options: Any) -> Any:
    """A model that hashes in the folder of the attack."""
    import lily

    return lily.Model.load(checkpoint, threads=1, max_context=512, snapshot_interval=64, **options)


def prepare(folder: Path) -> Base:
    """Save a session of each model, and fill a cache directory of each."""
    os.environ["LILY_CACHE_DIR"] = str(folder / "hashes")
    first, second = small_checkpoint(folder / "first", 5), small_checkpoint(folder / "second", 5)
    _replace_weights(second, random.Random(0))
    model, other = load(first), load(second)
    return Base(
        folder,
        model,
        other,
        _saved(model, folder / "s"),
        _saved(other, folder / "s"),
        _cached(first, folder / "cache"),
        _cached(second, folder / "cache2"),
    )


def attempt(base: Base, rng: random.Random, seed: int) -> tuple[str, str]:
    """One changed file."""
    with tempfile.TemporaryDirectory(dir=base.folder) as folder:
        kind = rng.choice(
            (_session_file, _session_file, _cache_files, _cache_files, _weights_after_hashing, _foreign_session)
        )
        return kind(base, Path(folder), rng)


def _session_file(base: Base, folder: Path, rng: random.Random) -> tuple[str, str]:
    path = folder / "session.safetensors"
    path.write_bytes(base.other_session if rng.random() < 0.05 else base.session)
    what = _changed(path, rng, base.other_session)

    def use() -> None:
        with base.model.load_session(path) as session:
            check_state(base.model, session)

    return outcome_of(use), f"session file, {what}"


def _cache_files(base: Base, folder: Path, rng: random.Random) -> tuple[str, str]:
    for (name, content), foreign in zip(base.cached.items(), base.other_cached.values(), strict=False):
        (folder / name).write_bytes(foreign if rng.random() < 0.2 else content)
    what = [_changed(path, rng, rng.choice(list(base.cached.values()))) for path in sorted(folder.glob(CACHE_NAME))]

    def use() -> None:
        with load(base.folder / "first", prefix_cache_bytes=MIB * 64, prefix_cache_dir=folder) as model:
            for end in (len(IDS), 100, 64):
                with model.cached_session(IDS[:end]) as session:
                    check_state(base.model, session)

    return outcome_of(use), f"cache files, {what[0] if what else 'none'}"


def _weights_after_hashing(base: Base, folder: Path, rng: random.Random) -> tuple[str, str]:
    """Replace a file of weights before or after it is hashed, by renaming or in place, and move states across."""
    import lily

    checkpoint, session = folder / "checkpoint", folder / "session.safetensors"
    shutil.copytree(base.folder / "first", checkpoint)
    session.write_bytes(base.session)
    in_place, hash_first, load_again = rng.random() < 0.5, rng.random() < 0.5, rng.random() < 0.5
    what = f"weights replaced, in place {in_place}, hashed before {hash_first}, loaded again {load_again}"

    def use() -> None:
        model = load(checkpoint)
        try:
            if hash_first:
                model.load_session(session).close()
            _replace_weights(checkpoint, rng, in_place=in_place)
            if load_again:
                model.close()
                model = load(checkpoint)
            with model.load_session(session) as loaded:
                fresh = model.prefill(loaded.tokens)
                if (fresh.logits != loaded.logits).any():
                    raise WrongStateError("the state is one of other weights")
                loaded.save(folder / "again")
        finally:
            model.close()
        with load(base.folder / "second") as other, other.load_session(folder / "again"):
            raise WrongStateError("accepted by another model")

    return outcome_of(use, lily.LilyError), what


def _foreign_session(base: Base, folder: Path, rng: random.Random) -> tuple[str, str]:
    """Give a session or snapshot of another model to this one, which has the same dimensions."""
    ids = [rng.randrange(4000) for _ in range(rng.randint(2, 60))]
    kind = rng.choice(("insert", "restore", "decode"))

    def use() -> None:
        with base.other.prefill(ids) as foreign, base.model.session() as own:
            try:
                if kind == "insert":
                    base.model.cache.insert(foreign)
                elif kind == "restore":
                    own.restore(foreign.snapshot())
                else:
                    base.model.decode(foreign, 5)
            finally:
                with base.model.cached_session(ids) as session:
                    check_state(base.model, session)
                if kind == "decode":  # which is the session's own
                    check_state(base.other, foreign)

    return outcome_of(use), f"a session of another model, {kind}"


def check_state(model: Any, session: Any) -> None:
    """Raise unless the session goes on as if its tokens had just been computed."""
    with model.prefill(session.tokens) as fresh:
        for token in (None, 11, 12):
            ours, theirs = (one.logits if token is None else one.decode(token) for one in (session, fresh))
            if (ours != theirs).any():
                raise WrongStateError(f"other logits than of a fresh prefill of {len(session.tokens)} tokens")


def _replace_weights(checkpoint: Path, rng: random.Random, *, in_place: bool = False) -> None:
    """Change one bit in the data of one file of weights."""
    path = rng.choice(sorted(checkpoint.glob("*.safetensors")))
    content = bytearray(path.read_bytes())
    begin = 8 + int.from_bytes(content[:8], "little")
    for _ in range(50):
        content[rng.randrange(begin, len(content))] ^= 1
    target = path if in_place else path.with_suffix(".new")
    target.write_bytes(content)
    target.replace(path)


def _saved(model: Any, path: Path) -> bytes:
    with model.prefill(IDS[:100]) as session:
        session.save(path)
    return path.read_bytes()


def _cached(checkpoint: Path, folder: Path) -> dict[str, bytes]:
    with load(checkpoint, prefix_cache_bytes=MIB * 64, prefix_cache_dir=folder) as model:
        for end in (64, 100, len(IDS)):
            model.cached_session(IDS[:end]).close()
        model.cache.flush()
    with (
        load(checkpoint, prefix_cache_bytes=MIB * 64, prefix_cache_dir=folder) as model,
        model.cached_session(IDS) as session,
    ):
        assert session.cached_tokens == len(IDS), "the files are not used, so that changing them shows nothing"
    return {path.name: path.read_bytes() for path in sorted(folder.glob(CACHE_NAME))}


def _changed(path: Path, rng: random.Random, foreign: bytes) -> str:
    kind = rng.random()
    if kind < 0.35:
        return mutate_bytes(path, rng)
    if kind < 0.45:
        return resize(path, rng)
    if kind < 0.52:
        return replace_by_another_kind(path, rng)
    if kind < 0.8:
        return _changed_header(path, rng)
    if kind < 0.92:
        return _mixed(path, rng, foreign)
    return "unchanged"


def _changed_header(path: Path, rng: random.Random) -> str:
    """Change the header's values, also those of the JSON within it; its length fits."""
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    table = json.loads(content[8 : 8 + length])
    own = table.get("__metadata__", {})
    texts = [key for key, value in own.items() if value.startswith("{")]
    if texts and rng.random() < 0.6:
        key = rng.choice(texts)
        own[key] = mutated_json(own[key], rng).decode("utf-8", "replace")
        header = json.dumps(table).encode()
    else:
        header = mutated_json(json.dumps(table), rng)
    path.write_bytes(len(header).to_bytes(8, "little") + header + content[8 + length :])
    return "header"


def _mixed(path: Path, rng: random.Random, foreign: bytes) -> str:
    """The header of one file before the data of another, or a part of its data."""
    content = path.read_bytes()
    ours, theirs = (8 + int.from_bytes(one[:8], "little") for one in (content, foreign))
    kind = rng.choice(("header", "data", "part"))
    if kind == "header":
        path.write_bytes(foreign[:theirs] + content[ours:])
    elif kind == "data":
        path.write_bytes(content[:ours] + foreign[theirs:])
    else:
        at = rng.randrange(ours, len(content))
        path.write_bytes(content[:at] + foreign[at : at + 512] + content[at + 512 :])
    return f"{kind} of another"
