"""The field's data sets as data modules; ``fedvlp data list`` prints them."""

from __future__ import annotations

from fedvlp.data.benchmarks.base import Benchmark
from fedvlp.data.catalog import coop, families, known, small_images


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


class Office31(Benchmark):
    """Office31: 4,110 images of 31 objects of offices, by shop, camera and webcam; it has no official split."""

    description = families.OFFICE_31


class ImageCLEFDA(Benchmark):
    """ImageCLEF-DA: 50 images of each of 12 objects from Bing, Caltech256, ImageNet and Pascal VOC; it has no split."""

    description = families.IMAGE_CLEF_DA


class Caltech101(Benchmark):
    """Caltech101: 8,242 images of 100 kinds of object, as CoOp counts them."""

    description = coop.CALTECH_101


class OxfordPets(Benchmark):
    """Oxford-IIIT Pets: 7,349 images of 37 breeds of cat and dog."""

    description = coop.OXFORD_PETS


class StanfordCars(Benchmark):
    """Stanford Cars: 16,185 images of 196 models of car."""

    description = coop.STANFORD_CARS


class Flowers102(Benchmark):
    """Oxford Flowers: 8,189 images of 102 kinds of flower."""

    description = coop.FLOWERS_102


class Food101(Benchmark):
    """Food-101: 101,000 images of 101 dishes."""

    description = coop.FOOD_101


class FGVCAircraft(Benchmark):
    """FGVC-Aircraft: 10,000 images of 100 variants of aircraft."""

    description = coop.FGVC_AIRCRAFT


class SUN397(Benchmark):
    """SUN397: 108,754 images of 397 kinds of scene, of which CoOp's split takes 39,700."""

    description = coop.SUN_397


class DTD(Benchmark):
    """Describable Textures: 5,640 images of 47 textures."""

    description = coop.DTD


class EuroSAT(Benchmark):
    """EuroSAT: 27,000 satellite images of 10 kinds of land, in RGB."""

    description = coop.EUROSAT


class UCF101(Benchmark):
    """UCF101: the middle frames of 13,320 videos of 101 actions."""

    description = coop.UCF_101


class CIFAR10(Benchmark):
    """CIFAR-10: 60,000 images of 32 x 32 pixels of 10 classes."""

    description = small_images.CIFAR_10


class CIFAR100(Benchmark):
    """CIFAR-100: 60,000 images of 32 x 32 pixels of 100 classes."""

    description = small_images.CIFAR_100


class TinyImageNet(Benchmark):
    """TinyImageNet: 110,000 images of 64 x 64 pixels of 200 classes; its validation images test."""

    description = small_images.TINY_IMAGENET
