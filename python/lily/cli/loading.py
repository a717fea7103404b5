"""Loads the model of a command: the one place where the command line meets `lily.Model`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from lily.cli.progress import ProgressBars

if TYPE_CHECKING:
    from lily.model import Model

__all__ = ["load_model"]


def load_model(
    source: str,
    *,
    backend: str = "auto",
    max_context: int | None = None,
    threads: int | None = None,
    prefix_cache_bytes: int | None = None,
    prefix_cache_dir: Path | None = None,
) -> Model:
    """Load a model, with bars on a terminal; arguments and errors as for `lily.Model.load`.

    If a file of the model is truncated while a call reads it, the process ends with a line that names the file.
    """
    from lily import _core
    from lily.model import Model

    _core.report_mapping_faults()
    with ProgressBars(unit="bytes") as bars:
        return Model.load(
            source,
            backend=backend,
            max_context=max_context,
            threads=threads,
            prefix_cache_bytes=prefix_cache_bytes,
            prefix_cache_dir=prefix_cache_dir,
            progress=bars.report if bars.visible else False,
        )
