"""Fuzz targets: everything that Lily reads from others. `python -m tests.fuzz --minutes 60` runs them for hours."""
