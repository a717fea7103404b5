"""Modules whose packages are not installed say what to install."""

import subprocess
import sys

import pytest

CODE = """
import importlib, sys
missing, module = sys.argv[1:]
sys.modules[missing] = None
import lily
from lily.errors import MissingExtraError
for _ in range(2):  # the second time as well
    try:
        importlib.import_module(module)
    except MissingExtraError as error:
        print(error)
"""


@pytest.mark.parametrize(
    ("missing", "module", "extra"),
    [
        *((package, "lily.server", "server") for package in ("starlette", "uvicorn", "prometheus_client")),
        ("starlette", "lily.server.app", "server"),
        ("uvicorn", "lily.server.options", "server"),
        ("typer", "lily.cli.app", "cli"),
        ("rich", "lily.cli.app", "cli"),
    ],
)
def test_the_error_names_the_extra(missing, module, extra):
    done = subprocess.run([sys.executable, "-c", CODE, missing, module], capture_output=True, text=True)
    line = f"this needs the package {missing}; install it with pip install 'lily-engine[{extra}]'\n"
    assert (done.stdout, done.stderr) == (2 * line, "")


@pytest.mark.parametrize("module", ["lily.cli", "lily.notebook", "lily.chat", "lily.bench", "lily.verify"])
def test_the_others_need_none(module):
    packages = [
        "starlette",
        "uvicorn",
        "prometheus_client",
        "typer",
        "rich",
        "huggingface_hub",
        "llguidance",
        "matplotlib",
        "IPython",
    ]
    block = "".join(f"sys.modules[{package!r}] = None; " for package in packages)
    done = subprocess.run([sys.executable, "-c", f"import sys; {block}import {module}"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
