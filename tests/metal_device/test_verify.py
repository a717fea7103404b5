"""lily verify on the sim and cpu backends: all is well, and every kernel's reference notices wrong results."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lily
from lily.checkpoint import read_checkpoint, resolve_source
from lily.cli import main
from lily.verify import kernels, verify
from lily.verify.end_to_end import Agreement

METAL = Path(__file__).resolve().parents[2] / "metal"
# Chosen by the engine for other models or sizes than this test has.
NOT_LAUNCHED = {"fill_zero", "gdn_scan_packed", "gemm_affine_tensor_m32", "gemm_affine_tensor_m64"}

needs_sim = pytest.mark.skipif("sim" not in lily.available_backends(), reason="this build has no sim device")


def packaged_kernels() -> set[str]:
    """Host names in the Metal sources."""
    names: set[str] = set()
    for path in METAL.glob("*.metal"):
        text = re.sub(r"//.*", "", path.read_text())
        names |= set(re.findall(r'host_name\("(\w+)"\)', text))
        plain = re.finditer(r"(>\s*)?\[\[\s*kernel\b[^\]]*\]\]\s*void\s+(\w+)", text)
        names |= {match[2] for match in plain if not match[1]}
    return names


def test_every_kernel_has_a_reference() -> None:
    assert packaged_kernels() <= set(kernels.REFERENCES)


PlainInspector = kernels.Inspector


class Spoiler(PlainInspector):
    """Shows every launch twice: as it is, then with everything spoilt that it wrote."""

    def __init__(self) -> None:
        super().__init__()
        self.unnoticed: set[str] = set()

    def show(self, kernel: str, constants: dict[int, int], before: Any, after: dict[int, bytes], data: bytes) -> None:
        super().show(kernel, constants, before, after, data)
        for slot, values in after.items():
            spoilt = (np.frombuffer(values, np.uint8) ^ np.uint8(0x15)).tobytes()
            # Slots that a launch does not use repeat the binding of one that it does.
            changed = {other: spoilt if data_of == values else data_of for other, data_of in after.items()}
            other = PlainInspector()
            other.show(kernel, constants, before, changed, data)
            if all(check.passed for check in other.checks.values()):
                self.unnoticed.add(f"{kernel}, slot {slot}")


@needs_sim
def test_kernels_agree_and_spoilt_results_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    inspectors: list[Spoiler] = []

    def make() -> Spoiler:
        inspectors.append(Spoiler())
        return inspectors[-1]

    monkeypatch.setattr(kernels, "Inspector", make)
    monkeypatch.setattr(kernels, "PROMPTS", (97, 33, 7))
    monkeypatch.setattr(kernels, "LAUNCHES", 1)
    checks = kernels.check_kernels(read_checkpoint(resolve_source("lily-tiny")), "sim", lambda line: None)
    assert [f"{check.kernel}: {check.problem}" for check in checks if not check.passed] == []
    assert packaged_kernels() - {check.kernel for check in checks} <= NOT_LAUNCHED
    # Scratch that nobody reads afterwards is not compared.
    assert inspectors[0].unnoticed <= {"gdn_scan_blocked, slot 9"}


def test_cpu_backend(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "lily-tiny", "--backend", "cpu", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["passed"] and report["backend"] == "cpu"
    assert {"multiply affine4 (portable)", "multiply plain (portable)"} <= {k["kernel"] for k in report["kernels"]}
    assert report["end_to_end"]["reference"] == "cpu, portable kernels"


def test_a_failed_check_fails_the_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from lily.verify import cpu

    monkeypatch.setattr(cpu, "FIXED_POINT", 0.0)
    monkeypatch.setattr(cpu, "FLOAT_ROUNDING", 0.0)
    assert main(["verify", "lily-tiny", "--backend", "cpu"]) == 1
    text = capsys.readouterr().out
    assert "FAILED: " in text and text.rstrip().splitlines()[-1].startswith("FAILED: ")
    assert "system" in text  # what a bug report needs


@pytest.mark.parametrize(
    "change",
    [
        {"log_probability": 0.2},
        {"divergence": float("nan")},
        {"divergence": 0.06},
        {"scored_top1": 0.5},
        {"step_top1": 0.5},
    ],
)
def test_agreement_has_limits(change: dict[str, float]) -> None:
    good: dict[str, Any] = {
        "log_probability": 0.01,
        "scored_top1": 0.99,
        "divergence": 0.001,
        "step_top1": 1.0,
        "positions": 10,
        "steps": 5,
    }
    assert Agreement("cpu", **good).passed
    assert not Agreement("cpu", **{**good, **change}).passed


def test_unknown_backend() -> None:
    with pytest.raises(lily.errors.BackendError, match="available"):
        verify("lily-tiny", backend="abacus")
