"""The plug-in template, installed from its folder: trained, checked against its contracts, and used elsewhere."""

import configparser
import doctest
import json
import re
import shutil
from importlib import import_module

import pytest
import torch
import yaml

import fedvlp
from fedvlp.commands.cli import main
from fedvlp.commands.lightning_cli import ParsingCLI
from fedvlp.tools.export.export import ExportedClassifier, example_images
from fedvlp.utils.plugins import plugin_configs, registered_classes
from tests.helpers.documents import BRIEF, ROOT, Document
from tests.helpers.plugins import install, on_the_path

TEMPLATE = ROOT / "examples" / "plugin"
PROJECT = (TEMPLATE / "pyproject.toml").read_text(encoding="utf-8")
PAGE = Document(ROOT / "docs" / "contributing" / "plugin.md")
README = Document(TEMPLATE / "README.md")
NAMES = {"EqualNormMean", "SmoothPromptFL", "Stripes"}
SMALL = ["--model.clip.name=fedvlp-tiny", "--trainer.accelerator=cpu", *BRIEF]


def entry_points(text: str) -> dict[str, dict[str, str]]:
    """Parse the entry points of a pyproject.toml; their sections contain only names and texts."""
    sections = re.findall(r'^\[project\.entry-points\."([\w.]+)"\]\n(.*?)(?=^\[|\Z)', text, re.DOTALL | re.MULTILINE)
    found = {}
    for group, lines in sections:
        parser = configparser.ConfigParser()
        parser.optionxform = str
        parser.read_string(f"[entries]\n{lines}")
        found[group] = {name: value.strip('"') for name, value in parser["entries"].items()}
    return found


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The template as an installer leaves it: its files, and the metadata that its pyproject.toml says."""
    with on_the_path(tmp_path_factory.mktemp("site")) as site:
        shutil.copytree(TEMPLATE / "src" / "my_prompts", site / "my_prompts")
        install(site, "my-prompts", "0.1.0", entry_points(PROJECT), {})
        yield site


@pytest.fixture(scope="module")
def trained(installed, tmp_path_factory):
    """Train the plug-in's method with its aggregator and data, and return the run folder."""
    root = tmp_path_factory.mktemp("trained")
    arguments = ["--config=smooth_promptfl", "--config=stripes", "--config=equal_norm_mean", *SMALL]
    arguments += [f"--data.cache_dir={root / 'cache'}", f"--trainer.default_root_dir={root / 'runs'}"]
    assert main(["fit", *arguments]) == 0
    return next((root / "runs").glob("*/*"))


def test_a_run_records_the_plugin_of_its_classes(trained, capsys):
    summary = json.loads((trained / "summary.json").read_text())
    assert summary["plugins"] == {
        "my-prompts": {"version": "0.1.0", "classes": ["SmoothPromptFL", "Stripes", "EqualNormMean"]}
    }
    assert summary["versions"]["my-prompts"] == "0.1.0"
    assert summary["model"]["class_path"] == "my_prompts.smooth_promptfl.SmoothPromptFL"


def test_commands_use_its_runs_from_any_folder(trained, image_root, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    commands = [
        ["predict", f"--ckpt_path={trained}", f"--images={image_root / 'photo'}", "--trainer.accelerator=cpu"],
        ["test", f"--config={trained / 'config.yaml'}", f"--ckpt_path={trained}"],
        ["explain", f"--ckpt_path={trained}", "--what=overlays", "--num_images=1", "--output=explained"],
        ["compare", str(trained)],
        ["report", str(trained), "--output=report.html"],
    ]
    for command in commands:
        assert main(command) == 0
    assert len((tmp_path / "predictions.csv").read_text().splitlines()) == 25
    assert (tmp_path / "explained" / "overlays.png").is_file()
    printed = capsys.readouterr().out
    assert "held_out/blue" in printed
    assert re.search(r"^smooth_promptfl +last", printed, re.MULTILINE)
    report = (tmp_path / "report.html").read_text()
    assert "my-prompts" in report
    assert "SmoothPromptFL" in report


def test_its_trained_method_is_exported_from_any_folder(trained, tmp_path, monkeypatch):
    """Check only the method passed to the exporter; tests/tools/export covers the files."""
    exported_methods = []

    def export_method(method, file_format, output, inputs):
        exported_methods.append(method)
        return 0.0

    monkeypatch.setattr("fedvlp.tools.export.export.export_method", export_method)
    monkeypatch.chdir(tmp_path)
    assert main(["export", str(trained.parent), "--format=onnx", "--output=smooth.onnx"]) == 0
    (method,) = exported_methods
    classifier = fedvlp.from_pretrained(trained)
    images = example_images(method, 2)
    assert type(method) is type(classifier.method) is registered_classes()["SmoothPromptFL"].load()
    assert torch.equal(ExportedClassifier(method)(images), classifier(images))


def test_a_trained_file_is_rejected_without_the_plugin(trained, image_root, tmp_path, monkeypatch, capsys):
    """Classes are found only in installed packages, even if they could be imported."""
    monkeypatch.setattr("fedvlp.utils.plugins.registered_classes", dict)
    assert main(["predict", f"--ckpt_path={trained}", f"--images={image_root / 'photo'}"]) == 1
    errors = capsys.readouterr().err
    assert "my_prompts.smooth_promptfl.SmoothPromptFL" in errors
    assert "install the package that registers it, or pass --allow" in errors


def test_its_own_tests_pass(installed, monkeypatch):
    monkeypatch.syspath_prepend(TEMPLATE / "tests")
    for path in (TEMPLATE / "tests").glob("test_*.py"):
        tests = [value for name, value in vars(import_module(path.stem)).items() if name.startswith("test_")]
        assert len(tests) >= 2
        for test in tests:
            test()


def test_its_docstring_examples_pass(installed):
    found = doctest.testmod(import_module("my_prompts.equal_norm_mean"))
    assert (found.failed, found.attempted) == (0, 3)


def test_its_classes_are_registered_but_not_part_of_fedvlp(installed):
    assert registered_classes().keys() >= NAMES  # other plug-ins may be installed
    for name in NAMES:
        assert registered_classes()[name].load()
        assert name not in fedvlp.__all__


def test_each_of_its_configs_names_one_of_its_classes(installed):
    assert plugin_configs().keys() >= {"equal_norm_mean", "smooth_promptfl", "stripes"}
    named = set()
    for path in (TEMPLATE / "src" / "my_prompts" / "configs").glob("*.yaml"):
        content = repr(yaml.safe_load(path.read_text()))
        named |= {name for name in NAMES if name in content}
    assert named == NAMES


def test_the_page_shows_the_templates_files(installed):
    assert entry_points(PAGE.blocks("toml")[0]) == entry_points(PROJECT)
    scope: dict = {}
    exec(PAGE.blocks("python")[0], scope)  # the template's own tests call these functions
    assert [name for name in scope if name.startswith("test_")] == ["test_method", "test_aggregator", "test_data"]


@pytest.mark.parametrize("page", [PAGE, README], ids=["page", "README"])
def test_the_commands_of_its_pages_can_be_parsed(installed, page):
    """Only parse the commands; the tests above run them."""
    commands = [words[2:] for words in page.commands("fedvlp") if "--model.help" not in words]
    assert len(commands) >= 2
    for words in commands:
        parsed = ParsingCLI(run=False, args=words, save_config_callback=None).config
        assert parsed.model.class_path.endswith("SmoothPromptFL") == ("quickstart" not in words)
