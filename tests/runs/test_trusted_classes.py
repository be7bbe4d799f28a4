"""No module that a file names is imported, unless it is fedvlp's own or the user allows it."""

import shutil
import sys
from collections.abc import Iterator

import pytest
import yaml

from fedvlp.commands.cli import main
from fedvlp.commands.trained_config import trained_config
from fedvlp.core.aggregation.base import Aggregator
from fedvlp.data.partition import Partitioner
from fedvlp.runs.trusted_classes import check_classes, is_own_class
from fedvlp.training.add_ons import AddOn
from fedvlp.training.cohort import Attack
from fedvlp.training.local_training import Schedule
from fedvlp.utils.errors import UserError
from tests.helpers.files import rewrite
from tests.helpers.runs import short_fit

OWN = "fedvlp.methods.promptfl.PromptFL"
NOT_CHOSEN = {
    *("_Divided", "GivenClients", "OuterAggregator", "ServerOptimizer", "ModelAttack"),
    *("Backdoor", "ClipGradients", "NoisyUpload", "HostileUpload", "WeightedByLoss"),
}
"""Classes that are extended by others, or made by the library from options."""
METHOD = """
import pathlib
pathlib.Path("imported").touch()
from fedvlp import PromptFL
class Mine(PromptFL):
    pass
def optimizer(parameters):
    raise SystemExit
"""


@pytest.fixture(scope="module")
def trained(image_root, tmp_path_factory):
    """Train PromptFL and return the run folder."""
    root = tmp_path_factory.mktemp("trained")
    options = [*short_fit(image_root, root), "--trainer.rounds=1", "--trainer.baselines=[]"]
    assert main(["fit", "--config=promptfl", *options]) == 0
    return next((root / "runs").glob("*/*"))


@pytest.fixture
def stranger(trained, tmp_path, monkeypatch):
    """Make a function that writes prompts with a changed header, next to a module that records whether it ran."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "odd_method.py").write_text(METHOD)
    (tmp_path / "prompts.safetensors").write_bytes((trained / "prompts.safetensors").read_bytes())
    yield lambda change: rewrite(tmp_path / "prompts.safetensors", lambda tensors, header: change(header["model"]))
    sys.modules.pop("odd_method", None)


def option(name, value):
    return lambda model: model["init_args"].update({name: value})


NAMES = [
    lambda model: model.update(class_path="odd_method.Mine"),
    option("optimizer", {"class_path": "odd_method.optimizer"}),
    option("optimizer", "odd_method.optimizer"),
    option("optimizer", "{class_path: odd_method.optimizer}"),
    option("init_words", ["a", {"b": {"class_path": "odd_method.Mine"}}]),
    option("optimizer", "odd_method.py"),
]


@pytest.mark.parametrize("change", NAMES)
def test_modules_named_by_an_untrusted_file_are_not_imported(stranger, tmp_path, change):
    with pytest.raises(UserError, match=r"Importing it runs it.*--allow (odd_method|\{class_path)"):
        trained_config(stranger(change))
    assert not (tmp_path / "imported").exists()


def test_allowed_classes_are_imported(stranger, image_root, tmp_path):
    path = stranger(NAMES[0])
    arguments = [f"--ckpt_path={path}", f"--images={image_root / 'photo'}", "--trainer.accelerator=cpu"]
    assert main(["predict", *arguments, "--allow", "other", "--allow", "odd_method"]) == 0
    assert (tmp_path / "imported").exists()
    assert (tmp_path / "predictions.csv").exists()


ALIASES = "{a0: &a0 [x], " + ", ".join(f"a{i}: &a{i} [{f'*a{i - 1}, ' * 9}]" for i in range(1, 10)) + "}"
"""A billion times x."""
OPTIONS = {
    "aliases in words": {"init_words": ALIASES},
    "tags": {"init_words": "!!timestamp x"},
    "depth": {"init_words": "[" * 900 + "]" * 900},
    "deep lists": {"init_words": eval("[" * 90 + "]" * 90)},
    "length": {"init_words": "word " * 2_000_000},
}
HEADERS = {"no CLIP": option("clip", None), "no method": lambda model: model.pop("class_path")}
CONFIGS = {"aliases": f"data: {ALIASES}", "depth": "data: " + "[" * 400_000}


def test_values_outside_the_limits_are_rejected(tmp_path):
    for options in OPTIONS.values():
        with pytest.raises(UserError, match=f"{tmp_path} cannot be used"):
            check_classes(tmp_path, {"class_path": OWN, "init_args": options})


@pytest.mark.parametrize(
    ("file", "name"),
    [*(("prompts.safetensors", name) for name in HEADERS), *(("config.yaml", name) for name in CONFIGS)],
)
def test_a_file_not_written_by_a_run_is_rejected_in_one_line(trained, tmp_path, monkeypatch, capsys, file, name):
    monkeypatch.chdir(tmp_path)
    run = shutil.copytree(trained, tmp_path / "run")
    shutil.rmtree(run / "checkpoints")
    if file == "config.yaml":
        (run / file).write_text(CONFIGS[name])
    else:
        rewrite(run / file, lambda tensors, header: HEADERS[name](header["model"]))
    before = sorted(path for path in tmp_path.rglob("*"))
    assert main(["test", f"--ckpt_path={run}"]) == 1
    errors = capsys.readouterr().err
    assert errors.count("\n") == 1
    assert len(errors) < 1000
    assert str(run / file) in errors
    assert sorted(path for path in tmp_path.rglob("*")) == before


def test_a_string_stays_a_string(tmp_path):
    for words in ("*star & moon", "&x", "a: b", "2001-99-99", "~nobody here", "\ud800", "x" * 300, "!x"):
        check_classes(tmp_path, {"class_path": OWN, "init_args": {"init_words": words, "class_names": [words]}})


def test_an_untrusted_config_neither_makes_folders_nor_downloads(trained, tmp_path, monkeypatch):
    """Features are stored in the config's cache if it exists, and otherwise in the default cache."""
    home = tmp_path / "home"
    monkeypatch.setenv("HOME", str(home))
    run = shutil.copytree(trained, tmp_path / "run")
    config = yaml.safe_load((run / "config.yaml").read_text())
    config["data"]["init_args"] |= {"cache_dir": str(tmp_path / "cache"), "download": True}
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    arguments = ["test", f"--ckpt_path={run}", "--trainer.accelerator=cpu"]
    assert main(arguments) == 0
    assert not (tmp_path / "cache").exists()
    assert list(home.glob(".cache/fedvlp/features/*"))
    shutil.rmtree(home)
    (tmp_path / "cache" / "features").mkdir(parents=True)
    assert main(arguments) == 0
    assert list(tmp_path.glob("cache/features/*"))
    assert not list(home.glob(".cache/fedvlp/features/*"))


def test_own_classes_are_known_by_their_paths(tmp_path):
    own = [OWN, "fedvlp.methods.trip.trip.TRIP", "TRIP", "fedvlp.TRIP", "fedvlp.data.partition.Dirichlet"]
    assert all(map(is_own_class, own))
    others = ["", "mine.TRIP", "fedvlp.methods.promptfl.TRIP", "fedvlp.load_clip", "load_clip", "Elsewhere"]
    assert not any(map(is_own_class, others))
    config = {"class_path": OWN, "init_args": {"class_names": ["os.path", "sys.exit"], "init_words": "a photo of a"}}
    check_classes(tmp_path, config)


def subclasses(kind: type) -> Iterator[type]:
    """Yield all subclasses of a class."""
    for each in kind.__subclasses__():
        yield each
        yield from subclasses(each)


def test_all_classes_of_options_are_own():
    for kind in (Schedule, AddOn, Aggregator, Attack, Partitioner):
        ours = [each for each in subclasses(kind) if each.__module__.startswith("fedvlp.")]
        own = [each for each in ours if each.__name__ not in NOT_CHOSEN]
        assert len(own) > 2
        for each in own:
            assert is_own_class(each.__name__)
            assert is_own_class(f"{each.__module__}.{each.__name__}")


def test_no_other_module_is_trusted(tmp_path):
    for path in (
        *("torch.optim", "torch.optim.adam", "torch.optim.sgd.torch.hub.load", "torch.hub.load", "torch.nn.Linear"),
        *("torch.optim.sgd.SGD", "torch.optim.lr_scheduler.LambdaLR", "torch.optim.SGD.step", "os.torch.optim.SGD"),
        *("fedvlp.methods.promptfl", "fedvlp.methods.promptfl.torch.hub.load", "os.system"),
    ):
        for config in ({"optimizer": {"class_path": path}}, {"class_path": path}):
            with pytest.raises(UserError, match="not part of fedvlp"):
                check_classes(tmp_path, config)


def test_a_table_and_a_file_with_the_name_of_a_domain_are_no_code(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("photo", "other.yaml", "images.csv"):
        (tmp_path / name).write_text("{}")
    check_classes(tmp_path, {"data": {"init_args": {"held_out": "photo", "table": "images.csv"}}})
    for path in ("other.yaml", "photo"):
        with pytest.raises(UserError, match="needs code"):
            check_classes(tmp_path, {"trainer": {"local": path}})
