"""Tables of images: the same data set as folders, formats and mistakes, given splits and clients, groups."""

import csv
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import ipc, parquet

from fedvlp.data import Dirichlet, DomainFolders, ImageTable
from fedvlp.data.splits import SplitRule
from fedvlp.data.table import read_table, write_table
from fedvlp.tools.data import run_data
from fedvlp.utils.errors import UserError
from tests.helpers.data import refused


@pytest.fixture
def table(tmp_path):
    """Write a CSV file of rows and make its data module."""

    def make(rows, name="images.csv", **options):
        file = tmp_path / name
        with file.open("w", newline="", encoding="utf-8") as opened:
            writer = csv.DictWriter(opened, [*rows[0]], delimiter="\t" if name.endswith("tsv") else ",")
            writer.writeheader()
            writer.writerows(rows)
        return ImageTable(str(file), **{"root": str(tmp_path), "cache_dir": None, **options})

    return make


@pytest.fixture
def rows(tmp_path, save):
    """Write twelve images of cats and dogs of six patients; list their rows."""
    listed = []
    for index in range(12):
        path = save(tmp_path / "scans" / f"{index:02d}.png", seed=index)
        label = ("cat", "dog")[index % 2]
        listed.append({"path": f"scans/{path.name}", "label": label, "group": f"p{index // 2}"})
    return listed


def saved_by_datasets(folder, files):
    """Write a folder like ``Dataset.save_to_disk``, with bytes and numbered labels."""
    names = sorted({file.class_name for file in files})
    features = {"image": {"_type": "Image"}, "label": {"names": names, "_type": "ClassLabel"}}
    info = {b"huggingface": json.dumps({"info": {"features": features}}).encode()}
    images = [{"bytes": Path(file.path).read_bytes(), "path": file.name} for file in files]
    labels = [names.index(file.class_name) for file in files]
    content = pa.table({"image": images, "label": labels, "domain": [file.domain for file in files]})
    content = content.replace_schema_metadata(info)
    folder.mkdir()
    with ipc.new_stream(folder / "data-00000-of-00001.arrow", content.schema) as writer:
        writer.write_table(content, max_chunksize=5)
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}))
    parquet.write_table(content, folder.with_suffix(".parquet"))


def test_folders_csv_parquet_and_saved_folders_are_the_same_data_set(tree, tmp_path):
    options = {"held_out": "sketch", "cache_dir": str(tmp_path / "cache")}
    folders = DomainFolders(str(tree), **options)
    scanned = folders.scan()
    assert run_data(["table", "folders", "--root", str(tree), "--output", str(tmp_path / "images.csv")]) == 0
    assert run_data(["check", str(tmp_path / "images.csv"), "--root", str(tree)]) == 0
    saved_by_datasets(tmp_path / "saved", [file for files in scanned.values() for file in files])
    tables = [ImageTable(str(tmp_path / "images.csv"), str(tree), **options)]
    tables += [ImageTable(str(tmp_path / name), **options) for name in ("saved", "saved.parquet")]
    for data in tables:
        assert data.split_hash == folders.split_hash
        assert data.split_table() == folders.split_table()
        assert data.class_names == folders.class_names
        assert data.image_identities() == folders.image_identities()
        for domain, images in data.images.items():
            assert images[3].tobytes() == folders.images[domain][3].tobytes()
    assert tables[2].scan() == ImageTable(str(tmp_path / "saved.parquet"), **options).scan()


def test_images_in_a_table_need_a_cache(tree, tmp_path):
    saved_by_datasets(tmp_path / "saved", DomainFolders(str(tree)).scan()["art"])
    refused(ImageTable(str(tmp_path / "saved"), cache_dir=None), "extracted to the cache. Set data.cache_dir")


def test_images_that_are_only_named_are_read(tree, tmp_path):
    files = DomainFolders(str(tree)).scan()["art"]
    images = [{"bytes": None, "path": file.path} for file in files]
    parquet.write_table(
        pa.table({"image": images, "label": [file.class_name for file in files]}), tmp_path / "a.parquet"
    )
    data = ImageTable(str(tmp_path / "a.parquet"), cache_dir=str(tmp_path / "cache"))
    data.prepare_data()
    assert len(data.images["a"]) == len(files)
    assert not any(name.startswith("/") for name in data.images["a"].names)


def test_columns_have_other_names_and_paths_are_composed(table, rows):
    renamed = [{"image_id": row["path"][6:8], "dx": row["label"], "site": "B"} for row in rows]
    columns = {"path": "scans/{image_id}.png", "label": "dx", "domain": "site"}
    data = table(renamed, name="meta.tsv", columns=columns)
    assert data.domains == ["B"]
    assert data.images["B"].names[0] == "scans/00.png"


def test_numbered_labels_have_the_names_of_a_file_in_its_order(table, rows, tmp_path):
    (tmp_path / "names.txt").write_text("wolf\nantelope\n")
    numbered = [{**row, "label": ("cat", "dog").index(row["label"])} for row in rows]
    data = table(numbered, class_names=str(tmp_path / "names.txt"))
    assert data.class_names == ["wolf", "antelope"]
    label_of = dict(zip(data.images["images"].names, data.images["images"].labels.tolist(), strict=True))
    assert [label_of[row["path"]] for row in rows] == [0, 1] * 6
    refused(
        table([*numbered, {**numbered[0], "label": 2}], class_names=data.class_names_file), "from 0 to 1 .* got '2'"
    )


def test_a_column_per_class_marks_the_class(table, rows):
    marked = [{**row, "cat": f"{row['label'] == 'cat':.1f}", "dog": int(row["label"] == "dog")} for row in rows]
    columns = {"label": "dog|cat"}
    data = table(marked, columns=columns)
    assert data.class_names == ["cat", "dog"]
    assert data.split_table() == table(rows).split_table()
    refused(table([{**marked[0], "dog": 1}, *marked[1:]], columns=columns), "single 1.* line 2 has 1, 1.0")
    refused(table([{**marked[0], "cat": "0.4"}, *marked[1:]], columns=columns), "line 2 has 0, 0.4")
    refused(table(marked, columns={"label": "dog|cow"}), "Expected a column 'cow' for the label")


def test_a_given_split_and_given_clients_are_used(table, rows):
    parts = ["train"] * 6 + ["val"] * 2 + ["Test"] * 4
    given = [
        {**row, "split": part, "client": f"clinic {index % 3}"}
        for index, (row, part) in enumerate(zip(rows, parts, strict=True))
    ]
    data = table(given)
    found = {(entry["role"], entry["client"]): len(entry["images"]) for entry in data.split_table()}
    assert found == {("train", 0): 2, ("train", 1): 2, ("train", 2): 2, ("validation", None): 2, ("test", None): 4}
    assert [client.name for client in data.clients] == ["clinic 0", "clinic 1", "clinic 2"]
    assert "the data set's clients; official train/validation/test split" in data.protocol
    assert len(table(given, partition=Dirichlet(num_clients=2)).clients) == 2
    refused(table([{**row, "client": ""} if row is given[0] else row for row in given]), "1 of 6 have none")
    leaking = [{**row, "group": "p0"} for row in given]
    refused(table(leaking), "each group on one side of the split; 1 of 1 are on two, such as 'p0'")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"label": ""}, "line 2 of .*images.csv has no label. Correct or remove the row"),
        ({"path": ""}, "line 2 of .* has no path"),
        ({"path": "scans/01.png"}, "Expected each image once .* 1 are in several rows, such as 'scans/01.png'"),
        ({"split": "trian"}, "line 2 of .* has 'trian'"),
        ({"split": "test"}, "line 3 of .* has no split"),
    ],
)
def test_a_wrong_row_is_named(table, rows, change, message):
    refused(table([{"split": "", **rows[0], **change}, *({"split": "", **row} for row in rows[1:])]), message)


def test_a_missing_file_column_or_format_is_one_line(table, rows, tmp_path):
    missing = [{**rows[0], "path": "scans/99.png"}, *rows[1:]]
    refused(table(missing), r"1 of 12 images can't be read:\n  scans/99.png: No such file")
    refused(table(rows, columns={"label": "diagnosis"}), "Expected a column 'diagnosis' for the label in .*images.csv")
    composed = table(rows, columns={"path": "{image_id}.png"})
    refused(composed, "Expected a column 'image_id' for the path")
    with pytest.raises(UserError, match=r"data.columns .* got 'lable'. Did you mean 'label'"):
        table(rows, columns={"lable": "x"})
    for name, message in (("none.csv", "there is no file"), ("images.xlsx", "as .csv, .tsv or .parquet")):
        (tmp_path / "images.xlsx").touch()
        with pytest.raises(UserError, match=message):
            read_table(tmp_path / name, None)
    (tmp_path / "damaged.parquet").write_bytes(b"PAR1")
    with pytest.raises(UserError, match=r"Could not read .*damaged.parquet as a table"):
        read_table(tmp_path / "damaged.parquet", None)
    (tmp_path / "folder").mkdir()
    with pytest.raises(UserError, match=r"found no state.json"):
        read_table(tmp_path / "folder", None)


def test_a_table_that_is_written_gives_the_same_images(table, rows, tmp_path):
    data = table([{**row, "domain": f"d{index % 2}", "split": "train"} for index, row in enumerate(rows)])
    written = tmp_path / "again.csv"
    assert write_table(written, data.scan(), tmp_path) == 12
    assert ImageTable(str(written), cache_dir=None).scan() == data.scan()
    assert written.read_text().startswith("path,label,domain,split,group\n")


def test_check_reports_groups_that_the_split_divides(table, rows, tmp_path, capsys):
    table([{**row, "split": ("train", "test")[index > 6]} for index, row in enumerate(rows)])
    assert run_data(["check", str(tmp_path / "images.csv")]) == 1
    printed = capsys.readouterr().out
    assert "official train/test split" in printed
    assert "problem: 1 groups are in several parts of the split: p3" in printed


def random_groups(generator):
    """Draw labels, domains and groups of images; some images have no group."""
    count = int(generator.integers(20, 120))
    labels = generator.integers(0, 4, count)
    groups = np.array([f"g{number}" for number in generator.integers(0, count // 3 + 2, count)], dtype=object)
    groups[generator.random(count) < 0.2] = ""
    return labels, groups


@pytest.mark.parametrize("seed", range(30))
def test_no_random_table_has_a_group_on_two_sides(seed):
    generator = np.random.default_rng(seed)
    rule = SplitRule(0.25, 0.2 * (seed % 2), shots=None if seed % 3 else 4, seed=seed)
    sides = {}
    role_of_group = {}
    for domain in ("a", "b"):
        labels, groups = random_groups(generator)
        roles = rule.divide(labels, domain, groups=groups, role_of_group=role_of_group)
        for role, positions in roles.items():
            for name in set(groups[positions]) - {""}:
                sides.setdefault(name, set()).add(role)
        taken = np.concatenate([*roles.values()])
        assert len(taken) == len(set(taken.tolist()))
        if rule.shots is None:
            assert len(taken) == len(labels)
    assert all(len(found) == 1 for found in sides.values())


def test_the_drawn_share_of_each_class_is_near_the_requested_share():
    generator = np.random.default_rng(0)
    labels = generator.integers(0, 4, 2000)
    groups = np.array([f"g{number}" for number in generator.integers(0, 400, 2000)], dtype=object)
    roles = SplitRule(0.25, 0.1).divide(labels, "a", groups=groups)
    for label in range(4):
        shares = [(labels[roles[role]] == label).sum() / (labels == label).sum() for role in ("validation", "test")]
        assert shares == pytest.approx([0.225, 0.1], abs=0.05)


def test_the_order_of_images_does_not_change_the_sides_of_groups():
    labels, groups = random_groups(np.random.default_rng(3))
    order = np.random.default_rng(4).permutation(len(labels))
    one, other = ({}, {})
    SplitRule(test_fraction=0.2).divide(labels, "a", groups=groups, role_of_group=one)
    SplitRule(test_fraction=0.2).divide(labels[order], "a", groups=groups[order], role_of_group=other)
    one.pop("", None), other.pop("", None)
    assert one == other


def test_a_pattern_finds_groups_in_names_and_clients_share_none(tree, tmp_path):
    options = {"cache_dir": None, "partition": Dirichlet(num_clients=2), "test_fraction": 0.25}
    data = DomainFolders(str(tree), group=r"([a-z]+/[a-z]+/)", **options)
    owners = {}
    for entry in data.split_table():
        for name in entry["images"]:
            owners.setdefault(name.rpartition("/")[0], set()).add((entry["role"], entry["client"]))
    assert len(owners) == 6
    assert all(len(found) == 1 for found in owners.values())
    assert data.split_hash != DomainFolders(str(tree), **options).split_hash
    with pytest.raises(UserError, match=r"2 of 2 are on two, such as 'cat/' \(test or held-out and train"):
        _ = DomainFolders(str(tree), held_out="art", cache_dir=None, group="(cat/|dog/)").split_parts
    with pytest.raises(UserError, match=r"such as 'art/cat/0.png'; 'patient' is in none"):
        _ = DomainFolders(str(tree), cache_dir=None, group="patient").split_parts
    with pytest.raises(UserError, match=r"regular expression in data.group; got '\('"):
        DomainFolders(str(tree), group="(")
