"""Leave one style out, over all styles and several seeds: every method on StyledShapes with the bundled tiny CLIP.

``python -m experiments.quickstart.run --output runs/quickstart`` makes the runs that are missing, two at a time, and
writes ``results.md``. Stopping it and calling it again goes on where it stopped.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import statistics
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from multiprocessing import get_context
from pathlib import Path

METHODS = {
    "zero_shot": "zero-shot CLIP, one template",
    "zero_shot_ensemble": "zero-shot CLIP, 60 templates",
    "single_domain": "single-domain tuning",
    "promptfl": "PromptFL",
    "trip": "TRIP",
}
Job = tuple[str, str, int]


def run_job(job: Job, output: str, overrides: Sequence[str]) -> Job:
    """Trains one method with one style held out and one seed, unless that was done before."""
    import torch

    from fedvlp.cli import main

    method, style, seed = job
    if summary_of(Path(output), job) is None:
        torch.set_num_threads(1)
        arguments = [
            "fit",
            f"--config=methods/{method}",
            "--config=data/styled_shapes",
            f"--data.held_out={style}",
            f"--seed_everything={seed}",
            "--model.clip.name=fedvlp-tiny",
            "--trainer.accelerator=cpu",
            f"--trainer.default_root_dir={output}",
            f"--trainer.name={method}/{style}-{seed}",
            "--trainer.enable_progress_bar=false",
            "--ckpt_path=last",
            *overrides,
        ]
        with contextlib.redirect_stdout(io.StringIO()):
            code = main(arguments)
        if code:
            raise RuntimeError(f"{' '.join(arguments)} ended with exit code {code}")
    return job


def summary_of(output: Path, job: Job) -> dict[str, dict[str, dict[str, float]]] | None:
    """Returns a finished job's summary."""
    method, style, seed = job
    found = sorted((output / method / f"{style}-{seed}").glob("*/summary.json"))
    if not found:
        return None
    summary: dict[str, dict[str, dict[str, float]]] = json.loads(found[-1].read_text(encoding="utf-8"))
    return summary


def held_out_accuracy(output: Path, job: Job, row: str) -> float:
    """Returns the accuracy on the held-out style in percent, of the row of the table whose title begins so."""
    summary = summary_of(output, job)
    if summary is None:
        raise RuntimeError(f"{job} is not finished")
    rows = summary["accuracy"]
    title = next((title for title in rows if title.startswith(row)), "zero-shot CLIP")
    return rows[title]["held_out"]


def table(output: Path, methods: Iterable[str], styles: Sequence[str], seeds: Sequence[int], row: str) -> str:
    """Returns mean and standard deviation over seeds, a column a held-out style, as Markdown."""
    lines = [f"| method | {' | '.join(styles)} | mean |", f"|---|{'---|' * (len(styles) + 1)}"]
    for method in methods:
        scores = [[held_out_accuracy(output, (method, style, seed), row) for style in styles] for seed in seeds]
        columns = [*zip(*scores, strict=True), tuple(statistics.mean(of_seed) for of_seed in scores)]
        cells = [f"{statistics.mean(column):.1f} ± {statistics.pstdev(column):.1f}" for column in columns]
        lines.append(f"| {METHODS.get(method, method)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Makes the runs and the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("runs/quickstart"), help="folder of the runs")
    parser.add_argument("--methods", nargs="+", default=list(METHODS), help="names of configs in configs/methods")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2], help="seeds of training")
    parser.add_argument("--workers", type=int, default=2, help="runs at a time, each on one core")
    options, overrides = parser.parse_known_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    from fedvlp.data import StyledShapes

    styles = StyledShapes().domains
    jobs = [(method, style, seed) for seed, style, method in product(options.seeds, styles, options.methods)]
    with ProcessPoolExecutor(options.workers, mp_context=get_context("spawn")) as pool:
        running = [pool.submit(run_job, job, str(options.output), overrides) for job in jobs]
        for number, future in enumerate(running, 1):
            method, style, seed = future.result()
            sys.stderr.write(f"{number}/{len(jobs)}: {method}, {style} held out, seed {seed}\n")
    text = []
    for row in ("last round", "best on source validation"):
        text += [f"**{row}**, accuracy on the held-out style in %, mean ± standard deviation over seeds", ""]
        text += [table(options.output, options.methods, styles, options.seeds, row), ""]
    (options.output / "results.md").write_text("\n".join(text), encoding="utf-8")
    sys.stdout.write("\n".join(text) + "\n")


if __name__ == "__main__":
    main()
