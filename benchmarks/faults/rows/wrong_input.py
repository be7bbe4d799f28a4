"""Wrong options, and images, folders and configs that are out of the ordinary."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

from PIL import Image

from benchmarks.faults.bench import Bench, quote
from benchmarks.faults.commands import Finished
from benchmarks.faults.fault import fault
from benchmarks.faults.page import FOUND
from benchmarks.faults.rows.trained_files import mutated
from benchmarks.faults.workshop import CLASSES, DOMAINS
from benchmarks.synthetic import write_images

MISTAKES = (
    "--model.prompt_length=0",
    "--model.prompt_length=-1",
    "--model.kl_weight=.nan",
    "--model.templates=81",
    "--model.optimizer.lr=-1",
    "--model.optimizer=torch.optim.LBFGS",
    "--model.clip.name=ViT-B-99",
    "--model=NoMethod",
    "--seed_everything=-1",
    "--trainer.rounds=-1",
    "--trainer.rounds=1000000000000000000000000",
    "--trainer.local.epochs=.nan",
    "--trainer.devices=0",
    "--trainer.num_nodes=0",
    "--trainer.accelerator=gpu",
    "--trainer.accelerator=abacus",
    "--trainer.strategy=ddq",
    "--trainer.clients.cohort_size=0",
    "--trainer.runtime.num_threads=0",
    "--trainer.default_root_dir=/dev/null/runs",
    "--trainer.roundz=3",
    "--data.batch_size=0",
    "--data.shots=0",
    "--data.validation_fraction=1",
    "--data.held_out=nowhere",
    "--data.root=/nowhere",
    "--data.num_workers=-1",
    "--data.partition=Dispersed --data.partition.num_clients=0",
)

OPTIONS_OF_FILES = (
    "--model.clip",
    "--model",
    "--data",
    "--data.held_out",
    "--trainer.local.schedule",
    "--data.partition",
    "--trainer.callbacks",
    "--trainer.logger",
    "--data.class_names_map",
    "--trainer.name",
    "--ckpt_path",
)


@fault(
    FOUND,
    13,
    injected="common mistakes in options; then every option of every command and class with values that are mostly "
    "wrong",
    must="one line with the option's name, before training",
    peers="Flower 1.41: a flat table of texts and numbers.",
)
def wrong_options(bench: Bench) -> None:
    """The listed mistakes as commands, and the generated test."""
    start = bench.shop.fit_options()
    left = bench.batch([[*start, *mistake.split()] for mistake in MISTAKES], limit=300)
    told = 0
    for mistake, finished in zip(MISTAKES, left, strict=False):
        told += bench.expect_refusal(finished, what=mistake)
    bench.expect(not list((bench.folder / "runs").rglob("*.safetensors")), "a run was begun")
    bench.note(f"{told} of {len(MISTAKES)} mistakes refused in one line")
    count = bench.effort.wrong_values
    environment = {"FEDVLP_ALL_WRONG_VALUES": "1"} if count is None else {"FEDVLP_WRONG_VALUES": str(count)}
    test = ("-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", "tests/commands/test_wrong_values.py")
    finished = bench.program(sys.executable, *test, limit=3500, **environment)
    bench.expect(finished.code == 0, f"the generated test: {quote(finished.output[-300:])}")
    counts = [json.loads(text) for text in re.findall(r'\{"accepted": \d+, "refused": \d+\}', finished.output)]
    accepted = sum(each["accepted"] for each in counts)
    refused = sum(each["refused"] for each in counts)
    bench.note(
        f"of {accepted + refused} generated pairs of option and value {refused} refused in words, the others valid"
    )


@fault(
    FOUND,
    14,
    injected="what used to be accepted in silence: a cohort larger than the clients, `local.steps` with "
    "`local.epochs`, `seed_everything true`, two classes of one name, a class without a name, a run's name with "
    "`..`, `personal_on_disk` without files, a method's number of rounds",
    must="each is refused or said",
    peers="–",
)
def accepted_silently(bench: Bench) -> None:
    """Each in a command of its own."""
    cases = {
        "--trainer.clients.cohort_size=9": "cohort_size is 9",
        "--trainer.local.steps=2 --trainer.local.epochs=2": "local_",
        "--seed_everything=true": "seed",
        '--data.class_names_map={"circle":"square"}': "square",
        '--data.class_names_map={"circle":""}': "name",
        "--trainer.name=../../outside": "name",
        "--trainer.clients.personal_on_disk=true --trainer.runtime.default_callbacks=false": "personal_on_disk",
        "--model=ADAPT --model.rounds=7": "rounds",
    }
    told = 0
    for options, word in cases.items():
        finished = bench.fit(*options.split(), "--trainer.rounds=1")
        is_said = word in finished.output and (finished.code != 0 or "is" in finished.output)
        told += bench.expect(is_said and not finished.has_traceback, f"{options}: exit {finished.code}, nothing said")
    bench.expect(not (bench.shop.folder / "outside").exists(), "a run was written outside its folder")
    bench.note(f"{told} of {len(cases)} refused or said")


@fault(
    FOUND,
    10,
    injected="one image a class and domain, so that nothing validates; then with `patience`",
    must="the last round is reported and it is said that nothing validates; `patience` is refused",
    peers="–",
)
def nothing_validates(bench: Bench) -> None:
    """Makes such images."""
    root = bench.folder / "images"
    write_images(root, DOMAINS, list(CLASSES), len(CLASSES), size=48)
    finished = bench.fit(f"--data.root={root}")
    bench.expect_success(finished)
    bench.expect("none validates" in finished.output, "it is not said that nothing validates")
    bench.expect("last round" in finished.output, "the last round is not in the printed table")
    summary = json.loads((bench.run() / "summary.json").read_text())
    bench.expect("last" in json.dumps(summary), "the last round is not in summary.json")
    compared = bench.command("compare", str(bench.run()))
    bench.expect_success(compared, "compare")
    bench.expect("PromptFL" in compared.output, "compare has no row of the run")
    refused = bench.fit(f"--data.root={root}", "--trainer.patience=2", "--trainer.name=patience")
    bench.expect_refusal(refused, "patience")
    bench.note(f"said, and the last round is in all tables; with patience: {quote(refused.error, 90)}")


@fault(
    FOUND,
    16,
    injected="mutated image files; one of 1,000,000 x 1 pixels, names that are not UTF-8, 1,500 levels of folders, a "
    "YAML alias bomb",
    must="one line, or a run without them; never a traceback or no answer",
    peers="–",
)
def odd_images(bench: Bench) -> None:
    """Each in a tree of its own."""
    _mutated_images(bench)
    _line_of_pixels(bench)
    _other_bytes(bench)
    _deep_folders(bench)
    bomb = bench.folder / "bomb.yaml"
    levels = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    levels += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 12)]
    bomb.write_text("\n".join(levels))
    finished = bench.fit(f"--config={bomb}", limit=60)
    bench.expect_refusal(finished, what="alias bomb")
    bench.note(f"alias bomb: {quote(finished.error, 60)}")


def _tree(bench: Bench, name: str) -> Path:
    root = bench.folder / name
    write_images(root, DOMAINS, list(CLASSES), 12, size=48)
    return root


def _mutated_images(bench: Bench) -> None:
    count = bench.effort.mutated_images
    root = _tree(bench, "mutated")
    originals = [path.read_bytes() for path in sorted(root.rglob("*.jpg"))[:6]]
    for trial in range(count):
        folder = root / f"domain {trial % DOMAINS}" / CLASSES[trial % len(CLASSES)]
        suffix = bench.random.choice((".jpg", ".png", ".webp", ".tif", ".gif"))
        content = mutated(bench.random.choice(originals), bench.random)
        (folder / f"mutated {trial}{suffix}").write_bytes(content)
    listed = bench.fit(f"--data.root={root}", limit=400)
    bench.expect_refusal(listed, "can't be read", what="mutated images")
    skipped = bench.fit(f"--data.root={root}", "--data.on_bad_image=skip", limit=400)
    bench.expect_success(skipped, "without the mutated images")
    told = re.search(r"\d+ of \d+ images can't be read", listed.output)
    bench.note(f"{count} mutated images: {told.group() if told else 'none was found'}; without them the run ends well")


def _line_of_pixels(bench: Bench) -> None:
    root = _tree(bench, "line")
    Image.new("RGB", (1_000_000, 1)).save(root / "domain 0" / CLASSES[0] / "line.png")
    finished = bench.fit(f"--data.root={root}")
    bench.expect_refusal(finished, "line.png", what="a line of pixels")


def _other_bytes(bench: Bench) -> None:
    root = _tree(bench, "bytes")
    for domain in root.iterdir():
        images = sorted((domain / CLASSES[0]).glob("*.jpg"))
        os.rename(images[0], os.path.join(os.fsencode(domain / CLASSES[0]), b"\xff\xfe.jpg"))
    if bench.expect_success(bench.fit(f"--data.root={root}"), "images whose names are not UTF-8"):
        predicted = bench.command("predict", f"--ckpt_path={bench.run()}", f"--images={root}")
        bench.expect_success(predicted, "predict for images whose names are not UTF-8")
    for domain in root.iterdir():
        os.rename(domain / CLASSES[1], os.path.join(os.fsencode(domain), b"squ\xe4re"))
    finished = bench.fit(f"--data.root={root}")
    bench.expect_refusal(finished, "UTF-8", what="a class whose name is not UTF-8")
    bench.note(f"names of images that are not UTF-8 are read; of a class: {quote(finished.error, 80)}")


def _deep_folders(bench: Bench) -> None:
    root = _tree(bench, "deep")
    here = os.open(root / "domain 0" / CLASSES[0], os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("d", dir_fd=here)
        inner = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(here)
    finished = bench.fit(f"--data.root={root}")
    if finished.code != 0:
        bench.expect_refusal(finished, what="deep folders")
    bench.note(f"1,500 levels of folders: exit code {finished.code}")
    bench.program("rm", "-rf", str(root))


@fault(
    FOUND,
    19,
    injected="a file with a secret as the value of options, in configs and in the header of prompts",
    must="the secret is in no output and in no file of a run",
    peers="–",
)
def secret_in_a_file(bench: Bench) -> None:
    """Looks for the secret in all that is written."""
    secret = "hunter2hunter2"
    path = bench.folder / "secret.txt"
    path.write_text(f"password: {secret}\nother words\n")
    config = bench.folder / "config.yaml"
    config.write_text(f"model:\n  init_args:\n    clip: {path}\n")
    lists = [[*bench.shop.fit_options(), f"{option}={path}"] for option in OPTIONS_OF_FILES]
    lists += [[*words, "--print_config"] for words in lists[:4]]
    lists.append([*bench.shop.fit_options(), f"--config={config}"])
    left = bench.batch(lists, limit=300)
    told = [" ".join(words[-2:])[:60] for words, each in zip(lists, left, strict=False) if secret in each.output]
    bench.expect(not told, f"the secret is shown: {told}")
    written = [file for file in (bench.folder / "runs").rglob("*") if file.is_file() and secret in _text(file)]
    bench.expect(not written, f"the secret is written: {[file.name for file in written]}")
    bench.note(f"{len(lists)} commands, none of which shows it" if not told else f"{len(told)} of {len(lists)} show it")


def _text(path: Path) -> str:
    return path.read_bytes().decode("utf-8", "replace")


@fault(
    FOUND,
    20,
    injected="a learning rate of 1e6 for PromptFL, PLAN and DiPrompT",
    must="the run says so where it ends far below the untrained model",
    peers="–",
)
def diverged(bench: Bench) -> None:
    """On drawings, which the tiny CLIP tells apart better than chance."""
    cases = {
        "promptfl": ("--trainer.rounds=3",),
        "plan": ("--trainer.rounds=2", "--data.shots=2"),
        "diprompt": ("--trainer.rounds=3", "--data.shots=4"),
    }
    for method, options in cases.items():
        given = bench.shop.fit_options(method)
        words = [word for word in given if not word.startswith(("--data=", "--data.root=", "--data.held_out="))]
        words += ["--data=StyledShapes", "--data.held_out=sketch", "--model.optimizer.lr=1e6", *options]
        finished = bench.command(*words, f"--trainer.name={method}", limit=400)
        if bench.expect_success(finished, method):
            _expect_word(bench, method, finished)


def _expect_word(bench: Bench, method: str, finished: Finished) -> None:
    """Sees that a run that ended far below the untrained model says so, and one that did not does not."""
    untrained, trained = (_mean_accuracy(finished.output, row) for row in ("zero-shot CLIP", "last round"))
    is_harmed = trained < untrained - 10
    is_said = "diverged" in finished.output
    bench.expect(is_harmed == is_said, f"{method}: {untrained} % untrained, {trained} % after, said: {is_said}")
    bench.note(f"{method}: {untrained} % untrained, {trained} % after, {'said' if is_said else 'nothing to say'}")


def _mean_accuracy(output: str, row: str) -> float:
    """Returns the mean source accuracy of a row of a run's table."""
    line = next(line for line in output.splitlines() if line.startswith(row))
    return float(re.findall(r"\d+\.\d+", line)[-3])
