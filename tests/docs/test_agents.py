"""``AGENTS.md`` and ``llms.txt`` follow the pages, and their links and commands work."""

import re

import pytest

from docs._scripts import agents
from tests.helpers.documents import PAGES, ROOT, Document

MADE = agents.files()


@pytest.mark.parametrize("name", MADE)
def test_stored_file_follows_the_pages(name):
    assert (ROOT / name).read_text(encoding="utf-8") == MADE[name], f"run `{agents.COMMAND}`"


def test_commands_are_among_those_that_tests_run():
    run = {
        line
        for page in PAGES
        if page.path.name != "AGENTS.md"
        for code in page.blocks("bash")
        for line in code.splitlines()
    }
    lines = {line for code in Document(ROOT / "AGENTS.md").blocks("bash") for line in code.splitlines()}
    assert lines
    assert lines <= run
    paths = re.findall(r"\btests/\S+", "\n".join(lines))
    assert paths
    assert not [path for path in paths if not (ROOT / path).exists()]


def test_list_of_pages_has_the_format_of_llmstxt():
    title, summary, *sections = MADE["llms.txt"].strip().split("\n\n")
    assert title == "# fedvlp"
    assert re.fullmatch(r"> \S.*", summary)
    for heading, lines in zip(sections[::2], sections[1::2], strict=True):
        assert re.fullmatch(r"## \w.*", heading)
        for line in lines.splitlines():
            assert re.fullmatch(r"- \[[^\]]+\]\(https://\S+\): \S.*", line), line


def test_list_of_pages_links_to_files():
    links = re.findall(rf"\({re.escape(agents.RAW)}([^)]+)\)", MADE["llms.txt"])
    assert len(links) == len(set(links)) > 40
    assert not [link for link in links if not (ROOT / link).is_file()]


def test_relative_links_start_from_the_root():
    text = "[a](../python.md#b) [c](#d) [e](https://example.org)"
    expected = "[a](docs/python.md#b) [c](docs/contributing/method.md#d) [e](https://example.org)"
    assert agents.relinked("docs/contributing/method.md", text) == expected


def test_a_missing_section_is_named():
    with pytest.raises(ValueError, match=r"CONTRIBUTING\.md has no section 'Dance'"):
        agents.section("CONTRIBUTING.md", "Dance")
