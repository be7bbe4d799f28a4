"""Data sets of several domains, divided among clients. Imports catalog, core and utils.

The way of an image: ``load_domains`` of a data module names the images of each domain (``files``, ``benchmarks``);
``split_parts`` gives each image its role and client (``splits``, ``protocols``, ``partition``); ``bind`` takes from a
module its transform, and what its frozen parts compute of an image; ``loaders`` makes batches from the files, from
decoded images or from features that are kept on disk (``cache``).
"""

from __future__ import annotations

from fedvlp.core.protocols import EvaluationSplit
from fedvlp.data.domain_folders import ClassFolders, DomainFolders
from fedvlp.data.files.images import ArrayImages, FolderImages, Images, image_paths
from fedvlp.data.icon_domains.module import IconDomains
from fedvlp.data.module import FederatedDataModule
from fedvlp.data.partition import ByDomain, Dirichlet, Dispersed, FewClasses, Partitioner, Pooled, QuantitySkew, Shards
from fedvlp.data.splits import few_shot, stratified_split

__all__ = [
    "ArrayImages",
    "ByDomain",
    "ClassFolders",
    "Dirichlet",
    "Dispersed",
    "DomainFolders",
    "EvaluationSplit",
    "FederatedDataModule",
    "FewClasses",
    "FolderImages",
    "IconDomains",
    "Images",
    "Partitioner",
    "Pooled",
    "QuantitySkew",
    "Shards",
    "few_shot",
    "image_paths",
    "stratified_split",
]
