"""Grouping of runs into tables, the settings that the runs of a table share, and the labels of rows."""

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from itertools import chain
from typing import Any

from fedvlp.core.roles import CENTRALISED, PROTOCOLS, TEST_TIME, Protocol
from fedvlp.results.record import Record
from fedvlp.utils.config_files import configs_folder, read_yaml

DEFAULT_ROUNDS = 15
"""Federation's default number of rounds, repeated because importing Federation takes seconds."""

VALIDATION = Protocol(
    "",
    "validation",
    "the source validation split of each domain (there is no test split), which also chose the best round",
    "mean accuracy on source validation, which also chose the best round",
)
"""The protocol of runs without test images."""


def find_protocol(record: Record) -> Protocol:
    """Find the protocol of a run: by its title, or for the two usual protocols by the evaluated splits."""
    usual = PROTOCOLS["leave_domains_out"], PROTOCOLS["all_seen"]
    for protocol in PROTOCOLS.values():
        if protocol.title == str(record.data.get("kind")).removesuffix(TEST_TIME) and protocol not in usual:
            return protocol
    if record.held_out:
        return PROTOCOLS["leave_domains_out"]
    names = chain.from_iterable(record.accuracy.values())
    return PROTOCOLS["all_seen"] if any(name.startswith("test/") for name in names) else VALIDATION


def group_records(records: Sequence[Record]) -> list[tuple[Record, ...]]:
    """Group runs into tables by their ``key``, ordered by the first run of each table.

    Centralised runs have no clients, so they join all tables of the same images, or get a table if there is none.
    """
    keys_by_images: dict[str, dict[str, None]] = {}
    for record in records:
        keys = keys_by_images.setdefault(record.images_key, {})
        if not record.is_centralised:
            keys[record.key] = None
    groups: dict[str, list[Record]] = {}
    for record in records:
        federated = keys_by_images[record.images_key] if record.is_centralised else {}
        for key in federated or [record.key]:
            groups.setdefault(key, []).append(record)
    return [tuple(members) for members in groups.values()]


def describe_records(records: Sequence[Record]) -> dict[str, str]:
    """Describe the options that the runs of a table share, by name; clients are taken from a federated run."""
    record = next((record for record in records if not record.is_centralised), records[0])
    backbone = f"CLIP {record.clip}, weights {record.clip_fingerprint[:8]}"
    data = record.data
    if not data:
        about = {"data": "not recorded by the run", "protocol": record.protocol, "split": record.split}
        return about | {"backbone": backbone}
    about = {"data": str(data.get("name")), "images": str(data.get("images"))}
    about["classes"] = _classes(data.get("classes", []))
    if record.has_several_labels:
        about["negative class"] = data["negative_class"]
    if "new_classes" in data:
        about["new classes"] = _classes(data["new_classes"])
    if "class_split" in data:
        about["measured classes"] = f"also each {data['class_split']}'s own"
    if "targets" in data:
        about["other data sets"] = ", ".join(f"{each.get('name')} {each.get('images')}" for each in data["targets"])
    held_out = f", {len(record.held_out)} held out" if record.held_out else ""
    # A share is None if the official split has these images, so that none are drawn.
    shares = {role: data.get(f"{role}_fraction") for role in ("validation", "test")}
    drawn = [f"{role} {100 * share:g} %" for role, share in shares.items() if share]
    return about | {
        "protocol": f"{data.get('kind')}{held_out}",
        "split": ", ".join([f"{data.get('split_rule')}, seed {data.get('split_seed')}", *drawn]),
        "clients": str(data.get("partition")),
        "shots": "all images" if data.get("shots") is None else f"{data['shots']}-shot",
        "backbone": backbone,
    }


def _classes(names: Sequence[str]) -> str:
    """Describe the number of classes, with a digest of the names used in prompts."""
    return f"{len(names)}, names {hashlib.sha256(chr(0).join(names).encode()).hexdigest()[:8]}"


def describe_differences(tables: Sequence[Mapping[str, str]]) -> str:
    """Describe how several tables differ; empty for a single table."""
    if len(tables) < 2:
        return ""
    parts = []
    for name in dict.fromkeys(chain.from_iterable(tables)):
        values = list(dict.fromkeys(about.get(name, "not recorded") for about in tables))
        if len(values) > 1:
            parts.append(f"{name} ({' | '.join(values)})")
    return f"{len(tables)} tables that cannot be compared; they differ in {'; '.join(parts) or 'weights or splits'}"


@cache
def method_configs() -> dict[str, dict[str, Any]]:
    """Read the bundled configs of methods, by name."""
    return {path.stem: read_yaml(path) for path in sorted((configs_folder() / "methods").glob("*.yaml"))}


def config_rounds(name: str) -> int:
    """Look up the number of rounds in the bundled config of a method; 0 for any other name."""
    if name not in method_configs():
        return 0
    return int(method_configs()[name].get("trainer", {}).get("rounds", DEFAULT_ROUNDS))


def config_name(record: Record) -> str:
    """Name the config that chose a run's method: a bundled config, otherwise the user's first config.

    A run without a config is named after the method's class.
    """
    own = [name for name in record.configs if "/" not in name]
    for name in reversed(record.configs):
        config = method_configs().get(name.removeprefix("methods/"))
        if config is not None and config["model"]["class_path"] == record.method:
            return name.removeprefix("methods/")
    return own[0] if own else record.method


def row_labels(records: Iterable[Record]) -> dict[str, str]:
    """Label each distinct setting of the runs with its config and, if a config has several settings, their options.

    A label contains an option, as in ``trip (key_seed=1)``, if its value is not the most frequent one in the config's
    rows. It also contains options that only some rows have, e.g. an aggregator. Centralised runs are marked.
    If rows differ in the metric that selects rounds, each label contains it.
    """
    examples = {record.settings: record for record in records}
    kinds = {settings: (config_name(record), record.is_centralised) for settings, record in examples.items()}
    is_mixed = len({record.select for record in examples.values()}) > 1
    labels: dict[str, str] = {}
    counts: Counter[str] = Counter()
    for settings, record in examples.items():
        same_kind = [other for key, other in examples.items() if kinds[key] == kinds[settings] and not other.tuning]
        rows = [all_options(other) for other in same_kind]
        own = [f"best of {record.tuning['trials']}"] if record.tuning else _distinctive_options(record, rows)
        remarks = ", ".join([CENTRALISED] * record.is_centralised + own + [f"select={record.select}"] * is_mixed)
        label = f"{kinds[settings][0]} ({remarks})" if remarks else kinds[settings][0]
        # Two rows may differ in something that no label shows, and still need two names.
        counts[label] += 1
        labels[settings] = label if counts[label] == 1 else f"{label} [{counts[label]}]"
    return labels


def _distinctive_options(record: Record, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    values = all_options(record)
    # Methods and optimizers record all their options, the trainer only options that were set.
    in_all_rows = set(values).intersection(*rows)
    not_in_all = record.training_without_seed.keys() - in_all_rows
    remarks = []
    for name in sorted((in_all_rows | not_in_all) - {"select"}):
        # The most frequent value counts as the default and is not shown.
        others = Counter(_as_text(row[name]) for row in rows) if name in in_all_rows else Counter()
        count = others.pop(_as_text(values[name]), 0)
        if name in not_in_all or (others and count <= max(others.values())):
            remarks.append(f"{name}={_as_text(values[name])}")
    return remarks


def all_options(record: Record) -> dict[str, Any]:
    """Collect all options in which two rows of a method may differ, by name."""
    optimizer = dict(record.optimizer or {})
    if "class" in optimizer:
        optimizer["optimizer"] = optimizer.pop("class")
    return {**optimizer, **record.training_without_seed, **record.options, "rounds": record.rounds}


def _as_text(value: Any) -> str:
    if isinstance(value, Mapping):
        return "/".join(map(_as_text, value.values()))
    if isinstance(value, (list, tuple)):
        return "+".join(map(_as_text, value)) or "none"
    return f"{value:g}" if isinstance(value, float) else str(value)
