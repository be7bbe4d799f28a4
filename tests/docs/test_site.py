"""The site contains every page and every public name, and links to sources lead to the repository."""

import re
from types import SimpleNamespace

import pytest

import fedvlp
from docs._scripts.reference_pages import pages, public_packages, write_reference
from tests.helpers.documents import PAGES, ROOT, Document

DOCS = ROOT / "docs"
INDEX = Document(DOCS / "index.md")
TOCTREES = re.findall(r"^```{toctree}\n(.*?)^```$", INDEX.text, re.DOTALL | re.MULTILINE)


def test_every_page_is_in_the_contents_once():
    listed: list[str] = []
    for tree in TOCTREES:
        assert re.match(r":caption: \w", tree), "each part of the contents has a title"
        for entry in tree.splitlines():
            if entry and not entry.startswith(":") and "<" not in entry:
                found = sorted(path.relative_to(DOCS).as_posix() for path in DOCS.glob(f"{entry}.md"))
                assert found or entry == "reference/*", f"no page for {entry!r}"
                listed += found
    every = sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md"))
    assert sorted([*listed, "index.md"]) == every


def test_there_are_at_most_30_pages_besides_the_cards():
    pages = [path for path in DOCS.rglob("*.md") if path.parent.name != "methods"]
    assert len(pages) <= 30


def test_every_public_name_is_in_the_reference_once():
    documented: list[int] = []
    for names in pages().values():
        for name in names:
            package, _, attribute = name.rpartition(".")
            documented.append(id(getattr(__import__(package, fromlist=[attribute]), attribute)))
    public: set[int] = set()
    for package in [fedvlp, *public_packages()]:
        names = [name for name in getattr(package, "__all__", ()) if not name.startswith("_")]
        public.update(id(getattr(package, name)) for name in names)
    assert len(documented) == len(set(documented))
    assert public <= set(documented)


def test_pages_of_removed_packages_are_deleted(tmp_path):
    (tmp_path / "fedvlp.gone.rst").write_text("gone", encoding="utf-8")
    write_reference(tmp_path)
    assert not (tmp_path / "fedvlp.gone.rst").exists()
    before = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    assert (tmp_path / "fedvlp.methods.rst").is_file()
    write_reference(tmp_path)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == before


@pytest.fixture(scope="module")
def configuration():
    pytest.importorskip("sphinx", reason="needs the extra `docs`")
    import docs.conf

    return docs.conf


def test_links_to_sources_lead_to_the_repository(configuration):
    changed = {
        "[a](../data.md#check)": "[a](../data.md#check)",
        "[a](../../fedvlp/clip)": "[a](https://github.com/fedvlp/fedvlp/tree/main/fedvlp/clip)",
        "[a](../../README.md#x)": "[a](https://github.com/fedvlp/fedvlp/blob/main/README.md#x)",
        "[a](#here) [b](https://example.org)": "[a](#here) [b](https://example.org)",
    }
    for link, becomes in changed.items():
        text = [link]
        configuration.link_to_source(None, "methods/trip", text)
        assert text == [becomes]


def test_formulas_in_docstrings_are_escaped(configuration):
    lines = ["mu / 2 |w - w_t|^2 of `a|b`, [*batch, d], *source* and **options: x"]
    configuration.escape_mathematics(None, "class", "name", object, None, lines)
    assert lines == [r"mu / 2 \|w - w_t\|^2 of `a|b`, [\*batch, d], *source* and **options: x"]


def test_formulas_of_all_pages_are_written_as_mathml(configuration):
    from docutils import nodes

    starts = {nodes.math: '<math xmlns="http', nodes.math_block: '<math display="block" xmlns="http'}
    formulas = []
    for page in PAGES:
        prose = re.sub(r"```.*?```|`[^`]*`", "", page.text, flags=re.DOTALL)
        formulas += re.findall(r"\$([^$]+)\$", prose)
    assert len(formulas) > 200
    for kind, start in starts.items():
        writer = SimpleNamespace(body=[])
        for formula in formulas if kind is nodes.math else formulas[:1]:
            with pytest.raises(nodes.SkipNode):
                configuration.write_formula(writer, kind("", formula))
        assert all(markup.startswith(start) for markup in writer.body)


def test_the_first_page_installs_trains_predicts_and_shows_a_picture():
    before = INDEX.text.partition("| to | read |")[0]
    install, fit, predict = INDEX.blocks("bash")[0].splitlines()
    assert install.endswith("pip install .")
    assert fit == "fedvlp fit --config quickstart"
    assert predict.startswith("fedvlp predict runs/")
    assert "federation.fit(method, data)" in before
    assert "](quickstart.png)" in before


def test_the_site_uses_all_static_files(configuration):
    files = [*configuration.html_css_files, *(name for name, _ in configuration.html_js_files)]
    assert sorted(files) == sorted(path.name for path in (DOCS / "_static").iterdir())
