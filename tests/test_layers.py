"""Includes and imports go down, and private names stay in their files: the checker on the tree, and on faults."""

from __future__ import annotations

from pathlib import Path

import pytest

import check_layers


def test_the_tree_is_in_order() -> None:
    findings = (check_layers.core_findings, check_layers.package_findings, check_layers.private_findings)
    assert [found for find in findings for found in find()] == []


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(check_layers, "ROOT", tmp_path)
    monkeypatch.setattr(check_layers, "CORE", tmp_path / "core")
    monkeypatch.setattr(check_layers, "PACKAGE", tmp_path / "lily")
    return tmp_path


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize(
    ("file", "include", "found"),
    [
        ("weights/matrix.h", "base/error.h", 0),
        ("gpu/pass.h", "device/device.h", 0),
        ("base/error.h", "weights/matrix.h", 1),
        ("device/metal.mm", "cpu/kernels.h", 1),
        ("cpu/isa/amx.cpp", "engine/session.h", 1),
        ("elsewhere/a.h", "base/error.h", 1),
        ("gpu/pass.cpp", "gpu/pass.h", 0),
    ],
)
def test_includes(tree: Path, file: str, include: str, found: int) -> None:
    write(tree / "core" / file, f'#include <vector>\n#include "{include}"\n')
    assert len([*check_layers.core_findings()]) == found


@pytest.mark.parametrize(
    ("file", "code", "found"),
    [
        ("cache/a.py", "from lily.session import Session", 0),
        ("cache/a.py", "from lily.model import Model", 1),
        ("cache/a.py", "import lily.chat.turn", 1),
        ("cache/a.py", "from lily import server", 1),
        ("cache/a.py", "if TYPE_CHECKING:\n    from lily.model import Model", 0),
        ("cache/a.py", "def f():\n    from lily.chat import Chat", 1),
        ("model/text.py", "def f():\n    from lily.chat import Chat", 0),
        ("model/model.py", "from lily.chat import Chat", 1),
        ("novelty.py", "import lily", 1),
    ],
)
def test_imports(tree: Path, file: str, code: str, found: int) -> None:
    write(tree / "lily" / file, code + "\n")
    assert len([*check_layers.package_findings()]) == found


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("from lily.cache.radix_tree import Node", 0),
        ("from lily.cache.radix_tree import _walk", 1),
        ("def f():\n    from lily.cache.radix_tree import Node, _a, _b", 2),
        ("from lily import _core", 0),
        ("from lily._core import Session", 0),
        ("from lily._version import __version__", 0),
        ("from numpy import _core", 0),
    ],
)
def test_private_names(tree: Path, code: str, found: int) -> None:
    write(tree / "lily" / "cache" / "a.py", code + "\n")
    assert len([*check_layers.private_findings()]) == found


def test_a_circle_within_one_line(tree: Path) -> None:
    write(tree / "lily" / "session" / "a.py", "from lily.identity.b import B\n")
    write(tree / "lily" / "identity" / "b.py", "from lily.text.c import C\n")
    assert [*check_layers.package_findings()] == []
    write(tree / "lily" / "text" / "c.py", "from lily.session.a import A\n")
    assert "circle" in "".join(check_layers.package_findings())
