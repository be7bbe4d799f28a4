"""``fedvlp sweep`` as users call it."""

import json
from pathlib import Path

import pytest
import yaml

from fedvlp.commands.cli import main
from fedvlp.tools.sweep.methods import parse_methods, visible_devices
from fedvlp.tools.sweep.plan import make_sweep, read_sweep
from fedvlp.utils.files import locked
from tests.helpers.plugins import install, on_the_path
from tests.helpers.stand_in import make_here

EXAMPLES = sorted((Path(__file__).resolve().parents[3] / "experiments" / "sweeps").glob("*.yaml"))


def states(folder: Path) -> dict[str, list[str]]:
    """Read the states in ``sweep.json``, by method."""
    by_method: dict[str, list[str]] = {}
    for run in json.loads((folder / "sweep.json").read_text())["runs"].values():
        by_method.setdefault(run["model"], []).append(run["state"])
    return by_method


def test_a_sweep_is_stopped_resumes_and_makes_no_run_twice(short_run, tmp_path, capsys, monkeypatch):
    output = tmp_path / "sweep"
    own = ["--config=data/folders", "--models=zero_shot,promptfl", "--held_out=ink", "--seeds=0", "--workers=1"]
    command = ["sweep", *short_run, *own, f"--output={output}"]  # options with a dot are passed to each fit

    def stop_after_one(jobs, workers, report, devices):
        make_here(jobs[:1], workers, report)
        raise KeyboardInterrupt

    monkeypatch.setattr("fedvlp.tools.sweep.command.run_jobs", stop_after_one)
    assert main(command) == 130
    assert "the same command resumes" in capsys.readouterr().err
    before = {path: path.stat().st_mtime_ns for path in output.rglob("summary.json")}
    assert len(before) == 1
    assert states(output) == {"zero_shot": ["done"], "promptfl": ["waiting"]}

    monkeypatch.setattr("fedvlp.tools.sweep.command.run_jobs", make_here)
    assert main(command) == 0
    printed = capsys.readouterr().out
    assert f"2 runs in {output}, 1 of them missing; 1 at a time" in printed
    assert "2/2 promptfl, held out ink, seed 0: done, " in printed
    assert "2 of 2 runs done" in printed
    assert "promptfl        last" in printed, "the table of both"
    assert states(output) == {"zero_shot": ["done"], "promptfl": ["done"]}
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_a_sweep_whose_run_fails(short_run, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("fedvlp.tools.sweep.command.run_jobs", make_here)
    file = tmp_path / "sweep.yaml"
    model = {"label": "too long", "config": "promptfl", "arguments": ["--model.prompt_length=100"]}
    content = {"config": "data/folders", "models": [model, "zero_shot"], "held_out": "none", "arguments": short_run}
    file.write_text(yaml.safe_dump({**content, "seeds": 0, "note": "A note."}))
    command = ["sweep", f"--file={file}", "--seeds=0", f"--output={tmp_path / 'runs'}", "--workers=2", "--"]
    command += ["--data.test_fraction=0.3"]
    assert main([*command[:-2], "--dry_run", *command[-2:]]) == 0
    assert not (tmp_path / "runs").exists()
    assert main(command) == 1
    printed = capsys.readouterr()
    assert printed.out.startswith("A note.\nmissing too_long-")
    assert "1 of 2 runs done" in printed.out
    assert "failed: too long, all domains seen, seed 0: exit code 1\n" in printed.err
    assert states(tmp_path / "runs") == {"too long": ["failed"], "zero_shot": ["done"]}


def test_a_sweep_on_a_cluster_is_submitted_once(short_run, tmp_path, capsys, monkeypatch):
    output = tmp_path / "sweep"
    calls = []

    def call(command, text=""):
        calls.append((command[0], *command[1:], text))
        return "101_0\n" if command[0] == "squeue" and len(calls) > 2 else "101"[: 3 * (command[0] == "sbatch")]

    monkeypatch.setattr("fedvlp.tools.sweep.jobs._call_slurm", call)
    own = ["--config=data/folders", "--models=zero_shot", "--held_out=ink", "--seeds=0", f"--output={output}"]
    slurm = ["--launcher=slurm", "--slurm.time=1:00:00", "--slurm.mem=8G", "--slurm.setup=module load"]
    command = ["sweep", *own, *slurm, *short_run]
    assert main(command) == 0
    printed = capsys.readouterr().out
    assert f"1 runs in {output}, 1 of them missing; submitted as the array 101\n" in printed
    assert "to cancel: scancel --me --name=fedvlp-sweep-" in printed
    assert {"--time=1:00:00", "--mem=8G"} <= set(calls[1])
    assert "\nmodule load\n" in calls[1][-1]
    assert states(output) == {"zero_shot": ["waiting"]}
    assert main(command) == 0
    assert "1 in Slurm's queue, so none is submitted" in capsys.readouterr().out
    assert [call[0] for call in calls] == ["squeue", "sbatch", "squeue"]


def test_one_sweep_at_a_time(short_run, tmp_path, capsys):
    with locked(tmp_path / "sweep.json", wait=False):
        own = ["--config=data/folders", "--models=zero_shot", f"--output={tmp_path}"]
        assert main(["sweep", *own, *short_run]) == 1
    assert "Another sweep uses" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--models=trip", "--slurm.time=1:00"], "Add --launcher slurm"),
        (["--models=trip", "--held_out=foto"], "Did you mean 'photo'?"),
        (["--models=zero_shot,trip", "--", "--model.prompt_lenght=2"], "Model 'zero_shot' of the sweep: "),
        (["--models=trip", "--", "--trainer.devices=2"], "one device"),
        (["--models=trip", "--trainer.fast_dev_run", "true"], "fast_dev_run saves none. Use it with fedvlp fit"),
    ],
)
def test_bad_input_is_one_error_before_anything_runs(image_root, tmp_path, capsys, arguments, message):
    line = arguments if "--" in arguments else [*arguments, "--"]
    output = f"--output={tmp_path / 'runs'}"
    assert main(["sweep", "--config=data/folders", output, *line, f"--data.root={image_root}"]) == 1
    errors = capsys.readouterr().err
    assert errors.startswith("fedvlp: error: ")
    assert message in errors
    assert not (tmp_path / "runs").exists()


def test_only_visible_devices_are_used(monkeypatch):
    plan = make_sweep({"models": ["trip"], "config": "data/icon_domains"})
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert visible_devices(parse_methods(plan).values()) == ["0", "1"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-a,GPU-b")
    assert visible_devices(parse_methods(plan).values()) == ["GPU-a", "GPU-b"]
    on_cpu = make_sweep({"models": ["trip"], "config": "data/icon_domains", "arguments": ["--trainer.accelerator=cpu"]})
    assert visible_devices(parse_methods(on_cpu).values()) == []


def test_a_plugins_method_is_swept(short_run, tmp_path, capsys):
    """The plugin is imported only when the sweep names its method."""
    config = tmp_path / "mine.yaml"
    config.write_text("model:\n  class_path: Octant\n")
    with on_the_path(tmp_path / "site") as site:
        files = {"octant_one.py": "from fedvlp import PromptFL\nclass Octant(PromptFL):\n    pass\n"}
        install(site, "octant-one", "0.4", {"fedvlp.methods": {"Octant": "octant_one:Octant"}}, files)
        selected = [f"--models={config}", "--config=data/folders", "--held_out=photo", "--seeds=0", "--dry_run"]
        assert main(["sweep", *selected, *short_run]) == 0
    assert capsys.readouterr().out.startswith("missing mine-")


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_examples_are_accepted(path):
    short_run = ["--data.root=my_images"] if path.stem == "folders" else []
    assert parse_methods(make_sweep(read_sweep(path), short_run))


def test_without_held_out_domains_there_is_one_run_per_seed(short_run, image_root, tmp_path, capsys):
    one_domain = [*short_run, f"--data.root={image_root / 'ink'}", "--config=data/class_folders", "--models=promptfl"]
    assert main(["sweep", *one_domain, "--seeds=0,1", f"--output={tmp_path}", "--dry_run"]) == 0
    assert capsys.readouterr().out.count("--data.held_out=null") == 2
    protocol = [*short_run, "--config=data/folders", "--config=protocols/personal", "--models=promptfl", "--dry_run"]
    assert main(["sweep", *protocol, "--seeds=0,1", f"--output={tmp_path}"]) == 0
    printed = capsys.readouterr().out
    assert printed.count("--data.held_out=null") == printed.count("missing ") == 2
    assert main(["sweep", *protocol, "--held_out=ink", f"--output={tmp_path}"]) == 1
    assert "The protocol personal trains on all domains. Remove --held_out." in capsys.readouterr().err
