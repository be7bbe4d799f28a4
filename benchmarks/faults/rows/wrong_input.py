"""Wrong options, and unusual images, folders and configs."""

from __future__ import annotations

import json
import os
from pathlib import Path

from benchmarks.faults.bench import Bench, quote
from benchmarks.faults.fault import fault
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


@fault(
    injected="27 common mistakes in options",
    must="an error that names the option, before training",
    peers="Flower 1.41: a flat table of texts and numbers.",
)
def wrong_options(bench: Bench) -> None:
    """Run each as a command."""
    start = bench.shop.fit_options()
    left = bench.batch([[*start, *mistake.split()] for mistake in MISTAKES], limit=300)
    rejected = 0
    for mistake, finished in zip(MISTAKES, left, strict=False):
        rejected += bench.expect_refusal(finished, what=mistake)
    bench.expect(not list((bench.folder / "runs").rglob("*.safetensors")), "a run was started")
    bench.note(f"{rejected} of {len(MISTAKES)} mistakes rejected")


@fault(
    injected="one image per class and domain, so that no image validates",
    must="the last round is reported, with a message that there are no validation images",
    peers="–",
)
def nothing_validates(bench: Bench) -> None:
    """Make images without a validation split."""
    root = bench.folder / "images"
    write_images(root, DOMAINS, list(CLASSES), len(CLASSES), size=48)
    finished = bench.fit(f"--data.root={root}")
    bench.expect_success(finished)
    bench.expect("no validation images" in finished.output, "no message about validation")
    bench.expect("last round" in finished.output, "the last round is not in the printed table")
    summary = json.loads((bench.run() / "summary.json").read_text())
    bench.expect("last" in json.dumps(summary), "the last round is not in summary.json")
    compared = bench.command("compare", str(bench.run()))
    bench.expect_success(compared, "compare")
    bench.expect("promptfl" in compared.output, "compare has no row of the run")
    bench.note("reported, and the last round is in all tables")


@fault(
    injected="truncated image files, and image names that are not UTF-8",
    must="one error that lists them, or a run without them",
    peers="–",
)
def odd_images(bench: Bench) -> None:
    """Put each into a separate folder."""
    _truncated_images(bench)
    _other_bytes(bench)


def _tree(bench: Bench, name: str) -> Path:
    root = bench.folder / name
    write_images(root, DOMAINS, list(CLASSES), 12, size=48)
    return root


def _truncated_images(bench: Bench) -> None:
    root = _tree(bench, "cut")
    for path in sorted(root.rglob("*.jpg"))[::8]:
        path.write_bytes(path.read_bytes()[:200])
    refused = bench.fit(f"--data.root={root}")
    bench.expect_refusal(refused, "6 of", "images can't be read", what="truncated images")
    skipped = bench.fit(f"--data.root={root}", "--data.on_bad_image=skip")
    bench.expect_success(skipped, "without the truncated images")
    bench.note(f"{quote(refused.error, 80)}; without them the run succeeds")


def _other_bytes(bench: Bench) -> None:
    root = _tree(bench, "bytes")
    for domain in root.iterdir():
        images = sorted((domain / CLASSES[0]).glob("*.jpg"))
        os.rename(images[0], os.path.join(os.fsencode(domain / CLASSES[0]), b"\xff\xfe.jpg"))
    if bench.expect_success(bench.fit(f"--data.root={root}"), "images whose names are not UTF-8"):
        predicted = bench.command("predict", f"--ckpt_path={bench.run()}", f"--images={root}")
        bench.expect_success(predicted, "predict for images whose names are not UTF-8")
    bench.note("image names that are not UTF-8 are read")
