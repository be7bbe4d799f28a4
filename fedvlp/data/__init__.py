"""Data sets of several domains, dealt out to clients."""

from __future__ import annotations

from fedvlp.data.benchmarks import PACS, VLCS, DomainNet, DomainNet10, DomainNet126, OfficeHome, TerraIncognita
from fedvlp.data.files.folders import DomainFolders
from fedvlp.data.files.images import ArrayImages, FolderImages, ImageFiles, Images, image_paths
from fedvlp.data.loading.serving import EvaluationSplit
from fedvlp.data.module import FederatedDataModule
from fedvlp.data.partition import ByDomain, Dirichlet, Dispersed, Partitioner, Shards
from fedvlp.data.splits import few_shot, stratified_split
from fedvlp.data.styled_shapes.module import StyledShapes

__all__ = [
    "PACS",
    "VLCS",
    "ArrayImages",
    "ByDomain",
    "Dirichlet",
    "Dispersed",
    "DomainFolders",
    "DomainNet",
    "DomainNet10",
    "DomainNet126",
    "EvaluationSplit",
    "FederatedDataModule",
    "FolderImages",
    "ImageFiles",
    "Images",
    "OfficeHome",
    "Partitioner",
    "Shards",
    "StyledShapes",
    "TerraIncognita",
    "few_shot",
    "image_paths",
    "stratified_split",
]
