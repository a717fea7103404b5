"""Command line of the translator, the lint and the builder: ``PYTHONPATH=tools python -m msl COMMAND ...``."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from .build_library import ROOT, build_library
from .cuda_library import build_cuda_library
from .line_table import line_table
from .lint import lint
from .preprocess import preprocess
from .reflection import reflect
from .sim_backend import SimBackend, registry
from .tokens import SubsetError
from .translate import translate


def main() -> int:
    """Runs one command; the exit status is 1 when a source is outside the subset."""
    parser = argparse.ArgumentParser(prog="msl", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("translate", help="translate one .metal file to C++")
    one.add_argument("source", type=Path)
    one.add_argument("-o", "--output", type=Path, required=True)
    one.add_argument("--reflection", type=Path, help="where to write the reflection (JSON)")
    one.add_argument("--compiler", default="g++", help="compiler whose preprocessor is used")
    one.add_argument("-I", dest="include", action="append", type=Path, default=[])
    one.add_argument("-D", dest="define", action="append", default=[])
    one.add_argument("--metal-version", type=int, default=310)
    every = commands.add_parser("registry", help="write the list of the entry points of several translated files")
    every.add_argument("stems", nargs="*")
    every.add_argument("-o", "--output", type=Path, required=True)
    lines = commands.add_parser("lines", help="write the source lines of the checked accesses of a library")
    lines.add_argument("library", type=Path)
    lines.add_argument("-o", "--output", type=Path, required=True)
    build = commands.add_parser("build", help="build a library of a few .metal files alone")
    build.add_argument("sources", nargs="+", type=Path)
    build.add_argument("-o", "--output", type=Path, required=True, help="folder for the library and its objects")
    build.add_argument("--checked", action="store_true")
    cuda = commands.add_parser("cuda", help="make the folder of kernels of the cuda device")
    cuda.add_argument("sources", nargs="+", type=Path)
    cuda.add_argument("-o", "--output", type=Path, required=True)
    cuda.add_argument("--compiler", default="g++", help="compiler whose preprocessor is used")
    cuda.add_argument("-I", dest="include", action="append", type=Path, default=[])
    check = commands.add_parser("lint", help="check .metal files with clang")
    check.add_argument("sources", nargs="+", type=Path)
    check.add_argument("-I", dest="include", action="append", type=Path, default=[])
    arguments = parser.parse_args()
    try:
        if arguments.command == "translate":
            _translate(arguments)
        elif arguments.command == "lint":
            findings = lint(arguments.sources, [*arguments.include, ROOT / "metal"])
            sys.stdout.write("".join(f"{finding}\n" for finding in findings))
            return 1 if findings else 0
        elif arguments.command == "cuda":
            include = [*arguments.include, ROOT / "metal"]
            build_cuda_library(arguments.sources, arguments.output, arguments.compiler, include)
        elif arguments.command == "build":
            library = build_library(arguments.sources, arguments.output, arguments.checked)
            sys.stdout.write(f"{library}\n")
        elif arguments.command == "lines":
            arguments.output.write_text(line_table(arguments.library))
        else:
            arguments.output.write_text(registry(arguments.stems))
    except SubsetError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


def _translate(arguments: argparse.Namespace) -> None:
    definitions = ["LILY_SIM=1", *arguments.define]
    source = preprocess(arguments.source, arguments.compiler, arguments.include, definitions, arguments.metal_version)
    text, module = translate(source, SimBackend(arguments.source.stem))
    arguments.output.write_text(text)
    if arguments.reflection:
        arguments.reflection.write_text(json.dumps(reflect(module), indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
