"""Random changes of files: bytes, lengths, and what kind of file it is."""

from __future__ import annotations

import os
import random
import socket
from contextlib import suppress
from pathlib import Path

__all__ = ["mutate_bytes", "replace_by_another_kind", "resize"]


def mutate_bytes(path: Path, rng: random.Random) -> str:
    """Change some bytes, most of them near the beginning, where headers are."""
    content = bytearray(path.read_bytes())
    size = len(content)
    kind = rng.choice(("flip", "flip", "random", "zeros", "ones", "insert", "remove", "swap", "length"))
    end = size if rng.random() < 0.4 else min(size, 4096)
    at = rng.randrange(end) if end else 0
    count = rng.choice((1, 1, 2, 8, 100))
    if kind == "flip" and size:
        for _ in range(count):
            content[rng.randrange(end)] ^= 1 << rng.randrange(8)
    elif kind == "random":
        content[at : at + count] = rng.randbytes(min(count, size - at))
    elif kind in ("zeros", "ones"):
        content[at : at + count] = (b"\0" if kind == "zeros" else b"\xff") * min(count, size - at)
    elif kind == "insert":
        content[at:at] = rng.randbytes(count)
    elif kind == "remove":
        del content[at : at + count]
    elif kind == "swap":
        other = rng.randrange(size) if size else 0
        content[at : at + 64], content[other : other + 64] = content[other : other + 64], content[at : at + 64]
    else:
        length = rng.choice((0, 1, 7, 2**20, 2**27, 2**31, 2**40, 2**63, 2**64 - 1, 100_000_000))
        content[:8] = length.to_bytes(8, "little")
    path.write_bytes(content)
    return kind


def resize(path: Path, rng: random.Random) -> str:
    """Cut the file, or make it longer without writing: sparse files of up to a tebibyte."""
    size = path.stat().st_size
    length = rng.choice((0, 1, 7, 8, 9, size // 2, max(0, size - 1), size + 1, size + 4096, 2**31, 2**33, 2**40))
    os.truncate(path, length)
    return f"length {length}"


def replace_by_another_kind(path: Path, rng: random.Random) -> str:
    """Put something under the name that is no regular file, or a link."""
    path.unlink()
    kind = rng.choice(("fifo", "folder", "socket", "itself", "nowhere", "zero", "random", "null", "foreign", "sparse"))
    targets = {"itself": path, "nowhere": "/nowhere/at/all", "zero": "/dev/zero", "random": "/dev/urandom"}
    targets |= {"null": "/dev/null", "foreign": "/etc/passwd"}
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "socket":
        with suppress(OSError), socket.socket(socket.AF_UNIX) as made:  # long paths are refused
            made.bind(str(path))
    elif kind == "sparse":
        path.touch()
        os.truncate(path, rng.choice((2**20, 2**28, 2**36)))
    else:
        path.symlink_to(targets[kind])
    return kind
