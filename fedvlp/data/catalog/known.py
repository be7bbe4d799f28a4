"""The published data sets: counts, spellings, lists and folders, known defects, and where they can be had."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import product

from fedvlp.data.catalog.description import Description
from fedvlp.data.catalog.fact_tables import read_facts
from fedvlp.data.catalog.forms import Form, ImageLists, SplitName

DOMAIN_NET_10_CLASSES = (
    "bird", "feather", "headphones", "ice_cream", "teapot", "tiger", "whale", "windmill", "wine_glass", "zebra",
)  # fmt: skip
_DOMAIN_NET_SPLIT = {
    "clipart": (33_525, 14_604),
    "infograph": (36_023, 15_582),
    "painting": (50_416, 21_850),
    "quickdraw": (120_750, 51_750),
    "real": (120_906, 52_041),
    "sketch": (48_212, 20_916),
}
_ISIC_SPELLINGS = {  # in the order of the challenge's columns, which is that of FLamby's numbers
    "MEL": "melanoma",
    "NV": "melanocytic_nevus",
    "BCC": "basal_cell_carcinoma",
    "AK": "actinic_keratosis",
    "BKL": "benign_keratosis",
    "DF": "dermatofibroma",
    "VASC": "vascular_lesion",
    "SCC": "squamous_cell_carcinoma",
}
_WILDS = Form(
    of="WILDS",
    layout="metadata.csv, patches/patient_<patient>_node_<node>/…",
    parts=(
        ImageLists(
            files={"metadata.csv": None},
            header=",patient,node,x_coord,y_coord,tumor,slide,center,split",
            line=r"\d+,(?P<patient>\d+),(?P<node>\d+),(?P<x>\d+),(?P<y>\d+),(?P<class>[01]),\d+,(?P<domain>\d),(?P<part>\d)",
            image="patches/patient_{patient}_node_{node}/patch_patient_{patient}_node_{node}_x_{x}_y_{y}.png",
            parts={"0": "train", "1": "validation"},
        ),
    ),
    title="WILDS train/id_val",
)
_LABEL_LIST: Mapping[str, SplitName | None] = {"img_label_list": None}


def _pacs() -> Description:
    """Describes PACS; its lists number the classes from 1."""
    facts = read_facts("pacs")
    sizes = {"art_painting": (1_840, 208), "cartoon": (2_107, 237), "photo": (1_499, 171), "sketch": (3_531, 398)}
    return Description(
        name="PACS",
        config="data/pacs",
        source='the authors\' project page, "Deeper, Broader and Artier Domain Generalization" (ICCV 2017)',
        class_names=facts.class_names,
        counts=facts.counts,
        domain_counts=facts.totals,
        split_counts={name: {"train": train, "validation": rest} for name, (train, rest) in sizes.items()},
        spellings={"art": "art_painting"},
        lists=(
            # The lists of the test images hold all images of a domain, so they give no role.
            {"train_kfold": "train", "crossval_kfold": "validation", "test_kfold": None},
            {"train": "train", "val": "validation", "test": None},
        ),
        list_folders=(".", "splits", "Train val splits and h5py files pre-read"),
        known_bad=("sketch/dog/n02103406_4068-1.png",),
    )


def _office_home() -> Description:
    """Describes OfficeHome, which has no official split; Dassl's train and val folders are a split of its own."""
    facts = read_facts("office_home")
    return Description(
        name="OfficeHome",
        config="data/office_home",
        source='the Office-Home project page, "Deep Hashing Network for Unsupervised Domain Adaptation" (CVPR 2017)',
        class_names=facts.class_names,
        counts=facts.counts,
        domain_counts=facts.totals,
        spellings={"real": "Real_World"},
        lists=(_LABEL_LIST,),
        split_folders={"train": None, "val": None},
    )


def _vlcs() -> Description:
    """Describes VLCS; in one of its layouts class folders are numbered, in the alphabetical order of their names."""
    facts = read_facts("vlcs")
    tests = {"Caltech101": 424, "LabelMe": 797, "SUN09": 985, "VOC2007": 1_013}
    return Description(
        name="VLCS",
        config="data/vlcs",
        source='the DomainBed and JigenDG projects; after "Unbiased Metric Learning" (ICCV 2013)',
        class_names=facts.class_names,
        counts=facts.counts,
        domain_counts=facts.totals,
        split_counts={name: {"test": number} for name, number in tests.items()},
        spellings={"caltech": "Caltech101", "sun": "SUN09", "pascal": "VOC2007", "voc": "VOC2007"},
        # "full" holds what "train" and "crossval" hold together.
        split_folders={"full": "train", "train": "train", "crossval": "validation", "test": "test"},
        has_numbered_classes=True,
    )


def _domain_net() -> Description:
    """Describes the cleaned DomainNet; of `real`, counts by class are not published in a form that we could check."""
    facts = read_facts("domain_net")
    return Description(
        name="DomainNet",
        config="data/domain_net",
        source='the M3SDA project page, cleaned version; "Moment Matching for Multi-Source Domain Adaptation"',
        class_names=facts.class_names,
        counts=facts.counts,
        domain_counts={name: train + test for name, (train, test) in _DOMAIN_NET_SPLIT.items()},
        split_counts={name: {"train": train, "test": test} for name, (train, test) in _DOMAIN_NET_SPLIT.items()},
        spellings={"clip": "clipart", "info": "infograph", "paint": "painting", "quick": "quickdraw"},
        lists=({"train": "train", "test": "test"},),
        list_folders=("splits", "."),
        tests_on_list=True,
        duplicates_list="domain_net_duplicates.txt",
        known_gaps=(("painting", "t-shirt"),),
    )


def _subset_of_domain_net(name: str, config: str, source: str, classes: tuple[str, ...]) -> Description:
    """Describes the part of DomainNet that has these classes only."""
    whole = _domain_net()
    counts: dict[str, dict[str, int]] = {}
    totals: dict[str, int | None] = dict.fromkeys(whole.domains)
    for domain, of_class in whole.counts.items():
        counts[domain] = {name: of_class[name] for name in classes}
        totals[domain] = sum(counts[domain].values())
    return replace(
        whole,
        name=name,
        config=config,
        source=f"{source} (images: {whole.source})",
        class_names=classes,
        counts=counts,
        domain_counts=totals,
        split_counts={},
        known_gaps=(),
        is_subset=True,
    )


def _domain_net_126() -> Description:
    """Describes mini-DomainNet: 126 classes and four domains."""
    source = "the lists of Dassl (splits_mini), after those of MME"
    subset = _subset_of_domain_net(
        "DomainNet126", "data/domain_net_126", source, read_facts("domain_net_126").class_names
    )
    kept = ("clipart", "painting", "real", "sketch")
    return replace(
        subset,
        domain_counts={domain: subset.domain_counts[domain] for domain in kept},
        counts={domain: of_class for domain, of_class in subset.counts.items() if domain in kept},
        list_folders=("splits_mini", "splits", "."),
    )


def _terra_incognita() -> Description:
    """Describes the camera traps as DomainBed's script sorts them now; its paper counts 24,788 images."""
    return Description(
        name="TerraIncognita",
        config="data/terra_incognita",
        source="Caltech Camera Traps (ECCV 2018) in the LILA BC library; DomainBed's download script sorts them",
        class_names=read_facts("terra_incognita").class_names,
        domain_counts={"location_100": 4_741, "location_38": 9_736, "location_43": 3_970, "location_46": 5_883},
        spellings={f"{letter}{place}": f"location_{place}" for place, letter in product((38, 43, 46, 100), ("l", ""))},
        lists=(_LABEL_LIST,),
    )


def _fed_isic2019() -> Description:
    """Describes the skin lesions of ISIC 2019 by the centre that took them, as FLamby splits and numbers them."""
    centres = {  # in the order of FLamby's numbers
        "BCN": (9_930, 2_483),
        "HAM_vidir_molemax": (3_163, 791),
        "HAM_vidir_modern": (2_691, 672),
        "HAM_rosendahl": (1_807, 452),
        "MSK": (655, 164),
        "HAM_vienna_dias": (351, 88),
    }
    numbers = {str(number): name for number, name in enumerate(centres)}
    return Description(
        name="FedISIC2019",
        config="data/fed_isic2019",
        source="the ISIC 2019 challenge and HAM10000; the FLamby project splits it by centre (NeurIPS 2022)",
        class_names=read_facts("fed_isic2019").class_names,
        domain_counts={name: train + test for name, (train, test) in centres.items()},
        split_counts={name: {"train": train, "test": test} for name, (train, test) in centres.items()},
        spellings=numbers | {f"center_{number}": name for number, name in numbers.items()},
        class_spellings=_ISIC_SPELLINGS | {str(number): name for number, name in enumerate(_ISIC_SPELLINGS.values())},
        lists=({"train": "train", "test": "test"},),
        list_folders=("splits", "."),
        may_lack_classes=True,
    )


def _camelyon17() -> Description:
    """Describes the patches of lymph nodes by hospital, as WILDS numbers them; half of each hospital's show tumor."""
    facts = read_facts("camelyon17")
    numbers = {str(number): f"hospital_{number}" for number in range(5)}
    parts = {
        "train-center1": "hospital_0",
        "validation-center": "hospital_1",
        "test-center": "hospital_2",
        "train-center2": "hospital_3",
        "train-center3": "hospital_4",
    }
    return Description(
        name="Camelyon17",
        config="data/camelyon17",
        source="the WILDS project, after the CAMELYON17 challenge (IEEE TMI 2018)",
        class_names=facts.class_names,
        counts=facts.counts,
        domain_counts=facts.totals,
        spellings=numbers | {f"center_{number}": name for number, name in numbers.items()} | parts,
        class_spellings={"non-tumor": "normal", "0": "normal", "1": "tumor"},
        licence="CC0 1.0",
        forms=(_WILDS,),
    )


PACS = _pacs()
OFFICE_HOME = _office_home()
VLCS = _vlcs()
DOMAIN_NET = _domain_net()
TERRA_INCOGNITA = _terra_incognita()
DOMAIN_NET_10 = _subset_of_domain_net("DomainNet10", "data/domain_net_10", "FedBN's ten classes", DOMAIN_NET_10_CLASSES)
DOMAIN_NET_126 = _domain_net_126()
FED_ISIC_2019 = _fed_isic2019()
CAMELYON_17 = _camelyon17()
DOMAIN_DATA_SETS = (
    PACS,
    OFFICE_HOME,
    VLCS,
    DOMAIN_NET,
    TERRA_INCOGNITA,
    DOMAIN_NET_10,
    DOMAIN_NET_126,
    FED_ISIC_2019,
    CAMELYON_17,
)
