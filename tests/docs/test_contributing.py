"""The code and commands of CONTRIBUTING.md and its pages work in a folder outside the package."""

import csv
import doctest
import re
import runpy
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

from fedvlp.commands import cli
from fedvlp.commands.cli import main
from tests.helpers.documents import NO_BASELINES, ROOT, Document, brief, shorten_training

GUIDE = Document(ROOT / "CONTRIBUTING.md")
PAGES = {path.stem: Document(path) for path in sorted((ROOT / "docs" / "contributing").glob("*.md"))}
EXAMPLES = sorted(PAGES.keys() - {"plugin"})  # tests/examples follows the page of plug-ins
TOP_LEVEL = {path.name for path in ROOT.iterdir()}


@pytest.fixture
def desk(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty working folder on the import path until the test ends."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None)).startswith(str(tmp_path)):
            del sys.modules[name]


def shell(page: Document) -> list[str]:
    """List the lines of a page's commands."""
    return "".join(page.blocks("bash")).replace("\\\n", " ").splitlines()


def run(line: str) -> None:
    """Run a command of a page in this process: a short fedvlp command, a program, or the tests in a file."""
    words = line.removeprefix("PYTHONPATH=. ").split()
    if words[0] == "fedvlp":
        assert main([*words[1:], *([*brief(words), NO_BASELINES] if words[1] == "fit" else [])]) == 0
        return
    assert words[0] == "python"
    if words[1:3] == ["-m", "pytest"]:
        assert run_tests(words[3])
    elif words[1:3] == ["-m", "doctest"]:
        assert run_doctests(words[3])
    else:
        code = 0
        try:
            runpy.run_path(words[1], run_name="__main__")
        except SystemExit as end:
            code = end.code
        assert code == 0


def run_tests(file: str) -> int:
    """Call the tests of a file, and count them."""
    module = import_module(Path(file).stem)
    tests = [value for name, value in vars(module).items() if name.startswith("test_")]
    for test in tests:
        test()
    return len(tests)


def run_doctests(file: str) -> int:
    """Run the examples in a file's docstrings, and count them."""
    result = doctest.testmod(import_module(Path(file).stem))
    assert not result.failed
    return result.attempted


def follow(page: Document, folder: Path) -> None:
    """Write a page's files into a folder, run its commands there, and call the remaining tests."""
    for file, code in page.files().items():
        (folder / file).write_text(code, encoding="utf-8")
    lines = shell(page)
    assert lines
    for line in lines:
        run(line)
    for file in page.files():
        if file.startswith("test_") and not any(file in line for line in lines):
            assert run_tests(file)


@pytest.mark.parametrize("name", [name for name in EXAMPLES if name != "callback"])
def test_a_page_can_be_followed(name, desk):
    follow(PAGES[name], desk)


@pytest.mark.parametrize(
    ("name", "file"),
    [("method", "task_residual.py"), ("server", "geometric_median.py"), ("add_on", "client_momentum.py")],
)
def test_a_new_class_is_one_file_of_forty_lines(name, file):
    assert len(PAGES[name].files()[file].splitlines()) <= 40


def test_the_callback_writes_the_table_of_its_page(desk):
    page = PAGES["callback"]
    follow(page, desk)
    exec(shorten_training(page.files()["use_norms.py"]), {})
    tables = list((desk / "runs").glob("*/*/update_norms.csv"))
    assert len(tables) == 3
    for table in tables:
        rows = list(csv.DictReader(table.read_text(encoding="utf-8").splitlines()))
        assert [row["client"] for row in rows] == ["colour", "duotone", "emoji", "line", "solid"]
        assert all(float(row["distance"]) > 0 for row in rows)


def test_the_command_can_be_entered_in_the_table(desk, monkeypatch, capsys):
    (desk / "history.py").write_text(PAGES["callback"].files()["history.py"], encoding="utf-8")
    monkeypatch.setitem(sys.modules, "fedvlp.commands.history", import_module("history"))
    entry = cli.Command("history", "commands.history:run_history", "List finished runs.")
    monkeypatch.setattr(cli, "COMMANDS", (*cli.COMMANDS, entry))
    assert main(["history", "nowhere"]) == 1
    assert "Expected at least one finished run" in capsys.readouterr().err


def test_every_block_of_code_is_a_file_that_is_run():
    for name in EXAMPLES:
        blocks = [*PAGES[name].blocks("python"), *PAGES[name].blocks("yaml")]
        assert sorted(blocks) == sorted(PAGES[name].files().values())


def test_examples_have_the_packages_style(tmp_path):
    for page in PAGES.values():
        for file, code in page.files().items():
            if file.endswith(".py"):
                (tmp_path / f"{page.path.stem}_{file}").write_text(code, encoding="utf-8")
    style = ["--config", str(ROOT / "pyproject.toml"), "--no-cache"]
    for command in (["check", *style, "--select", "B,E,F,W", "--ignore", "F722,F821"], ["format", "--check", *style]):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *command, "."], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_paths_lead_to_files():
    for page in (GUIDE, *PAGES.values()):
        spans = re.findall(r"`([\w./-]+/[\w./-]*)`", page.text)
        inside = [span for span in spans if span.split("/")[0] in TOP_LEVEL and "NAME" not in span]
        assert not [span for span in inside if not (ROOT / span).exists()]


def test_the_guide_leads_to_every_page():
    assert {(ROOT / link).resolve() for link in GUIDE.links()} >= {page.path for page in PAGES.values()}


def test_the_guides_setup_equals_the_readme():
    assert GUIDE.blocks("bash")[0] == Document(ROOT / "README.md").blocks("bash")[1]


def test_the_guides_checks_equal_continuous_integration():
    run = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    checks = [line.strip() for line in run.splitlines()]
    guide = [line for line in shell(GUIDE) if line.startswith(("ruff", "mypy"))]
    assert guide == [line for line in checks if line.startswith(("ruff", "mypy"))]
