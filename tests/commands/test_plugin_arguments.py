"""What the command line says of plug-ins that are misspelled, broken or at odds with others."""

from __future__ import annotations

import pytest

from fedvlp.commands.cli import main
from fedvlp.commands.plugin_arguments import import_plugins
from fedvlp.utils.errors import UserError
from tests.helpers.plugins import install, on_the_path

METHOD = "from fedvlp import PromptFL\nclass Quincunx(PromptFL):\n    pass\n"


@pytest.fixture
def site(tmp_path):
    """A plug-in that works, and one that can't be imported."""
    with on_the_path(tmp_path / "site") as folder:
        groups = {"fedvlp.methods": {"Quincunx": "quincunx_one:Quincunx"}}
        install(folder, "quincunx-one", "0.4", groups, {"quincunx_one.py": METHOD})
        groups = {"fedvlp.methods": {"Broken": "broken_one:Broken"}}
        install(folder, "broken-one", "0.4", groups, {"broken_one.py": "import nowhere_at_all\n"})
        yield folder


@pytest.mark.parametrize("form", ["option", "equals", "config", "path", "yaml"])
def test_a_broken_plugin_is_named_when_it_is_asked_for(site, tmp_path, form):
    config = tmp_path / "mine.yaml"
    config.write_text("model:\n  class_path: Broken\n")
    given = {
        "option": ["--model", "Broken"],
        "equals": ["--model=Broken"],
        "config": [f"--config={config}"],
        "path": ["--model.class_path=broken_one.Broken"],
        "yaml": ["--model={class_path: Broken}"],
    }
    with pytest.raises(UserError, match=r"broken-one 0\.4 registers Broken, but .*No module named 'nowhere_at_all'"):
        import_plugins(["fit", *given[form]])


def test_what_no_parser_reads_is_left_to_the_parser(site):
    import_plugins(["fit", "--model={class_path: [", "--data=\0", "-x", "=", "", "--config=a: [\n"])


def test_help_lists_plugins_and_names_broken_ones(site, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["fit", "--help"])
    assert ended.value.code == 0
    shown = capsys.readouterr()
    assert "quincunx_one.Quincunx" in shown.out
    assert shown.err.count("warning: The plug-in broken-one 0.4 registers Broken") == 1
