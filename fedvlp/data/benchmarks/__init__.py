"""The field's data sets: data modules that read them from any known layout."""

from __future__ import annotations

from fedvlp.data.benchmarks.base import Benchmark
from fedvlp.data.benchmarks.modules import PACS, VLCS, DomainNet, DomainNet10, DomainNet126, OfficeHome, TerraIncognita

__all__ = [
    "PACS",
    "VLCS",
    "Benchmark",
    "DomainNet",
    "DomainNet10",
    "DomainNet126",
    "OfficeHome",
    "TerraIncognita",
]
