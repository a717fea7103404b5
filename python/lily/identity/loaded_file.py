"""A weight file as the model loaded it, distinguished from a later file at the same path."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from lily.checkpoint.source import FileIdentity
from lily.errors import CheckpointError
from lily.files.file_digest import FileStamp

__all__ = ["LoadedFile"]


@dataclass(frozen=True)
class LoadedFile:
    """Path, stamp and attributes at the time of loading."""

    path: Path
    stamp: FileStamp
    attributes: tuple[int, ...] | None  # None: the file was changed since its header was read

    @classmethod
    def of(cls, path: Path, identity: FileIdentity) -> LoadedFile:
        """The file whose header was read with `identity`; call this while loading its model."""
        stamp = FileStamp(
            identity.device, identity.inode, identity.size, identity.modified_ns, ctime_ns=identity.changed_ns
        )
        try:
            status = path.stat()
        except OSError:
            return cls(path, stamp, None)
        return cls(path, stamp, _attributes(status) if FileStamp.of(status) == stamp else None)

    def find(self) -> FileStamp:
        """The file's current stamp.

        Raises
        ------
        CheckpointError
            Its path has another file, other content, or nothing.
        """
        try:
            status = self.path.stat()
        except OSError as error:
            self.refuse(f"cannot be read any more ({error.strerror or error})")
        stamp = FileStamp.of(status)
        if (stamp.device, stamp.inode) != (self.stamp.device, self.stamp.inode):
            self.refuse("was replaced by another file after the model was loaded")
        if (stamp.size, stamp.mtime_ns) != (self.stamp.size, self.stamp.mtime_ns):
            self.refuse("was changed after the model was loaded")
        # If only the change time differs, attributes changed, or the modification time was set back.
        if stamp.ctime_ns != self.stamp.ctime_ns and self.attributes in (None, _attributes(status)):
            self.refuse("was changed after the model was loaded")
        return stamp

    def refuse(self, change: str) -> NoReturn:
        """Raise the CheckpointError of a file that is no longer the loaded one."""
        raise CheckpointError(
            f"{self.path}: it {change}, so states of this model can be neither saved nor loaded; load the model again"
        )


def _attributes(status: os.stat_result) -> tuple[int, ...]:
    """Attributes that change without the content: links, permissions, owner."""
    return status.st_nlink, status.st_mode, status.st_uid, status.st_gid
