"""The documentation builds strictly, and what it promises exists."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.house.boundaries import ROOT

PROSE = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def test_the_docs_build_strictly(tmp_path):
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    assert (tmp_path / "site" / "index.html").is_file()


@pytest.mark.parametrize("page", PROSE, ids=lambda p: str(p.relative_to(ROOT)))
def test_relative_links_lead_somewhere(page):
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.S)
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text):
        if "://" not in target and not target.startswith("mailto:"):
            assert (page.parent / target).exists(), f"{page.relative_to(ROOT)} links to {target}, which does not exist"


def test_the_readme_begins_with_the_two_commands():
    head = (ROOT / "README.md").read_text(encoding="utf-8")[:400]
    assert "make run" in head
    assert "make test" in head


def test_no_file_speaks_of_a_machine():
    """No absolute path of somebody's machine, in any tracked text."""
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    pattern = re.compile(r"(?<![\w.])/(?:root|home/\w+|work|Users/\w+)/")
    found = []
    for name in tracked:
        path = ROOT / name
        if (
            path.suffix in {".py", ".md", ".toml", ".yml", ".js", ".ts", ".html", ".css", ".json", ".txt"}
            and path.exists()
        ):
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
                if pattern.search(line) and "re.compile" not in line:
                    found.append(f"{name}:{number}: {line.strip()[:100]}")
    assert not found, "\n".join(found)
