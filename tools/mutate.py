"""Plants one fault after another in a copy of the tree and says which the nearest tests let pass.

python tools/mutate.py --list                        # the faults of tools/mutations/*.toml
python tools/mutate.py --file 'metal/*' --name eps   # some of them
python tools/mutate.py                               # all: hours

A table has entries of this form; `before` occurs once in `file`, and `tests` are what pytest takes, or the name of a
C++ test after "ctest:".

    [[fault]]
    name = "the norm adds no eps"
    file = "metal/norm.metal"
    before = "float(args.size) + args.eps)"
    after = "float(args.size))"
    tests = ["tests/metal/test_norm.py"]

The copy lies in build/mutate. It is brought up to date first, and the tests must pass in it. Python runs as it is; for
any other file the native modules are built again (CMake, Ninja and nanobind; ccache where it is installed). The exit
status is 1 if a fault was not noticed, 2 if the tests could not be used.
"""

from __future__ import annotations

import argparse
import contextlib
import filecmp
import fnmatch
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
import venv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import tomllib  # type: ignore[import-not-found,unused-ignore]  # Python 3.11

ROOT = Path(__file__).resolve().parent.parent
CTEST = "ctest:"
MODULES = ("_core", "_test_doubles", "_sim_kernels", "_sim_kernels_checked", "cuda_kernels")  # targets of the build
FIELDS = {"name", "file", "before", "after", "tests"}
NOTICED, SURVIVED, HUNG = "noticed", "survived", "hung"
UNBUILT, STALE = "does not build", "stale"
MEANINGS = {
    SURVIVED: "no test failed",
    HUNG: "the tests did not end, which a test with a limit of its own would have reported",
    UNBUILT: "write it so that it compiles",
    STALE: "`before` does not occur exactly once",
}


class MutateError(Exception):
    """What is wrong with a table or with the tests, in a sentence."""


@dataclass(frozen=True)
class Fault:
    """A fault: `before` becomes `after` in `file`, which the tests nearest to it should notice."""

    name: str
    file: str
    before: str
    after: str
    tests: tuple[str, ...]

    @property
    def is_native(self) -> bool:
        """Whether it takes a build to see it."""
        return not self.file.endswith(".py")


def read_faults(folder: Path) -> list[Fault]:
    """The faults of all tables in `folder`, those that need no build first, then by file.

    Raises
    ------
    MutateError
        If an entry lacks a field, has one too many, changes nothing or repeats a name.
    """
    faults: dict[str, Fault] = {}
    for table in sorted(folder.glob("*.toml")):
        for entry in tomllib.loads(table.read_text(encoding="utf-8")).get("fault", []):
            name = entry.get("name", "without a name")
            if set(entry) != FIELDS:
                raise MutateError(f"{table.name}: {name!r} must have exactly the fields {', '.join(sorted(FIELDS))}")
            if entry["before"] == entry["after"] or not entry["tests"]:
                raise MutateError(f"{table.name}: {name!r} changes nothing, or names no test")
            if name in faults:
                raise MutateError(f"{table.name}: {name!r} is there twice")
            faults[name] = Fault(**{**entry, "tests": tuple(entry["tests"])})
    return sorted(faults.values(), key=lambda fault: (fault.is_native, fault.file))


def find_line(text: str, fault: Fault) -> int | None:
    """The line of `text` where the fault goes, from 1; nothing if `before` does not occur exactly once."""
    if text.count(fault.before) != 1:
        return None
    return text[: text.index(fault.before)].count("\n") + 1


class Workshop:
    """A copy of the tree at `root`, with an environment of its own that imports from the copy, in `folder`."""

    def __init__(self, root: Path, folder: Path, jobs: int) -> None:
        self.root = root
        self.tree = folder / "tree"
        self.jobs = jobs
        self._folder = folder
        self._native = self.tree / "build" / "native"  # as far from the sources as any build: ccache knows it
        self._environment = folder / "environment"
        self.python = self._environment / "bin" / "python"

    def sync(self) -> None:
        """Makes the copy's files those of the tree: tracked ones, and others that git does not ignore."""
        command = ["git", "ls-files", "-co", "--exclude-standard", "-z"]
        listed = subprocess.run(command, cwd=self.root, capture_output=True, text=True, check=True).stdout
        names = {name for name in listed.split("\0") if name and (self.root / name).is_file()}
        manifest = self._folder / "files.txt"
        before = set(manifest.read_text().split("\n")) if manifest.exists() else set()
        for name in before - names - {""}:
            (self.tree / name).unlink(missing_ok=True)
        for name in names:
            source, target = self.root / name, self.tree / name
            if not target.exists() or not filecmp.cmp(source, target, shallow=False):
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(source, target)  # with a time of now, so that a build sees it
        manifest.write_text("\n".join(sorted(names)))

    def make_environment(self) -> None:
        """A virtual environment that sees the copy, and this interpreter's packages but not what those redirect."""
        if not self.python.exists():
            venv.create(self._environment, with_pip=False, symlinks=True)
        packages = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
        paths = {"base": str(self._environment), "platbase": str(self._environment)}
        site = Path(sysconfig.get_path("purelib", vars=paths))
        site.mkdir(parents=True, exist_ok=True)
        (site / "copy.pth").write_text("\n".join([str(self.tree / "python"), *packages]))

    def borrow_native(self) -> None:
        """Takes the native modules of the `lily` that this interpreter imports."""
        spec = importlib.util.find_spec("lily._core")
        if spec is None or spec.origin is None:
            raise MutateError("lily._core is not built for this interpreter; see CONTRIBUTING.md")
        for path in Path(spec.origin).parent.glob("_*"):
            target = self.tree / "python" / "lily" / path.name
            if path.is_dir() and path.name == "_cuda_kernels":
                shutil.copytree(path, target, dirs_exist_ok=True)
            elif path.suffix in (".so", ".lines"):
                shutil.copy2(path, target)

    def configure(self, with_tests: bool) -> None:
        """Prepares the build of the copy, with the C++ tests if wanted."""
        nanobind = subprocess.run(
            [sys.executable, "-m", "nanobind", "--cmake_dir"], capture_output=True, text=True, check=True
        ).stdout.strip()
        command = ["cmake", "-S", str(self.tree), "-B", str(self._native), "-G", "Ninja", f"-Dnanobind_DIR={nanobind}"]
        command += [f"-DPython_EXECUTABLE={sys.executable}", f"-DLILY_BUILD_TESTS={'ON' if with_tests else 'OFF'}"]
        if shutil.which("ccache"):
            command.append("-DCMAKE_CXX_COMPILER_LAUNCHER=ccache")
        if not self._run_logged([command]):
            raise MutateError(f"the build could not be configured; see {self._folder / 'build.log'}")
        for path in (self.tree / "python" / "lily").glob("_*.so"):
            path.unlink()  # borrowed ones may have other names

    def build(self, tests: Sequence[str]) -> bool:
        """Builds what the tests need of what has changed; False if it does not compile.

        What pytest needs is the modules, beside the copy's Python.
        """
        known = set(re.findall(r"^build (\w+): phony", (self._native / "build.ninja").read_text(), re.MULTILINE))
        targets = [test.removeprefix(CTEST) for test in tests if test.startswith(CTEST)]
        modules = [name for name in MODULES if name in known] if len(targets) < len(tests) else []
        commands = [["cmake", "--build", str(self._native), "-j", str(self.jobs), "--target", *targets, *modules]]
        if modules:
            commands.append(["cmake", "--install", str(self._native), "--prefix", str(self.tree / "python")])
        return self._run_logged(commands)

    def _run_logged(self, commands: Sequence[Sequence[str]]) -> bool:
        with (self._folder / "build.log").open("w") as log:
            return all(
                subprocess.run(one, stdout=log, stderr=log, env=environment(), check=False).returncode == 0
                for one in commands
            )

    @contextlib.contextmanager
    def planted(self, fault: Fault) -> Iterator[bool]:
        """The copy with the fault in it; the value is whether it could be planted."""
        path = self.tree / fault.file
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        if find_line(text, fault) is None:
            yield False
            return
        path.write_text(text.replace(fault.before, fault.after), encoding="utf-8")
        try:
            yield True
        finally:
            path.write_text(text, encoding="utf-8")

    def test(self, tests: Sequence[str], limit: float, workers: int) -> tuple[str, str]:
        """Runs tests: what that says of a fault, and their output.

        Raises
        ------
        MutateError
            If there is no such test.
        """
        commands = []
        if files := [test for test in tests if not test.startswith(CTEST)]:
            options = ["-x", "-q", "-p", "no:cacheprovider", "-n", str(workers)]
            commands.append([str(self.python), "-m", "pytest", *options, *files])
        if names := [test.removeprefix(CTEST) for test in tests if test.startswith(CTEST)]:
            wanted = "^(" + "|".join(names) + ")$"
            options = ["--output-on-failure", "--no-tests=error", "-R", wanted]
            commands.append(["ctest", "--test-dir", str(self._native), *options])
        end = time.monotonic() + limit
        output = ""
        for command in commands:
            status, text = run_limited(command, self.tree, end - time.monotonic())
            output += text
            if status is None:
                return HUNG, output
            if "pytest" in command and status in (4, 5):
                raise MutateError(f"pytest finds no such tests: {' '.join(tests)}\n{text}")
            if status != 0:
                return NOTICED, output
        return SURVIVED, output


def environment() -> dict[str, str]:
    """Of all commands: the tools that lie beside this interpreter first, and nothing imported from elsewhere."""
    tools = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    # Without byte code: Python would take that of a file with the same size, written in the same second.
    variables = {**os.environ, "PATH": tools, "PYTHONDONTWRITEBYTECODE": "1"}
    variables.pop("PYTHONPATH", None)
    return variables


def run_limited(command: Sequence[str], folder: Path, limit: float) -> tuple[int | None, str]:
    """The exit status and output of a command; no status if it had to be ended, with all that it started."""
    with subprocess.Popen(
        command,
        cwd=folder,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as process:
        try:
            output, _ = process.communicate(timeout=max(limit, 0.1))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
            return None, output
        return process.returncode, output


def compiles(fault: Fault, text: str) -> bool:
    """Whether a Python file with the fault is Python."""
    try:
        compile(text, fault.file, "exec")
    except SyntaxError:
        return False
    return True


def judge(workshop: Workshop, fault: Fault, limit: float, workers: int) -> str:
    """What the tests say of a fault."""
    with workshop.planted(fault) as is_planted:
        if not is_planted:
            return STALE
        if fault.is_native:
            if not workshop.build(fault.tests):
                return UNBUILT
        elif not compiles(fault, (workshop.tree / fault.file).read_text(encoding="utf-8")):
            return UNBUILT
        return workshop.test(fault.tests, limit, workers)[0]


def prepare(workshop: Workshop, faults: Sequence[Fault], arguments: argparse.Namespace) -> None:
    """Brings the copy up to date and sees that the tests pass in it.

    Raises
    ------
    MutateError
        If it cannot be built, or a test fails without any fault.
    """
    workshop.sync()
    workshop.make_environment()
    if (workshop.tree / "CMakeLists.txt").exists():
        if any(fault.is_native for fault in faults):
            workshop.configure(any(test.startswith(CTEST) for fault in faults for test in fault.tests))
            if not workshop.build([test for fault in faults for test in fault.tests]):
                raise MutateError("the tree does not build")
        else:
            workshop.borrow_native()
    if arguments.trust:
        return
    tests = sorted({test for fault in faults for test in fault.tests})
    print(f"{len(tests)} tests or files of tests without a fault ...", flush=True)
    outcome, output = workshop.test(tests, arguments.limit * len(faults), arguments.workers)
    if outcome != SURVIVED:
        raise MutateError(f"the tests fail, or hang, without any fault:\n{output}")


def plant_all(workshop: Workshop, faults: Sequence[Fault], arguments: argparse.Namespace) -> int:
    """Plants each fault, prints what became of it, and returns the exit status."""
    outcomes: dict[str, list[Fault]] = {}
    for fault in faults:
        start = time.monotonic()
        outcome = judge(workshop, fault, arguments.limit, arguments.workers)
        outcomes.setdefault(outcome, []).append(fault)
        print(f"{outcome:<15}{time.monotonic() - start:6.0f} s  {fault.file}: {fault.name}", flush=True)
    for outcome, meaning in MEANINGS.items():
        if outcome in outcomes:
            print(f"\n{outcome} ({meaning}):")
            print("\n".join(describe(workshop.root, fault) for fault in outcomes[outcome]))
    print(f"\n{len(outcomes.get(NOTICED, []))} of {len(faults)} faults were noticed")
    return 0 if set(outcomes) <= {NOTICED} else 1


def describe(root: Path, fault: Fault) -> str:
    """A line that says where a fault goes, what it is and which tests are nearest."""
    path = root / fault.file
    line = find_line(path.read_text(encoding="utf-8"), fault) if path.exists() else None
    return f"{fault.file}:{line or '?'}: {fault.name} [{' '.join(fault.tests)}]"


def parse_arguments(given: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--list", action="store_true", help="print the faults and plant none")
    parser.add_argument("--name", action="append", default=[], help="only faults whose names have this in them")
    parser.add_argument("--file", action="append", default=[], help="only faults of files that match this pattern")
    parser.add_argument("--limit", type=float, default=900, help="seconds for the tests of a fault (default: 900)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="compilers at a time")
    parser.add_argument("--workers", type=int, default=0, help="pytest's workers (default: none, one process)")
    parser.add_argument("--trust", action="store_true", help="do not run the tests without a fault first")
    parser.add_argument("--folder", type=Path, help="where the copy is made (default: build/mutate)")
    return parser.parse_args(given)


def main(given: Sequence[str] | None = None, root: Path = ROOT) -> int:
    """Runs the command line on the tree at `root` and returns the exit status."""
    arguments = parse_arguments(given)
    try:
        faults = [
            fault
            for fault in read_faults(root / "tools" / "mutations")
            if all(part in fault.name for part in arguments.name)
            and (not arguments.file or any(fnmatch.fnmatch(fault.file, pattern) for pattern in arguments.file))
        ]
        if arguments.list or not faults:
            print("\n".join(describe(root, fault) for fault in faults) or "no such fault")
            return 0 if arguments.list else 2
        folder = (arguments.folder or root / "build" / "mutate").resolve()
        folder.mkdir(parents=True, exist_ok=True)
        workshop = Workshop(root, folder, arguments.jobs)
        prepare(workshop, faults, arguments)
        return plant_all(workshop, faults, arguments)
    except MutateError as error:
        print(error, file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
