"""Write ``AGENTS.md`` and ``llms.txt`` from the pages of the documentation.

Usage, in the repository's folder::

    python -m docs._scripts.agents            write both files
    python -m docs._scripts.agents --check    report files that differ from the pages
"""

from __future__ import annotations

import posixpath
import re
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
COMMAND = "python -m docs._scripts.agents"
RAW = "https://raw.githubusercontent.com/fedvlp/fedvlp/main/"
OPTIONAL_FOLDERS = ("methods/",)
"""Folders of pages that a model with little context may skip."""
LINK = re.compile(r"\[([^\]]*)\]\((?!https?:)([^)#]*)(#[^)]*)?\)")


def main(arguments: Sequence[str]) -> int:
    """Write or check the files, and return the exit code."""
    exit_code = 0
    for name, text in files().items():
        path = ROOT / name
        if "--check" not in arguments:
            path.write_text(text, encoding="utf-8")
        elif not path.is_file() or path.read_text(encoding="utf-8") != text:
            sys.stdout.write(f"{name} differs from the pages. Run {COMMAND}.\n")
            exit_code = 1
    return exit_code


def files() -> dict[str, str]:
    """Compose the text of each file."""
    return {"AGENTS.md": agents(), "llms.txt": llms()}


def agents() -> str:
    """Compose the instructions for coding agents."""
    parts = [
        "# fedvlp for coding agents",
        f"<!-- written by {COMMAND} -->",
        introduction(),
        "## Install and test",
        first_block("CONTRIBUTING.md", "Set up"),
        "Run one folder while you work, for example:",
        first_block("CONTRIBUTING.md", "How we test"),
        "## Check a change",
        section("CONTRIBUTING.md", "Before you open a pull request"),
        "## Run",
        "This trains a first method on images and a CLIP from the package, in about a minute and without a GPU:",
        "```bash\nfedvlp fit --config quickstart\n```",
        "`fedvlp --help` lists the commands, and `fedvlp fit --help` explains the options.",
        "## Find the code",
        section("docs/architecture.md", "The folders"),
        "## Add a method",
        "Copy the file, config and tests of [this page](docs/contributing/method.md), then:",
        section("docs/contributing/method.md", "Put it into the package"),
        "## Add something else",
        section("CONTRIBUTING.md", "Add something").partition("\n\nMaintainers")[0],
        "## How we test",
        section("CONTRIBUTING.md", "How we test").partition("\n\n`tests/` mirrors")[0],
        "## Style",
        section("CONTRIBUTING.md", "Style"),
    ]
    return "\n\n".join(parts) + "\n"


def llms() -> str:
    """Compose the list of pages in the format of https://llmstxt.org."""
    sections: dict[str, list[str]] = {}
    optional: list[str] = []
    for tree in re.findall(r"^```{toctree}\n(.*?)^```$", read("docs/index.md"), re.DOTALL | re.MULTILINE):
        caption = re.search(r"^:caption: (.*)$", tree, re.MULTILINE)
        for entry in tree.splitlines():
            if not entry or entry.startswith(":") or "<" in entry:
                continue
            for path in sorted(DOCS.glob(f"{entry}.md")):
                is_optional = path.relative_to(DOCS).as_posix().startswith(OPTIONAL_FOLDERS)
                lines = optional if is_optional else sections.setdefault(caption[1] if caption else "Pages", [])
                lines.append(page_line(path))
    sections["Project"] = [page_line(ROOT / name) for name in ("README.md", "AGENTS.md", "CONTRIBUTING.md")]
    sections["Optional"] = optional
    blocks = [f"## {title}\n\n" + "\n".join(lines) for title, lines in sections.items() if lines]
    return "\n\n".join(["# fedvlp", f"> {plain(introduction())}", *blocks]) + "\n"


def introduction() -> str:
    """Read the first paragraph of the landing page, with links from the repository's folder."""
    return relinked("docs/index.md", first_paragraph(read("docs/index.md")))


def page_line(path: Path) -> str:
    """Describe a page by its title, its address and its first sentence."""
    text = agents() if path.name == "AGENTS.md" else path.read_text(encoding="utf-8")
    title = re.findall(r"^# (.*)$", text, re.MULTILINE)[0]
    sentence = re.split(r"(?<=[a-z)*`0-9])[.](?:\s|$)", plain(first_paragraph(text)), maxsplit=1)[0]
    return f"- [{title}]({RAW}{path.relative_to(ROOT).as_posix()}): {sentence}"


def first_paragraph(page: str) -> str:
    """Find the first paragraph of prose below the title."""
    paragraphs = page.partition("\n# ")[2 * page.startswith("<!--")].split("\n\n")[1:]
    return next(text for text in paragraphs if not text.startswith(("<!--", "!", "```", "|", "*", "#")))


def plain(text: str) -> str:
    """Join lines, and replace links and emphasis by their text."""
    return re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(text.split())).replace("**", "")


def section(page: str, heading: str) -> str:
    """Extract the text below a second-level heading, with links from the repository's folder."""
    _, found, below = read(page).partition(f"\n## {heading}\n")
    if not found:
        raise ValueError(f"{page} has no section {heading!r}, which {COMMAND} copies.")
    return relinked(page, re.split(r"^## ", below, maxsplit=1, flags=re.MULTILINE)[0].strip())


def first_block(page: str, heading: str) -> str:
    """Extract the first block of commands below a heading."""
    block = re.search(r"^```bash\n.*?^```$", section(page, heading), re.DOTALL | re.MULTILINE)
    if block is None:
        raise ValueError(f"Section {heading!r} of {page} has no block of commands, which {COMMAND} copies.")
    return block[0]


def relinked(page: str, text: str) -> str:
    """Rewrite relative links to start from the repository's folder."""
    folder = posixpath.dirname(page)
    if not folder:
        return text

    def from_root(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(folder, link[2])) if link[2] else page
        return f"[{link[1]}]({target}{link[3] or ''})"

    return LINK.sub(from_root, text)


def read(page: str) -> str:
    """Read a file by its path from the repository's folder."""
    return (ROOT / page).read_text(encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
