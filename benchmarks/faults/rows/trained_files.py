"""Files of trained prompts, and of finished runs, that somebody else made or that are damaged."""

from __future__ import annotations

import os
import random
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.faults.bench import Bench, quote
from benchmarks.faults.fault import fault
from benchmarks.faults.page import FOUND
from fedvlp.utils.tensor_files import Tensors, read_tensors, write_tensors

PLANTED = "from pathlib import Path\n\nPath({marker!r}).touch()\n\n\nclass Method:\n    pass\n"
Change = Callable[[Tensors, dict[str, Any]], None]


def rewritten(path: Path, target: Path, change: Change) -> Path:
    """Writes a file anew with other tensors or another header, and the right checksums."""
    tensors, header = read_tensors(path)
    change(tensors, header)
    write_tensors(target, tensors, header)
    return target


@fault(
    FOUND,
    2,
    injected="a stranger's prompts name a module as their method, and in another file as their optimizer",
    must="nothing is imported before `--allow` names it",
    peers="Flower 1.41 exchanges arrays, with `allow_pickle=False`. NVFlare 2.8 has a list of allowed classes.",
)
def foreign_class(bench: Bench) -> None:
    """Plants a module whose import makes a file."""
    run, _ = bench.shop.unbroken()
    marker = bench.folder / "imported.txt"
    (bench.folder / "planted.py").write_text(PLANTED.format(marker=str(marker)))

    def method(_: Tensors, header: dict[str, Any]) -> None:
        header["model"]["class_path"] = "planted.Method"

    def optimizer(_: Tensors, header: dict[str, Any]) -> None:
        header["model"]["init_args"]["optimizer"] = {"class_path": "planted.Method"}

    for change in (method, optimizer):
        path = rewritten(run / "prompts.safetensors", bench.folder / f"{change.__name__}.safetensors", change)
        predict = ("predict", f"--ckpt_path={path}", f"--images={bench.shop.images}")
        finished = bench.command(*predict)
        bench.expect_refusal(finished, "planted", "--allow", what=change.__name__)
        bench.expect(not marker.exists(), f"{change.__name__}: it was imported")
    bench.note(quote(finished.error[finished.error.find("asks for") :]))
    bench.command(*predict, "--allow", "planted")
    bench.expect(marker.exists(), "with --allow it is not imported either")


def _none(tensors: Tensors, header: dict[str, Any]) -> None:
    tensors.clear()


def _without_first(tensors: Tensors, header: dict[str, Any]) -> None:
    tensors.pop(min(tensors))


def _with_another(tensors: Tensors, header: dict[str, Any]) -> None:
    tensors["another"] = torch.zeros(2)


def _not_a_number(tensors: Tensors, header: dict[str, Any]) -> None:
    tensors[max(tensors)].view(-1)[3] = float("nan")


def _float64(tensors: Tensors, header: dict[str, Any]) -> None:
    tensors[min(tensors)] = tensors[min(tensors)].double()


def _other_shape(tensors: Tensors, header: dict[str, Any]) -> None:
    tensors[min(tensors)] = tensors[min(tensors)][:1].clone()


def _other_classes(tensors: Tensors, header: dict[str, Any]) -> None:
    header["model"]["init_args"]["class_names"].reverse()


@fault(
    FOUND,
    3,
    injected="prompts without tensors, with one missing or too many, with a NaN, of another type or shape, of "
    "classes in another order",
    must="refused, with the tensor's name",
    peers="Flower 1.41 leaves loading to the user's code.",
)
def wrong_tensors(bench: Bench) -> None:
    """Rewrites TRIP's prompts, which are several tensors."""
    run, _ = bench.shop.unbroken("trip", "--trainer.rounds=4", "--trainer.clients.cohort_size=3")
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
    told = 0
    for change, word in cases.items():
        what = change.__name__.strip("_")
        path = rewritten(run / "prompts.safetensors", bench.folder / f"{what}.safetensors", change)
        test = ["test", *bench.shop.fit_options("trip")[1:], "--trainer.rounds=4", f"--ckpt_path={path}"]
        told += bench.expect_refusal(bench.command(*test), word, what=what)
    bench.note(f"{told} of {len(cases)} refused with a line that names what is wrong")


@fault(
    FOUND,
    12,
    injected="prompts and checkpoints changed at random, most with a checksum that is right again; tables and "
    "summaries of runs likewise",
    must="one line, or the right values",
    peers="–",
)
def malformed_files(bench: Bench) -> None:
    """The generated test of the first, and commands on the second."""
    count = bench.effort.mutated_files
    test = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/runs/test_mutated_files.py")
    finished = bench.program(sys.executable, *test, limit=3000, FEDVLP_MUTATIONS=str(count))
    bench.expect(finished.code == 0, f"mutated prompts and checkpoints: {quote(finished.output[-300:])}")
    bench.note(f"{count} prompts (read twice) and {count} checkpoints: all refused in words, or right")
    _mutated_tables(bench, count)


def _mutated_tables(bench: Bench, count: int) -> None:
    """Changes tables and summaries of a finished run, and compares each."""
    run, _ = bench.shop.unbroken()
    commands = []
    for trial in range(count):
        folder = bench.folder / f"mutated-{trial}"
        folder.mkdir()
        name = bench.random.choice(("metrics.csv", "summary.json"))
        for source in ("metrics.csv", "summary.json", "config.yaml"):
            content = (run / source).read_bytes()
            (folder / source).write_bytes(mutated(content, bench.random) if source == name else content)
        commands.append(["compare", str(folder)])
    left = bench.batch(commands, limit=60 + count)
    bad = [quote(each.output) for each in left if each.has_traceback or each.code not in (0, 1)]
    bench.expect(not bad, f"{len(bad)} of {count} mutated tables end otherwise, such as: {''.join(bad[:1])}")
    refused = sum(each.code == 1 for each in left)
    bench.note(f"{count} tables and summaries: {refused} refused in words, {len(left) - refused - len(bad)} still read")


def mutated(content: bytes, generator: random.Random) -> bytes:
    """Returns a file's bytes with some of them flipped, cut off, repeated or replaced by what is odd."""
    changed = bytearray(content)
    for _ in range(generator.randint(1, 4)):
        place = generator.randrange(len(changed) or 1)
        kind = generator.randrange(4)
        if kind == 0 and changed:
            changed[place % len(changed)] ^= 1 << generator.randrange(8)
        elif kind == 1:
            del changed[place : place + generator.randint(1, 200)]
        elif kind == 2:
            changed[place:place] = changed[place : place + generator.randint(1, 200)]
        else:
            changed[place:place] = generator.choice([b"\xff\xfe", b"null", b"[" * 300, b"1e999", b"\n,,,\n", b"NaN"])
    return bytes(changed)


@fault(
    FOUND,
    22,
    injected="`predict --output`, `report --output` and `diagnose --output` with a pipe",
    must="refused; the pipe stays a pipe",
    peers="–",
)
def output_on_a_device(bench: Bench) -> None:
    """Makes a pipe, which stands for a device and harms nobody."""
    run, _ = bench.shop.unbroken()
    pipe = bench.folder / "pipe"
    os.mkfifo(pipe)
    commands = {
        "predict": ["predict", f"--ckpt_path={run}", f"--images={bench.shop.images}", f"--output={pipe}"],
        "report": ["report", str(run), f"--output={pipe}"],
        "diagnose": ["diagnose", *bench.shop.fit_options("trip")[1:], f"--output={pipe}"],
    }
    for name, words in commands.items():
        finished = bench.command(*words)
        bench.expect_refusal(finished, str(pipe), what=name)
        bench.expect(stat.S_ISFIFO(pipe.stat().st_mode), f"{name} replaced it")
    bench.note(quote(finished.error.replace(str(pipe), "PIPE")))
