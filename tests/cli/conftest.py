"""Fixtures of the command-line tests: a scripted model behind the loading seam, and simulated terminals."""

import contextlib
import io
import os
import sys
from pathlib import Path

import pytest

BUNDLED = Path(__file__).parents[2] / "python" / "lily" / "data" / "lily-tiny"


@pytest.fixture(scope="session")
def tiny() -> Path:
    """The bundled model's directory (LILY_TINY points elsewhere)."""
    return Path(os.environ.get("LILY_TINY", BUNDLED))


@pytest.fixture
def fake(tiny, monkeypatch):
    """A function that puts a model with the given script in place of the loaded one, and returns it."""
    loading = pytest.importorskip("lily.cli.loading", reason="needs typer and rich")
    from fake_model import FakeModel

    def install(*script):
        model = FakeModel(tiny, script)

        def load_model(source, **options):
            model.loaded_with = {"source": source, **options}
            return model

        monkeypatch.setattr(loading, "load_model", load_model)
        return model

    return install


@pytest.fixture(scope="session")
def real_model(tiny):
    pytest.importorskip("lily._core", reason="needs the built package")
    from lily import Model

    with Model.load(tiny, threads=1, max_context=4096) as model:
        yield model


@pytest.fixture
def talker(real_model, monkeypatch):
    """A function that scripts the answers of lily chat, see `ScriptedTalk`, and returns the script."""
    loading = pytest.importorskip("lily.cli.loading", reason="needs typer and rich")
    from scripted_talk import ScriptedTalk

    def install(*script):
        talk = ScriptedTalk(real_model, script)
        talk.install(monkeypatch)

        def load_model(source, **options):
            talk.loaded_with = {"source": source, **options}
            return contextlib.nullcontext(real_model)

        monkeypatch.setattr(loading, "load_model", load_model)
        return talk

    return install


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def stdin(monkeypatch):
    """A function that pipes a text in; `terminal=True` types it instead."""

    def install(text, terminal=False):
        monkeypatch.setattr(sys, "stdin", (_Terminal if terminal else io.StringIO)(text))

    return install


@pytest.fixture
def terminal(monkeypatch):
    """A function that makes standard output and error terminals and returns both.

    To be called in the test itself: pytest sets its own streams between the fixtures and the test.
    """

    def install():
        monkeypatch.delenv("NO_COLOR", raising=False)
        monkeypatch.setenv("TERM", "xterm")
        output, errors = _Terminal(), _Terminal()
        monkeypatch.setattr(sys, "stdout", output)
        monkeypatch.setattr(sys, "stderr", errors)
        return output, errors

    return install
