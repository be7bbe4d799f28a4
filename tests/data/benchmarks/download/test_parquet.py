from __future__ import annotations

import io
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedvlp.data.benchmarks.hub import ImageTable, write_images
from fedvlp.data.catalog import DATA_SETS
from fedvlp.utils.errors import UserError
from tests.helpers.benchmark_trees import picture
from tests.helpers.hub_data_sets import parquet

CAMELYON_17 = DATA_SETS["Camelyon17"]
FED_ISIC_2019 = DATA_SETS["FedISIC2019"]
PACS = DATA_SETS["PACS"]
LABELS = {"label": ["dog", "giraffe"]}
CARD = {
    "dataset_info": {"features": [{"name": "label", "dtype": {"class_label": {"names": {"0": "horse", "1": "dog"}}}}]}
}


@pytest.fixture
def table(tmp_path):
    """Returns a function that opens a parquet file with these bytes."""
    opened = []

    def make(content, description=PACS, card=None):
        path = tmp_path / f"{len(opened)}.parquet"
        path.write_bytes(content)
        opened.append(ImageTable(path, "x.parquet", DATA_SETS[description.name].hub, description, card or {}))
        return opened[-1]

    yield make
    for each in opened:
        each.close()


def named(table):
    return [(row.domain, row.class_name) for row in table.rows()]


def test_names_of_the_file_count_before_those_of_the_card(table):
    rows = [("photo", 1), ("sketch", 0)]
    assert named(table(parquet(rows, names=LABELS), card=CARD)) == [("photo", "giraffe"), ("sketch", "dog")]
    assert named(table(parquet(rows), card=CARD)) == [("photo", "dog"), ("sketch", "horse")]
    assert named(table(parquet([("Art", "Person")]))) == [("art_painting", "person")]


def test_numbers_that_the_publisher_gave_are_names(table):
    assert named(table(parquet([(4, 0), (0, 7)], "center"), FED_ISIC_2019)) == [
        ("MSK", "melanoma"),
        ("BCN", "squamous_cell_carcinoma"),
    ]
    names = {"center": ["test-center"], "label": ["tumor", "non-tumor"]}
    assert named(table(parquet([(0, 0)], "center", names), CAMELYON_17)) == [("hospital_2", "tumor")]
    assert named(table(parquet([(3, 0)], "center"), CAMELYON_17)) == [("hospital_3", "normal")]


@pytest.mark.parametrize(
    ("rows", "names", "reason"),
    [
        ([("photo", 0)], {}, "The column label of x.parquet has numbers, such as 0, and neither the file nor the card"),
        ([("photo", 2)], LABELS, "The column label of x.parquet has '2', which is not of PACS"),
        (
            [("watercolour", 0)],
            LABELS,
            r"has 'watercolour', which is not of PACS \(art_painting, cartoon, photo, sketch\)",
        ),
    ],
)
def test_other_names_are_refused(table, rows, names, reason):
    with pytest.raises(UserError, match=reason):
        named(table(parquet(rows, names=names)))


def test_other_files_are_refused(table):
    with pytest.raises(UserError, match=r"x\.parquet is no parquet file"):
        table(b"PAR1")
    with pytest.raises(UserError, match=r"found image, domain, label, so center is missing"):
        table(parquet([("photo", 0)]), FED_ISIC_2019)
    content = parquet([("photo", 0)] * 50, names=LABELS)
    with pytest.raises(UserError, match=r"x\.parquet is damaged"):
        named(table(content[:100] + bytes(200) + content[300:]))
    file = io.BytesIO()
    pq.write_table(pa.table({"image": [None], "domain": ["photo"], "label": ["dog"]}), file)
    with pytest.raises(UserError, match="has a row without an image"):
        named(table(file.getvalue()))


def test_rows_are_read_a_few_at_a_time(table):
    images = [bytes([seed % 256]) * 10_000 for seed in range(1000)]
    file = io.BytesIO()
    content = pa.table({"image": images, "domain": ["photo"] * 1000, "label": ["dog"] * 1000})
    pq.write_table(content, file, row_group_size=100, compression="none", use_dictionary=False)
    del content
    before = pa.total_allocated_bytes()
    most = max(pa.total_allocated_bytes() - before for _ in table(file.getvalue()).rows())
    assert 0 < most < 4_000_000  # of 10


def test_files_are_named_by_what_they_are(table, tmp_path):
    images = [
        {"bytes": picture(1), "path": "1.jpg"},
        {"bytes": b"\xff\xd8\xff\xe0", "path": None},
        {"bytes": b"P6 1 1 255 abc", "path": "a/b.PPM"},
        {"bytes": b"cut off", "path": "n02103406_4068-1.png"},
    ]
    columns = {"image": images, "domain": ["sketch"] * 4, "label": ["dog"] * 4}
    file = io.BytesIO()
    pq.write_table(pa.table(columns), file)
    assert write_images(table(file.getvalue()), tmp_path / "images", "train-0", "") == 4
    assert sorted(path.name for path in (tmp_path / "images/sketch/dog").iterdir()) == [
        "n02103406_4068-1.png",  # known to be bad, and left out by its name
        "train-0_000000.png",
        "train-0_000001.jpg",
        "train-0_000002.ppm",
    ]
    pacs = replace(PACS, known_bad=())
    file = io.BytesIO()
    pq.write_table(pa.table({"image": [b"text"], "domain": ["sketch"], "label": ["dog"]}), file)
    with pytest.raises(UserError, match=r"Row 0 of x\.parquet is no image that is known"):
        write_images(table(file.getvalue(), pacs), tmp_path, "", "")
