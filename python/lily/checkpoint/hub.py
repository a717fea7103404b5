"""resolve_source: turns the name of a model into a path: local, bundled, or downloaded from the Hub."""

from __future__ import annotations

import importlib
import logging
import os
import re
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lily._version import DISTRIBUTION
from lily.checkpoint.foreign_content import foreign_name
from lily.checks.arguments import as_path
from lily.checks.quoting import quoted_text
from lily.errors import CheckpointError, InvalidArgumentError, LilyError, MissingExtraError

BUNDLED_MODELS = ("lily-tiny",)
HUB_PATTERNS = (
    "*.safetensors", "*.json", "*.jinja", "tokenizer*", "*.tiktoken", "merges.txt", "vocab.txt"
)  # fmt: skip

_HUB_IGNORED = ("._*", "*/._*")  # of macOS, beside files that have these names
# File suffixes, which no Hub model's name has.
_FILE_SUFFIXES = (".safetensors", ".json", ".jinja", ".txt", ".model")

logger = logging.getLogger("lily")

# Called with (activity, bytes done, total bytes or 0 if unknown), from any thread.
Progress = Callable[[str, int, int], None]

_HUB_ID = re.compile(r"([A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95})(?:@([\w./-]{1,200}))?", re.ASCII)


def resolve_source(source: str | Path, progress: Progress | bool | None = None) -> Path:
    """Path of a checkpoint: its directory, or its single .safetensors file.

    Parameters
    ----------
    source
        A directory; a .safetensors file beside its config.json; the name of a bundled model ("lily-tiny"); or a Hub id
        "owner/name", optionally with "@revision". An existing path takes precedence over a Hub id. The Hub is not asked
        if a directory "owner" exists or the name is that of a file.
    progress
        For downloads: a callable (what, done, total); True or False to show a progress bar or not;
        None shows one if standard error is a terminal.

    Raises
    ------
    CheckpointError
        Nothing has that name, or the download failed.
    MissingExtraError
        A Hub id is given, but huggingface_hub is not installed.
    InvalidArgumentError
        The source is neither a string nor a path.
    """
    if not isinstance(source, (str, os.PathLike)):
        raise InvalidArgumentError(f"a model is named by a string or a path, not {type(source).__name__}")
    name = os.fspath(source)
    if not isinstance(name, str) or not name or "\0" in name:
        raise InvalidArgumentError(f"a model is named by a non-empty string or path, not {quoted_text(repr(name))}")
    if name in BUNDLED_MODELS and isinstance(source, str):
        return Path(__file__).resolve().parent.parent / "data" / name
    path = as_path("source", name)
    if os.path.lexists(path):
        return path
    match = _HUB_ID.fullmatch(name)
    if match is not None and isinstance(source, str) and _is_plausible(match[1]):
        folder = match[1].split("/", maxsplit=1)[0]
        if os.path.lexists(folder):
            raise CheckpointError(
                f"{quoted_text(name)}: no such file or directory, though {quoted_text(folder)} exists; "
                "correct the path, or, if a model of the Hub is meant, call from another directory"
            )
        logger.info("%s: no such directory; asking the Hub", name)
        return _download(match[1], match[2], progress)
    raise CheckpointError(
        f"{quoted_text(name)}: no such file or directory; give a checkpoint's directory, its .safetensors file, "
        f"a bundled model ({', '.join(BUNDLED_MODELS)}) or a Hub id like owner/name"
    )


def _is_plausible(repository: str) -> bool:
    """Whether the Hub could have a model of that name."""
    name = repository.lower()
    if name.endswith((*_FILE_SUFFIXES, ".git", ".", "-")) or ".." in name or "--" in name:
        return False
    return foreign_name(name.rsplit("/", maxsplit=1)[-1]) is None


def _download(repository: str, revision: str | None, progress: Progress | bool | None) -> Path:
    try:
        huggingface_hub = importlib.import_module("huggingface_hub")
        tqdm = importlib.import_module("huggingface_hub.utils").tqdm
    except ImportError as error:
        raise MissingExtraError(
            f"{repository}: no such directory here, and models of the Hub need huggingface_hub; install it with "
            f"pip install '{DISTRIBUTION}[hub]', or give the path of a checkpoint on this machine"
        ) from error
    try:
        folder = huggingface_hub.snapshot_download(
            repository,
            revision=revision,
            allow_patterns=list(HUB_PATTERNS),
            ignore_patterns=list(_HUB_IGNORED),
            tqdm_class=_bar(tqdm, progress, repository),
        )
    except LilyError:  # raised by the caller's progress callable, to stop
        raise
    except Exception as error:  # anything that the network libraries raise
        raise CheckpointError(
            f"{repository}: no such directory here, and it cannot be fetched from the Hub: "
            f"{quoted_text(_first_line(error))}; check the name, the network and your access to it (HF_TOKEN), "
            "or give the path of a checkpoint on this machine"
        ) from error
    return Path(folder)


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def _bar(base: Any, progress: Progress | bool | None, repository: str) -> Any:
    """A progress-bar class for huggingface_hub: a visible one, a silent one, or one that feeds a callable."""
    if not callable(progress):
        shown = sys.stderr is not None and sys.stderr.isatty() if progress is None else progress

        class Bar(base):  # type: ignore[misc]
            def __init__(self, *args: Any, **options: Any) -> None:
                super().__init__(*args, **{**options, "disable": not shown})

        return Bar

    report = progress
    lock = threading.Lock()

    class CallbackBar(base):  # type: ignore[misc]
        """Counts bytes itself, because a disabled bar does not."""

        def __init__(self, *args: Any, **options: Any) -> None:
            self.done = int(options.get("initial") or 0)
            self.reports = options.get("unit") == "B"
            super().__init__(*args, **{**options, "disable": True})
            self.total = options.get("total")

        def update(self, n: float | None = 1) -> None:
            with lock:
                self.done += int(n or 0)
                done = self.done
            if self.reports:
                report(f"downloading {repository}", done, int(self.total or 0))

    return CallbackBar
