"""ImageNet with the data sets that were made to test what is trained on it; Office31 and ImageCLEF-DA."""

from __future__ import annotations

from fedvlp.data.catalog.description import Description
from fedvlp.data.catalog.fact_tables import read_facts
from fedvlp.data.catalog.forms import ClassFolders, Form, ImageLists


def _imagenet_form(of: str, layout: str, inside: str, variants: dict[str, str]) -> Form:
    """Returns a form of ImageNet, whose validation images test, with those of its variants that are there.

    Args:
        of: who leaves it so.
        layout: what lies in the folder, for people.
        inside: where ``train`` and ``val`` lie.
        variants: where the class folders of each variant lie.
    """
    parts = [
        ClassFolders(f"{inside}train", "train", "ImageNet"),
        ClassFolders(f"{inside}val", "test", "ImageNet"),
    ]
    for domain, folder in variants.items():
        parts.append(ClassFolders(folder, None, domain, is_optional=True))
    return Form(
        of=of,
        layout=layout,
        parts=tuple(parts),
        title="train/val",
        split_counts={"ImageNet": {"train": 1_281_167, "test": 50_000}},
    )


def _imagenet() -> Description:
    """Describes ImageNet; its classes are numbered in the order of their WordNet ids, as folders of V2 are named.

    CLIP's names are alike for two pairs of classes, missile and sunglasses; the second of the one and the first of the
    other have ImageNet's own names here, since equal texts can't be told apart.
    """
    facts = read_facts("imagenet")
    return Description(
        name="ImageNet",
        config="data/imagenet",
        source='image-net.org (IJCV 2015); the variants: "Do ImageNet Classifiers Generalize to ImageNet?" (ICML '
        '2019), "Learning Robust Global Representations" (NeurIPS 2019), "Natural Adversarial Examples" (CVPR 2021), '
        '"The Many Faces of Robustness" (ICCV 2021)',
        class_names=facts.class_names,
        domain_counts={
            "ImageNet": 1_331_167,
            "ImageNetV2": 10_000,
            "ImageNet-Sketch": 50_889,
            "ImageNet-A": 7_500,
            "ImageNet-R": 30_000,
        },
        spellings={"imagenet-adversarial": "ImageNet-A", "imagenet-rendition": "ImageNet-R"},
        class_spellings=facts.also,
        has_numbered_classes=True,
        licence="ImageNet: non-commercial research and education; the variants: MIT",
        forms=(
            _imagenet_form(
                "CoOp",
                "imagenet/images/{train,val}/<wnid>/…; if there, imagenetv2/imagenetv2-matched-frequency-format-val, "
                "imagenet-sketch/images, imagenet-adversarial/imagenet-a, imagenet-rendition/imagenet-r",
                "imagenet/images/",
                {
                    "ImageNetV2": "imagenetv2/imagenetv2-matched-frequency-format-val",
                    "ImageNet-Sketch": "imagenet-sketch/images",
                    "ImageNet-A": "imagenet-adversarial/imagenet-a",
                    "ImageNet-R": "imagenet-rendition/imagenet-r",
                },
            ),
            _imagenet_form(
                "torchvision",
                "{train,val}/<wnid>/…; if there, imagenetv2-matched-frequency-format-val, sketch, imagenet-a, "
                "imagenet-r",
                "",
                {
                    "ImageNetV2": "imagenetv2-matched-frequency-format-val",
                    "ImageNet-Sketch": "sketch",
                    "ImageNet-A": "imagenet-a",
                    "ImageNet-R": "imagenet-r",
                },
            ),
        ),
        is_tree=False,
        domain_classes=facts.classes_of,
        has_copies=True,
    )


def _office31() -> Description:
    """Describes Office31, whose class folders lie in a folder ``images`` of each domain as its authors had them."""
    facts = read_facts("office31")
    return Description(
        name="Office31",
        config="data/office31",
        source='its authors at Berkeley, "Adapting Visual Category Models to New Domains" (ECCV 2010)',
        class_names=facts.class_names,
        counts=facts.counts,
        domain_counts=facts.totals,
        split_folders={"images": None},
        licence="none stated",
        has_copies=True,
    )


def _image_clef_da() -> Description:
    """Describes ImageCLEF-DA, whose images lie unsorted in a folder of each domain, beside lists of their classes."""
    facts = read_facts("image_clef_da")
    letters = {"b": "bing", "c": "caltech", "i": "imagenet", "p": "pascal"}
    forms = []
    for folder, ending in (("", "List"), ("list/", "List"), ("", "_list")):
        forms.append(
            Form(
                of="its authors" if ending == "List" else "CDAN",
                layout=f"{{b,c,i,p}}/…, {folder}{{b,c,i,p}}{ending}.txt",
                parts=(
                    ImageLists(
                        files={f"{folder}{letter}{ending}.txt": None for letter in letters},
                        # Paths may be of another machine, or have a folder that the images are not in.
                        line=r"(?:.*/)?(?P<domain>[bcip])/(?:.*/)?(?P<image>[^/]+)\s+(?P<class>\d+)",
                        image="{domain}/{image}",
                    ),
                ),
            )
        )
    return Description(
        name="ImageCLEFDA",
        config="data/image_clef_da",
        source="the ImageCLEF 2014 challenge on domain adaptation; Long et al. (ICML 2017) share it",
        class_names=facts.class_names,
        counts=facts.counts,
        domain_counts=facts.totals,
        spellings=letters,
        has_numbered_classes=True,
        licence="none stated",
        forms=tuple(forms),
        has_copies=True,
    )


IMAGENET = _imagenet()
OFFICE_31 = _office31()
IMAGE_CLEF_DA = _image_clef_da()
FAMILIES = (OFFICE_31, IMAGE_CLEF_DA, IMAGENET)
