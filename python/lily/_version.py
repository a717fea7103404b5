"""The version and distribution name of this package, as installed."""

from importlib.metadata import PackageNotFoundError, version

__all__ = ["DISTRIBUTION", "__version__"]

#: Name on the package index; the extras are ``lily-engine[cli]`` and so on.
DISTRIBUTION = "lily-engine"

try:
    __version__ = version(DISTRIBUTION)
except PackageNotFoundError:  # run from a source tree that is not installed
    __version__ = "0.0.0"
