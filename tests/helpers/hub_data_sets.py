"""Made-up copies of the downloadable data sets, in the format used on the hub."""

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from fedvlp.catalog.description import DATA_SETS, Description
from tests.helpers.benchmark_trees import picture
from tests.helpers.hub import Hub, Repository

Row = tuple[Any, Any]
"""Values of the domain column and of the label column."""


def parquet(
    rows: Sequence[Row], domain_column: str = "domain", names: Mapping[str, Sequence[str]] | None = None
) -> bytes:
    """Encode a Parquet file of different images. ``names`` maps a column to the names of its numbers."""
    images = [{"bytes": picture(seed), "path": f"pic_{seed}.png"} for seed in range(len(rows))]
    columns = {"image": images, domain_column: [row[0] for row in rows], "label": [row[1] for row in rows]}
    features = {name: {"names": list(given), "_type": "ClassLabel"} for name, given in (names or {}).items()}
    table = pa.table(columns).replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    file = io.BytesIO()
    pq.write_table(table, file, row_group_size=10)
    return file.getvalue()


def _rows(domains: Sequence[Any], labels: Sequence[Any], count: int = 1) -> list[Row]:
    return [*product(domains, labels)] * count


@cache
def pacs() -> dict[str, bytes]:
    """PACS: domain names and numeric labels."""
    rows = _rows(["sketch", "photo", "cartoon", "art_painting"], range(3), 4)
    return {"train-00000-of-00001": parquet(rows, names={"label": ["dog", "giraffe", "person"]})}


@cache
def office_home() -> dict[str, bytes]:
    """OfficeHome: two files, and one domain name differs from its folder."""
    rows = _rows(["Art", "Clipart", "Product", "Real World"], range(2), 3)
    content = parquet(rows, names={"label": ["Alarm_Clock", "TV"]})
    return {"train-00000-of-00002": content, "train-00001-of-00002": content}


@cache
def domain_net() -> dict[str, bytes]:
    """DomainNet: numeric domains in non-alphabetical order, and an official split."""
    domains = ["sketch", "clipart", "real", "painting", "quickdraw", "infograph"]
    names = {"domain": domains, "label": ["zebra", "The_Eiffel_Tower"]}
    return {
        "test-00000-of-00001": parquet(_rows(range(6), range(2), 1), names=names),
        "train-00000-of-00001": parquet(_rows(range(6), range(2), 3), names=names),
    }


@cache
def fed_isic2019() -> dict[str, bytes]:
    """Fed-ISIC2019: the publisher's numbers for centres and classes. The last two centres lack a class."""
    rows = [row for row in _rows(range(6), range(3), 3) if row not in ((4, 2), (5, 2))]
    return {
        "test-00000-of-00001": parquet(rows[:16], "center"),
        "train-00000-of-00001": parquet(rows, "center"),
    }


@cache
def camelyon17() -> dict[str, bytes]:
    """Camelyon17: each file numbers only its own hospitals and names them after its part."""
    trains = {"center": ["train-center1", "train-center2", "train-center3"], "label": ["non-tumor", "tumor"]}
    other = {"center": ["validation-center"], "label": ["non-tumor", "tumor"]}
    test = {"center": ["test-center"], "label": ["non-tumor", "tumor"]}
    return {
        "test-00000-of-00001": parquet(_rows([0], [0, 1], 4), "center", test),
        "train-00000-of-00001": parquet(_rows(range(3), [0, 1], 5), "center", trains),
        "validation-00000-of-00001": parquet(_rows([0], [0, 1], 3), "center", other),
    }


FORMS = {
    "PACS": pacs,
    "OfficeHome": office_home,
    "DomainNet": domain_net,
    "FedISIC2019": fed_isic2019,
    "Camelyon17": camelyon17,
}
CLASSES = {
    "PACS": ("dog", "giraffe", "person"),
    "OfficeHome": ("Alarm_Clock", "TV"),
    "DomainNet": ("The_Eiffel_Tower", "zebra"),
    "FedISIC2019": ("basal_cell_carcinoma", "melanocytic_nevus", "melanoma"),
    "Camelyon17": ("normal", "tumor"),
}
COUNTS = {
    "PACS": [12] * 4,
    "OfficeHome": [12] * 4,
    "DomainNet": [8] * 6,
    "FedISIC2019": [12, 12, 12, 12, 8, 8],
    "Camelyon17": [10, 6, 8, 10, 10],
}
"""Number of images per domain, in catalog order."""


def upload(hub: Hub, name: str) -> Repository:
    """Upload the copy of a data set to the repository that is its download source."""
    source = DATA_SETS[name].download_source
    files = {f"data/{stem}.parquet": content for stem, content in FORMS[name]().items()}
    files["README.md"] = b"---\nlicense: unknown\n---\n"
    revision = {"revision": source.revision} if source.revision else {}
    return hub.add(Repository(source.repository, files=files, card={"license": "unknown"}, **revision))


def as_uploaded(description: Description) -> Description:
    """Reduce the description of a data set to the classes and counts of its made-up copy."""
    counts = dict(zip(description.domain_counts, COUNTS[description.name], strict=True))
    layouts = tuple(replace(layout, split_counts={}) for layout in description.layouts)
    classes = CLASSES[description.name]
    return replace(description, class_names=classes, counts={}, domain_counts=counts, layouts=layouts)
