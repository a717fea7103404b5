"""Records a conversation with the bundled model on a terminal as a picture, docs/images/chat.svg.

    python tools/record_chat.py            # runs `lily chat` in a pseudo-terminal and writes the picture
    python tools/record_chat.py --check    # exit status 1 if the picture shows anything else, speeds aside

Needs the extra `cli` and a POSIX system. The text is that of the real program: this script only types.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import html
import io
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

PICTURE = Path(__file__).resolve().parent.parent / "docs" / "images" / "chat.svg"
COMMAND = ["lily", "chat", "--greedy"]
QUESTIONS = ["Hello, who are you?", "My dog is called Bruno.", "What is 12 plus 30?", "What is my dog called?"]
WIDTH, HEIGHT = 84, 50  # characters
SECONDS = 120  # for one answer, on a busy machine
THEME = TerminalTheme(
    (13, 17, 23),
    (230, 237, 243),
    [
        (72, 79, 88),
        (255, 123, 114),
        (63, 185, 80),
        (210, 153, 34),
        (88, 166, 255),
        (183, 140, 255),
        (57, 197, 207),
        (177, 186, 196),
    ],
)
# As rich's own format, but with fonts of the reader's machine: a page that shows the picture asks no other site.
FORMAT = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">
<style>
.{unique_id}-matrix {{
  font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace;
  font-size: {char_height}px; line-height: {line_height}px; white-space: pre;
}}
.{unique_id}-title {{ font-size: 18px; font-weight: 600; font-family: system-ui, sans-serif }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}"/>
</clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-ln-z]|\x1b[=>]|\r")  # all escapes but those of colour and weight
_SPEED = re.compile(r"[\d.]+ tok/s")


def record() -> str:
    """What the terminal showed, with the escapes of its styles."""
    main_end, other_end = pty.openpty()
    fcntl.ioctl(other_end, termios.TIOCSWINSZ, struct.pack("HHHH", HEIGHT, WIDTH, 0, 0))
    environment = {**os.environ, "TERM": "xterm", "PYTHONUTF8": "1", "INPUTRC": os.devnull}
    environment.pop("NO_COLOR", None)
    process = subprocess.Popen(
        [sys.executable, "-m", *COMMAND],
        stdin=other_end,
        stdout=other_end,
        stderr=other_end,
        env=environment,
        start_new_session=True,
    )
    os.close(other_end)
    try:
        shown = _until_prompt(main_end, "")
        for question in QUESTIONS:
            os.write(main_end, question.encode() + b"\n")
            shown = _until_prompt(main_end, shown)
        os.write(main_end, b"/quit\n")
        process.wait(timeout=SECONDS)
    finally:
        process.kill()
        process.wait()
        os.close(main_end)
    return f"$ {' '.join(COMMAND)}\n{shown}/quit\n"


def _until_prompt(terminal: int, shown: str) -> str:
    """Read on until the program waits for the next question."""
    end, begun = time.monotonic() + SECONDS, len(shown)
    while not shown[begun:].endswith("\n> ") and shown[begun:] != "> ":
        if time.monotonic() > end:
            raise SystemExit(f"no answer in {SECONDS} s: {shown[-500:]!r}")
        if select.select([terminal], [], [], 0.5)[0]:
            with contextlib.suppress(OSError):
                shown = _CONTROL.sub("", shown + os.read(terminal, 1 << 16).decode())
    return shown


def draw(shown: str) -> str:
    """The picture of a terminal with this text."""
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    console.print(Text.from_ansi(shown), soft_wrap=False)
    return console.export_svg(title="lily chat", theme=THEME, code_format=FORMAT, unique_id="chat")


def plain(picture: str) -> str:
    """The text in a picture, without the speeds, which differ from run to run."""
    lines: dict[float, list[tuple[float, str]]] = {}
    for x, y, text in re.findall(r'<text [^>]*x="([\d.]+)" y="([\d.]+)"[^>]*>(.*?)</text>', picture):
        lines.setdefault(float(y), []).append((float(x), html.unescape(text).replace("\xa0", " ")))
    rows = ["".join(text for _, text in sorted(lines[y])).rstrip() for y in sorted(lines)]
    return _SPEED.sub("... tok/s", "\n".join(rows))


def main() -> int:
    """Record, then write the picture or compare it with the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    picture = draw(record())
    if check:
        return 0 if PICTURE.is_file() and plain(PICTURE.read_text(encoding="utf-8")) == plain(picture) else 1
    PICTURE.write_text(picture, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
