"""Gives the libraries that the tests compare with one thread in each worker: more would fight for the same cores."""

import os

if "PYTEST_XDIST_WORKER" in os.environ:
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):  # read when PyTorch and NumPy are first imported
        os.environ.setdefault(name, "1")
