"""Made-up finished runs, written as a run writes them."""

from __future__ import annotations

import csv
import json

import yaml

DOMAINS = ("cartoon", "photo", "sketch")


def write_run(
    parent, values, held_out="photo", seed=0, method="TRIP", options=None, parameters=100, domains=DOMAINS, data=None
):
    """Writes a run with these held-out accuracies, one for each round; source validation is one better throughout.

    Zero-shot CLIP has 40 on held-out images and 41 on source validation. Without rounds it is the run's only row.

    Returns:
        The run's folder.
    """
    options = {"prompt_length": 16} if options is None else options
    told = "+".join(f"{name}-{value}" for name, value in options.items())
    folder = parent / f"{method}-{told}-{held_out}-{seed}" / "2026-01-31_12-00-00"
    folder.mkdir(parents=True)
    sources = [name for name in domains if name != held_out]

    def accuracies(value):
        validation = {f"validation/{name}": value + 1 for name in sources} | {"validation": value + 1}
        return validation | {f"held_out/{held_out}": value, "held_out": value}

    best = max(range(len(values)), key=values.__getitem__, default=0)
    rows = {"zero-shot CLIP": accuracies(40.0)}
    if values:
        rows[f"last round ({len(values)})"] = accuracies(values[-1])
        rows[f"best on source validation ({best + 1})"] = accuracies(values[best])
        history = [{"round": i, "total_bytes": 8.0, **accuracies(value)} for i, value in enumerate(values, 1)]
        with (folder / "metrics.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(history[0]))
            writer.writeheader()
            writer.writerows(history)
    described = {
        "name": "Made",
        "images": "00ff",
        "domains": list(domains),
        "classes": ["dog", "horse"],
        "held_out": [held_out],
        "kind": "leave-domains-out",
        "partition": "one client a domain",
        "split_rule": "stratified",
        "shots": None,
        "validation_fraction": 0.2,
        "test_fraction": 0.0,
        "split_seed": 0,
    }
    summary = {
        "model": {"class_path": f"fedvlp.methods.{method}", "init_args": options | {"clip": {"name": "tiny"}},
                  "clip_fingerprint": "abcd1234"},
        "optimizer": {"class": "SGD", "lr": 0.1} if values else None,
        "protocol": f"held-out domain: {held_out}; one client a domain",
        "split": f"hash-{held_out}",
        "batch_size": 16,
        "training": {"seed": seed, "local_epochs": 1},
        "data": described | (data or {}),
        "held_out": [held_out],
        "rounds": len(values),
        "accuracy": rows,
        "communication_per_client_and_round": {
            "upload_parameters": parameters, "upload_bytes": 4 * parameters,
            "download_parameters": parameters, "download_bytes": 4 * parameters,
        },
        "seconds": 2.0,
        "versions": {"fedvlp": "1.0", "torch": "2.5"},
    }  # fmt: skip
    (folder / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
    config = {"seed_everything": seed, "model": {"class_path": method, "init_args": options}}
    (folder / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    return folder
