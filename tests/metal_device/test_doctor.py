"""lily doctor: facts of this machine, as text and as JSON."""

from __future__ import annotations

import json
import os
import platform
import sys
from pathlib import Path

import pytest

import lily
from lily import _core, doctor
from lily.cli import main
from lily.doctor import MetalDiagnosis, diagnose


def test_facts_of_this_machine(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LILY_METAL_TENSOR", "0")
    assert main(["doctor", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["backends"] == list(lily.available_backends())
    assert facts["chosen"] in facts["backends"] and facts["reason"]
    assert facts["page_bytes"] == os.sysconf("SC_PAGE_SIZE")
    assert facts["memory_bytes"] == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert facts["environment"]["LILY_METAL_TENSOR"] == "0"
    assert main(["doctor"]) == 0
    text = capsys.readouterr().out
    assert platform.machine() in text and facts["chip"] in text


@pytest.mark.skipif(sys.platform == "darwin", reason="says what other systems lack")
def test_what_is_missing_elsewhere() -> None:
    diagnosis = diagnose()
    assert "macOS 14" in diagnosis.metal.missing and platform.system() in diagnosis.metal.missing
    assert "not usable" in str(diagnosis) and diagnosis.chosen != "metal"
    assert bool(diagnosis.cuda_missing) != ("cuda" in diagnosis.backends)
    assert ("CUDA" in str(diagnosis)) and (diagnosis.cuda_missing in str(diagnosis))


def test_a_mac_tells_the_systems_version_not_the_one_for_old_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(platform, "mac_ver", lambda: ("16.2", ("", "", ""), "arm64"))
    texts = {"-productVersion": "26.2", "-buildVersion": "25C56", "machdep.cpu.brand_string": "Apple M5"}
    monkeypatch.setattr("lily.doctor._output", lambda *command: texts[command[-1]])
    assert doctor._system().startswith("macOS 26.2 (build 25C56)") and doctor._chip() == "Apple M5"
    monkeypatch.setattr("lily.doctor._output", lambda *command: "")
    assert doctor._system().startswith("macOS 16.2 (build unknown)")


def test_sources_that_are_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LILY_METAL_SOURCES", str(tmp_path))
    assert f"none (install Lily, or set LILY_METAL_SOURCES) in {tmp_path}" in str(diagnose())
    (tmp_path / "a.metal").write_text("")
    assert f"1 files in {tmp_path}" in str(diagnose())


class Facts:
    """What the native module says on a Mac."""

    device = "Apple M5"
    architecture = "applegpu_g17g"
    family = "Apple10"
    system = "Version 26.2 (Build 25C56)"
    language = "3.2"
    problem = ""
    working_set_bytes = 18 * 2**30
    buffer_bytes = 14 * 2**30
    threadgroup_bytes = 32768
    page_bytes = 16384
    unified_memory = True
    residency_sets = True
    tensor_gemm = False
    tensor_reason = "the self-test differs: row 9"
    kernels = 44
    rejected: tuple[str, ...] = ()


def test_a_mac(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_core.device, "metal_facts", Facts)
    monkeypatch.setattr("lily.doctor.available_backends", lambda: ("cpu", "metal"))
    monkeypatch.setattr("lily.doctor.choose_backend", lambda name: "metal")
    diagnosis = diagnose()
    assert diagnosis.metal == MetalDiagnosis(missing="", **{
        name: value for name, value in vars(Facts).items() if not name.startswith("_") and name != "problem"
    })  # fmt: skip
    text = str(diagnosis)
    for fact in ("Apple M5", "Apple10", "applegpu_g17g", "26.2", "18.0 GiB", "not used: the self-test differs: row 9"):
        assert fact in text
    assert diagnosis.chosen == "metal" and "takes all sources" in text
    monkeypatch.setattr(Facts, "rejected", ["gemm.metal: gemm.metal:7: error: no", "norm.metal: ..."])
    rejecting = diagnose()
    assert rejecting.metal.rejected == ("gemm.metal: gemm.metal:7: error: no", "norm.metal: ...")
    assert "rejects gemm.metal" in str(rejecting) and "norm.metal" in str(rejecting)
    assert json.loads(json.dumps(rejecting.to_dict()))["metal"]["rejected"][1] == "norm.metal: ..."


def test_a_mac_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    class Nothing(Facts):
        device = ""
        problem = "Metal shows this process no GPU"

    monkeypatch.setattr(_core.device, "metal_facts", Nothing)
    assert "not usable: Metal shows this process no GPU" in str(diagnose())
    monkeypatch.setattr(Nothing, "device", "Apple Paravirtual device")
    assert "not tried" in str(diagnose()) and "takes all sources" not in str(diagnose())
