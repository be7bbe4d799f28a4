"""No module that a file names is imported, unless it is fedvlp's own or the user allows it."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from fedvlp.commands.cli import main
from fedvlp.commands.trained_config import trained_config
from fedvlp.core.aggregation import Aggregator
from fedvlp.data.partition import Partitioner
from fedvlp.runs.trusted_classes import check_classes, is_own_class
from fedvlp.training.add_ons import AddOn
from fedvlp.training.cohort import Attack
from fedvlp.training.local_training import Schedule
from fedvlp.utils.errors import UserError
from tests.helpers.files import rewritten

OWN = "fedvlp.methods.promptfl.PromptFL"
NOT_CHOSEN = (
    "OuterAggregator",
    "ServerOptimizer",
    "FedDynServer",
    "ModelAttack",
    "Backdoor",
    "ClipGradients",
    "NoisyUpload",
    "HostileUpload",
)
"""What others build on, and what the library makes of what was chosen."""
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
    """A run folder of PromptFL."""
    root = tmp_path_factory.mktemp("trained")
    given = ["--config=promptfl", "--config=folders", f"--data.root={image_root}", "--data.held_out=photo"]
    given += [f"--data.cache_dir={root / 'cache'}", "--model.clip.name=fedvlp-tiny", "--trainer.rounds=1"]
    given += [f"--trainer.default_root_dir={root / 'runs'}", "--trainer.accelerator=cpu"]
    assert main(["fit", *given, "--trainer.enable_progress_bar=false"]) == 0
    return next((root / "runs").glob("*/*"))


@pytest.fixture
def stranger(trained, tmp_path, monkeypatch):
    """Returns a function that makes prompts of a change to their header, beside a module that tells if it ran."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "odd_method.py").write_text(METHOD)
    (tmp_path / "prompts.safetensors").write_bytes((trained / "prompts.safetensors").read_bytes())
    yield lambda change: rewritten(tmp_path / "prompts.safetensors", lambda tensors, header: change(header["model"]))
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
def test_a_module_of_a_strangers_file_is_not_imported(stranger, tmp_path, change):
    with pytest.raises(UserError, match=r"To import it runs it.*--allow (odd_method|\{class_path)"):
        trained_config(stranger(change))
    assert not (tmp_path / "imported").exists()


@pytest.mark.parametrize("allowed", ["odd_method", "odd_method.Mine"])
def test_what_is_allowed_is_imported(stranger, image_root, tmp_path, allowed):
    path = stranger(NAMES[0])
    given = [f"--ckpt_path={path}", f"--images={image_root / 'photo'}", "--trainer.accelerator=cpu"]
    assert main(["predict", *given, "--allow", "other", "--allow", allowed]) == 0
    assert (tmp_path / "imported").exists()
    assert (tmp_path / "predictions.csv").exists()


def test_own_classes_are_known_by_their_paths(tmp_path):
    own = [OWN, "fedvlp.methods.trip.trip.TRIP", "TRIP", "fedvlp.TRIP", "fedvlp.data.partition.Dirichlet"]
    assert all(map(is_own_class, own))
    others = [
        "",
        "os.system",
        "mine.TRIP",
        "fedvlp.methods.promptfl.TRIP",
        "fedvlp.load_clip",
        "load_clip",
        "Elsewhere",
    ]
    assert not any(map(is_own_class, others))
    config = {"class_path": OWN, "init_args": {"class_names": ["os.path", "sys.exit"], "init_words": "a photo of a"}}
    check_classes(tmp_path, config)


def subclasses(kind: type) -> Iterator[type]:
    """Yields all classes below one."""
    for each in kind.__subclasses__():
        yield each
        yield from subclasses(each)


@pytest.mark.parametrize("kind", [Schedule, AddOn, Aggregator, Attack, Partitioner])
def test_whatever_an_option_takes_is_own(kind):
    ours = [each for each in subclasses(kind) if each.__module__.startswith("fedvlp.")]
    own = [each for each in ours if each.__name__ not in NOT_CHOSEN]
    assert len(own) > 2
    for each in own:
        assert is_own_class(each.__name__)
        assert is_own_class(f"{each.__module__}.{each.__name__}")


@pytest.mark.parametrize(
    "path", ["torch.optim", "torch.optim.adam", "torch.optim.sgd.torch.hub.load", "torch.hub.load"]
)
def test_nothing_else_of_pytorch_is_trusted(tmp_path, path):
    with pytest.raises(UserError, match="not fedvlp's own"):
        check_classes(tmp_path, {"optimizer": {"class_path": path}})


@pytest.mark.parametrize("path", ["fedvlp.methods.promptfl", "fedvlp.methods.promptfl.torch.hub.load", "os.system"])
def test_only_classes_of_fedvlp_are_own(tmp_path, path):
    with pytest.raises(UserError, match="not fedvlp's own"):
        check_classes(tmp_path, {"class_path": path})
