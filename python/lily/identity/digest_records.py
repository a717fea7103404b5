"""Digests of weight files, kept in the user's cache folder so that no file is hashed twice."""

from __future__ import annotations

import json
import logging
import os
import re
import stat
import time
from pathlib import Path
from typing import Any

from lily.checkpoint.json_file import parse_json_object
from lily.errors import CheckpointError
from lily.files.cache_folder import user_cache_folder
from lily.files.file_digest import FileStamp
from lily.files.partial_files import lock_partial, partial_name, remove_abandoned
from lily.files.regular_file import open_regular, read_at

__all__ = ["DigestRecords"]

logger = logging.getLogger("lily")

_NAME = "weight-digests.json"
_HEAD = b'{"format": "lily weight digests 1", "files": {'  # by which Lily recognises its own file
_LIMIT_BYTES = 4 << 20
_LIMIT_FILES = 2000
_LIMIT_PATH = 1500  # characters
# A file changed this recently may change again within the file system's clock tick and look the same.
_SETTLED_NS = 5_000_000_000

Record = list[Any]  # device, inode, size, mtime_ns, ctime_ns, digest


class DigestRecords:
    """The records of one folder. A file that is not Lily's is left alone; a damaged one is replaced."""

    def __init__(self, folder: Path | None = None) -> None:
        chosen = user_cache_folder() if folder is None else folder
        self._path = None if chosen is None else chosen / _NAME
        self._latest: tuple[FileStamp, dict[str, Record]] | None = None

    def find(self, path: Path, stamp: FileStamp) -> str | None:
        """The digest of a file that still has the stamp that it was recorded with."""
        record = self._read().get(_key(path))
        return record[5] if record is not None and record[:5] == _numbers(stamp) else None

    def keep(self, path: Path, stamp: FileStamp, digest: str, now_ns: int) -> None:
        """Record a digest; `now_ns` is the time when the hashing began. A failure only loses the record."""
        settled = stamp.ctime_ns < now_ns - _SETTLED_NS and abs(now_ns - stamp.mtime_ns) > _SETTLED_NS
        if self._path is None or not settled or len(_key(path)) > _LIMIT_PATH:
            return
        try:
            if self._is_foreign():
                logger.debug("%s is not Lily's: no digests are kept", self._path)
                return
            records = self._read()
            records.pop(_key(path), None)
            records[_key(path)] = [*_numbers(stamp), digest]
            self._write(dict(list(records.items())[-_LIMIT_FILES:]))
        except OSError as error:
            logger.debug("the digests of weight files cannot be kept: %s", error)

    def _read(self) -> dict[str, Record]:
        if self._path is None:
            return {}
        try:
            with open_regular(self._path, follow=False) as descriptor:
                status = os.fstat(descriptor)
                if status.st_uid != os.geteuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                    return {}  # another user could have written it
                latest = self._latest
                if latest is not None and latest[0] == FileStamp.of(status):
                    return dict(latest[1])
                data = bytearray(min(status.st_size, _LIMIT_BYTES))
                complete = read_at(descriptor, 0, memoryview(data)) and status.st_size <= _LIMIT_BYTES
            files = parse_json_object(bytes(data), _NAME, CheckpointError).get("files") if complete else None
        except (OSError, CheckpointError):
            return {}
        if not data.startswith(_HEAD) or not isinstance(files, dict):
            return {}
        found = {key: record for key, record in files.items() if _is_record(record)}
        self._latest = FileStamp.of(status), found
        return dict(found)

    def _is_foreign(self) -> bool:
        assert self._path is not None
        try:
            if not stat.S_ISREG(self._path.lstat().st_mode):
                return True
            with open_regular(self._path, follow=False) as descriptor:
                return not _is_own(self._path, descriptor)
        except FileNotFoundError:
            return False

    def _write(self, records: dict[str, Record]) -> None:
        assert self._path is not None
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        partial = self._path.with_name(partial_name(_NAME))
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as stream:
                lock_partial(stream)
                stream.write(_HEAD + json.dumps(records)[1:].encode() + b"}\n")
            partial.replace(self._path)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
        remove_abandoned(self._path.parent, re.escape(_NAME), _is_own)


def now_ns() -> int:
    """The clock that file systems stamp with."""
    return time.time_ns()


def _is_own(_: Path, descriptor: int) -> bool:
    head = bytearray(len(_HEAD))
    return read_at(descriptor, 0, memoryview(head)) and bytes(head) == _HEAD


def _key(path: Path) -> str:
    return os.path.realpath(path)


def _numbers(stamp: FileStamp) -> list[int]:
    return [stamp.device, stamp.inode, stamp.size, stamp.mtime_ns, stamp.ctime_ns]


def _is_record(record: object) -> bool:
    if not isinstance(record, list) or len(record) != 6:
        return False
    *numbers, digest = record
    whole = all(type(number) is int for number in numbers)
    return whole and isinstance(digest, str) and len(digest) == 64 and set(digest) <= set("0123456789abcdef")
