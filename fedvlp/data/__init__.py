"""Data sets of several domains, divided among clients. Imports core, utils and the catalog.

The way of an image: ``load_domains`` of a data module names the images of each domain (``files``); ``split_parts``
gives each image its role and client (``splits``, ``partition``); ``bind`` takes from a module its transform, and what
its frozen parts compute of an image; a ``BatchSource`` then makes the loaders (``loading``), whose batches come from
the files, from the cache of decoded images or from the cache of features (``cache``).
"""

from __future__ import annotations

from fedvlp.data.benchmarks import (
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
from fedvlp.data.domain_folders import DomainFolders
from fedvlp.data.files.images import ArrayImages, FolderImages, ImageFiles, Images, image_paths
from fedvlp.data.loading.batch_source import EvaluationSplit
from fedvlp.data.module import FederatedDataModule
from fedvlp.data.partition import ByDomain, Dirichlet, Dispersed, Partitioner, Pooled, Shards
from fedvlp.data.skew import FewClasses, QuantitySkew
from fedvlp.data.split_rule import few_shot, stratified_split
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
