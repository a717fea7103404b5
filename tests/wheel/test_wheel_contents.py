"""What wheels and source distributions hold: the check that release builds run, on archives made here."""

from __future__ import annotations

import struct
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from check_wheel import kernel_files, sdist_problems, wheel_problems

ROOT = Path(__file__).resolve().parents[2]

SYSTEM = ("/usr/lib/libSystem.B.dylib",)
Symbol = tuple[str, int, int]  # name, number of the library (0xFE: any), further bits of its description
WEAK = 0x40


def mach_o(
    minimum: tuple[int, int],
    libraries: tuple[str, ...] = SYSTEM,
    symbols: tuple[Symbol, ...] = (),
    run_paths: tuple[str, ...] = (),
) -> bytes:
    """A Mach-O of arm64 with a build version, libraries, folders to search and undefined symbols, and no code."""
    commands = [struct.pack("<6I", 0x32, 24, 1, minimum[0] << 16 | minimum[1] << 8, 0, 0)]
    for library in libraries:
        name = library.encode() + b"\0" * (8 - len(library) % 8)
        commands.append(struct.pack("<6I", 0xC, 24 + len(name), 24, 0, 0, 0) + name)
    for path in run_paths:
        name = path.encode() + b"\0" * (8 - (len(path) + 4) % 8)
        commands.append(struct.pack("<3I", 0x8000001C, 12 + len(name), 12) + name)
    size = sum(map(len, commands)) + 24
    names, table = b"\0", b""
    for name, library, bits in symbols:
        table += struct.pack("<IBBHQ", len(names), 0x01, 0, library << 8 | bits, 0)
        names += name.encode() + b"\0"
    commands.append(struct.pack("<6I", 0x2, 24, 32 + size, len(symbols), 32 + size + len(table), len(names)))
    header = struct.pack("<8I", 0xFEEDFACF, 0x0100000C, 0, 8, len(commands), size, 0, 0)
    return header + b"".join(commands) + table + names


NEWER_CLASS = "_OBJC_CLASS_$_MTLResidencySetDescriptor"
GOOD_SYMBOLS: tuple[Symbol, ...] = (
    ("_PyLong_FromLong", 0xFE, 0),
    ("_OBJC_CLASS_$_MTLCompileOptions", 2, 0),
    (NEWER_CLASS, 2, WEAK),
    ("_malloc", 1, 0),
)


def write_wheel(folder: Path, tags: str, module: str, content: bytes = b"", **changes: bytes | None) -> Path:
    """A wheel with everything that it needs; `changes` add files or, with None, leave them out."""
    python, abi, platforms = tags.split("-")
    wheel = "Wheel-Version: 1.0\nRoot-Is-Purelib: false\n"
    wheel += "".join(f"Tag: {python}-{abi}-{platform}\n" for platform in platforms.split("."))
    files: dict[str, bytes | None] = {f"lily/metal/{name}": b"" for name in kernel_files()}
    files |= {"lily/py.typed": b"", "lily/_core/__init__.pyi": b"", "lily/data/lily-tiny/model.safetensors": b""}
    files |= {f"lily/{module}": content}
    files |= {f"{INFO}/WHEEL": wheel.encode(), f"{INFO}/METADATA": b"Metadata-Version: 2.2\nRequires-Python: >=3.10\n"}
    files |= {f"{INFO}/entry_points.txt": b"[console_scripts]\nlily = lily.cli:main\n"}
    if "linux" in tags:
        files |= {"lily/_sim_kernels.so": b"", "lily/_sim_kernels_checked.so": b"", "lily/_cuda_kernels/index.txt": b""}
    files |= {name: data for name, data in changes.items() if not name.endswith("RECORD")}
    held = [name for name, data in files.items() if data is not None]
    record = changes.get(f"{INFO}/RECORD", "".join(f"{name},,\n" for name in [*held, f"{INFO}/RECORD"]).encode())
    path = folder / f"lily_engine-0.1.0-{tags}.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in {**files, f"{INFO}/RECORD": record}.items():
            if data is not None:
                archive.writestr(name, data)
    return path


MAC = "cp312-abi3-macosx_14_0_arm64"
INFO = "lily_engine-0.1.0.dist-info"
LINUX = "cp312-abi3-manylinux_2_28_x86_64"


def test_good_wheels(tmp_path: Path) -> None:
    frameworks = tuple(f"/System/Library/Frameworks/{name}.framework/{name}" for name in ("Metal", "Foundation"))
    good = mach_o((14, 0), ("/usr/lib/libc++.1.dylib", *frameworks), GOOD_SYMBOLS)
    assert wheel_problems(write_wheel(tmp_path, MAC, "_core.abi3.so", good)) == []
    assert wheel_problems(write_wheel(tmp_path, LINUX, "_core.abi3.so")) == []
    older = "cp311-cp311-manylinux_2_28_aarch64"
    assert wheel_problems(write_wheel(tmp_path, older, "_core.cpython-311-aarch64-linux-gnu.so")) == []


@pytest.mark.parametrize(
    ("tags", "module", "content", "changes", "problem"),
    [
        ("cp312-abi3-macosx_11_0_arm64", "_core.abi3.so", mach_o((14, 0)), {}, "tags"),
        ("cp312-abi3-macosx_14_0_x86_64", "_core.abi3.so", mach_o((14, 0)), {}, "tags"),
        ("cp312-cp312-macosx_14_0_arm64", "_core.cpython-312-darwin.so", mach_o((14, 0)), {}, "tags"),
        (MAC, "_core.abi3.so", mach_o((15, 4)), {}, "needs macOS 15.4"),
        (MAC, "_core.abi3.so", mach_o((14, 0), ("/opt/homebrew/lib/libomp.dylib",)), {}, "libomp"),
        (LINUX, "_core.cpython-312-x86_64-linux-gnu.so", b"", {}, "stable ABI"),
        (LINUX, "_core.abi3.so", b"", {"lily/metal/gemv.metal": None}, "gemv.metal"),
        (LINUX, "_core.abi3.so", b"", {"lily/_sim_kernels.so": None}, "_sim_kernels.so"),
        (LINUX, "_core.abi3.so", b"", {"lily/device/metal.mm": b""}, "metal.mm"),
        (LINUX, "_core.abi3.so", b"", {"lily/_core.other.so": b""}, "2 native modules"),
        (MAC, "_core.abi3.so", mach_o((14, 0), run_paths=("/opt/homebrew/lib",)), {}, "searches /opt/homebrew/lib"),
        (MAC, "_core.abi3.so", mach_o((14, 0), symbols=((NEWER_CLASS, 2, 0),)), {}, "would not load on macOS 14.0"),
        (MAC, "_core.abi3.so", mach_o((14, 0), symbols=(("__ZN4lily4openEv", 0xFE, 0),)), {}, "undefined symbols"),
        (LINUX, "_core.abi3.so", b"", {f"{INFO}/WHEEL": b"Tag: py3-none-any\nRoot-Is-Purelib: false\n"}, "other tags"),
        (LINUX, "_core.abi3.so", b"", {f"{INFO}/METADATA": b"Requires-Python: >=3.8\n"}, "Python 3.10"),
        (LINUX, "_core.abi3.so", b"", {f"{INFO}/entry_points.txt": b""}, "no command"),
        (LINUX, "_core.abi3.so", b"", {f"{INFO}/RECORD": b"lily/py.typed,,\n"}, "RECORD lacks lily/_core.abi3.so"),
        (LINUX, "_core.abi3.so", b"", {"lily/_cuda_kernels/index.txt": None}, "_cuda_kernels/index.txt"),
        (LINUX, "_core.abi3.so", b"", {"lily/_test_doubles.abi3.so": b""}, "_test_doubles"),
    ],
)
def test_bad_wheels(
    tmp_path: Path, tags: str, module: str, content: bytes, changes: dict[str, bytes | None], problem: str
) -> None:
    assert problem in "; ".join(wheel_problems(write_wheel(tmp_path, tags, module, content, **changes)))


def test_source_distribution(tmp_path: Path) -> None:
    """It holds the kernels' sources and what builds them; making it compiles nothing."""
    pytest.importorskip("scikit_build_core")
    code = f"import scikit_build_core.build as build; print(build.build_sdist({str(tmp_path)!r}))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert sdist_problems(next(tmp_path.glob("*.tar.gz"))) == []
