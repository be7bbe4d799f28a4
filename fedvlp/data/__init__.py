"""Data sets of several domains, dealt out to clients."""

from __future__ import annotations

from fedvlp.data.binding import EvaluationSplit
from fedvlp.data.folders import DomainFolders
from fedvlp.data.images import ArrayImages, FolderImages, ImageFiles, Images, image_paths
from fedvlp.data.module import FederatedDataModule
from fedvlp.data.partition import Partitioner, by_domain
from fedvlp.data.splits import stratified_split
from fedvlp.data.styled_shapes import StyledShapes

__all__ = [
    "ArrayImages",
    "DomainFolders",
    "EvaluationSplit",
    "FederatedDataModule",
    "FolderImages",
    "ImageFiles",
    "Images",
    "Partitioner",
    "StyledShapes",
    "by_domain",
    "image_paths",
    "stratified_split",
]
