"""Files and tables of images with several labels: checks, splits, groups, and the same sets after writing them."""

import csv
import json

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from fedvlp.commands.lightning_cli import run_federation
from fedvlp.data import Dirichlet, ImageTable
from fedvlp.tools.data import run_data
from tests.helpers.data import refused

LABELS = ["ant", "bee", "cat", "dog"]


@pytest.fixture
def table(tmp_path, save):
    """Write images and their rows, and make the data module."""

    def make(rows, **options):
        written = []
        for index, row in enumerate(rows):
            path = save(tmp_path / f"{index:03d}.png", seed=index, size=16)
            written.append({"path": path.name, **row})
        with (tmp_path / "images.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, [*written[0]])
            writer.writeheader()
            writer.writerows(written)
        return ImageTable(str(tmp_path / "images.csv"), **{"several_labels": True, "cache_dir": None, **options})

    return make


def rows_of(**sets):
    """List the rows of domains with their images' sets of labels."""
    return [{"label": labels, "domain": domain} for domain, each in sets.items() for labels in each]


def random_rows(seed, count=60):
    """Draw domains, groups and sets of labels, some of them unknown."""
    generator = np.random.default_rng(seed)
    rows = []
    for _ in range(count):
        marks = generator.choice(["", "?", "-"], len(LABELS), p=[0.3, 0.1, 0.6])
        labels = [mark + label for mark, label in zip(marks, LABELS, strict=True) if mark != "-"]
        group = str(generator.choice(["", *(f"p{number}" for number in range(12))]))
        domain = "b" if group in ("p0", "p1", "p2", "p3") else "a"
        rows.append({"label": "|".join(labels), "domain": domain, "group": group})
    return rows


def sets_of(data):
    """Map the names of images to their sets of labels."""
    return {file.name: file.class_name for files in data.scan().values() for file in files}


def target(data, name):
    """Map an image's labels with a target other than 0 to the target."""
    names, targets = data._label_targets
    (row,) = (images.labels[images.names.index(name)] for images in data.images.values() if name in images.names)
    return {label: value for label, value in zip(names, targets[row].tolist(), strict=True) if value}


def test_domains_may_lack_labels_and_images_have_none(table):
    data = table(rows_of(a=["tree |dog", "dog", "", "dog|? cat", "tree"], b=["dog", "dog|tree|dog", "bird", ""]))
    data.prepare_data()
    assert data.class_names == ["bird", "cat", "dog", "tree"]
    assert data.method_names[-1] == "¬image"
    assert target(data, "000.png") == target(data, "006.png") == {"dog": 1, "tree": 1}
    assert target(data, "002.png") == {}
    assert np.isnan(target(data, "003.png")["cat"])


def test_spellings_are_compared_by_label(table):
    rows = rows_of(a=["dog|tree", "dog", ""], b=["Dog|tree", "?Dog", "bird|dog"])
    refused(table(rows), "'dog', 'Dog' are one class in 2 spellings")
    data = table(rows, merge_spellings=True)
    assert data.class_names == ["bird", "dog", "tree"]
    assert target(data, "003.png") == {"dog": 1, "tree": 1}
    assert np.isnan(target(data, "004.png")["dog"])


def test_unreadable_images_are_skipped_with_their_sets(table, tmp_path):
    data = table(rows_of(a=["dog|tree", "dog", "", "bird"]), on_bad_image="skip")
    (tmp_path / "003.png").write_bytes(b"no image")
    data.prepare_data()
    assert len(data.images["a"]) == 3


def test_numbers_have_the_names_of_a_file(table, tmp_path):
    (tmp_path / "names.txt").write_text("wolf\nantelope\n")
    names = {"class_names": str(tmp_path / "names.txt")}
    data = table(rows_of(a=["0|?1", "1|0", "0", ""]), **names)
    assert list(sets_of(data).values()) == ["", "?antelope|wolf", "antelope|wolf", "wolf"]
    refused(table(rows_of(a=["0|?1", "1|2"]), **names), "labels from 0 to 1 .* got '2'")


def test_lists_of_numbered_labels_are_sets(tmp_path):
    features = {"label": {"feature": {"names": ["wolf", "antelope"], "_type": "ClassLabel"}, "_type": "List"}}
    names = [f"{index:03d}.png" for index in range(3)]
    content = pa.table({"path": names, "label": [[1, 0], [], [0]]})
    info = {b"huggingface": json.dumps({"info": {"features": features}}).encode()}
    parquet.write_table(content.replace_schema_metadata(info), tmp_path / "images.parquet")
    data = ImageTable(str(tmp_path / "images.parquet"), several_labels=True, cache_dir=None)
    assert sets_of(data) == {"000.png": "antelope|wolf", "001.png": "", "002.png": "wolf"}


def test_copies_with_different_labels_are_reported(table, tmp_path, caplog):
    data = table(rows_of(a=["dog|tree", "dog", "", "bird"]))
    (tmp_path / "003.png").write_bytes((tmp_path / "000.png").read_bytes())
    data.prepare_data()
    assert "1 are labelled differently (003.png = 000.png)" in caplog.text


@pytest.mark.parametrize(
    ("cells", "expected"),
    [(("1", "0", ""), "ant|?dog"), (("0.0", "-1", "True"), "?cat|dog"), (("0", "0", "0"), ""), (("2", "0", "0"), None)],
)
def test_a_column_per_label_has_1_0_and_unknown_cells(table, cells, expected):
    data = table([dict(zip(("ant", "cat", "dog"), cells, strict=True))], columns={"label": "ant|cat|dog"})
    if expected is None:
        refused(data, "Expected 1, 0, .* line 2 has '2' in 'ant'")
    else:
        assert sets_of(data) == {"000.png": expected}


def test_sets_that_are_read_as_classes_are_refused(table):
    several = {"several_labels": False}
    refused(table(rows_of(a=["dog|tree", "dog", "tree"]), **several), "got 'dog.tree'. If .* data.several_labels=true")
    marked = [{"ant": 1, "bee": 1}, {"ant": 0, "bee": 1}]
    refused(table(marked, columns={"label": "ant|bee"}, **several), "line 2 has 1, 1. .*data.several_labels=true")
    # A name may contain the separator.
    assert table(rows_of(a=["cup|mug", "tree"] * 3), **several).class_names == ["cup|mug", "tree"]
    refused(table(rows_of(a=["dog", "?", "tree"])), "line 3 of .* has no label")


def test_a_label_without_an_image_is_reported(table, caplog):
    data = table([{"ant": "1", "cat": "0"}, {"ant": "0", "cat": "0"}], columns={"label": "ant|cat"})
    assert sets_of(data) == {"000.png": "ant", "001.png": ""}
    assert "images.csv has no image of cat" in caplog.text


def test_balanced_classes_are_refused(table):
    refused(table(random_rows(0), balance_classes=True), "data.balance_classes does not support several labels")


@pytest.mark.parametrize("seed", range(12))
def test_no_group_is_on_two_sides(table, seed):
    rows = random_rows(seed)
    held_out = {"held_out": "b"} if seed % 2 else {}
    if not held_out:  # groups may then be in both domains
        rows = [{**row, "domain": "ab"[index % 2]} for index, row in enumerate(rows)]
    shots = 4 if seed % 3 == 0 else None
    partition = Dirichlet(num_clients=2) if seed % 4 == 0 else None
    data = table(rows, test_fraction=0.2, shots=shots, partition=partition, split_seed=seed, **held_out)
    sides, owners, count = {}, {}, 0
    for part in data.split_parts:
        side = part.role if part.role in ("train", "validation") else "test"
        for domain, rows in part.rows_by_domain.items():
            count += len(rows)
            for group in set(data.groups[domain][rows]) - {""}:
                sides.setdefault(group, set()).add(side)
                owners.setdefault((domain, group), set()).add(part.owner if side == "train" else side)
    assert all(len(found) == 1 for found in (*sides.values(), *owners.values()))
    assert count == 60 or shots


def test_shots_are_drawn_by_the_rarest_label(table):
    data = table(rows_of(a=["dog|tree"] * 4 + ["dog"] * 20 + [""] * 8), shots=2)
    (part,) = (part for part in data.split_parts if part.role == "train")
    chosen = sorted(target(data, data.images["a"].names[row]).keys() for row in part.rows_by_domain["a"])
    assert [*map(sorted, chosen)] == [[], [], ["dog"], ["dog"], ["dog", "tree"], ["dog", "tree"]]


def test_a_table_is_checked_written_again_and_trained_on(table, tmp_path, capsys):
    rows = random_rows(1)
    marked = []
    for row in rows:
        labels = row["label"].split("|")
        cells = {name: "-1" if f"?{name}" in labels else int(name in labels) for name in LABELS}
        marked.append({"domain": row["domain"], "group": row["group"], **cells})
    written = table(marked, columns={"label": "dog|cat|bee|ant"})
    options = ["--several_labels", "--columns", "label=dog|cat|bee|ant"]
    assert run_data(["check", str(written.table), *options]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    for name in LABELS:
        counts = [sum(mark + name in row["label"].split("|") for row in rows) for mark in ("", "?")]
        assert [name, *map(str, counts)] in lines
    again = str(tmp_path / "again.csv")
    assert run_data(["table", str(written.table), *options, f"--output={again}"]) == 0
    assert capsys.readouterr().out.strip().endswith("--data.several_labels true")
    data = ImageTable(again, several_labels=True, cache_dir=None)
    assert sets_of(data) == {f"{index:03d}.png": row["label"] for index, row in enumerate(rows)}
    assert data.split_hash == table(rows).split_hash
    start = ["fit", "--config=methods/promptfl", "--config=data/table", f"--data.table={again}", "--data.held_out=b"]
    short = ["--data.cache_dir=null", "--trainer.rounds=1", "--trainer.local.steps=1", "--trainer.accelerator=cpu"]
    several = ["--data.several_labels=true", "--model.clip=fedvlp-tiny"]
    run_federation([*start, *several, *short, f"--trainer.default_root_dir={tmp_path / 'runs'}"])
    (summary,) = tmp_path.rglob("summary.json")
    assert "micro_f1" in json.loads(summary.read_text())["metrics"]["last round"]["held_out/b"]
