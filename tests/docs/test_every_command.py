"""Every command and code block of the documentation runs or is parsed, and its names exist."""

import inspect
import re
import shlex
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

import fedvlp
from fedvlp.commands.cli import COMMANDS, main
from fedvlp.federation import Federation
from tests.helpers.desk import OWN_IMAGES
from tests.helpers.documents import EXAMPLE_PAGES, PAGES, ROOT, shorten_training
from tests.helpers.page_commands import PARSED_ONLY, fedvlp_lines, is_run, lines, parses, run

OURS = fedvlp_lines()
OTHERS = {line: words for line, words in lines().items() if "fedvlp" not in words}
PROGRAMS = {
    *(".", "export", "git", "mkdir", "python3", "python", "pip", "openssl", "ssh-keygen", "docker"),
    *("flower-superlink", "flwr", "pre-commit", "mypy", "ruff"),
    *("install", "systemctl", "useradd"),
}
"""Programs besides fedvlp in pages. Before you add one, check whether a test can run it."""

TOOLS = {"build", "pytest", "sphinx", "twine", "venv"}
PLACES = {page.path.relative_to(ROOT).as_posix(): page for page in PAGES}
FOLLOWED = {name: page for name, page in PLACES.items() if page not in EXAMPLE_PAGES}
NOT_RUN = {
    "docs/sites.md": "NVFlare is not installed",
    "docs/which_clip.md": "tests/clip/test_weights.py converts weights of transformers with it",
    "docs/coming_from.md": "it reads a checkpoint of Dassl",
}
"""Pages with Python code that is only compiled, with the reason."""


def programs() -> dict[tuple[str, ...], str]:
    """Map each program of a page, without files, to the first page with it; the landing page repeats the README's."""
    found: dict[tuple[str, ...], str] = {}
    for name, page in FOLLOWED.items():
        code = [block for block in page.blocks("python") if block not in page.files().values()]
        found.setdefault(tuple(code), name)
    return found


RUN_ON = set(programs().values()) - NOT_RUN.keys()


@pytest.fixture
def own_modules(desk, monkeypatch):
    """Make modules from pages importable until the test ends."""
    monkeypatch.syspath_prepend(desk.folder)
    yield
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None)).startswith(str(desk.folder)):
            del sys.modules[name]


@pytest.mark.parametrize("line", OURS, ids=lambda line: line[:100])
def test_commands_run_or_are_parsed(line, desk, own_modules, monkeypatch):
    words = OURS[line]
    if is_run(words):
        assert run(words, desk) == 0
    else:
        replaced = [OWN_IMAGES if word == "RUN" else word for word in words]
        desk.fetch_all(replaced)
        assert parses(replaced, monkeypatch)


def test_every_exception_is_used():
    lines = [" ".join(words) for words in OURS.values()]
    assert not [part for part in PARSED_ONLY if not any(part in line for line in lines)]


def test_other_programs_are_known():
    for line, all_words in OTHERS.items():
        words = [word for word in all_words if not re.match(r"[A-Za-z_]+=", word)] or ["export"]
        assert words[0] in PROGRAMS, line
        assert words[:2] != ["python", "-m"] or words[2] in TOOLS or find_spec(words[2]), line


@pytest.mark.parametrize("name", [name for name, page in FOLLOWED.items() if page.blocks("python")])
def test_python_runs_from_top_to_bottom(name, desk):
    page = FOLLOWED[name]
    names: dict[str, object] = {"__name__": "__main__"}
    for code in page.blocks("python"):
        compiled = compile(shorten_training(code), name, "exec")
        if name in RUN_ON and code not in page.files().values():
            desk.fetch_all(re.findall(r'"(runs/[^"]+)"', code))
            exec(compiled, names)


@pytest.mark.parametrize("name", [name for name, page in FOLLOWED.items() if page.blocks("yaml")])
def test_configs_are_valid(name, desk, monkeypatch):
    card = FOLLOWED[name].path
    method = card.stem if card.parent.name == "methods" else "promptfl"
    for number, code in enumerate(FOLLOWED[name].blocks("yaml")):
        keys = yaml.safe_load(code).keys()
        file = Path(f"block-{number}.yaml")
        file.write_text(code, encoding="utf-8")
        if "models" in keys:
            assert main(["sweep", f"--file={file}", "--dry_run"]) == 0
        elif keys <= {"model", "data", "trainer", "seed_everything"}:
            before = [f"--config=methods/{method}", "--config=data/icon_domains"]
            with monkeypatch.context() as patch:
                assert parses(["fit", *before, f"--config={file}"], patch)
        else:
            assert name in ("docs/sites.md", "docs/policy.md"), "test_sites.py reads their site.yaml"


def spans(start: str) -> dict[str, str]:
    """Map each text in single backticks with this start to the first page that contains it.

    Example pages are skipped, because they name the reader's own code.
    """
    found: dict[str, str] = {}
    for name, page in PLACES.items():
        if page in EXAMPLE_PAGES:
            continue
        prose = re.sub(r"^ *```.*?^ *```$", "", page.text, flags=re.DOTALL | re.MULTILINE)
        for span in re.findall(rf"(?<!`)`({re.escape(start)}[^`]*)`(?!`)", prose):
            found.setdefault(" ".join(span.split()), name)
    return found


@pytest.mark.parametrize("span", spans("fedvlp "))
def test_commands_in_the_text(span, capsys, desk, monkeypatch):
    words = shlex.split(span)[1:]
    assert words[0] in {*(command.name for command in COMMANDS), "--help", "--version"}
    if not any(word.endswith("help") or word in ("--print_config", "list") for word in words):
        return
    try:
        code = main(words)
    except SystemExit as stop:  # options for help exit
        code = stop.code
    assert code == 0
    assert capsys.readouterr().out


def test_options_of_the_trainer_exist():
    for span, page in spans("--trainer.").items():
        for name in re.findall(r"--trainer\.(\w+)", span):
            assert name in inspect.signature(Federation).parameters, (span, page)


def arguments_of(package: str) -> set[str]:
    """Collect the arguments of a package's public classes and of their bases."""
    found: set[str] = set()
    for value in (getattr(fedvlp, name) for name in fedvlp.__all__):
        if inspect.isclass(value) and value.__module__.startswith(package):
            for kind in inspect.getmro(value):
                if kind.__module__.startswith("fedvlp"):
                    found.update(inspect.signature(kind).parameters)
    return found


@pytest.mark.parametrize(("start", "package"), [("--data.", "fedvlp.data"), ("--model.", "fedvlp.methods")])
def test_options_of_classes_exist(start, package):
    options = arguments_of(package) | {"help"}
    if start == "--data.":
        from fedvlp.sites.data import SitesData

        options |= {*inspect.signature(SitesData).parameters, "classes", "domains"}
    for span, page in spans(start).items():
        for name in re.findall(rf"{re.escape(start)}(\w+)", span):
            assert name in options, (span, page)


def test_configs_in_the_text_exist():
    for folder in ("methods", "data", "add_ons", "aggregators", "clip", "loggers"):
        named = [span for span in spans(f"{folder}/") if re.fullmatch(r"\w+/\w+", span)]
        assert not [span for span in named if not (ROOT / "configs" / f"{span}.yaml").is_file()]
