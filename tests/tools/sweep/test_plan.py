from pathlib import Path

import pytest

from fedvlp.tools.sweep.plan import Sweep, SweepMethod, make_sweep, read_sweep, run_name
from fedvlp.utils.errors import UserError


def test_the_cross_product_one_seed_after_the_other():
    sweep = Sweep(("data/folders",), (SweepMethod("a", "trip"), SweepMethod("b", "plan")), "all", (0, 1))
    jobs = sweep.jobs({"a": ["ink", "photo"], "b": [None]}, Path("runs"))
    assert [(job.axes["model"], job.axes["held_out"], job.axes["seed"]) for job in jobs] == [
        *(("a", "ink", 0), ("a", "photo", 0), ("b", None, 0)),
        *(("a", "ink", 1), ("a", "photo", 1), ("b", None, 1)),
    ]
    assert len({job.name for job in jobs}) == len(jobs)
    assert [jobs[0].title, jobs[2].title] == ["a, held out ink, seed 0", "b, all domains seen, seed 0"]


def test_a_jobs_arguments_choose_the_whole_run():
    sweep = Sweep(("data/folders",), (SweepMethod("a", "trip", ("--x=1",)),), "all", (5,), ("--y=2",))
    (job,) = sweep.jobs({"a": ["ink"]}, Path("runs"))
    assert job.arguments == (
        *("fit", "--config=trip", "--config=data/folders", "--y=2", "--x=1"),
        *("--data.held_out=ink", "--seed_everything=5"),
        *("--trainer.default_root_dir=runs", f"--trainer.name={job.name}", "--ckpt_path=last"),
    )
    (job,) = Sweep((), (SweepMethod("a", "trip"),), ("ink+photo",), (0,)).jobs({"a": ["ink+photo"]}, Path("runs"))
    assert "--data.held_out=[ink,photo]" in job.arguments
    assert job.name.endswith("/ink+photo-0")
    (seen,) = Sweep((), (SweepMethod("a", "trip"),), "none", (0,)).jobs({"a": [None]}, Path("runs"))
    assert "--data.held_out=null" in seen.arguments
    assert seen.name.endswith("/all_seen-0")


def test_a_name_is_safe_and_depends_on_every_argument():
    every = ([], ["--a=1"], ["--a=2"], ["--config=trip"])
    names = {run_name("TRIP, 2 experts", choices, "v1.0", 0) for choices in every}
    assert len(names) == 4
    assert all(name.startswith("TRIP_2_experts-") and name.endswith("/v1_0-0") for name in names)


def test_a_sweep_of_names():
    sweep = make_sweep(
        {
            "config": ["data/folders"],
            "models": ["trip", "methods/plan", {"label": "short", "config": "trip", "arguments": ["--a=1"]}],
            "held_out": ["ink", "photo"],
            "seeds": [3, 1, 3],
            "arguments": ["--b=1"],
        },
        ["--b=2", "--config", "loggers/wandb"],
    )
    assert sweep.methods == (
        SweepMethod("trip", "trip"),
        SweepMethod("plan", "methods/plan"),
        SweepMethod("short", "trip", ("--a=1",)),
    )
    assert (sweep.held_out, sweep.seeds) == (("ink", "photo"), (3, 1))
    assert sweep.choices(sweep.methods[2]) == (
        *("--config=trip", "--config=data/folders"),
        *("--config=loggers/wandb", "--b=1", "--b=2", "--a=1"),
    )
    sweep = make_sweep({"models": "trip"})
    assert (sweep.configs, sweep.held_out, sweep.seeds, sweep.arguments) == ((), "all", (0, 1, 2), ())


def test_impossible_sweeps(tmp_path):
    for content, message in (
        ({}, "at least one method"),
        ({"models": ["trip", "trip"]}, "Several models have the label 'trip'"),
        ({"models": ["folders"]}, "no model.class_path"),
        ({"models": [{"config": "trip", "args": []}]}, "label, config and arguments"),
        ({"models": ["trip"], "config": ["plan"]}, "Put it under models"),
        ({"models": ["trip"], "seeds": ["a"]}, "integers"),
        ({"models": ["trip"], "held_out": []}, "all, none or domains"),
        ({"models": [{"config": "trip", "arguments": ["--data.held_out=a"]}]}, "A sweep sets --data.held_out"),
    ):
        with pytest.raises(UserError, match=message):
            make_sweep(content)
    (tmp_path / "sweep.yaml").write_text("modls: [a]")
    with pytest.raises(UserError, match="'modls'"):
        read_sweep(tmp_path / "sweep.yaml")
