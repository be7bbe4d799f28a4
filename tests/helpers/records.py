"""Made-up records of finished runs."""

import json
from pathlib import Path

from fedvlp.results import Record

DATA = {
    "name": "PACS",
    "images": "00ff",
    "domains": ["art_painting", "cartoon", "photo", "sketch"],
    "classes": ["dog", "horse", "house"],
    "held_out": ["sketch"],
    "kind": "leave-domains-out",
    "partition": "one client per domain",
    "split_rule": "stratified",
    "shots": None,
    "validation_fraction": 0.2,
    "test_fraction": 0.0,
    "split_seed": 0,
}
COMMUNICATION = {
    "upload_parameters": 8192,
    "upload_bytes": 32768,
    "download_parameters": 8192,
    "download_bytes": 32768,
}
NAMES = {"FedCLIP": "fed_clip", "FedOTP": "fed_otp"}


def make_record(value=50.0, best=None, held_out="sketch", seed=0, method="PromptFL", baseline=40.0, **other):
    """Create a record with held-out accuracy ``value`` after the last round and ``best`` in the best round."""
    domains = (held_out,) if isinstance(held_out, str) else tuple(held_out)
    scores = {"zero-shot CLIP": baseline, "last round (3)": value, "best on source validation (2)": best or value}
    fields = {
        "folder": Path("runs", method, "+".join(domains), str(seed)),
        "method": method,
        "options": {"prompt_length": 16},
        "clip": "ViT-B-16",
        "clip_fingerprint": "abcd",
        "optimizer": {"class": "SGD", "lr": 0.1},
        "training": {"seed": seed, "epochs": 1, "batch_size": 16},
        "rounds": 3,
        "data": DATA | {"held_out": list(domains)} | other.pop("data", {}),
        "split": f"split {domains}",
        "protocol": f"held-out domain: {domains}",
        "held_out": domains,
        "accuracy": {title: accuracies(domains, score) for title, score in scores.items() if score is not None},
        "communication": dict(COMMUNICATION),
        "seconds": 2.0,
        "versions": {"fedvlp": "1", "torch": "2"},
        "configs": [
            {"FedCLIP": "methods/fed_clip", "FedOTP": "methods/fed_otp"}.get(method, f"methods/{method.lower()}")
        ],
    }
    return Record(**fields | other)


def accuracies(held_out, score):
    """Create a row that has the same accuracy for all held-out domains."""
    validation = {"validation/photo": 1.0, "validation": 1.0}
    return validation | {f"held_out/{domain}": score for domain in held_out}


def write_summary(folder, run):
    """Write the summary of a made-up run, like a finished run."""
    folder.mkdir(parents=True)
    summary = {
        "model": {
            "class_path": f"fedvlp.methods.{run.method}",
            "init_args": dict(run.options) | {"clip": {"name": run.clip}},
            "clip_fingerprint": run.clip_fingerprint,
        },
        "optimizer": run.optimizer,
        "protocol": run.protocol,
        "split": run.split,
        "training": dict(run.training),
        "held_out": list(run.held_out),
        "rounds": run.rounds,
        "accuracy": run.accuracy,
        "communication_per_client_and_round": run.communication,
        "seconds": run.seconds,
        "versions": run.versions,
        "data": dict(run.data),
        "configs": run.configs,
    }
    (folder / "summary.json").write_text(json.dumps(summary))
