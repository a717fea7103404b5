"""Checks the Apple-only code where there is no Mac: types, availability and nil by clang, a whole link by ziglang.

python tools/check_apple.py types      # clang 19 or later: every .mm in ARC mode for arm64 macOS 14, then its analyzer
python tools/check_apple.py link       # ziglang: the whole extension module for aarch64-macos, and what the Mach-O says
python tools/check_apple.py mistakes   # seeds the mistakes that `types` is for, and fails when one is not found

`types` reads the declarations in tools/check_apple/include, which are ours and hold only what the Metal device uses.
The C and C++ headers of macOS come with ziglang (`pip install ziglang`), as does the linker.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import os
import re
import shutil
import struct
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CORE = ROOT / "src" / "lily_core"
DECLARATIONS = ROOT / "tools" / "check_apple" / "include"
TARGET = "14.0"
CLANGS = [*(f"clang++-{version}" for version in range(30, 18, -1)), "clang++"]
WARNINGS = [
    *("-Wall", "-Wextra", "-Wshadow", "-Werror", "-Wunguarded-availability", "-Wunguarded-availability-new"),
    *("-Wnullable-to-nonnull-conversion", "-Wnullability-completeness", "-Wobjc-method-access"),
    *("-Wincompatible-pointer-types", "-Wdeprecated-declarations"),
]
# libc++ takes these from its build system, which ziglang is.
LIBCXX = {
    "_LIBCPP_ABI_VERSION": "1",
    "_LIBCPP_ABI_NAMESPACE": "__1",
    "_LIBCPP_HAS_THREADS": "1",
    "_LIBCPP_HAS_MUSL_LIBC": "0",
    "_LIBCPP_HAS_VENDOR_AVAILABILITY_ANNOTATIONS": "0",
    "_LIBCPP_HAS_FILESYSTEM": "1",
    "_LIBCPP_HAS_RANDOM_DEVICE": "1",
    "_LIBCPP_HAS_LOCALIZATION": "1",
    "_LIBCPP_HAS_UNICODE": "1",
    "_LIBCPP_HAS_WIDE_CHARACTERS": "1",
    "_LIBCPP_HAS_MONOTONIC_CLOCK": "1",
    "_LIBCPP_PSTL_BACKEND_SERIAL": "1",
    "_LIBCPP_HARDENING_MODE": "_LIBCPP_HARDENING_MODE_NONE",
    "_LIBCPP_ASSERTION_SEMANTIC_DEFAULT": "_LIBCPP_ASSERTION_SEMANTIC_IGNORE",
}
# The processors of these units. The first Macs with ARM, which run all others, lack 8-bit matrix products.
ISA_FLAGS = {"neon": ["-mcpu=apple_m1"], "i8mm": ["-mcpu=apple_m1+i8mm"]}
# What a Mach-O of ours may take from elsewhere, besides Python, libc++ and libSystem.
OBJECTIVE_C = re.compile(
    r"^_(objc_|OBJC_(CLASS|METACLASS)_\$_(MTL\w+|NS\w+)$|NSSearchPathForDirectoriesInDomains$|MTLCreateSystemDefaultDevice$|"
    r"MTLCopyAllDevices$|MTLCommandBufferErrorDomain$|_NSConcrete(Stack|Global)Block$|_Block_|__CFConstantString|"
    r"__objc_personality_v0$|__NSConcrete)"
)


class CheckError(Exception):
    """A check that could not be made, or that failed; the message says which."""


def objective_cxx_sources() -> list[Path]:
    """Every file of the Metal device that only macOS builds."""
    return sorted([CORE / "device" / "metal.mm", *(CORE / "device" / "metal").glob("*.mm")])


def zig_folder() -> Path:
    """Where ziglang is installed: its `zig` and the headers beside it."""
    spec = importlib.util.find_spec("ziglang")
    if spec is None or not spec.submodule_search_locations:
        raise CheckError("ziglang is not installed: pip install ziglang")
    return Path(next(iter(spec.submodule_search_locations)))


def find_clang() -> str:
    """The newest clang of this machine, 19 or later."""
    for name in CLANGS:
        path = shutil.which(name)
        if path is None:
            continue
        version = subprocess.run([path, "-dumpversion"], capture_output=True, text=True, check=True).stdout
        if int(version.split(".")[0]) >= 19:
            return path
    raise CheckError("clang 19 or later is not installed")


def clang_flags(clang: str) -> list[str]:
    """Objective-C++ in ARC mode for macOS, with macOS's C and C++ headers and our declarations of its frameworks."""
    resources = subprocess.run(
        [clang, "-print-resource-dir"], capture_output=True, text=True, check=True
    ).stdout.strip()
    library = zig_folder() / "lib"
    system = [library / "libcxx" / "include", library / "libcxxabi" / "include", f"{resources}/include"]
    system += [library / "libc" / "include" / "any-darwin-any", DECLARATIONS]
    return [
        *("-x", "objective-c++", "-std=c++20", "-fobjc-arc", "-fblocks", f"--target=arm64-apple-macos{TARGET}"),
        *("-nostdinc++", "-nostdlibinc", "-nobuiltininc"),
        *(flag for folder in system for flag in ("-isystem", str(folder))),
        *(f"-D{name}={value}" for name, value in LIBCXX.items()),
        *("-Wno-#warnings", f"-I{CORE}"),
    ]


def run_all(commands: Sequence[Sequence[str]], jobs: int) -> str:
    """What the commands complained of; a command that fails without a word counts, too."""

    def run(command: Sequence[str]) -> str:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        text = done.stdout + done.stderr
        return text or (f"failed: {' '.join(command)}\n" if done.returncode else "")

    with ThreadPoolExecutor(jobs) as pool:
        return "".join(pool.map(run, commands))


def type_findings(sources: Sequence[Path], jobs: int, extra: Sequence[str] = ()) -> str:
    """Errors and warnings of clang, as one text."""
    clang = find_clang()
    flags = [*clang_flags(clang), *WARNINGS, *extra]
    return run_all([[clang, *flags, "-fsyntax-only", str(source)] for source in sources], jobs)


def analyzer_findings(sources: Sequence[Path], jobs: int) -> str:
    """What the static analyzer finds: nil where nothing may be nil, leaks, dead stores."""
    clang = find_clang()
    options = ["--analyze", "-Xclang", "-analyzer-output=text", "-Xclang"]
    options += ["-analyzer-checker=core,cplusplus,deadcode,nullability,osx"]
    return run_all([[clang, *clang_flags(clang), *options, str(source)] for source in sources], jobs)


def check_types(jobs: int) -> None:
    """All .mm files are free of findings."""
    sources = objective_cxx_sources()
    findings = type_findings(sources, jobs) or analyzer_findings(sources, jobs)
    if findings:
        raise CheckError(findings)
    print(f"{len(sources)} Objective-C++ files: no finding of {find_clang()} or its analyzer")


# -- mistakes ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Mistake:
    """A text of a file of the Metal device, what to make of it, and a word of the finding."""

    what: str
    file: str
    before: str
    after: str
    finding: str


MISTAKES = [
    Mistake(
        "a selector that does not exist",
        "encoder.mm",
        "setBufferOffset:",
        "setBufferOffsets:",
        "setBufferOffsets",
    ),
    Mistake(
        "a newer call without @available",
        "residency.mm",
        "class API_AVAILABLE(macos(15.0)) SetResidency",
        "class SetResidency",
        "macOS 15",
    ),
    Mistake(
        "a newer enumerator without @available",
        "compiler.mm",
        "  return MTLLanguageVersion3_1;",
        "  return MTLLanguageVersion3_2;",
        "macOS 15",
    ),
    Mistake(
        "nullable passed where nil is not taken",
        "queue.mm",
        'if (encoder == nil) return "Metal made no command encoder";',
        "",
        "null",
    ),
    Mistake(
        "nil passed where it is not taken",
        "encoder.mm",
        "static_cast<const MetalPipeline&>(pipeline).metal()",
        "nil",
        "null",
    ),
    Mistake(
        "a block of another type",
        "queue.mm",
        "^(id<MTLCommandBuffer> done)",
        "^(id<MTLCommandQueue> done)",
        "block",
    ),
    Mistake(
        "an argument of another protocol",
        "encoder.mm",
        "static_cast<MetalBuffer&>(buffer).metal()",
        "encoder_",
        "MTLBuffer",
    ),
    Mistake(
        "an error of another class",
        "pipeline.mm",
        "NSError* error = nil;\n  id<MTLFunction>",
        "NSString* error = nil;\n  id<MTLFunction>",
        "NSError",
    ),
    Mistake(
        "a property of another type",
        "queue.mm",
        'event.label = @"Lily passes";',
        "event.label = queue_;",
        "queue_",
    ),
    Mistake(
        "an object passed as memory without a bridge",
        "pipeline.mm",
        "setConstantValue:&value",
        "setConstantValue:values",
        "const void",
    ),
    Mistake(
        "a newer class without @available",
        "residency.mm",
        "API_AVAILABLE(macos(15.0)) id<MTLResidencySet> _Nullable make_set",
        "id<MTLResidencySet> _Nullable make_set",
        "macOS 15",
    ),
    Mistake(
        "a property that does not exist",
        "queue.mm",
        "commands.GPUStartTime",
        "commands.GPUStopTime",
        "GPUStopTime",
    ),
]


def check_mistakes(jobs: int) -> None:
    """Every seeded mistake is found."""
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(jobs) as pool:
        missed = [text for text in pool.map(partial(missed_mistake, Path(folder)), MISTAKES) if text]
    if missed:
        raise CheckError("not found:\n" + "\n".join(missed))
    print(f"{len(MISTAKES)} seeded mistakes: all found")


def missed_mistake(folder: Path, mistake: Mistake) -> str:
    """What was found in place of the mistake, or nothing where that was found."""
    text = (CORE / "device" / "metal" / mistake.file).read_text()
    if mistake.before not in text:
        raise CheckError(f"{mistake.what}: {mistake.file} has no {mistake.before!r} any more; seed it anew")
    spoilt = folder / f"{MISTAKES.index(mistake)}_{mistake.file}"
    spoilt.write_text(text.replace(mistake.before, mistake.after, 1))
    findings = type_findings([spoilt], 1) or analyzer_findings([spoilt], 1)
    found = mistake.finding.lower() in findings.lower()
    return "" if found else f"{mistake.what} ({mistake.file}): {findings or 'no finding'}"


# -- link --------------------------------------------------------------------------------------------------------------


def engine_sources() -> list[Path]:
    """What CMake builds for arm64 macOS, without Objective-C++."""
    folders = ("base", "weights", "cpu", "gpu", "engine", "bind", "device/metal")
    sources = [path for folder in folders for path in sorted((CORE / folder).glob("*.cpp"))]
    sources += [CORE / "device" / "open.cpp", CORE / "device" / "own_file.cpp"]
    units = ("portable_matmul", "portable_float", "neon_matmul", "neon_float", "i8mm_matmul")
    sources += [CORE / "cpu" / "isa" / f"{name}.cpp" for name in units]
    return [path for path in sources if path.name not in ("absent.cpp", "cuda.cpp")]


def check_link(jobs: int, keep: Path | None) -> None:
    """The extension module links for aarch64-macos, and its load commands are those of a good wheel."""
    try:
        import nanobind
    except ImportError as error:
        raise CheckError("nanobind is not installed: pip install nanobind") from error
    if keep is None:
        with tempfile.TemporaryDirectory() as folder:
            link_module(Path(folder), Path(nanobind.__file__).parent, jobs)
    else:
        keep.mkdir(parents=True, exist_ok=True)
        link_module(keep, Path(nanobind.__file__).parent, jobs)


def link_module(folder: Path, nanobind: Path, jobs: int) -> None:
    """Compiles every source with zig, links them and looks at the result."""
    environment = {**os.environ, "ZIG_LOCAL_CACHE_DIR": str(folder / "zig")}
    zig = [str(zig_folder() / "zig"), "c++", f"--target=aarch64-macos.{TARGET}"]
    include = [nanobind / "include", nanobind / "ext" / "robin_map" / "include", sysconfig.get_path("include")]
    common = ["-O0", "-std=c++20", "-fPIC", "-fvisibility=hidden", "-DNDEBUG", "-DLILY_HAS_METAL", f"-I{CORE}"]
    common += ["-DNB_DOMAIN=lily", '-DLILY_GPU_ARITHMETIC="linked"', "-fno-sanitize=all", "-ffp-contract=off"]
    if sys.version_info >= (3, 12):  # the stable ABI begins with the headers of 3.12
        common += ["-DPy_LIMITED_API=0x030C0000"]
    common += [f"-isystem{path}" for path in include]
    headers = [*CORE.rglob("*.h"), *(ROOT / "metal").glob("*.h"), *DECLARATIONS.rglob("*.h")]
    newest = max(header.stat().st_mtime for header in headers)
    objects, commands = [], []
    for source in [*engine_sources(), *objective_cxx_sources(), nanobind / "src" / "nb_combined.cpp"]:
        place = source.relative_to(CORE) if CORE in source.parents else Path(source.name)
        made = folder / ("-".join(place.parts) + ".o")
        flags = ISA_FLAGS.get(source.stem.split("_")[0], []) if source.parent.name == "isa" else []
        if source.suffix == ".mm":
            flags += ["-x", "objective-c++", "-fobjc-arc", "-fblocks", f"-isystem{DECLARATIONS}"]
        flags += [] if nanobind in source.parents else ["-Wall", "-Wextra", "-Wshadow", "-Werror"]
        objects.append(made)
        if not made.exists() or made.stat().st_size == 0 or made.stat().st_mtime < max(newest, source.stat().st_mtime):
            commands.append([*zig, *common, *flags, "-c", str(source), "-o", str(made)])
    with ThreadPoolExecutor(jobs) as pool:
        failures = [text for text in pool.map(lambda command: run_in(command, environment), commands) if text]
    if failures:
        raise CheckError("".join(failures))
    module = folder / "_core.abi3.so"
    link = [*zig, "-shared", "-Wl,-undefined,dynamic_lookup"]
    if problem := run_in([*link, *map(str, objects), "-o", str(module)], environment):
        raise CheckError(problem)
    check_module(module)
    # The seeded mistake: without this file, something that others call is missing.
    spoilt = folder / "spoilt.so"
    fewer = [str(path) for path in objects if path.name != "device-metal-submission.cpp.o"]
    if problem := run_in([*link, *fewer, "-o", str(spoilt)], environment):
        raise CheckError(problem)
    if not any(
        "Submission" in problem for problem in module_problems(read_mach_o(spoilt.read_bytes()), ("/usr/lib/",))
    ):
        raise CheckError("a module that lacks a function passes as good")


def run_in(command: Sequence[str], environment: dict[str, str]) -> str:
    """What a command that failed said, else nothing."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    return "" if done.returncode == 0 else f"{' '.join(command)[-200:]}: {done.stdout}{done.stderr}\n"


def check_module(module: Path) -> None:
    """minos is the deployment target, and no symbol is undefined that macOS or Python would not have."""
    data = module.read_bytes()
    if problems := module_problems(read_mach_o(data), ("/usr/lib/",)):
        raise CheckError(f"{module.name} {'; '.join(problems)}")
    undefined = len(read_mach_o(data).undefined)
    print(f"the module links for macOS {TARGET}: {len(data):,} bytes; left to Python and Apple: {undefined} symbols")


def module_problems(module: MachO, libraries: tuple[str, ...]) -> list[str]:
    """What is wrong with a module that may link libraries with these beginnings."""
    problems = [] if module.minimum == TARGET else [f"needs macOS {module.minimum}, not {TARGET}"]
    problems += [f"links {name}" for name in module.libraries if not name.startswith(libraries)]
    problems += [f"searches {path} for libraries" for path in module.run_paths]
    unknown = [name for name in module.undefined if not re.match(r"^_Py|^__Py", name) and not OBJECTIVE_C.match(name)]
    problems += [f"has undefined symbols: {', '.join(unknown)}"] if unknown else []
    strong = newer_classes() & module.strong_classes
    return problems + [f"would not load on macOS {TARGET}: it needs the class {name}" for name in sorted(strong)]


def newer_classes() -> set[str]:
    """Classes of the declarations that the deployment target's system does not have."""
    text = (DECLARATIONS / "Metal" / "Metal.h").read_text()
    found = re.findall(r"API_AVAILABLE\(macos\((\d+)\.\d+\)\)\n@interface (\w+)", text)
    return {name for version, name in found if int(version) > int(TARGET.partition(".")[0])}


@dataclass(frozen=True)
class MachO:
    """What a Mach-O of arm64 asks of the system that loads it."""

    minimum: str  # system version
    libraries: list[str]
    run_paths: list[str]
    undefined: list[str]  # symbols that are looked up in no particular library
    strong_classes: set[str]  # of Objective-C, without which it does not load


def read_mach_o(data: bytes) -> MachO:
    """Reads load commands and symbols."""
    magic, cpu, _, _, commands, *_ = struct.unpack_from("<8I", data)
    if (magic, cpu) != (0xFEEDFACF, 0x0100000C):
        raise CheckError("not a 64-bit Mach-O for arm64")
    module = MachO("unknown", [], [], [], set())
    for command, offset in load_commands(data, commands):
        if command == 0x32:  # LC_BUILD_VERSION
            version = struct.unpack_from("<I", data, offset + 12)[0]
            module = dataclasses.replace(module, minimum=f"{version >> 16}.{version >> 8 & 255}")
        elif command & 0x7FFFFFFF in (0xC, 0x18):  # LC_LOAD_DYLIB, LC_LOAD_WEAK_DYLIB
            module.libraries.append(text_at(data, offset + struct.unpack_from("<I", data, offset + 8)[0]))
        elif command == 0x8000001C:  # LC_RPATH
            module.run_paths.append(text_at(data, offset + struct.unpack_from("<I", data, offset + 8)[0]))
        elif command == 0x2:  # LC_SYMTAB
            for name, library, is_weak in undefined_symbols(data, offset):
                if library in (0, 0xFE):  # none, as the linkers write it
                    module.undefined.append(name)
                if name.startswith("_OBJC_CLASS_$_") and not is_weak:
                    module.strong_classes.add(name.removeprefix("_OBJC_CLASS_$_"))
    return module


def load_commands(data: bytes, count: int) -> Iterator[tuple[int, int]]:
    """(command, offset) of every load command."""
    offset = 32
    for _ in range(count):
        command, size = struct.unpack_from("<2I", data, offset)
        yield command, offset
        offset += size


def undefined_symbols(data: bytes, offset: int) -> Iterator[tuple[str, int, bool]]:
    """Name, number of the library, and whether the system may lack it."""
    table, count, strings, _ = struct.unpack_from("<4I", data, offset + 8)
    for index in range(count):
        name, kind, _, description, _ = struct.unpack_from("<IBBHQ", data, table + 16 * index)
        if kind & 0x0E == 0 and kind & 0x01 != 0 and kind & 0xE0 == 0:
            yield text_at(data, strings + name), description >> 8, description & 0x40 != 0


def text_at(data: bytes, offset: int) -> str:
    """The text that ends with the next zero byte."""
    return data[offset : data.index(b"\0", offset)].decode()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    every = ["types", "mistakes", "link"]
    parser.add_argument("checks", nargs="*", metavar="CHECK", help=f"of {', '.join(every)}; all by default")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--keep", type=Path, help="folder for the objects of `link`, used again where nothing changed")
    arguments = parser.parse_args()
    checks = arguments.checks or every
    if unknown := set(checks).difference(every):
        parser.error(f"there is no check {min(unknown)!r}; there are {', '.join(every)}")
    try:
        if "types" in checks:
            check_types(arguments.jobs)
        if "mistakes" in checks:
            check_mistakes(arguments.jobs)
        if "link" in checks:
            check_link(arguments.jobs, arguments.keep)
    except CheckError as error:
        print(f"check_apple: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
