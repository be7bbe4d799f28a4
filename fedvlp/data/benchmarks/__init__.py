"""The field's data sets: data modules that read them from any known layout. Imports files, splits and the catalog."""

from __future__ import annotations

from fedvlp.data.benchmarks.base import Benchmark
from fedvlp.data.benchmarks.modules import (
    PACS,
    VLCS,
    Camelyon17,
    DomainNet,
    DomainNet10,
    DomainNet126,
    FedISIC2019,
    OfficeHome,
    TerraIncognita,
)

__all__ = [
    "PACS",
    "VLCS",
    "Benchmark",
    "Camelyon17",
    "DomainNet",
    "DomainNet10",
    "DomainNet126",
    "FedISIC2019",
    "OfficeHome",
    "TerraIncognita",
]
