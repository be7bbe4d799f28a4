"""Sphinx's configuration: the pages of this folder, and an API reference of the public names.

Usage, in the repository's folder: ``python -m sphinx -W --keep-going -b html docs build/site``
"""

from __future__ import annotations

import re
from pathlib import Path

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx
from sphinx.writers.html5 import HTML5Translator

from docs._scripts.reference_pages import escape_marks, write_reference
from fedvlp.version import __version__

DOCS = Path(__file__).resolve().parent
SOURCE = "https://github.com/fedvlp/fedvlp"

project = "fedvlp"
author = "The fedvlp contributors"
project_copyright = author
release = __version__
version = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinxcontrib.mermaid"]
exclude_patterns = ["**/__pycache__"]
templates_path: list[str] = []
html_theme = "furo"
html_title = f"fedvlp {__version__}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_js_files = [("copy.js", {"defer": "defer"})]
html_math_renderer = "mathml"
html_theme_options = {
    "source_repository": SOURCE,
    "source_branch": "main",
    "source_directory": "docs/",
}

myst_enable_extensions = ["colon_fence", "dollarmath"]
myst_heading_anchors = 4  # links to a heading are GitHub's
myst_fence_as_directive = ["mermaid"]

default_role = "code"  # docstrings write names between single backticks, too
autodoc_class_signature = "mixed"
autodoc_default_options = {"members": True, "member-order": "bysource"}
autodoc_preserve_defaults = True
autodoc_inherit_docstrings = False  # Lightning's own docstrings are Lightning's
autodoc_typehints_format = "short"
python_maximum_signature_line_length = 88
python_use_unqualified_type_names = True
toc_object_entries_show_parents = "hide"
napoleon_numpy_docstring = False
napoleon_use_ivar = True


def link_to_source(app: Sphinx, page: str, text: list[str]) -> None:
    """Point links to files outside the site, such as sources, to the repository."""
    folder = (DOCS / page).parent

    def changed(link: re.Match[str]) -> str:
        target = (folder / link[1]).resolve()
        is_of_site = target.is_relative_to(DOCS) and target.suffix in (".md", ".png", ".rst")
        if is_of_site or not target.exists():
            return link[0]
        kind = "tree" if target.is_dir() else "blob"
        return f"]({SOURCE}/{kind}/main/{target.relative_to(DOCS.parent)}{link[2] or ''})"

    text[0] = re.sub(r"\]\((?!https?:|#)([^)#\s]+)(#[^)]*)?\)", changed, text[0])


def escape_mathematics(app: Sphinx, what: str, name: str, value: object, options: object, lines: list[str]) -> None:
    """Escape bars and single stars of formulas in docstrings. Remove docstrings that values inherit from their type."""
    if what == "data":
        lines.clear()
    lines[:] = map(escape_marks, lines)


def write_formula(writer: HTML5Translator, node: nodes.math | nodes.math_block) -> None:
    """Write a formula as MathML, which browsers display without scripts."""
    markup = tex2mathml(node.astext())
    if isinstance(node, nodes.math_block):
        markup = markup.replace("<math", '<math display="block"', 1)
    writer.body.append(markup)
    raise nodes.SkipNode


def setup(app: Sphinx) -> None:
    """Write the API reference before Sphinx searches for pages."""
    write_reference(DOCS / "reference")
    app.add_html_math_renderer("mathml", (write_formula, None), (write_formula, None))
    app.connect("source-read", link_to_source)
    app.connect("autodoc-process-docstring", escape_mathematics, priority=100)  # before napoleon
