"""Checks wheels and source distributions: tags, files, and for macOS what the Mach-O asks for.

python tools/check_wheel.py wheelhouse/*.whl dist/*.tar.gz
"""

from __future__ import annotations

import argparse
import fnmatch
import re
import sys
import tarfile
import zipfile
from pathlib import Path

from check_apple import module_problems, read_mach_o

ROOT = Path(__file__).resolve().parent.parent
TAGS = re.compile(
    r"-(cp312-abi3|cp310-cp310|cp311-cp311)-(macosx_14_0_arm64|manylinux\w*_(x86_64|aarch64)(\.manylinux\w+)*|linux_\w+)\.whl$"
)
FRAMEWORKS = ("Foundation", "CoreFoundation", "Metal")
NEVER = ("*.mm", "*.cpp", "*.py[co]", "*/tests/*", "*.o", "build/*", "lily/_test_doubles*")


def kernel_files() -> set[str]:
    """Names of the files in metal/."""
    return {path.name for path in (ROOT / "metal").iterdir() if path.suffix in (".metal", ".h")}


def wheel_problems(path: Path) -> list[str]:
    """What is wrong with a wheel."""
    tag = TAGS.search(path.name)
    if tag is None:
        return ["its tags are not those of any wheel of Lily"]
    stable, platform = tag[1] == "cp312-abi3", tag[2]
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        problems = [f"holds {name}" for name in names if any(fnmatch.fnmatch(name, pattern) for pattern in NEVER)]
        modules = [name for name in names if re.fullmatch(r"lily/_core\.[\w.-]*so", name)]
        if len(modules) != 1:
            return [*problems, f"has {len(modules)} native modules"]
        if stable and not modules[0].endswith("_core.abi3.so"):
            problems.append(f"its module {modules[0]} does not use the stable ABI")
        packaged = {Path(name).name for name in names if re.fullmatch(r"lily/metal/[^/]+", name)}
        if packaged != kernel_files():
            problems.append(f"its kernels differ from metal/: {sorted(packaged ^ kernel_files())}")
        needed = ["lily/py.typed", "lily/_core/__init__.pyi", "lily/data/lily-tiny/model.safetensors"]
        if not platform.startswith("macosx"):
            needed += ["lily/_sim_kernels.so", "lily/_sim_kernels_checked.so", "lily/_cuda_kernels/index.txt"]
        problems += [f"lacks {name}" for name in needed if name not in names]
        problems += metadata_problems(archive, path.name)
        if platform.startswith("macosx"):
            problems += mach_o_problems(archive.read(modules[0]))
    return problems


def metadata_problems(archive: zipfile.ZipFile, file_name: str) -> list[str]:
    """What is wrong with the files that installers read."""
    folder = "-".join(file_name.split("-")[:2]) + ".dist-info"
    texts = {}
    for name in ("WHEEL", "METADATA", "RECORD", "entry_points.txt"):
        if f"{folder}/{name}" not in archive.namelist():
            return [f"lacks {folder}/{name}"]
        texts[name] = archive.read(f"{folder}/{name}").decode()
    python, abi, platforms = file_name.removesuffix(".whl").split("-")[-3:]
    tags = {f"{python}-{abi}-{platform}" for platform in platforms.split(".")}
    problems = []
    if set(re.findall(r"^Tag: (\S+)$", texts["WHEEL"], re.M)) != tags:
        problems.append("its WHEEL file has other tags than its name")
    if "Root-Is-Purelib: false" not in texts["WHEEL"]:
        problems.append("its WHEEL file says that it has no native code")
    if not re.search(r"^Requires-Python: >=3\.10$", texts["METADATA"], re.M):
        problems.append("its METADATA does not ask for Python 3.10")
    if not re.search(r"^lily\s*=\s*lily\.cli:main$", texts["entry_points.txt"], re.M):
        problems.append("it has no command lily")
    recorded = {line.partition(",")[0] for line in texts["RECORD"].splitlines()}
    unrecorded = [name for name in archive.namelist() if not name.endswith("/") and name not in recorded]
    return problems + [f"its RECORD lacks {name}" for name in unrecorded]


def mach_o_problems(data: bytes) -> list[str]:
    """What is wrong with the module of a wheel for macOS."""
    allowed = [f"/System/Library/Frameworks/{name}.framework/" for name in FRAMEWORKS] + ["/usr/lib/"]
    return [f"its module {problem}" for problem in module_problems(read_mach_o(data), tuple(allowed))]


def sdist_problems(path: Path) -> list[str]:
    """What is wrong with a source distribution."""
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    needed = {f"metal/{name}" for name in kernel_files()}
    needed |= {"CMakeLists.txt", "cmake/metal.cmake", "src/lily_core/device/metal.mm", "pyproject.toml", "LICENSE"}
    needed |= {"tools/msl/__main__.py"}  # the sim device is built with it
    needed |= {"src/lily_core/device/metal/queue.mm", "python/lily/data/lily-tiny/model.safetensors", "README.md"}
    return [f"lacks {name}" for name in sorted(needed - names)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+", type=Path)
    failed = False
    for path in parser.parse_args().files:
        problems = sdist_problems(path) if path.name.endswith(".tar.gz") else wheel_problems(path)
        print(f"{path.name}: " + ("good" if not problems else "; ".join(problems)))
        failed = failed or bool(problems)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
