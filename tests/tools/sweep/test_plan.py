from __future__ import annotations

from pathlib import Path

from fedvlp.tools.sweep import Sweep, SweepMethod, all_runs, run_name


def test_the_cross_product_one_seed_after_the_other():
    sweep = Sweep(("data/folders",), (SweepMethod("a", "trip"), SweepMethod("b", "plan")), "all", (0, 1))
    runs = all_runs(sweep, {"a": ["ink", "photo"], "b": []})
    assert [(run.method.label, run.held_out, run.seed) for run in runs] == [
        *(("a", "ink", 0), ("a", "photo", 0), ("b", None, 0)),
        *(("a", "ink", 1), ("a", "photo", 1), ("b", None, 1)),
    ]
    assert len({run.name for run in runs}) == len(runs)


def test_all_that_makes_a_run_stands_in_its_arguments():
    sweep = Sweep(("data/folders",), (SweepMethod("a", "trip", ("--x=1",)),), "all", (5,), ("--y=2",))
    (run,) = all_runs(sweep, {"a": ["ink"]})
    assert run.arguments(Path("runs"), ["--first=1"]) == (
        *("fit", "--first=1", "--config=trip", "--config=data/folders", "--y=2", "--x=1"),
        *("--data.held_out=ink", "--seed_everything=5"),
        *("--trainer.default_root_dir=runs", f"--trainer.name={run.name}", "--ckpt_path=last"),
    )
    seen = all_runs(Sweep((), (SweepMethod("a", "trip"),), "none", (0,)), {"a": []})[0]
    assert "--data.held_out=null" in seen.arguments(Path("runs"))
    assert seen.name.endswith("/all_seen-0")


def test_a_name_is_safe_and_depends_on_every_argument():
    every = ([], ["--a=1"], ["--a=2"], ["--config=trip"])
    names = {run_name("TRIP, 2 experts", choices, "v1.0", 0) for choices in every}
    assert len(names) == 4
    assert all(name.startswith("TRIP_2_experts-") and name.endswith("/v1_0-0") for name in names)
