"""Made-up finished runs."""

from pathlib import Path

from fedvlp.results import Record

DATA = {
    "name": "PACS",
    "images": "00ff",
    "domains": ["art_painting", "cartoon", "photo", "sketch"],
    "classes": ["dog", "horse"],
    "held_out": ["sketch"],
    "kind": "leave-domains-out",
    "partition": "one client a domain",
    "split_rule": "stratified",
    "shots": None,
    "validation_fraction": 0.2,
    "test_fraction": 0.0,
    "split_seed": 0,
}


def made(value=50.0, best=None, held_out="sketch", seed=0, method="PromptFL", baseline=40.0, **other):
    """Returns a run whose held-out accuracy was ``value`` after the last round and ``best`` in the best one."""
    names = (held_out,) if isinstance(held_out, str) else tuple(held_out)
    rows = {"zero-shot CLIP": baseline, "last round (3)": value, "best on source validation (2)": best or value}
    accuracy = {
        title: {"validation/photo": 1.0, "validation": 1.0, **{f"held_out/{name}": score for name in names}}
        for title, score in rows.items()
        if score is not None
    }
    fields = {
        "folder": Path("runs", method, "+".join(names), str(seed)),
        "method": method,
        "options": {"prompt_length": 16},
        "clip": "ViT-B-16",
        "clip_fingerprint": "abcd",
        "optimizer": {"class": "SGD", "lr": 0.1},
        "training": {"seed": seed, "local_epochs": 1, "batch_size": 16},
        "rounds": 3,
        "data": DATA | {"held_out": list(names)} | other.pop("data", {}),
        "split": f"split {names}",
        "protocol": f"held-out domain: {names}",
        "held_out": names,
        "accuracy": accuracy,
        "communication": {f"{way}_{what}": 8192 * (1 + 3 * (what == "bytes")) for way in ("upload", "download")
                          for what in ("parameters", "bytes")},
        "seconds": 2.0,
        "versions": {"fedvlp": "1", "torch": "2"},
        "features": {},
    }  # fmt: skip
    return Record(**fields | other)
