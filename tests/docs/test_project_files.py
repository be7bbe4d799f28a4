"""Metadata for services is correct: versions, commands, published files."""

import re
from pathlib import Path
from typing import Any

import yaml

from fedvlp.version import __version__
from tests.helpers.documents import ROOT, Document

PYPROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
OTHERS = [ROOT / "CITATION.cff", ROOT / ".pre-commit-config.yaml"]
EVERY = [*WORKFLOWS, *sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml")), *OTHERS]


def read(path: Path) -> Any:
    # BaseLoader keeps `on` and `3.10` as strings
    return yaml.load(path.read_text(encoding="utf-8"), Loader=yaml.BaseLoader)


def steps(workflow: str) -> dict[str, list[dict[str, Any]]]:
    """Read the steps of each job of a workflow."""
    jobs = read(ROOT / ".github" / "workflows" / workflow)["jobs"]
    return {name: job["steps"] for name, job in jobs.items()}


def lines(steps: list[dict[str, Any]]) -> list[str]:
    """List the shell's lines in some steps."""
    return "\n".join(step["run"] for step in steps if "run" in step).splitlines()


def listed(name: str) -> list[str]:
    """Read the strings in a list of pyproject.toml, which Python 3.10 cannot parse by itself."""
    (found,) = re.findall(rf"^{name} = \[\n(.*?)^\]$", PYPROJECT, re.DOTALL | re.MULTILINE)
    return re.findall(r'"([^"]+)"', found)


def test_every_file_is_yaml():
    for path in EVERY:
        assert isinstance(read(path), dict), path


def test_citation_is_of_this_version():
    citation = read(ROOT / "CITATION.cff")
    assert citation["cff-version"] == "1.2.0"
    assert citation["version"] == __version__
    assert citation["authors"] == [{"name": "The fedvlp contributors"}]
    assert citation.keys() >= {"message", "title"}
    assert f'license = "{citation["license"]}"' in PYPROJECT
    assert f'Homepage = "{citation["repository-code"]}"' in PYPROJECT


def test_tests_run_on_every_python_that_is_claimed():
    claimed = re.findall(r"Python :: (3\.\d+)", PYPROJECT)
    assert claimed == ["3.10", "3.11", "3.12", "3.13", "3.14"]
    assert read(ROOT / ".github" / "workflows" / "ci.yml")["jobs"]["tests"]["strategy"]["matrix"]["python"] == claimed
    lowest = claimed[0]
    assert f'requires-python = ">={lowest}"' in PYPROJECT
    assert f'python_version = "{lowest}"' in PYPROJECT
    assert f'target-version = "py{lowest.replace(".", "")}"' in PYPROJECT
    (set_up,) = [step for step in steps("ci.yml")["lowest"] if step.get("uses", "").startswith("actions/setup-python@")]
    assert set_up["with"]["python-version"] == lowest


def test_continuous_integration_runs_the_commands_of_readme_and_check():
    install_and_test = Document(ROOT / "README.md").blocks("bash")[1].strip().split(" && ")
    install, test = install_and_test[-2:]
    jobs = steps("ci.yml")
    assert lines(jobs["tests"])[:2] == [install, test]
    assert lines(jobs["lowest"])[-1] == test
    run = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    check = [line.strip() for line in run.splitlines()]
    assert [line for line in lines(jobs["lint"]) if line != install] == [
        line for line in check if line.startswith(("ruff", "mypy"))
    ]
    (fit,) = [line for line in lines(jobs["wheel"]) if "fedvlp fit" in line]
    (checked,) = [line for line in check if line.startswith("fedvlp fit")]
    assert set(fit.split()) <= set(checked.split())
    (site,) = [line for line in check if " sphinx " in line]
    built = [line for line in [*lines(jobs["docs"]), *lines(steps("docs.yml")["build"])] if " sphinx " in line]
    assert len(built) == 2
    assert all(line.removesuffix(" build/site") in site for line in built)


def test_workflows_have_few_permissions():
    for path in WORKFLOWS:
        workflow = read(path)
        assert workflow["permissions"] == {"contents": "read"}, path
        assert "secrets." not in path.read_text(encoding="utf-8"), path
        for job in workflow["jobs"].values():
            assert job.get("permissions", {}) in ({}, {"id-token": "write"}, {"id-token": "write", "pages": "write"})


def test_a_release_follows_its_page():
    page = Document(ROOT / ".github" / "RELEASING.md")
    build = page.blocks("bash")[0].splitlines()
    assert [line for line in lines(steps("release.yml")["build"]) if line.startswith("python -m")] == build
    assert [line for line in lines(steps("ci.yml")["wheel"]) if line.startswith("python -m ")][:3] == build
    version = page.blocks("bash")[2].splitlines()[0]
    assert version in lines(steps("release.yml")["build"])


def test_the_source_distribution_contains_the_whole_repository():
    always = {".git", ".gitignore", "pyproject.toml", "PKG-INFO"}
    ignored = [line.strip("/") for line in (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines() if line]
    root_names = {path.name for path in ROOT.iterdir()}
    for pattern in ignored:
        root_names -= {name for name in root_names if Path(name).match(pattern)}
    assert root_names - always == {name.strip("/") for name in listed("include")}


def test_the_readmes_links_work_on_pypi():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    found = re.findall(r"^pattern = '(.*)'\nreplacement = '(.*)'$", PYPROJECT, re.MULTILINE)
    assert len(found) == 2
    for pattern, replacement in found:
        text = re.sub(pattern, replacement, text)
    targets = re.findall(r"\]\(([^)]+)\)", text)
    assert len(targets) > 20
    assert not [target for target in targets if not target.startswith("https://")]
    assert "](https://raw.githubusercontent.com/fedvlp/fedvlp/v$HFPR_VERSION/docs/quickstart.png)" in text


def test_extras_are_explained():
    (section,) = re.findall(r"^\[project.optional-dependencies\]\n(.*?)^\[", PYPROJECT, re.DOTALL | re.MULTILINE)
    extras = re.findall(r"^(\w+) = \[", section, re.MULTILINE)
    page = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)) == sorted(extras)


def test_every_folder_of_tests_is_run_by_the_readme_or_by_ci():
    folders = {path.relative_to(ROOT).as_posix() for path in (ROOT / "tests").iterdir() if has_tests(path)}
    run = set(re.findall(r"tests/\w+(?:\.py)?", (ROOT / ".ci" / "run").read_text(encoding="utf-8")))
    (paths,) = re.findall(r"^testpaths = \[(.*?)\]", PYPROJECT, re.DOTALL | re.MULTILINE)
    patterns = re.findall(r'"(tests/[^"]+)"', paths)
    quick = {path.relative_to(ROOT).as_posix() for pattern in patterns for path in ROOT.glob(pattern)}
    assert folders <= quick | run
    assert not quick & {"tests/docs", "tests/experiments"}


def has_tests(path):
    """Whether a path is a test file or a folder with test files."""
    return path.name.startswith("test_") if path.is_file() else any(path.rglob("test_*.py"))
