"""The architecture's pictures are those of the code, and its text names what is there."""

from __future__ import annotations

import re
from itertools import chain
from pathlib import Path

import pytest

from docs.architecture import COMMAND, PAGE, ROOT, main, parts, with_parts
from docs.round_diagram import hook_steps, round_diagram
from docs.source_tree import Module, Package, read_package
from fedvlp.training.callback import FederationCallback

TEXT = PAGE.read_text(encoding="utf-8")
# Words that belong to other libraries, or to the shell.
FOREIGN = {"last", "LightningModule", "lightning.Trainer", "fit", "test", "predict", "__init__", "__main__"}

CALLBACK = '''\
class FederationCallback:
    """Hooks.

    ::

        before, also_before    someone else's; both
        for each round:
            for each phase, for each client:
                on_client_end    it is done
            on_phase_end         after each phase
            on_round_end
    """
'''


def code_spans() -> list[str]:
    """What stands between backticks in the text, without blocks and tables that are made from the code."""
    written = re.sub(r"<!-- (\w+): written.*?<!-- end of \1 -->", "", TEXT, flags=re.DOTALL)
    written = re.sub(r"^```.*?^```$", "", written, flags=re.DOTALL | re.MULTILINE)
    return re.findall(r"`([^`]+)`", written)


def test_pictures_and_tables_are_those_of_the_code():
    assert with_parts(TEXT, parts()) == TEXT, f"docs/architecture.md is older than the code: run `{COMMAND}`"


def test_check_says_what_to_run(capsys, monkeypatch, tmp_path):
    page = tmp_path / "architecture.md"
    made = parts()
    monkeypatch.setattr("docs.architecture.parts", lambda: made)  # which takes seconds
    newest = with_parts(TEXT, made)
    page.write_text(newest.replace("flowchart TD", "flowchart LR"), encoding="utf-8")
    monkeypatch.setattr("docs.architecture.PAGE", page)
    assert main(["--check"]) == 1
    assert f"run {COMMAND}" in capsys.readouterr().out
    assert main([]) == 0
    assert main(["--check"]) == 0
    assert page.read_text(encoding="utf-8") == newest


def test_a_page_without_marks_is_refused():
    with pytest.raises(ValueError, match="one pair of marks"):
        with_parts("no marks", {"rooms": ""})


def test_every_hook_is_a_step_of_the_round():
    steps = hook_steps(read_package(ROOT).modules["fedvlp.training.callback"])
    named = list(chain.from_iterable(step.names for step in steps))
    assert [name for name in named if name in vars(FederationCallback)] == [
        name for name in vars(FederationCallback) if name.startswith("on_")
    ]
    assert len(set(named)) == len(named)


def test_loops_and_steps_are_drawn(monkeypatch):
    monkeypatch.setattr("docs.round_diagram.BEFORE", {"on_phase_end": ["F->>S: aggregate"]})
    name = "made.training.callback"
    drawn = round_diagram(Package("made", {name: Module(name, Path("training/callback.py"), CALLBACK)}))
    assert [line.strip() for line in drawn.splitlines()[6:-1]] == [
        "Note over F: before, also_before (someone else's, both)",
        "loop each round",
        "loop each phase",
        "loop each client",
        "Note over F: on_client_end (it is done)",
        "end",
        "F->>S: aggregate",
        "Note over F: on_phase_end (after each phase)",
        "end",
        "Note over F: on_round_end",
        "end",
    ]
    monkeypatch.setattr("docs.round_diagram.BEFORE", {"on_moon": []})
    with pytest.raises(ValueError, match="on_moon"):
        round_diagram(Package("made", {name: Module(name, Path("training/callback.py"), CALLBACK)}))


@pytest.mark.parametrize("span", sorted({span for span in code_spans() if "/" in span}))
def test_paths_in_the_text_exist(span):
    assert (ROOT / span).exists()


def test_names_in_the_text_are_those_of_the_code():
    source = "\n".join(module.text for module in read_package(ROOT).modules.values())
    words: set[str] = set()
    for span in code_spans():
        if "/" not in span and not span.startswith(("python -m", "--")):
            words.update(re.findall(r"\w[\w.]*", span.partition("(")[0].partition(":")[0]))
    unknown = {word for word in words - FOREIGN if not re.search(rf"\b{re.escape(word.split('.')[-1])}\b", source)}
    assert not unknown


def test_links_lead_to_files():
    links = re.findall(r"\]\((?!https?:)([^)#]+)\)", TEXT)
    assert links
    assert not [link for link in links if not (PAGE.parent / link).exists()]
