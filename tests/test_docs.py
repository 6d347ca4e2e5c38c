"""README and docs: what they show is what the commands do, word for word; the site builds without a warning.

In docs/tutorials a fenced `sh` or `python` block is run, all of a page in one folder, unless a comment
`<!-- not run: WHY -->` stands before it. A `text` block after it is what it prints: a line "…" stands for any lines,
"…" within a line for any characters; runs of blanks count as one.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

import pytest
import typer

from teccl_msccl.cli import commands as registered  # noqa: F401
from teccl_msccl.cli.app import app

ROOT = Path(__file__).parents[1]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.md"))
_FENCE = re.compile(r"(?P<why><!-- not run: [^\n]*? -->\n)?```(?P<kind>\w+)\n(?P<text>.*?)```", re.DOTALL)
#: Seconds for a block.
PATIENCE_S = 300


@dataclass(frozen=True)
class Block:
    """A fenced block; `run` unless the page says why not; `shown` is the text block that follows."""

    kind: str
    text: str
    run: bool
    shown: str | None


def blocks(page: Path) -> list[Block]:
    found = list(_FENCE.finditer(page.read_text(encoding="utf-8")))
    return [
        Block(one["kind"], one["text"], not one["why"], other["text"] if other and other["kind"] == "text" else None)
        for one, other in zip_longest(found, found[1:])
    ]


def test_blocks_are_found(tmp_path: Path) -> None:
    page = tmp_path / "p.md"
    page.write_text("a\n```sh\nls\n```\n\n```text\nout\n```\n<!-- not run: no GPU -->\n```sh\nnvidia-smi\n```\n")
    assert blocks(page) == [
        Block("sh", "ls\n", True, "out\n"),
        Block("text", "out\n", True, None),
        Block("sh", "nvidia-smi\n", False, None),
    ]


def pattern(shown: str) -> str:
    """A regular expression of what a page shows."""
    lines = [" ".join(line.split()) for line in shown.strip("\n").splitlines()]
    parts = [
        r"(?:.*\n)*?" if line == "…" else ".*?".join(map(re.escape, line.split("…"))) + "\n" for line in lines
    ]  # fmt: skip
    return "".join(parts)


def shows(shown: str, printed: str) -> bool:
    told = "".join(" ".join(line.split()) + "\n" for line in printed.splitlines())
    return re.fullmatch(pattern(shown), told) is not None


def test_what_is_shown_is_compared() -> None:
    assert shows("a  b\n…\nlast … µs\n", "a b\nx\ny\nlast 3.1 µs\n")
    assert shows("…\nend\n…\n", "end\n")
    assert not shows("a\n", "a\nb\n")
    assert not shows("a 1…\n", "a 2\n")


@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_tutorials_word_for_word(page: Path, tmp_path: Path) -> None:
    """Every block of the page, one after the other, in a folder with the repository's samples and examples."""
    if page.stem == "pytorch":
        pytest.importorskip("torch", reason="needs torch")
    pytest.importorskip("matplotlib", reason="needs matplotlib")
    for folder in ("samples", "examples"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    beside = str(Path(sys.executable).parent)
    environment = os.environ | {"PATH": f"{beside}{os.pathsep}{os.environ['PATH']}", "COLUMNS": "80"}
    ran = 0
    for block in blocks(page):
        if not block.run or block.kind not in ("sh", "python"):
            continue
        command = ["bash", "-e", "-c", block.text] if block.kind == "sh" else [sys.executable, "-c", block.text]
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )
        assert done.returncode == 0, f"{block.text}\n{done.stdout}{done.stderr}"
        if block.shown is not None:
            assert shows(block.shown, done.stdout), (
                f"{block.text}\nprinted\n{done.stdout}\nbut the page shows\n{block.shown}"
            )
        ran += 1
    assert ran >= 2


def commands() -> list[tuple[str, str]]:
    """Every line of a page's shell blocks that calls us, with its page."""
    lines = []
    for page in PAGES:
        for block in blocks(page):
            if block.kind == "sh":
                lines += [
                    (page.name, line) for line in block.text.replace("\\\n", " ").splitlines() if "teccl-msccl " in line
                ]
    return lines


def test_every_command_shown_parses() -> None:
    """Whether it is run or not: its command exists and takes its options."""
    shown = commands()
    assert len(shown) > 30
    for page, line in shown:
        words = shlex.split(line, comments=True)
        words = words[words.index("teccl-msccl") + 1 :] if "teccl-msccl" in words else []
        for stop in ("&&", "|", ">"):
            words = words[: words.index(stop)] if stop in words else words
        command = typer.main.get_command(app)
        while hasattr(command, "commands") and words:
            assert words[0] in command.commands, f"{page}: {line}"
            command = command.commands[words.pop(0)]
        if words:
            command.make_context(page, words)


def test_readme_is_short_and_its_links_lead_somewhere() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 200
    for page in PAGES:
        text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text):
            if not target.startswith("http"):
                assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_site_builds_without_a_warning(tmp_path: Path) -> None:
    """Strictly: a page that is missing, a link or an object of the API that is not there fails it. Nothing is fetched:
    no page has a script, a style or a picture from elsewhere."""
    pytest.importorskip("mkdocs", reason="needs mkdocs: pip install 'teccl-msccl[docs]'")
    pytest.importorskip("material", reason="needs mkdocs-material: pip install 'teccl-msccl[docs]'")
    site = tmp_path / "site"
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", site],
        cwd=ROOT, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True, timeout=300,
        check=False,
    )  # fmt: skip
    assert built.returncode == 0, built.stderr
    assert len(list(site.rglob("*.html"))) > len(PAGES) - 1
    for page in site.rglob("*.html"):
        html = page.read_text(encoding="utf-8")
        assert not re.search(r'<(?:script|img|iframe)[^>]*src="(?:https?:)?//', html), page
        assert not re.search(r'<link[^>]*rel="(?:stylesheet|preconnect)"[^>]*href="(?:https?:)?//', html), page
        assert "arithmatex" not in html, page
    assert "<math" in (site / "how" / "milp.html").read_text(encoding="utf-8")
