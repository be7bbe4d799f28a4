"""The field's data sets as data modules; ``fedvlp data list`` prints them."""

from __future__ import annotations

from dataclasses import replace

from fedvlp.data.benchmarks.base import Benchmark
from fedvlp.data.benchmarks.on_disk import OnDisk
from fedvlp.data.catalog import DATA_SETS
from fedvlp.utils.errors import UserError


class PACS(Benchmark):
    """PACS: 9,991 images of 7 classes as photos, art paintings, cartoons and sketches."""

    description = DATA_SETS["PACS"]


class OfficeHome(Benchmark):
    """OfficeHome: 15,588 images of 65 objects of offices and homes; it has no official split."""

    description = DATA_SETS["OfficeHome"]


class VLCS(Benchmark):
    """VLCS: 10,729 images of 5 classes, photos of four older data sets."""

    description = DATA_SETS["VLCS"]


class DomainNet(Benchmark):
    """DomainNet: 586,575 images of 345 classes in 6 domains, cleaned.

    Under the official split only the test list of a held-out domain tests.
    """

    description = DATA_SETS["DomainNet"]


class TerraIncognita(Benchmark):
    """TerraIncognita: 24,330 images of 10 classes by camera traps at 4 places; it has no official split."""

    description = DATA_SETS["TerraIncognita"]


class DomainNet10(Benchmark):
    """The 10 classes of DomainNet that FedBN chose; another benchmark than DomainNet."""

    description = DATA_SETS["DomainNet10"]


class DomainNet126(Benchmark):
    """Mini-DomainNet: 126 classes and 4 domains of DomainNet; another benchmark than DomainNet."""

    description = DATA_SETS["DomainNet126"]


class FedISIC2019(Benchmark):
    """Fed-ISIC2019: 23,247 images of 8 kinds of skin lesion by 6 centres; not every centre has every kind.

    Under the official split each centre has test images of its own.
    """

    description = DATA_SETS["FedISIC2019"]


class Camelyon17(Benchmark):
    """Camelyon17-WILDS: 455,954 patches of lymph nodes of 5 hospitals, with tumor and without."""

    description = DATA_SETS["Camelyon17"]


class Office31(Benchmark):
    """Office31: 4,110 images of 31 objects of offices, by shop, camera and webcam; it has no official split."""

    description = DATA_SETS["Office31"]


class ImageCLEFDA(Benchmark):
    """ImageCLEF-DA: 50 images of each of 12 objects from Bing, Caltech256, ImageNet and Pascal VOC; it has no split."""

    description = DATA_SETS["ImageCLEFDA"]


class ImageNet(Benchmark):
    """ImageNet, which trains, with ImageNetV2, -Sketch, -A and -R, whose images only test.

    ImageNet's validation images test. The variants are held out: all that are there, or those that ``held_out`` names.
    Accuracy on ImageNet-A and -R, which have 200 classes, is over all classes of the run.
    """

    description = DATA_SETS["ImageNet"]

    @property
    def held_out_domains(self) -> list[str]:
        """Names of the variants, sorted."""
        return super().held_out_domains or [name for name in self.domains if name != "ImageNet"]

    def _chosen(self, on_disk: OnDisk) -> OnDisk:
        """Returns ImageNet and the variants that are held out, since no other can train.

        Raises:
            UserError: if ImageNet is held out.
        """
        if "ImageNet" in self.held_out:
            raise UserError("Only ImageNet has training images, so it can't be held out. Name variants, or none.")
        if not self.held_out or not set(self.held_out) <= set(on_disk.files):
            return on_disk
        return replace(on_disk, files={name: on_disk.files[name] for name in ("ImageNet", *self.held_out)})


class Caltech101(Benchmark):
    """Caltech101: 8,242 images of 100 kinds of object, as CoOp counts them."""

    description = DATA_SETS["Caltech101"]


class OxfordPets(Benchmark):
    """Oxford-IIIT Pets: 7,349 images of 37 breeds of cat and dog."""

    description = DATA_SETS["OxfordPets"]


class StanfordCars(Benchmark):
    """Stanford Cars: 16,185 images of 196 models of car."""

    description = DATA_SETS["StanfordCars"]


class Flowers102(Benchmark):
    """Oxford Flowers: 8,189 images of 102 kinds of flower."""

    description = DATA_SETS["Flowers102"]


class Food101(Benchmark):
    """Food-101: 101,000 images of 101 dishes."""

    description = DATA_SETS["Food101"]


class FGVCAircraft(Benchmark):
    """FGVC-Aircraft: 10,000 images of 100 variants of aircraft."""

    description = DATA_SETS["FGVCAircraft"]


class SUN397(Benchmark):
    """SUN397: 108,754 images of 397 kinds of scene, of which CoOp's split takes 39,700."""

    description = DATA_SETS["SUN397"]


class DTD(Benchmark):
    """Describable Textures: 5,640 images of 47 textures."""

    description = DATA_SETS["DTD"]


class EuroSAT(Benchmark):
    """EuroSAT: 27,000 satellite images of 10 kinds of land, in RGB."""

    description = DATA_SETS["EuroSAT"]


class UCF101(Benchmark):
    """UCF101: the middle frames of 13,320 videos of 101 actions."""

    description = DATA_SETS["UCF101"]


class CIFAR10(Benchmark):
    """CIFAR-10: 60,000 images of 32 x 32 pixels of 10 classes."""

    description = DATA_SETS["CIFAR10"]


class CIFAR100(Benchmark):
    """CIFAR-100: 60,000 images of 32 x 32 pixels of 100 classes."""

    description = DATA_SETS["CIFAR100"]


class TinyImageNet(Benchmark):
    """TinyImageNet: 110,000 images of 64 x 64 pixels of 200 classes; its validation images test."""

    description = DATA_SETS["TinyImageNet"]
