"""Draws the picture of the architecture from its description, docs/images/architecture.txt, as SVG.

    python tools/draw_architecture.py            # writes docs/images/architecture.svg
    python tools/draw_architecture.py --check    # exit status 1 if that file is out of date

The picture has the colours of both themes and follows the reader's.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

IMAGES = Path(__file__).resolve().parent.parent / "docs" / "images"
COLUMN, COLUMNS, MARGIN, LABEL = 28, 24, 16, 184  # widths in pixels, LABEL at the right
BOX, GAP, BORDER, SPACE = 50, 26, 34, 6  # heights in pixels; SPACE between boxes of a row
STYLE = """
  .ground { fill: #ffffff; stroke: #d8dee4 } .title { font-weight: 600; fill: #1f2328 } .text, .row { fill: #59636e }
  .python { fill: #f3ecff; stroke: #8250df } .core { fill: #e9f1ff; stroke: #0969da }
  .gpu { fill: #e6f6ea; stroke: #1a7f37 } .outside { fill: none; stroke: #8c959f; stroke-dasharray: 4 3 }
  .arrow, .border { stroke: #8c959f } .head { fill: #8c959f }
  @media (prefers-color-scheme: dark) {
    .ground { fill: #0d1117; stroke: #30363d } .title { fill: #e6edf3 } .text, .row { fill: #9198a1 }
    .python { fill: #2a1f42; stroke: #b78cff } .core { fill: #14243d; stroke: #58a6ff }
    .gpu { fill: #12301c; stroke: #3fb950 } .outside, .arrow, .border { stroke: #7d8590 } .head { fill: #7d8590 }
  }
"""


@dataclass
class Box:
    """A box in columns [first, last); `y` is its upper edge."""

    first: int
    last: int
    kind: str
    title: str
    text: str
    y: int = 0


@dataclass
class Picture:
    """What the description says: rows (name, folder, ids of boxes), borders (row below, text), boxes and arrows."""

    rows: list[tuple[str, str, list[str]]] = field(default_factory=list)
    borders: dict[int, str] = field(default_factory=dict)
    boxes: dict[str, Box] = field(default_factory=dict)
    arrows: list[tuple[str, str]] = field(default_factory=list)


def read(description: str) -> Picture:
    """Parse a description; its format is explained at the top of the file."""
    picture = Picture()
    for line in description.splitlines():
        word, _, rest = line.partition(" ")
        parts = [part.strip() for part in rest.split("|")]
        if not line.strip() or word == "#":
            continue
        if word == "row":
            picture.rows.append((parts[0], parts[1], []))
        elif word == "box":
            name, columns, kind = parts[0].split()
            first, last = map(int, columns.split("-"))
            picture.boxes[name] = Box(first, last, kind, parts[1], parts[2])
            picture.rows[-1][2].append(name)
        elif word == "line":
            picture.borders[len(picture.rows)] = rest
        else:
            start, end = line.split(" -> ")
            picture.arrows.append((start, end.strip()))
    return picture


def draw(picture: Picture) -> str:
    """The SVG of a picture."""
    shapes, y = [], MARGIN
    for index, (name, folder, members) in enumerate(picture.rows):
        if index in picture.borders:
            shapes += border(picture.borders[index], y - GAP + BORDER // 2 + 4)
            y += BORDER - 6
        for member in members:
            picture.boxes[member].y = y
            shapes += drawn(picture.boxes[member])
        left = MARGIN + COLUMNS * COLUMN + 16
        shapes.append(f'<text class="title" font-size="13" x="{left}" y="{y + 22}">{escape(name)}</text>')
        shapes.append(f'<text class="row" font-size="11" x="{left}" y="{y + 38}">{escape(folder)}</text>')
        y += BOX + GAP
    for start, end in picture.arrows:
        shapes.append(arrow(picture.boxes[start], picture.boxes[end]))
    width, height = 2 * MARGIN + COLUMNS * COLUMN + LABEL, y - GAP + MARGIN
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'font-family="system-ui, -apple-system, Segoe UI, Roboto, Helvetica, Arial, sans-serif">'
    )
    marker = (
        '<marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path class="head" d="M0 0 L8 4 L0 8 z"/></marker>'
    )
    ground = f'<rect class="ground" x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="8"/>'
    return "\n".join([head, f"<style>{STYLE}</style>", f"<defs>{marker}</defs>", ground, *shapes, "</svg>", ""])


def drawn(box: Box) -> list[str]:
    """A box with one or two lines of text."""
    x, width = MARGIN + COLUMN * box.first + SPACE // 2, COLUMN * (box.last - box.first) - SPACE
    middle, title = x + width / 2, box.y + (21 if box.text else 30)
    shapes = [f'<rect class="{box.kind}" x="{x}" y="{box.y}" width="{width}" height="{BOX}" rx="6"/>']
    centre = f'text-anchor="middle" x="{middle:g}"'
    shapes.append(f'<text class="title" font-size="13" {centre} y="{title}">{escape(box.title)}</text>')
    if box.text:
        shapes.append(f'<text class="text" font-size="11" {centre} y="{box.y + 38}">{escape(box.text)}</text>')
    return shapes


def border(text: str, y: int) -> list[str]:
    """A dashed line over the whole width, its text at the right."""
    left, right = MARGIN, MARGIN + COLUMNS * COLUMN
    return [
        f'<path class="border" stroke-dasharray="2 4" d="M{left} {y} H{right}"/>',
        f'<text class="row" font-size="11" x="{right + 16}" y="{y + 4}">{escape(text)}</text>',
    ]


def arrow(start: Box, end: Box) -> str:
    """A vertical arrow in the middle of the columns that both boxes have."""
    first, last = max(start.first, end.first), min(start.last, end.last)
    if first >= last or start.y >= end.y:
        raise SystemExit(f"no room for an arrow from {start.title!r} down to {end.title!r}")
    x = MARGIN + COLUMN * (first + last) / 2
    return f'<path class="arrow" marker-end="url(#head)" d="M{x:g} {start.y + BOX} V{end.y - 2}"/>'


def main() -> int:
    """Write the picture, or compare it with the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    drawing = draw(read((IMAGES / "architecture.txt").read_text(encoding="utf-8")))
    file = IMAGES / "architecture.svg"
    if check:
        return 0 if file.is_file() and file.read_text(encoding="utf-8") == drawing else 1
    file.write_text(drawing, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
