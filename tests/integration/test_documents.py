"""The documents: their Python code runs, their links lead somewhere, their tables are generated."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from scripts.demo_picture import last_screen, picture

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "ARCHITECTURE.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^(?P<mark><!-- not run: .+ -->\n)?```python\n(?P<code>.*?)^```$", re.M | re.S)


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(page: Path) -> list[tuple[int, str]]:
    """Return the line and the code of each Python block that is to run."""
    text = page.read_text("utf-8")
    return [
        (text.count("\n", 0, found.start("code")), found["code"])
        for found in BLOCK.finditer(text)
        if found["mark"] is None
    ]


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)], ids=name_of)
def test_the_python_code_of_a_page_runs(
    page: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)  # for files that it writes
    shared: dict[str, object] = {"__name__": "document"}
    for line, code in blocks(page):
        exec(compile("\n" * line + code, page, "exec"), shared)


def test_documents_keep_to_their_size() -> None:
    assert len((ROOT / "README.md").read_text("utf-8").splitlines()) <= 150
    assert len((ROOT / "ARCHITECTURE.md").read_bytes()) <= 10 * 1024


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_between_documents_lead_to_files(page: Path) -> None:
    text = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text("utf-8"), flags=re.S)
    for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
        assert (page.parent / link).exists(), f"{name_of(page)}: {link}"


def test_the_picture_of_the_demo_shows_what_stays_on_the_terminal() -> None:
    printed = (
        "title\n\x1b[?25lframe 1\nlane\r\x1b[2K\x1b[1A\x1b[2Kframe 2\nlane 2\n\x1b[?25h\nend\n"
    )
    assert last_screen(printed) == "title\nframe 2\nlane 2\n\nend"
    drawn = picture(last_screen(printed))
    assert "lane&#160;2" in drawn
    assert "url(http" not in drawn + (ROOT / "docs/assets/demo.svg").read_text("utf-8")


def test_every_decision_is_linked_from_the_index() -> None:
    index = ROOT / "docs/decisions/index.md"
    linked = set(re.findall(r"\]\(([\w-]+\.md)\)", index.read_text("utf-8")))
    assert linked == {page.name for page in index.parent.glob("*.md")} - {index.name}, index


def test_a_block_that_fails_would_be_seen(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("<!-- not run: no -->\n```python\n1 / 0\n```\n\n```python\nfail()\n```\n")
    ((line, code),) = blocks(page)
    assert (line, code) == (6, "fail()\n")
