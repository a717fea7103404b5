"""Keeps tests out of the user's cache folder, and gives the libraries that they compare with one thread each."""

import os
import tempfile

if "PYTEST_XDIST_WORKER" in os.environ:  # more threads would fight for the same cores
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):  # read when PyTorch and NumPy are first imported
        os.environ.setdefault(name, "1")

_CACHE = tempfile.TemporaryDirectory(prefix="lily-tests-")  # removed at the end
os.environ["LILY_CACHE_DIR"] = _CACHE.name
