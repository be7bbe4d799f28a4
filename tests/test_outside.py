"""Tests that write outside their temporary folders fail, for every way of writing."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = """
from pathlib import Path
from tests.helpers.outside import Guard

def pytest_configure(config):
    config.pluginmanager.register(Guard(Path(__file__).parent, config))
"""
TESTS = """
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent

def elsewhere(code):
    subprocess.run([sys.executable, "-c", f"from pathlib import Path; {code}"], check=True)

def test_writes_at_home():
    Path("~/at_home").expanduser().write_text("")

def test_elsewhere_at_home():
    elsewhere("(Path.home() / '.cache' / 'package').mkdir(parents=True)")

def test_elsewhere_in_the_root():
    elsewhere(f"Path({str(HERE)!r}, 'runs').mkdir()")

def test_writes_in_the_tree():
    (HERE / "folder" / "new").write_text("")

def test_makes_a_folder():
    (HERE.parent / "made").mkdir()

def test_moves(tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "file").rename(HERE.parent / "moved")

def test_writes_through_a_link(tmp_path):
    (tmp_path / "link").symlink_to(HERE.parent)
    (tmp_path / "link" / "linked").write_text("")

def test_appends_to_what_is_there():
    with open(HERE / "conftest.py", "a"):
        pass

def test_removes_what_it_wrote():
    (HERE / "brief").write_text("")
    (HERE / "brief").unlink()

@pytest.fixture
def made():
    (HERE.parent / "by_a_fixture").write_text("")

def test_with_a_fixture(made):
    pass

def test_fails_itself():
    (HERE.parent / "by_a_failure").write_text("")
    assert False

def test_allowed(tmp_path):
    (tmp_path / "file").write_text("")
    (HERE / "folder").mkdir(exist_ok=True)
    (HERE / "conftest.py").read_text()
    Path(os.devnull).write_text("")
    elsewhere(f"Path({str(tmp_path)!r}, 'other').write_text('')")
    elsewhere("import tempfile; tempfile.mkstemp()")
"""
FOUND = {
    "test_writes_at_home": "~/at_home",
    "test_elsewhere_at_home": "~/.cache/package",
    "test_elsewhere_in_the_root": "{}/project/runs",
    "test_writes_in_the_tree": "{}/project/folder/new",
    "test_makes_a_folder": "{}/made",
    "test_moves": "{}/moved",
    "test_writes_through_a_link": "{}/linked",
    "test_appends_to_what_is_there": "{}/project/conftest.py",
    "test_removes_what_it_wrote": "{}/project/brief",
    "test_with_a_fixture": "{}/by_a_fixture",
    "test_fails_itself": "{}/by_a_failure",
}


@pytest.fixture
def output(tmp_path: Path) -> str:
    """Run pytest on tests that write to many places, and return its output."""
    project = tmp_path / "project"
    (project / "folder").mkdir(parents=True)
    (tmp_path / "temporary").mkdir()
    (project / "pytest.ini").write_text("[pytest]\naddopts = -p no:cacheprovider --color=no\n")
    (project / "conftest.py").write_text(CONFTEST)
    (project / "test_writing.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-q", str(project)]
    environment = {**os.environ, "TMPDIR": str(tmp_path / "temporary"), "PYTHONPATH": str(Path(__file__).parents[1])}
    return subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, check=False).stdout


def test_every_write_outside_is_reported_with_its_path(output, tmp_path):
    named = re.findall(r"test_writing\.py::(\w+) wrote outside its temporary folders:\n((?:  \S+\n)+)", output)
    found = {name: paths.split() for name, paths in named}
    assert found.keys() == FOUND.keys(), output
    for name, path in FOUND.items():
        assert path.format(tmp_path) in found[name]
    assert "10 failed, 1 passed, 2 errors" in output
