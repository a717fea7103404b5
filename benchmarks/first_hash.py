"""Times what the identity of weights costs: the first save of a session, which hashes every byte, and the second.

python benchmarks/first_hash.py MODEL [MODEL ...]
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

from records import parser, write


def main() -> None:
    """Print a line for each model."""
    options = parser(__doc__)
    options.add_argument("models", nargs="+", type=Path)
    given = options.parse_args()
    figures = {}
    with tempfile.TemporaryDirectory() as folder:
        os.environ["LILY_CACHE_DIR"] = folder  # where the hashes are kept
        for path in given.models:
            first, processor, size = identity_seconds(path)
            second, _, _ = identity_seconds(path)
            print(
                f"{path}: {size / 1e9:.2f} GB; first {first:.3f} s ({size / first / 1e9:.2f} GB/s, processor "
                f"{processor:.2f} s), second {1e3 * second:.2f} ms"
            )
            figures[path.name] = {"bytes": size, "first, s": first, "processor, s": processor, "second, s": second}
    write(given.json, {"figures": figures})


def identity_seconds(path: Path) -> tuple[float, float, int]:
    """Seconds of the clock and of all processors for the identity of a freshly loaded model, and its bytes."""
    import lily

    for file in path.glob("*.safetensors"):  # from memory, not from the disk
        with file.open("rb") as stream:
            while stream.read(1 << 24):
                pass
    with lily.Model.load(path, backend="cpu") as model:
        start, used = time.perf_counter(), time.process_time()
        assert model.fingerprint
        return time.perf_counter() - start, time.process_time() - used, sum(model.checkpoint.source.file_sizes)


if __name__ == "__main__":
    main()
