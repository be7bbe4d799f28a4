"""Folders of made-up finished runs, with the files that a run writes."""

import csv

import yaml

from tests.helpers.records import make_record, write_summary

DOMAINS = ("cartoon", "photo", "sketch")


def write_run(  # noqa: PLR0913 (each argument describes part of a run)
    parent, values, held_out="photo", seed=0, method="TRIP", options=None, parameters=100, domains=DOMAINS, data=None
):
    """Write a run with one held-out accuracy per round. Accuracy on source validation is always one point higher.

    Zero-shot CLIP has 40 on held-out images and 41 on source validation, and is the only row without rounds.

    Returns:
        The run's folder.
    """
    options = {"prompt_length": 16} if options is None else options
    settings = "+".join(f"{name}-{value}" for name, value in options.items())
    folder = parent / f"{method}-{settings}-{held_out}-{seed}" / "2026-01-31_12-00-00"
    communication = {"upload_parameters": parameters, "upload_bytes": 4 * parameters}
    communication |= {"download_parameters": parameters, "download_bytes": 4 * parameters}
    record = make_record(
        held_out=held_out,
        seed=seed,
        method=method,
        options=options,
        clip="tiny",
        clip_fingerprint="abcd1234",
        optimizer={"class": "SGD", "lr": 0.1} if values else None,
        protocol=f"held-out domain: {held_out}; one client per domain",
        split=f"hash-{held_out}",
        rounds=len(values),
        data={"name": "Made", "domains": list(domains)} | (data or {}),
        accuracy=accuracy_rows(values, held_out, domains),
        communication=communication,
        versions={"fedvlp": "1.0", "torch": "2.5"},
    )
    write_summary(folder, record)
    if values:
        write_metrics(folder / "metrics.csv", [accuracies(value, held_out, domains) for value in values])
    config = {"seed_everything": seed, "model": {"class_path": method, "init_args": options}}
    (folder / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    return folder


def accuracies(value, held_out, domains):
    """Create a row with this held-out accuracy."""
    validation = {f"validation/{name}": value + 1 for name in domains if name != held_out}
    return validation | {"validation": value + 1, f"held_out/{held_out}": value, "held_out": value}


def accuracy_rows(values, held_out, domains):
    """Create the rows of the table printed at the end of a run."""
    rows = {"zero-shot CLIP": accuracies(40.0, held_out, domains)}
    if values:
        best = values.index(max(values))
        rows[f"last round ({len(values)})"] = accuracies(values[-1], held_out, domains)
        rows[f"best on source validation ({best + 1})"] = accuracies(values[best], held_out, domains)
    return rows


def write_metrics(path, history):
    """Write one row per round."""
    rows = [{"round": number, "total_bytes": 8.0, **row} for number, row in enumerate(history, start=1)]
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
