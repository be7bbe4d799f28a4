"""Where data sets lie on the Hugging Face hub, and on which terms; nothing is looked up here."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class HubSource:
    """A copy of a data set on the hub, as parquet files whose rows have an image, its domain and its label.

    Attributes:
        repository: the data set's repository, ``owner/name``.
        revision: the commit; None where none is known, so that the newest is taken and named.
        download_bytes: how much is downloaded, about.
        terms: the owners' terms, as far as they are known.
        domain_column: the column that says which domain an image is of.
        has_official_split: whether the files named ``train-`` and ``test-`` are the parts of the official split.
    """

    repository: str
    revision: str | None
    download_bytes: int
    terms: str
    domain_column: str = "domain"
    has_official_split: bool = False

    label_column = "label"
    image_column = "image"
    folder = "data"


HUB_SOURCES = {
    "PACS": HubSource(
        repository="flwrlabs/pacs",
        revision="394113073258ead631f617d2e13bb377c0715c4b",
        download_bytes=191_395_900,
        terms="no licence is stated; images of Caltech256, Sketchy, TU-Berlin and Google Images, gathered for research",
    ),
    "OfficeHome": HubSource(
        repository="flwrlabs/office-home",
        revision="2a083645e3177afbd91ba4fa2651238f8994d335",
        download_bytes=1_160_000_000,
        terms="no licence is stated; its authors offer it for non-commercial research under fair use",
    ),
    "DomainNet": HubSource(
        repository="wltjr1007/DomainNet",
        revision="ee20570ae7a29c51571e55a9a17983f7625295d6",
        download_bytes=18_521_436_207,
        terms="no licence is stated; its authors offer it for non-commercial research under fair use",
        has_official_split=True,
    ),
    "FedISIC2019": HubSource(
        repository="flwrlabs/fed-isic2019",
        revision=None,
        download_bytes=144_000_000,
        terms="ISIC 2019: CC BY-NC 4.0; the terms of HAM10000 apply to its images as well",
        domain_column="center",
        has_official_split=True,
    ),
    "Camelyon17": HubSource(
        repository="wltjr1007/Camelyon17-WILDS",
        revision="d784d5344ba6c967f83f9f3d9b2f1e2a4d6eb78f",
        download_bytes=10_700_000_000,
        terms="CC0 1.0",
        domain_column="center",
    ),
}
"""By the name of the data set."""
