"""Images in tar files: the same data set as in folders, their labels and cells, and mistakes."""

import io
import json
import tarfile
from pathlib import Path

import pytest
import torch

from fedvlp.data import DomainFolders, ImageTable
from fedvlp.data.files.shards import read_content, read_samples
from fedvlp.tools.data import run_data
from fedvlp.utils.errors import UserError


def write_tar(path, files):
    """Write the content of files by their names."""
    path.parent.mkdir(exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))


def features(data):
    """Compute every image's features in each evaluation split, in order."""
    data.setup("fit")
    data.bind(
        transform=lambda image: torch.tensor(list(image.tobytes())).float().reshape(3, 8, 8),
        precompute=lambda images: {"mean": images.mean((1, 2))},
        key="means",
    )
    data.encode()
    return {
        split.name: [(batch["mean"], labels) for batch, labels in split.loader] for split in data.evaluation_splits()
    }


def test_folders_and_tar_files_are_the_same_data_set(tree, tmp_path, capsys):
    options = {"held_out": "sketch", "cache_dir": str(tmp_path / "cache"), "test_fraction": 0.25}
    folders = DomainFolders(str(tree), **options)
    files = [file for files in folders.scan().values() for file in files]
    for shard in range(2):
        content = {}
        for file in files[shard::2]:
            about = {"label": file.class_name, "domain": file.domain}
            content[file.name] = Path(file.path).read_bytes()
            content[file.name.replace("png", "json")] = json.dumps(about).encode()
        write_tar(tmp_path / "shards" / f"{shard}.tar", content)
    pattern = str(tmp_path / "shards" / "*.tar")
    shards = ImageTable(pattern, **options)
    assert shards.split_hash == folders.split_hash
    assert shards.split_table() == folders.split_table()
    assert shards.image_identities() == folders.image_identities()
    expected = features(folders)
    for name, batches in features(shards).items():
        for batch, other in zip(batches, expected[name], strict=True):
            assert all(map(torch.equal, batch, other))
    assert list(tmp_path.glob("cache/tables/*")) == []
    assert run_data(["check", pattern]) == 0
    assert "sketch" in capsys.readouterr().out


def test_labels_and_other_cells_are_read_from_files_next_to_the_image(tree, tmp_path):
    images = sorted(tree.rglob("*.png"))[:4]
    png = [image.read_bytes() for image in images]
    first = {"./0.png": png[0], "0.cls": b"1\n", "1.cls": b"0", "1.PNG": png[1], "1.seg.png": b"mask", "README": b"x"}
    write_tar(tmp_path / "some" / "a.tar", first)
    about = {"label": 1, "group": "p7", "split": "test", "client": "north", "score": None, "path": "elsewhere"}
    second = {"2.json": json.dumps(about).encode(), "2.png": png[2], "3.txt": b"0", "3.png": png[3]}
    write_tar(tmp_path / "some" / "b.tar", second)
    (tmp_path / "names.txt").write_text("cat\ndog\n")
    options = {"class_names": str(tmp_path / "names.txt"), "cache_dir": None}
    (files,) = ImageTable(str(tmp_path / "some" / "a.tar"), **options).scan().values()
    expected = [("some", "cat", "1.PNG"), ("some", "dog", "0.png")]
    assert [(file.domain, file.class_name, file.name) for file in files] == expected
    rows = {row["name"]: row for row in read_samples(tmp_path / "some" / "b.tar", frozenset([".png"]))}
    found = {name: rows["2.png"][name] for name in ("label", "group", "split", "client", "score")}
    assert found == {"label": "1", "group": "p7", "split": "test", "client": "north", "score": ""}
    assert (rows["3.png"]["label"], rows["3.png"]["group"]) == ("0", "")
    assert [read_content(tmp_path / "some" / rows[name]["path"]) for name in ("2.png", "3.png")] == png[2:]


def test_mistakes_are_one_line(tree, tmp_path):
    png = (tree / "art" / "cat" / "0.png").read_bytes()
    write_tar(tmp_path / "a" / "0.tar", {"x.png": png, "x.cls": b"cat", "y.png": b"", "y.cls": b"dog"})
    write_tar(tmp_path / "a" / "1.tar", {"x.png": png, "x.txt": b"cat"})
    data = ImageTable(str(tmp_path / "a" / "*.tar"), cache_dir=None, on_bad_image="error")
    # The names x.png of both tar files would be equal.
    assert [file.name.partition("#")[0] for file in data.scan()["a"]] == ["0.tar", "1.tar", "0.tar"]
    with pytest.raises(UserError, match=r"1 of 3 images can't be read:\n  0.tar#\d+\+0: the file is empty"):
        data.prepare_data()
    with pytest.raises(UserError, match=r"Expected tar files with images at .*none.tar; found no image"):
        ImageTable(str(tmp_path / "none.tar")).scan()
    (tmp_path / "zipped.tar").write_bytes(b"\x1f\x8b" + bytes(600))
    with pytest.raises(UserError, match=r"Could not read .*zipped.tar \(.*Expected an uncompressed tar file"):
        ImageTable(str(tmp_path / "zipped.tar")).scan()
    write_tar(tmp_path / "list.tar", {"x.png": png, "x.json": b"[1]"})
    with pytest.raises(UserError, match="json files contain objects"):
        ImageTable(str(tmp_path / "list.tar")).scan()
