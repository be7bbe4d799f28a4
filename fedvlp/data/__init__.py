"""Data sets of several domains, divided among clients. Imports catalog, core and utils.

The way of an image: ``load_domains`` of a data module names the images of each domain (``files``, ``benchmarks``);
``split_parts`` gives each image its role and client (``splits``, ``protocols``, ``partition``); ``bind`` takes from a
module its transform, and what its frozen parts compute of an image; ``loaders`` makes batches from the files, from
decoded images or from features that are kept on disk (``cache``).
"""

from __future__ import annotations

from fedvlp.core.protocols import EvaluationSplit
from fedvlp.data.benchmarks.modules import (
    CIFAR10,
    CIFAR100,
    DTD,
    PACS,
    SUN397,
    UCF101,
    VLCS,
    Caltech101,
    Camelyon17,
    DomainNet,
    DomainNet10,
    DomainNet126,
    EuroSAT,
    FedISIC2019,
    FGVCAircraft,
    Flowers102,
    Food101,
    ImageCLEFDA,
    ImageNet,
    Office31,
    OfficeHome,
    OxfordPets,
    StanfordCars,
    TerraIncognita,
    TinyImageNet,
)
from fedvlp.data.domain_folders import ClassFolders, DomainFolders
from fedvlp.data.files.images import ArrayImages, FolderImages, ImageFiles, Images, image_paths
from fedvlp.data.icon_domains.module import IconDomains
from fedvlp.data.module import FederatedDataModule
from fedvlp.data.partition import ByDomain, Dirichlet, Dispersed, FewClasses, Partitioner, Pooled, QuantitySkew, Shards
from fedvlp.data.splits import few_shot, stratified_split
from fedvlp.data.styled_shapes.module import StyledShapes

__all__ = [
    "CIFAR10",
    "CIFAR100",
    "DTD",
    "PACS",
    "SUN397",
    "UCF101",
    "VLCS",
    "ArrayImages",
    "ByDomain",
    "Caltech101",
    "Camelyon17",
    "ClassFolders",
    "Dirichlet",
    "Dispersed",
    "DomainFolders",
    "DomainNet",
    "DomainNet10",
    "DomainNet126",
    "EuroSAT",
    "EvaluationSplit",
    "FGVCAircraft",
    "FedISIC2019",
    "FederatedDataModule",
    "FewClasses",
    "Flowers102",
    "FolderImages",
    "Food101",
    "IconDomains",
    "ImageCLEFDA",
    "ImageFiles",
    "ImageNet",
    "Images",
    "Office31",
    "OfficeHome",
    "OxfordPets",
    "Partitioner",
    "Pooled",
    "QuantitySkew",
    "Shards",
    "StanfordCars",
    "StyledShapes",
    "TerraIncognita",
    "TinyImageNet",
    "few_shot",
    "image_paths",
    "stratified_split",
]
