"""Lets `python -m lily` act as the command `lily`."""

import sys

from lily.cli import main

if __name__ == "__main__":
    sys.exit(main())
