"""Checks that includes and imports only go down, and that private names stay in their files.

Each layer may use itself and those before it in the tables here. No file of the package imports a private name of
another; ruff's rule SLF001 refuses attributes.

python tools/check_layers.py           # exit 1 and a line for each include or import against the order
python tools/check_layers.py --order   # print the order
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CORE = ROOT / "src" / "lily_core"
PACKAGE = ROOT / "python" / "lily"

# From the ground up. The layers of one line do not know each other.
CORE_LAYERS = (("base",), ("weights",), ("cpu", "device"), ("gpu",), ("engine",), ("bind",))
PACKAGE_LAYERS = (
    ("_core", "_version", "errors"),
    ("checks",),
    ("files",),
    ("checkpoint", "sampling"),
    ("text", "identity", "display"),
    ("session",),
    ("cache",),
    ("model",),
    ("chat",),
    ("notebook", "doctor", "verify", "bench"),
    ("server",),
    ("cli",),
)
# The one import that goes up, inside a function: `Model.chat` begins a conversation for those who have a model.
LAZY = {("model", "chat")}

_INCLUDE = re.compile(r'^\s*#\s*include\s+"([\w/.]+)"', re.M)


def heights(layers: tuple[tuple[str, ...], ...]) -> dict[str, int]:
    """The line of each layer."""
    return {name: height for height, names in enumerate(layers) for name in names}


def core_findings() -> Iterator[str]:
    """Includes of src/lily_core against the order."""
    height = heights(CORE_LAYERS)
    for path in sorted(CORE.rglob("*")):
        if path.suffix not in (".h", ".cpp", ".mm"):
            continue
        own = path.relative_to(CORE).parts[0]
        if own not in height:
            yield f"{path.relative_to(ROOT)}: {own} has no place in CORE_LAYERS"
            continue
        for included in _INCLUDE.findall(path.read_text()):
            other = included.split("/")[0]
            if other in height and other != own and height[other] >= height[own]:
                yield f"{path.relative_to(ROOT)}: {own} includes {included}, which is not below it"


def layer_of(module: str) -> str | None:
    """The layer of ``lily.x.y``; None for other packages and for ``lily`` itself."""
    parts = module.split(".")
    return parts[1] if parts[0] == "lily" and len(parts) > 1 else None


def imports_of(tree: ast.AST) -> Iterator[tuple[str, int, bool]]:
    """(layer, line, whether it is inside a function) of each import that runs; those for type checkers do not."""

    def walk(node: ast.AST, lazy: bool) -> Iterator[tuple[str, int, bool]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                continue
            modules: list[str] = []
            if isinstance(child, ast.Import):
                modules = [alias.name for alias in child.names]
            elif isinstance(child, ast.ImportFrom) and child.module == "lily":
                modules = [f"lily.{alias.name}" for alias in child.names]
            elif isinstance(child, ast.ImportFrom) and child.module:
                modules = [child.module]
            for module in modules:
                layer = layer_of(module)
                if layer is not None:
                    yield layer, getattr(child, "lineno", 0), lazy
            yield from walk(child, lazy or isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)))

    yield from walk(tree, False)


def package_findings() -> Iterator[str]:
    """Imports of python/lily against the order."""
    height = heights(PACKAGE_LAYERS)
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).parts
        own = parts[0].removesuffix(".py")
        if own in ("__init__", "__main__"):
            continue
        if own not in height:
            yield f"{path.relative_to(ROOT)}: {own} has no place in PACKAGE_LAYERS"
            continue
        for other, line, lazy in imports_of(ast.parse(path.read_text())):
            if other == own or (lazy and (own, other) in LAZY):
                continue
            if other in height and height[other] > height[own]:
                yield f"{path.relative_to(ROOT)}:{line}: {own} imports {other}, which is above it"
    yield from circle_findings()


def private_findings() -> Iterator[str]:
    """Private names that a file of python/lily imports from another; whole modules may be private to the package."""
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.ImportFrom) or not node.module or layer_of(node.module) is None:
                continue
            for alias in node.names:
                if alias.name.startswith("_") and not alias.name.startswith("__"):
                    yield f"{path.relative_to(ROOT)}:{node.lineno}: {node.module}.{alias.name} is private to its file"


def circle_findings() -> Iterator[str]:
    """Circles of imports that run when modules are loaded."""
    graph: dict[str, set[str]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        own = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        if own not in ("__init__", "__main__"):
            found = imports_of(ast.parse(path.read_text()))
            graph.setdefault(own, set()).update(other for other, _, lazy in found if not lazy and other != own)
    for start in graph:
        stack, seen = [(start, (start,))], set()
        while stack:
            module, way = stack.pop()
            for other in graph.get(module, ()):
                if other == start and start == min(way):
                    yield f"python/lily: a circle of imports: {' -> '.join((*way, start))}"
                elif other not in seen and other not in way:
                    seen.add(other)
                    stack.append((other, (*way, other)))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--order", action="store_true", help="print the layers, the lowest first")
    if parser.parse_args().order:
        for title, layers in (("src/lily_core", CORE_LAYERS), ("python/lily", PACKAGE_LAYERS)):
            print(title + ": " + " < ".join(" | ".join(names) for names in layers))
        return 0
    findings = [*core_findings(), *package_findings(), *private_findings()]
    print("\n".join(findings) or "includes and imports only go down")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
