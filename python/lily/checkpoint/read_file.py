"""Opens and reads a checkpoint's files: only regular files of bounded size, and never blocks."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from lily.checkpoint.foreign_content import foreign_content
from lily.checks.quoting import quoted_path, quoted_text, reason
from lily.errors import LilyError
from lily.files.regular_file import open_regular

ErrorType = type[LilyError]

RESTORE = "restore the file from the checkpoint's source"

# Maximum bytes of each kind of file: several times what the largest models have.
CONFIG_LIMIT = 16 << 20
GENERATION_CONFIG_LIMIT = 1 << 20
INDEX_LIMIT = 100_000_000
TEMPLATE_LIMIT = 1 << 19
TOKENIZER_CONFIG_LIMIT = 16 << 20
TOKENIZER_LIMIT = 128 << 20


@contextmanager
def open_file(path: Path, error_type: ErrorType, remedy: str = RESTORE) -> Iterator[tuple[BinaryIO, os.stat_result]]:
    """A regular file, open for unbuffered reading, and what its descriptor says about it.

    Raises
    ------
    LilyError
        Of type `error_type`: there is no such file, it cannot be opened or read, or it is not a regular file.
        System errors inside the with block become such errors, too.
    """
    try:
        with open_regular(path) as descriptor, os.fdopen(descriptor, "rb", buffering=0, closefd=False) as file:
            yield file, os.fstat(descriptor)
    except LilyError:
        raise
    except FileNotFoundError as error:
        what = "is a link to a missing file" if path.is_symlink() else "no such file"
        raise error_type(f"{quoted_path(path)}: {what}; {remedy}") from error
    except IsADirectoryError as error:
        raise error_type(
            f"{quoted_path(path)}: cannot be read: it is a directory where a file is expected; {remedy}"
        ) from error
    except (OSError, ValueError) as error:
        raise error_type(
            f"{quoted_path(path)}: cannot be read ({quoted_text(reason(error))}); check its permissions and the disk, "
            f"or {remedy}"
        ) from error


def read_exactly(file: BinaryIO, count: int) -> bytes:
    """The next `count` bytes, or fewer at the end of the file."""
    parts: list[bytes] = []
    while count > 0:
        part = file.read(min(count, 1 << 28))
        if not part:
            break
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def read_file(path: Path, error_type: ErrorType, *, limit: int, remedy: str = RESTORE) -> bytes:
    """All bytes of a regular file that has at most `limit` of them.

    Raises
    ------
    LilyError
        Of type `error_type`: as for `open_file`, or the file is too large, changes meanwhile, or is something else
        under this name: a Git LFS pointer, a web page, weights.
    """
    with open_file(path, error_type, remedy) as (file, status):
        if status.st_size > limit:
            raise error_type(
                f"{quoted_path(path)}: {status.st_size} bytes exceed the limit for such a file ({limit}); {remedy}"
            )
        data = read_exactly(file, status.st_size)
        if len(data) != status.st_size or os.fstat(file.fileno()).st_size != status.st_size:
            raise error_type(f"{quoted_path(path)}: changed its size while it was read; load the model again")
    foreign = foreign_content(data)
    if foreign is not None:
        raise error_type(f"{quoted_path(path)}: {foreign}")
    return data


def read_text(path: Path, error_type: ErrorType, *, limit: int, remedy: str = RESTORE) -> str:
    """The UTF-8 text of a file, without a byte order mark; errors as for `read_file`."""
    return decode_text(read_file(path, error_type, limit=limit, remedy=remedy), str(path), error_type, remedy)


def decode_text(data: bytes, where: str, error_type: ErrorType, remedy: str = RESTORE) -> str:
    """UTF-8 text, without a byte order mark; `where` names the file in errors."""
    if data[:2] in (b"\xff\xfe", b"\xfe\xff") or (len(data) >= 2 and data[0] != data[1] and 0 in data[:2]):
        raise error_type(f"{quoted_path(where)}: is not UTF-8 text but UTF-16; save it as UTF-8, or {remedy}")
    try:
        return data.removeprefix(b"\xef\xbb\xbf").decode("utf-8")
    except UnicodeDecodeError as error:
        raise error_type(
            f"{quoted_path(where)}: is not UTF-8 text ({error.reason} at byte {error.start}); {remedy}"
        ) from error


def exists(path: Path) -> bool:
    """Whether anything has that name, even a broken link."""
    try:
        return os.path.lexists(path)
    except ValueError:
        return False
