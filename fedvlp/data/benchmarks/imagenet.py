"""ImageNet, and the data sets that test what is trained on it."""

from __future__ import annotations

from dataclasses import replace

from fedvlp.data.benchmarks.base import Benchmark
from fedvlp.data.benchmarks.on_disk import OnDisk
from fedvlp.data.catalog import families
from fedvlp.utils.errors import UserError

SOURCE = "ImageNet"


class ImageNet(Benchmark):
    """ImageNet, which trains, with ImageNetV2, -Sketch, -A and -R, whose images only test.

    ImageNet's validation images test. The variants are held out: all that lie there, or those that ``held_out`` names.
    Accuracy on ImageNet-A and -R, which have 200 classes, is over all classes of the run.
    """

    description = families.IMAGENET

    @property
    def held_out_domains(self) -> list[str]:
        """Names of the variants, sorted."""
        return super().held_out_domains or [name for name in self.domains if name != SOURCE]

    def _chosen(self, found: OnDisk) -> OnDisk:
        """Returns ImageNet and the variants that are held out, since no other can train.

        Raises:
            UserError: if ImageNet is held out.
        """
        if SOURCE in self.held_out:
            raise UserError("Only ImageNet has training images, so it can't be held out. Name variants, or none.")
        if not self.held_out or not set(self.held_out) <= set(found.files):
            return found
        return replace(found, files={name: found.files[name] for name in (SOURCE, *self.held_out)})
