"""The field's data sets as data modules; ``fedvlp data list`` prints them."""

from __future__ import annotations

from fedvlp.catalog import known
from fedvlp.data.benchmarks.base import Benchmark


class PACS(Benchmark):
    """PACS: 9,991 images of 7 classes as photos, art paintings, cartoons and sketches."""

    description = known.PACS


class OfficeHome(Benchmark):
    """OfficeHome: 15,588 images of 65 objects of offices and homes; it has no official split."""

    description = known.OFFICE_HOME


class VLCS(Benchmark):
    """VLCS: 10,729 images of 5 classes, photos of four older data sets."""

    description = known.VLCS


class DomainNet(Benchmark):
    """DomainNet: 586,575 images of 345 classes in 6 domains, cleaned.

    Under the official split only the test list of a held-out domain tests.
    """

    description = known.DOMAIN_NET


class TerraIncognita(Benchmark):
    """TerraIncognita: 24,330 images of 10 classes by camera traps at 4 places; it has no official split."""

    description = known.TERRA_INCOGNITA


class DomainNet10(Benchmark):
    """The 10 classes of DomainNet that FedBN chose; another benchmark than DomainNet."""

    description = known.DOMAIN_NET_10


class DomainNet126(Benchmark):
    """Mini-DomainNet: 126 classes and 4 domains of DomainNet; another benchmark than DomainNet."""

    description = known.DOMAIN_NET_126


class FedISIC2019(Benchmark):
    """Fed-ISIC2019: 23,247 images of 8 kinds of skin lesion by 6 centres; not every centre has every kind.

    Under the official split each centre has test images of its own.
    """

    description = known.FED_ISIC_2019


class Camelyon17(Benchmark):
    """Camelyon17-WILDS: 455,954 patches of lymph nodes of 5 hospitals, with tumor and without."""

    description = known.CAMELYON_17
