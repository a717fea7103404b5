"""Runs fuzz targets: python -m tests.fuzz --minutes 60 [target ...]"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))  # as pytest has them
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from fuzz.run import main

if __name__ == "__main__":
    sys.exit(main())
