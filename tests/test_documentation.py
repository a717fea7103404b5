"""The documentation's pages name every public object, and their links lead somewhere."""

import importlib.util
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").rglob("*.md"))]
PUBLIC = ("lily", "lily.chat", "lily.text", "lily.server", "lily.cache", "lily.checkpoint")
FOUND_UNDER_ANOTHER_NAME = {
    "lily.LilyError",
    "lily.errors",
    "lily.__version__",
    "lily.checkpoint.Plan",
    "lily.checkpoint.plan",
}
_PATH = re.compile(r"(?<![\w/.])((?:tests|tools|benchmarks|src|metal|cmake|python/lily)/[\w./-]*[\w/])(?![\w*<{/])")
_LINK = re.compile(r"\]\(([^)\s]+)\)|(?:src|srcset)=\"([^\"]+)\"")


def anchors(page: Path) -> set[str]:
    """What the headings of a page are called in links."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken_links(page: Path) -> Iterator[str]:
    for link in (one or other for one, other in _LINK.findall(re.sub(r"```.*?```", "", page.read_text(), flags=re.S))):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = page if not path else page.parent / path
        is_heading = anchor and target.suffix == ".md"  # an image's says in which theme it is shown
        if not target.exists() or (is_heading and anchor not in anchors(target)):
            yield link


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    assert not list(broken_links(page))


def test_a_broken_link_is_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# One heading\n[a](#one-heading) [b](#another) [c](missing.md) ![d](https://elsewhere/x.png)\n")
    assert list(broken_links(page)) == ["#another", "missing.md"]


def missing_files(text: str) -> list[str]:
    """Paths of the repository in a page that do not exist; names in capitals stand for others."""
    found = re.findall(
        r"(?<![\w/.])((?:tests|tools|benchmarks|src|metal|cmake|python/lily)/[\w./-]*[\w/])(?![\w*<{/])", text
    )
    return [path for path in found if not re.search(r"[A-Z]{4}", path) and not list(ROOT.glob(f"{path}*"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_that_pages_name_exist(page):
    assert missing_files(page.read_text(encoding="utf-8")) == []


def test_a_missing_file_is_found():
    text = "`tests/synthesis.py`, `src/lily_core/cpu`, `tools/msl/`, `metal/<family>.metal`, tests/fuzz/found/TARGET/"
    assert missing_files(text) == ["tests/synthesis.py"]


@pytest.mark.parametrize("module", PUBLIC)
def test_every_public_name_is_in_the_reference(module):
    pytest.importorskip("lily._core", reason="needs the built package")
    listed = set(re.findall(r"^::: ([\w.]+)$", "\n".join(page.read_text() for page in PAGES), re.M))
    names = {f"{module}.{name}" for name in importlib.import_module(module).__all__}
    assert names - listed <= FOUND_UNDER_ANOTHER_NAME
    for name in listed:
        owner, _, last = name.rpartition(".")
        assert owner != module or hasattr(importlib.import_module(module), last), name


def tool(name: str) -> ModuleType:
    specification = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules[name] = module  # where its dataclasses look for their types
    specification.loader.exec_module(module)
    return module


def test_the_picture_of_the_architecture_is_that_of_its_description():
    """After a change: python tools/draw_architecture.py."""
    drawer = tool("draw_architecture")
    description = (drawer.IMAGES / "architecture.txt").read_text(encoding="utf-8")
    assert (drawer.IMAGES / "architecture.svg").read_text(encoding="utf-8") == drawer.draw(drawer.read(description))


def test_the_picture_of_the_architecture_names_folders_that_exist():
    drawer = tool("draw_architecture")
    picture = drawer.read((drawer.IMAGES / "architecture.txt").read_text(encoding="utf-8"))
    for name, folders, _ in picture.rows:
        first, *others = folders.split(", ")
        places = [ROOT / first, *(ROOT / other if "/" in other else (ROOT / first).parent / other for other in others)]
        assert [str(place) for place in places if not place.is_dir()] == [], name


@pytest.mark.skipif(os.name != "posix", reason="needs a pseudo-terminal")
def test_the_picture_of_a_chat_shows_what_the_program_writes():
    """After a change: python tools/record_chat.py."""
    pytest.importorskip("lily._core", reason="needs the built package")
    pytest.importorskip("typer", reason="needs the extra for the command line")
    recorder = tool("record_chat")
    shown = recorder.plain(recorder.PICTURE.read_text(encoding="utf-8"))
    assert shown == recorder.plain(recorder.draw(recorder.record()))
    assert all(f"> {question}" in shown for question in recorder.QUESTIONS) and "Your dog is called Bruno." in shown


def test_pictures_ask_no_other_site():
    for picture in (ROOT / "docs" / "images").glob("*.svg"):
        text = re.sub(r'xmlns(:\w+)?="[^"]+"', "", picture.read_text(encoding="utf-8"))
        assert not re.search(r"(?:href|src)=.https?:|url\(.?https?:|@import", text), picture.name


def test_every_page_is_in_the_navigation():
    navigation = (ROOT / "mkdocs.yml").read_text()
    pages = [page.relative_to(ROOT / "docs") for page in (ROOT / "docs").rglob("*.md") if "recipe" not in page.parts]
    assert not [str(page) for page in pages if f": {page}\n" not in navigation]
