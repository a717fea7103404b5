"""The workflows that build wheels and run checks: keys, files and commands that they name exist, and agree with
pyproject.toml. (What runs on a runner can only be seen there.)"""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

import check_apple
import check_wheel

ROOT = Path(__file__).resolve().parents[2]

yaml = pytest.importorskip("yaml")
tomllib = pytest.importorskip("tomllib", reason="Python 3.11 reads TOML")

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
JOB_KEYS = {"name", "needs", "runs-on", "strategy", "container", "steps", "if", "timeout-minutes", "permissions", "env"}
STEP_KEYS = {"name", "uses", "with", "run", "if", "env", "shell", "id", "working-directory", "continue-on-error"}
# https://cibuildwheel.pypa.io: the options that pyproject.toml may have.
CIBUILDWHEEL = {
    *(
        "build",
        "skip",
        "archs",
        "enable",
        "build-frontend",
        "build-verbosity",
        "config-settings",
        "dependency-versions",
    ),
    *("environment", "environment-pass", "before-all", "before-build", "before-test", "repair-wheel-command"),
    *("test-command", "test-skip", "test-sources", "test-requires", "test-extras", "test-groups", "test-environment"),
    *("container-engine", "manylinux-x86_64-image", "manylinux-aarch64-image"),
    *("overrides", "macos", "linux", "windows"),
}


def pyproject() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def jobs() -> list[tuple[str, dict[str, Any]]]:
    return [
        (f"{path.name}: {name}", job)
        for path in WORKFLOWS
        for name, job in yaml.safe_load(path.read_text())["jobs"].items()
    ]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_have_the_keys_that_github_knows(path: Path) -> None:
    workflow = yaml.safe_load(path.read_text())
    assert set(workflow) == {"name", True, "permissions", "jobs"}  # YAML reads `on` as a truth value
    assert workflow["permissions"] == {"contents": "read"}
    for name, job in workflow["jobs"].items():
        assert set(job) <= JOB_KEYS and "runs-on" in job and job["steps"], name
        needs = [job["needs"]] if isinstance(job.get("needs"), str) else job.get("needs", [])
        assert set(needs) <= set(workflow["jobs"]), name
        for step in job["steps"]:
            assert set(step) <= STEP_KEYS and ("run" in step) != ("uses" in step), (name, step)


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_actions_are_pinned_by_commit_with_their_version_beside(path: Path) -> None:
    """A tag can be moved to other code; a commit cannot. One action has one commit everywhere."""
    text = path.read_text()
    pinned = re.findall(r"uses: actions/[\w-]+@[0-9a-f]{40}  # v\d+\.\d+\.\d+$", text, re.MULTILINE)
    assert pinned and len(pinned) == text.count("uses:"), path.name
    commits = {tuple(line.split()) for other in WORKFLOWS for line in re.findall(r"uses: (\S+@.*)", other.read_text())}
    actions = [action.partition("@")[0] for action, *_ in commits]
    assert len(actions) == len(set(actions)), sorted(commits)


def test_expressions_name_what_the_job_has() -> None:
    for name, job in jobs():
        matrix = job.get("strategy", {}).get("matrix", {})
        known = {key for row in matrix.get("include", []) for key in row} | set(matrix) - {"include"}
        for expression in re.findall(r"\$\{\{\s*(.*?)\s*\}\}", str(job)):
            scope, _, key = expression.partition(".")
            assert scope == "matrix" and key in known, (name, expression)


def test_commands_name_files_and_extras_that_exist() -> None:
    extras = set(pyproject()["project"]["optional-dependencies"])
    seen = 0
    for name, job in jobs():
        for step in job["steps"]:
            for word in re.findall(r"(?:tools|\.ci)/[\w./]+", step.get("run", "")):
                assert (ROOT / word).is_file(), (name, word)
                seen += 1
            for listed in re.findall(r"\"\.\[([\w,]+)\]\"", step.get("run", "")):
                assert set(listed.split(",")) <= extras, (name, listed)
    assert seen >= 3


def test_the_checks_are_the_groups_of_the_script() -> None:
    text = (ROOT / ".ci" / "run").read_text()
    named = re.findall(r"^#     (\w+)  ", text, re.MULTILINE)
    used = set(re.findall(r"has (\w+)", text))
    (job,) = (job for name, job in jobs() if name == "checks.yml: checks")
    assert job["strategy"]["matrix"]["group"] == named
    assert set(named) == used


def test_paths_that_start_the_workflow_exist() -> None:
    for path in WORKFLOWS:
        on = yaml.safe_load(path.read_text())[True]
        for pattern in on.get("pull_request", {}).get("paths", []) if isinstance(on, dict) else []:
            assert list(ROOT.glob(pattern.removesuffix("/**"))), pattern


def test_artifacts_are_fetched_by_the_names_they_are_kept_under() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "wheels.yml").read_text())
    kept, fetched = set(), {}
    for name, job in workflow["jobs"].items():
        for step in job["steps"]:
            if step.get("uses", "").startswith("actions/upload-artifact"):
                kept.add((name, step["with"]["name"]))
            if step.get("uses", "").startswith("actions/download-artifact"):
                fetched[name] = step["with"]["name"]
    assert fetched == {"wheels": "sdist"} and ("sdist", "sdist") in kept
    assert workflow["jobs"]["wheels"]["needs"] == "sdist"


def test_cibuildwheel_has_options_that_it_knows() -> None:
    options = pyproject()["tool"]["cibuildwheel"]
    for part in (options, options["macos"], options["linux"]):
        assert set(part) <= CIBUILDWHEEL, set(part) - CIBUILDWHEEL
    assert set(options["test-extras"]) <= set(pyproject()["project"]["optional-dependencies"])


def test_one_deployment_target() -> None:
    """The module, the wheel's tag and the checks speak of the same macOS."""
    tool = pyproject()["tool"]
    mac = [part for part in tool["scikit-build"]["overrides"] if part["if"].get("platform-system") == "darwin"]
    targets = {
        mac[0]["cmake"]["define"]["CMAKE_OSX_DEPLOYMENT_TARGET"],
        tool["cibuildwheel"]["macos"]["environment"]["MACOSX_DEPLOYMENT_TARGET"],
        check_apple.TARGET,
    }
    assert targets == {"14.0"} and "macosx_14_0_arm64" in check_wheel.TAGS.pattern
    assert tool["cibuildwheel"]["macos"]["archs"] == ["arm64"]


def test_one_stable_wheel_serves_every_python_from_its_version_on() -> None:
    tool = pyproject()["tool"]
    stable = tool["scikit-build"]["wheel"]["py-api"]
    assert stable == "cp312"
    versions = [re.fullmatch(r"cp3(\d+)-\*", selector)[1] for selector in tool["cibuildwheel"]["build"]]  # type: ignore[index]
    oldest = int(pyproject()["project"]["requires-python"].removeprefix(">=3."))
    # Each older version has a wheel of its own, the stable ABI's is built once.
    assert [int(version) for version in versions] == list(range(oldest, int(stable.removeprefix("cp3")) + 1))
    for version in range(oldest, 12):
        assert f"cp3{version}-cp3{version}" in check_wheel.TAGS.pattern


def test_the_commands_that_try_a_wheel_exist() -> None:
    typer = pytest.importorskip("typer", reason="needs the extra for the command line")
    from lily.cli.app import app

    lily = typer.main.get_command(app)
    for line in pyproject()["tool"]["cibuildwheel"]["test-command"].split("&&"):
        program, name, *arguments = shlex.split(line)
        assert program == "lily"
        options = {text for parameter in lily.commands[name].params for text in parameter.opts}
        assert {word for word in arguments if word.startswith("-")} <= options
