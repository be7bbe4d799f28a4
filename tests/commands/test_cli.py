"""The command line as users call it: accepted options, messages and files."""

import csv
import json
import re
import shutil
import sys
from contextlib import redirect_stdout
from functools import partial
from io import BytesIO, StringIO, TextIOWrapper
from pathlib import Path

import pytest
import torch
import yaml

from fedvlp.commands.cli import main
from fedvlp.commands.lightning_cli import DEVICE_OPTIONS, NO_DATA, PREDICT_OPTIONS
from fedvlp.training.lightning_hooks import REFUSED
from fedvlp.utils.errors import UserError
from tests.helpers.forks import exit_code, fork, ranks
from tests.helpers.runs import short_fit

TRIP = ("--config=trip", "--model.templates=1")
NO_BASELINES = "--trainer.baselines=[]"


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"--data.cache_dir={tmp_path_factory.mktemp('cache')}"


@pytest.fixture
def options(image_root: Path, tmp_path: Path, cache: str) -> list[str]:
    return [*short_fit(image_root, tmp_path), cache]


@pytest.fixture(scope="module")
def trip_run(image_root: Path, tmp_path_factory: pytest.TempPathFactory, cache: str) -> tuple[Path, str]:
    """Run TRIP; return the run folder and the printed output."""
    folder = tmp_path_factory.mktemp("trip")
    with redirect_stdout(StringIO()) as printed:
        assert main(["fit", *TRIP, *short_fit(image_root, folder), cache]) == 0
    return run_folder(folder), printed.getvalue()


def run_folder(tmp_path: Path) -> Path:
    return next((tmp_path / "runs").glob("*/*"))


def read_csv(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))


def without_seconds(row: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in row.items() if "seconds" not in name}


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nand more"), "Not enough memory."),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"), "Not enough memory."),
        (RuntimeError("In a worker:\nunable to allocate shared memory(shm) for file"), "(/dev/shm). Pass --data.num"),
        (RuntimeError("killed by signal: Bus error. Workers may be out of shared memory."), "(/dev/shm)"),
    ],
)
def test_too_little_memory_is_explained_in_one_line(monkeypatch, capsys, error, message):
    def fail(words):
        raise error

    monkeypatch.setattr("fedvlp.tools.cost.command.run_cost", fail)
    assert main(["cost"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("fedvlp: error: ")
    assert message in line


def test_missing_and_unknown_commands_are_explained(capsys):
    assert main([]) == 2
    assert "usage: fedvlp" in capsys.readouterr().out
    assert main(["fitt", "--config=promptfl"]) == 2
    assert "There is no command 'fitt'. Did you mean 'fit'?" in capsys.readouterr().err


def test_a_config_comes_from_standard_input_and_names_no_environment_variable(tmp_path, monkeypatch, capsys):
    data = {"class_path": "IconDomains", "init_args": {"held_out": "pixel"}}
    monkeypatch.setattr(sys, "stdin", StringIO(yaml.safe_dump({"data": data})))
    assert printed_config(capsys, "--config=-", "--config=promptfl")["data"]["init_args"]["held_out"] == "pixel"
    (tmp_path / "mine.yaml").write_text("data: {init_args: {root: '${IMAGES}/all'}}")
    assert main(["fit", "--config=promptfl", f"--config={tmp_path / 'mine.yaml'}"]) == 1
    assert "mine.yaml has ${IMAGES}, but configs do not read environment variables" in capsys.readouterr().err


def test_fit_leaves_a_whole_run_folder(trip_run):
    folder, printed = trip_run
    assert {path.name for path in folder.iterdir()} == {
        *("accuracy.png", "checkpoints", "confusion.csv", "config.yaml", "events.jsonl", "metrics.csv"),
        *("predictions.safetensors", "prompts.safetensors", "prompts_best.safetensors", "splits.json", "summary.json"),
    }
    assert "zero-shot CLIP" in printed
    assert "held out" in printed
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["split"] == json.loads((folder / "splits.json").read_text())["hash"]
    titles = list(summary["accuracy"])
    assert titles[:3] == ["zero-shot CLIP", "class means", "last round (2)"]
    assert titles[3].startswith("best on source validation")
    rows = read_csv(folder / "metrics.csv")
    assert [row["round"] for row in rows] == ["1", "2"]
    assert float(rows[1]["held_out/photo"]) == summary["accuracy"]["last round (2)"]["held_out/photo"]
    assert not list(folder.rglob(".*.tmp"))


def test_saved_config_is_accepted_back_and_gives_the_same_result(trip_run, tmp_path):
    folder, _ = trip_run
    arguments = [f"--config={folder / 'config.yaml'}", NO_BASELINES]
    assert main(["fit", *arguments, f"--trainer.default_root_dir={tmp_path / 'runs'}"]) == 0
    assert (folder / "prompts.safetensors").read_bytes() == (run_folder(tmp_path) / "prompts.safetensors").read_bytes()


def test_two_processes_give_the_same_bytes_as_one(options, trip_run, tmp_path):
    """Two gloo ranks train different clients; only updates are gathered."""
    arguments = ["fit", *TRIP, *options, NO_BASELINES, "--trainer.devices=2", "--trainer.strategy=ddp"]
    with ranks(partial(main, arguments), tmp_path / "output") as processes:
        assert [exit_code(process) for process in processes] == [0, 0]
    one, two = trip_run[0], run_folder(tmp_path)
    assert (one / "prompts.safetensors").read_bytes() == (two / "prompts.safetensors").read_bytes()
    for row_of_one, row_of_two in zip(*(read_csv(run / "metrics.csv") for run in (one, two)), strict=True):
        assert without_seconds(row_of_one) == without_seconds(row_of_two)


def test_validate_test_and_predict_from_the_deployed_prompts(trip_run, image_root, tmp_path, capsys):
    folder, _ = trip_run
    row = read_csv(folder / "metrics.csv")[-1]
    trained = [f"--config={folder / 'config.yaml'}", f"--ckpt_path={folder / 'prompts.safetensors'}"]
    scores = tmp_path / "new" / "scores.json"
    assert main(["test", *trained, f"--output={scores}"]) == 0
    assert f"held_out/photo: {float(row['held_out/photo']):.2f} %" in capsys.readouterr().out
    measured = json.loads(scores.read_text(encoding="utf-8"))
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    assert measured["metrics"] == summary["metrics"]["last round"]
    assert measured["accuracy"]["held_out"] == float(row["held_out"])
    assert main(["test", *trained, f"--output={tmp_path}"]) == 1
    assert "Expected the name of a file to write" in capsys.readouterr().err
    assert main(["validate", str(folder.parent), "--data.eval_batch_size=5"]) == 0
    printed = capsys.readouterr().out
    assert f"newest run in {folder.parent}: {folder}\n" in printed
    assert f"validation: {float(row['validation']):.2f} %" in printed

    output = tmp_path / "predictions.csv"
    checkpoint = next((folder / "checkpoints").glob("round-00002*"))
    tables = []
    for path in (checkpoint, folder.parent):
        files = [str(path), f"--images={image_root / 'photo'}", f"--output={output}"]
        assert main(["predict", *files, "--trainer.accelerator=cpu"]) == 0
        tables.append(output.read_text())
    assert tables[0] == tables[1]
    printed = capsys.readouterr().out
    assert f"accuracy: {float(row['held_out/photo']):.2f} %" in printed
    assert printed.count("newest run in ") == 1
    folder_scores = json.loads((tmp_path / "predictions_scores.json").read_text(encoding="utf-8"))
    assert folder_scores["confusion"] == {"labelled/photo": measured["confusion"]["held_out/photo"]}
    assert folder_scores["metrics"]["labelled"]["macro_f1"] == measured["metrics"]["held_out/photo"]["macro_f1"]
    rows = read_csv(output)
    assert len(rows) == 24
    assert list(rows[0]) == ["path", "class", "circle", "square", "star"]
    right = [Path(row["path"]).parent.name == row["class"] for row in rows]
    assert 100 * sum(right) / len(right) == pytest.approx(float(row["held_out/photo"]), abs=1e-3)
    assert sum(float(rows[0][name]) for name in ("circle", "square", "star")) == pytest.approx(1, abs=1e-4)
    assert main(["predict", str(folder), f"--images={rows[0]['path']}", f"--output={output}"]) == 0
    prediction = re.search(r": (\w+) \((\S+) %\)\n", capsys.readouterr().out)
    assert prediction is not None
    assert prediction[1] == rows[0]["class"]
    assert float(prediction[2]) == pytest.approx(100 * float(rows[0][prediction[1]]), abs=0.051)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--data.heldout=photo"], "--data.heldout: there is no such option. Did you mean --data.held_out?"),
        (["--trainer.round=3"], "Did you mean --trainer.rounds?"),
        (["--trainer.max_epochs=3"], "--trainer.rounds sets the number of rounds."),
        (["--lr=1"], "Use --model.optimizer.lr."),
        (["--model.optimizer=Adam", "--model.optimizer.momentum=1"], "Adam has no such option. Choose from amsgrad, "),
        (["--model=Trip"], "--model: no class 'Trip' was found. Did you mean 'TRIP'?"),
        (["--trainer.callbacks=EarlyStoping"], "Did you mean 'EarlyStopping'?"),
        (["--data.class_names_map=[a,b]"], "--data.class_names_map: Expected a dict; Expected a str; got ['a', 'b']."),
        (["--trainer.rounds=two"], "--trainer.rounds: Not of type NonNegativeInt: "),
        (["--trainer.local.epochs=0"], "--trainer.local.epochs: Not of type PositiveFloat: 0 does not conform to"),
        (["promptfl"], "Pass a config with --config"),
    ],
)
def test_a_bad_option_is_named(options, arguments, message, capsys, tmp_path):
    assert main(["fit", "--config=promptfl", *options, *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--data.held_out=foto"], "Did you mean 'photo'?"),
        (["--model.prompt_length=100"], "77"),
        (["--trainer.default_root_dir={}/file/runs"], "is not a folder"),
    ],
)
def test_bad_input_is_one_error_before_training(options, arguments, message, capsys, tmp_path):
    (tmp_path / "file").touch()
    assert main(["fit", "--config=promptfl", *options, *(words.format(tmp_path) for words in arguments)]) == 1
    errors = capsys.readouterr().err
    assert errors.startswith("fedvlp: error: ")
    assert message in errors
    assert errors.count("\n") == 1
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ["fit", "--config=promptfl"],
        ["test", "--config=promptfl", "--config=base_to_new"],
        ["sweep", "--models=promptfl"],
        ["deploy", "init", "app", "--config=promptfl"],
    ],
)
def test_a_command_without_a_data_set_explains_how_to_choose_one(arguments, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 1
    lines = capsys.readouterr().err.splitlines()
    assert lines == [f"fedvlp: error: {NO_DATA}"]


def printed_config(capsys, *arguments):
    with pytest.raises(SystemExit) as stopped:
        main(["fit", *arguments, "--print_config"])
    assert stopped.value.code == 0
    return yaml.safe_load(capsys.readouterr().out)


def test_a_replaced_class_starts_from_its_own_defaults(capsys):
    """Adam does not inherit the weight decay of 5e-4 of PromptFL's SGD, from the config or the signature."""
    data = "--config=icon_domains_30_clients"
    for method in ("--config=coop", "--model=PromptFL"):
        words = ["--data.partition.alpha=null", method, data, "--model.optimizer=torch.optim.AdamW"]
        config = printed_config(capsys, *words)
        partition = config["data"]["init_args"]["partition"]["init_args"]
        assert partition == {"num_clients": 30, "alpha": None, "min_examples": 4}
        adam = config["model"]["init_args"]["optimizer"]["init_args"]
        assert (adam["lr"], adam["weight_decay"]) == (1e-3, 1e-2)
        model = printed_config(capsys, method, data, "--model.optimizer.lr=0.3", "--model.optimizer=SGD")["model"]
        sgd = model["init_args"]["optimizer"]["init_args"]
        assert (sgd["lr"], sgd["momentum"], sgd["weight_decay"]) == (0.3, 0.9, 5e-4)
    words = ["--model.optimizer.lr=0.3", "--data.partition=QuantitySkew", "--model.optimizer=Adam"]
    config = printed_config(capsys, "--config=coop", data, *words)
    adam = config["model"]["init_args"]["optimizer"]["init_args"]
    assert (adam["lr"], adam["weight_decay"]) == (0.3, 0)
    skew = config["data"]["init_args"]["partition"]["init_args"]
    # A number of clients has no default.
    assert (skew["num_clients"], skew["min_examples"]) == (30, 1)
    # The config of the method sets an option that all data sets have.
    assert config["data"]["init_args"]["batch_size"] == 32


def test_checkpoint_of_another_method_is_rejected(options, trip_run, capsys):
    path = next(trip_run[0].glob("checkpoints/*"))
    assert main(["fit", "--config=promptfl", *options, f"--ckpt_path={path}"]) == 1
    message = "class_path: was 'fedvlp.methods.trip.trip.TRIP', is 'fedvlp.methods.promptfl.PromptFL'"
    assert message in capsys.readouterr().err


def fit_with_wandb(arguments):
    import wandb

    code = main(arguments)
    wandb.finish()  # wandb does this itself at exit, except in a forked process
    sys.exit(code)


def test_wandb_offline(options, tmp_path, monkeypatch):
    """The federation is one run with keys for each client; no network, no account."""
    monkeypatch.chdir(tmp_path)
    wandb_options = ["--config=wandb", "--trainer.logger.offline=true", f"--trainer.logger.save_dir={tmp_path}"]
    output = tmp_path / "output.txt"
    arguments = ["fit", "--config=promptfl", *options, *wandb_options, "--trainer.rounds=1", NO_BASELINES]
    running = fork(fit_with_wandb, arguments, output=output, HOME=str(tmp_path))  # wandb keeps logs there
    assert exit_code(running) == 0, output.read_text()
    assert "is disabled" not in output.read_text()
    (run,) = (tmp_path / "wandb").glob("offline-run-*")
    logged = next(run.glob("*.wandb")).read_bytes()
    assert b"client/ink/loss" in logged
    assert b"last/held_out/photo" in logged
    assert b"PromptFL, DomainFolders" in logged
    assert len(list(run.glob("files/media/images/accuracy_over_rounds*.png"))) == 1
    (id_file,) = tmp_path.glob("runs/*/*/wandb.json")
    assert [*json.loads(id_file.read_text()).values()] == [run.name.rpartition("-")[2]]


METHOD = """
from typing import Any

from fedvlp import PromptFL


class Weighted(PromptFL):
    def __init__(self, share: float = 0.1, **options: Any) -> None:
        super().__init__(**options)
"""


def test_options_passed_on_to_the_base_class_are_recorded(options, tmp_path, monkeypatch, capsys):
    (tmp_path / "weighted_prompts.py").write_text(METHOD, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    fit = ["fit", "--model=weighted_prompts.Weighted", "--model.prompt_length=3", *options, "--trainer.rounds=1"]
    fit.append(NO_BASELINES)
    assert main(fit) == 0
    folder = run_folder(tmp_path)
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    recorded = summary["model"]["init_args"]
    assert (recorded["prompt_length"], recorded["share"], recorded["clip"]["name"]) == (3, 0.1, "fedvlp-tiny")
    assert main([*fit, "--trainer.rounds=2", "--model.prompt_length=4", f"--ckpt_path={folder}"]) == 1
    assert "model.init_args.prompt_length: was 3, is 4" in capsys.readouterr().err


def test_evaluation_explains_missing_images(trip_run, tmp_path, capsys):
    prompts = shutil.copy(trip_run[0] / "prompts.safetensors", tmp_path)
    config_path = tmp_path / "config.yaml"
    config = yaml.safe_load((trip_run[0] / "config.yaml").read_text(encoding="utf-8"))
    contents = {
        "test needs images, but there is no config next to ": None,
        "'os.Unheard'. Importing it runs it. If you trust it, install": {"class_path": "os.Unheard"},
        "config.yaml has no data.class_path. Pass --data instead.": {},
    }
    for error, data in contents.items():
        if data is not None:
            config_path.write_text(yaml.safe_dump(config | {"data": data or None}), encoding="utf-8")
        assert main(["test", f"--ckpt_path={prompts}"]) == 1
        assert error in capsys.readouterr().err
    assert main(["validate", "--ckpt_path=last"]) == 1
    assert "validate accepts `last` only with --config" in capsys.readouterr().err


def test_help_of_predict_lists_only_its_own_options(capsys):
    with pytest.raises(SystemExit):
        main(["predict", "--help"])
    printed = capsys.readouterr().out
    shown = re.findall(r"^  (?:-\w(?: \w+)?, )?(--[\w.]+)", printed, re.MULTILINE)
    device_options = [f"--trainer.{name}" for name in DEVICE_OPTIONS]
    assert sorted(shown) == sorted(["--help", *(f"--{name}" for name in PREDICT_OPTIONS[1:]), *device_options])
    assert "Linked arguments" not in printed


def test_short_class_names_and_a_terminal_with_few_characters(options, tmp_path, monkeypatch):
    printed = BytesIO()
    monkeypatch.setattr(sys, "stdout", TextIOWrapper(printed, encoding="ascii"))
    names = ["--data=DomainFolders", "--model=PromptFL", *options[1:], "--model.clip=fedvlp-tiny", NO_BASELINES]
    assert main(["fit", *names]) == 0
    assert b"round 2/2 ? validation" in printed.getvalue()
    assert (run_folder(tmp_path) / "summary.json").is_file()


def test_help_of_fit_names_common_options_and_no_rejected_one(options, capsys):
    with pytest.raises(SystemExit):
        main(["fit", "--help"])
    printed = capsys.readouterr().out
    assert printed.startswith("usage: fedvlp fit [--config NAME ...] [options]\n")
    assert "%(" not in printed
    assert not [name for name in REFUSED if f".{name}" in printed]
    options_in_help = re.findall(r"--(?:model|data)\.([\w.]+) +[A-Z]+ ", printed)
    assert options_in_help == ["clip.name", "root", "held_out", "shots"]
    config = printed_config(capsys, "--config=promptfl", *options, "--data.shots=3")
    assert config["data"]["init_args"].keys() >= {"root", "held_out", "shots"}
    assert config["model"]["init_args"]["clip"].keys() >= {"name"}


def test_slow_commands_announce_their_duration_before_importing(monkeypatch, capsys):
    def importing(_):
        assert re.match(r"fedvlp export: .* minute", capsys.readouterr().err)
        raise UserError("imported")

    monkeypatch.setattr("fedvlp.commands.cli.import_module", importing)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert main(["export", "runs"]) == 1
    assert "imported" in capsys.readouterr().err
