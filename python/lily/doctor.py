"""doctor: what this machine offers Lily, which backend it would use, and why."""

from __future__ import annotations

import dataclasses
import os
import platform
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lily import _core
from lily._version import __version__
from lily.errors import LilyError
from lily.model.engine_options import available_backends, choose_backend

__all__ = ["Diagnosis", "MetalDiagnosis", "diagnose"]

SOURCES = "LILY_METAL_SOURCES"
OLDEST_MACOS = 14


@dataclass(frozen=True)
class MetalDiagnosis:
    """What Metal offers here. `missing` says why it cannot be used; empty if it can."""

    missing: str
    device: str = ""
    architecture: str = ""
    family: str = ""
    system: str = ""
    language: str = ""
    working_set_bytes: int = 0
    buffer_bytes: int = 0
    threadgroup_bytes: int = 0
    page_bytes: int = 0
    unified_memory: bool = False
    residency_sets: bool = False
    tensor_gemm: bool = False
    tensor_reason: str = ""
    kernels: int = 0
    rejected: tuple[str, ...] = ()  # the compiler's message about sources that it rejects


@dataclass(frozen=True)
class Diagnosis:
    """A machine as Lily sees it."""

    lily: str
    python: str
    system: str
    chip: str
    memory_bytes: int
    page_bytes: int
    cores: int
    instruction_sets: tuple[str, ...]
    backends: tuple[str, ...]
    chosen: str
    reason: str
    metal: MetalDiagnosis
    cuda_missing: str  # why no NVIDIA GPU can be used; empty if one can
    metal_sources: str  # the folder of the kernels' sources
    metal_files: int
    environment: dict[str, str]  # variables of Lily that are set

    def _compiler(self) -> str:
        if self.metal.rejected:
            return "rejects " + "\n".join(self.metal.rejected)
        return "not tried" if self.metal.missing else "takes all sources"

    def to_dict(self) -> dict[str, Any]:
        """All facts, ready for JSON."""
        return dataclasses.asdict(self)

    def __str__(self) -> str:
        metal = self.metal
        rows = [
            ("Lily", f"{self.lily}, Python {self.python}"),
            ("system", self.system),
            ("chip", f"{self.chip}, {self.cores} cores, {_gibibytes(self.memory_bytes)} memory"),
            ("page size", f"{self.page_bytes:,} bytes"),
            ("CPU kernels", ", ".join(self.instruction_sets)),
            ("Metal", f"not usable: {metal.missing}" if metal.missing else f"{metal.device}, {metal.system}"),
        ]
        if not metal.device:
            rows.append(("CUDA", f"not usable: {self.cuda_missing}" if self.cuda_missing else "usable"))
        if metal.device:
            rows += [
                ("GPU", f"family {metal.family}, architecture {metal.architecture}, "
                        f"{'unified' if metal.unified_memory else 'separate'} memory"),
                ("Metal language", f"{metal.language} for the kernels"),
                ("tensor operations", f"{'used' if metal.tensor_gemm else 'not used'}: "
                                      f"{metal.tensor_reason or 'not tried'}"),
                ("working set", f"{_gibibytes(metal.working_set_bytes)} recommended, one buffer at most "
                                f"{_gibibytes(metal.buffer_bytes)}"),
                ("Metal compiler", self._compiler()),
                ("residency sets", "yes" if metal.residency_sets else "no: they need macOS 15"),
            ]  # fmt: skip
        files = f"{self.metal_files} files" if self.metal_files else "none (install Lily, or set LILY_METAL_SOURCES)"
        rows += [
            ("Metal sources", f"{files} in {self.metal_sources}"
                              + (f", {metal.kernels} kernels" if metal.kernels else "")),
            ("backends", ", ".join(self.backends)),
            ("would be used", f"{self.chosen}: {self.reason}"),
        ]  # fmt: skip
        rows += [(name, value) for name, value in self.environment.items()]
        return "\n".join(f"{name:18} {value}" for name, value in rows)


def diagnose() -> Diagnosis:
    """Look at this machine. Opens the GPU, but no model."""
    backends = available_backends()
    metal = _metal()
    chosen = choose_backend("auto")
    sources = _metal_sources()
    return Diagnosis(
        lily=__version__,
        python=platform.python_version(),
        system=_system(),
        chip=_chip(),
        memory_bytes=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        page_bytes=os.sysconf("SC_PAGE_SIZE"),
        cores=_core.physical_core_count(),
        instruction_sets=tuple(_core.available_isas()),
        backends=backends,
        chosen=chosen,
        reason=_reason(chosen, metal),
        metal=metal,
        cuda_missing="" if "cuda" in backends else _missing_cuda(),
        metal_sources=str(sources),
        metal_files=len(list(sources.glob("*.metal"))) if sources.is_dir() else 0,
        environment={name: value for name, value in sorted(os.environ.items()) if name.startswith("LILY_")},
    )


def _system() -> str:
    if sys.platform == "darwin":
        # The system tells a Python built for an older macOS an older version, but its tools the true one.
        version = _output("/usr/bin/sw_vers", "-productVersion") or platform.mac_ver()[0]
        build = _output("/usr/bin/sw_vers", "-buildVersion") or "unknown"
        return f"macOS {version} (build {build}), {platform.machine()}"
    return f"{platform.system()} {platform.release()}, {platform.machine()}"


def _output(*command: str) -> str:
    """The output of a system command; empty if there is no such command."""
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=10).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return ""


def _chip() -> str:
    if sys.platform == "darwin":
        return _output("/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string") or "unknown"
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        return platform.processor() or "unknown"
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _metal() -> MetalDiagnosis:
    facts = _core.device.metal_facts()
    if facts is None:
        return MetalDiagnosis(missing=_missing_build())
    values = {
        field.name: getattr(facts, field.name)
        for field in dataclasses.fields(MetalDiagnosis)
        if field.name != "missing"
    }
    return MetalDiagnosis(missing=facts.problem, **{**values, "rejected": tuple(facts.rejected)})


def _missing_build() -> str:
    """Why this build has no Metal."""
    if sys.platform != "darwin":
        here = f"{platform.system()} on {platform.machine()}"
        return f"it needs macOS {OLDEST_MACOS} or later on Apple Silicon; this is {here}"
    if platform.machine() != "arm64":
        return "it needs Apple Silicon; this Python runs on (or is translated from) Intel"
    return "this build was made without it (LILY_METAL=OFF); install Lily from its wheel"


def _missing_cuda() -> str:
    """Why Lily cannot use CUDA here. Called only if there is no GPU, which it would open."""
    try:
        _core.device.open("cuda")
    except LilyError as error:
        return str(error).removeprefix("the cuda device: ")
    return "it disappeared a moment ago"


def _reason(chosen: str, metal: MetalDiagnosis) -> str:
    if chosen == "metal":
        return "Metal runs on this GPU"
    if chosen == "cpu":
        return "there is no GPU that Lily can use"
    return "Metal is not usable, and this GPU is" if metal.missing else "it was found"


def _metal_sources() -> Path:
    chosen = os.environ.get(SOURCES)
    if chosen:
        return Path(chosen)
    module = Path(_core.__file__)
    folders = [module.parent / "metal", module.resolve().parent / "metal"]
    return next((folder for folder in folders if folder.is_dir()), folders[0])


def _gibibytes(count: int) -> str:
    return f"{count / 2**30:.1f} GiB"
