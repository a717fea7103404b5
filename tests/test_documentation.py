"""The documentation's pages name every public object, and their links lead somewhere."""

import importlib
import re
from collections.abc import Iterator
from pathlib import Path

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
        if not target.exists() or (anchor and anchor not in anchors(target)):
            yield link


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    assert not list(broken_links(page))


def test_a_broken_link_is_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# One heading\n[a](#one-heading) [b](#another) [c](missing.md) ![d](https://elsewhere/x.png)\n")
    assert list(broken_links(page)) == ["#another", "missing.md"]


@pytest.mark.parametrize("module", PUBLIC)
def test_every_public_name_is_in_the_reference(module):
    pytest.importorskip("lily._core", reason="needs the built package")
    listed = set(re.findall(r"^::: ([\w.]+)$", "\n".join(page.read_text() for page in PAGES), re.M))
    names = {f"{module}.{name}" for name in importlib.import_module(module).__all__}
    assert names - listed <= FOUND_UNDER_ANOTHER_NAME
    for name in listed:
        owner, _, last = name.rpartition(".")
        assert owner != module or hasattr(importlib.import_module(module), last), name


def test_every_page_is_in_the_navigation():
    navigation = (ROOT / "mkdocs.yml").read_text()
    pages = [page.relative_to(ROOT / "docs") for page in (ROOT / "docs").rglob("*.md") if "recipe" not in page.parts]
    assert not [str(page) for page in pages if f": {page}\n" not in navigation]
