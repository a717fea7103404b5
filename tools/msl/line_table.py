"""Source lines of the checked accesses of a library: which line of Metal each call of a hook stands for."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

_CALL = re.compile(r"^\s*([0-9a-f]+):\s+(?:callq?|bl)\s.*<__tsan_")
_CODE = re.compile(r"^\s*([0-9a-f]+):\s")
_PLACE = re.compile(r"(\S+):(\d+)")


def return_addresses(library: Path) -> list[int]:
    """The addresses after every call of an access hook."""
    command = ["objdump", "-d", "--no-show-raw-insn", str(library)]
    addresses, after_call = [], False
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for text in process.stdout:
            if after_call and (code := _CODE.match(text)):
                addresses.append(int(code.group(1), 16))
                after_call = False
            if _CALL.match(text):
                after_call = True
    return addresses


def line_table(library: Path) -> str:
    """One ``address file:line`` a row, sorted: the innermost line of a .metal file (or header beside it)."""
    addresses = return_addresses(library)
    if not addresses:
        return ""
    asked = "".join(f"0x{address - 1:x}\n" for address in addresses)
    done = subprocess.run(
        ["addr2line", "-e", str(library), "-i", "-a"], input=asked, capture_output=True, text=True, check=True
    )
    rows: list[str] = []
    places: list[str] = []
    for text in [*done.stdout.splitlines(), "0x0"]:
        if text.startswith("0x"):
            if places:
                rows.append(f"{addresses[len(rows)]:x} {_choose(places)}\n")
            places = []
        else:
            places.append(text)
    return "".join(rows)


def _choose(places: list[str]) -> str:
    """The innermost place that is not in the vocabulary's own headers."""
    for place in places:
        if (found := _PLACE.match(place)) and "/device/" not in found.group(1) and found.group(1) != "??":
            return f"{Path(found.group(1)).name}:{found.group(2)}"
    return places[0].split(" ")[0]
