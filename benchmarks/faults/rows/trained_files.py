"""Files of prompts and finished runs that are damaged or come from others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.faults.bench import Bench, quote
from benchmarks.faults.fault import fault
from fedvlp.core.state import State
from fedvlp.utils.tensor_files import read_tensors, write_tensors

PLANTED = "from pathlib import Path\n\nPath({marker!r}).touch()\n\n\nclass Method:\n    pass\n"
Change = Callable[[State, dict[str, Any]], None]


def rewritten(path: Path, target: Path, change: Change) -> Path:
    """Rewrite a file with other tensors or another header, and valid checksums."""
    tensors, header = read_tensors(path)
    change(tensors, header)
    write_tensors(target, tensors, header)
    return target


@fault(
    injected="foreign prompts name a module as their method, and in another file as their optimizer",
    must="nothing is imported before `--allow` names it",
    peers="Flower 1.41 exchanges arrays, with `allow_pickle=False`. NVFlare 2.8 has a list of allowed classes.",
)
def foreign_class(bench: Bench) -> None:
    """Write a module that makes a file when it is imported."""
    run, _ = bench.shop.uninterrupted()
    marker = bench.folder / "imported.txt"
    (bench.folder / "planted.py").write_text(PLANTED.format(marker=str(marker)))

    def method(_: State, header: dict[str, Any]) -> None:
        header["model"]["class_path"] = "planted.Method"

    def optimizer(_: State, header: dict[str, Any]) -> None:
        header["model"]["init_args"]["optimizer"] = {"class_path": "planted.Method"}

    for change in (method, optimizer):
        path = rewritten(run / "prompts.safetensors", bench.folder / f"{change.__name__}.safetensors", change)
        predict = ("predict", f"--ckpt_path={path}", f"--images={bench.shop.images}")
        finished = bench.command(*predict)
        bench.expect_refusal(finished, "planted", "--allow", what=change.__name__)
        bench.expect(not marker.exists(), f"{change.__name__}: it was imported")
    bench.note(quote(finished.error[finished.error.find("needs code") :]))
    bench.command(*predict, "--allow", "planted")
    bench.expect(marker.exists(), "with --allow it is not imported either")


def _none(tensors: State, header: dict[str, Any]) -> None:
    tensors.clear()


def _without_first(tensors: State, header: dict[str, Any]) -> None:
    tensors.pop(min(tensors))


def _with_another(tensors: State, header: dict[str, Any]) -> None:
    tensors["another"] = torch.zeros(2)


def _not_a_number(tensors: State, header: dict[str, Any]) -> None:
    tensors[max(tensors)].view(-1)[3] = float("nan")


def _float64(tensors: State, header: dict[str, Any]) -> None:
    tensors[min(tensors)] = tensors[min(tensors)].double()


def _other_shape(tensors: State, header: dict[str, Any]) -> None:
    tensors[min(tensors)] = tensors[min(tensors)][:1].clone()


def _other_classes(tensors: State, header: dict[str, Any]) -> None:
    header["model"]["init_args"]["class_names"].reverse()


@fault(
    injected="prompts without tensors, with a missing or an extra tensor, with NaN, with another type or shape, or "
    "with classes in another order",
    must="rejected, with the tensor's name",
    peers="Flower 1.41 leaves loading to the user's code.",
)
def wrong_tensors(bench: Bench) -> None:
    """Rewrite the prompts of TRIP, which are several tensors."""
    run, _ = bench.shop.uninterrupted("trip", "--trainer.rounds=4", "--trainer.clients.cohort_size=3")
    names = sorted(read_tensors(run / "prompts.safetensors")[0])
    cases = {
        _none: names[0],
        _without_first: names[0],
        _with_another: "another",
        _not_a_number: names[-1],
        _float64: names[0],
        _other_shape: names[0],
        _other_classes: "class_names",
    }
    rejected = 0
    for change, word in cases.items():
        what = change.__name__.strip("_")
        path = rewritten(run / "prompts.safetensors", bench.folder / f"{what}.safetensors", change)
        test = ["test", *bench.shop.fit_options("trip")[1:], "--trainer.rounds=4", f"--ckpt_path={path}"]
        rejected += bench.expect_refusal(bench.command(*test), word, what=what)
    bench.note(f"{rejected} of {len(cases)} rejected with a line that names the problem")
