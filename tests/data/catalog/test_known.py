from __future__ import annotations

import re
from pathlib import Path

import open_clip
import pytest
import torchvision.datasets

from fedvlp.clip import clean_class_names
from fedvlp.data.catalog import DATA_SETS, DESCRIPTIONS, prompt_names
from fedvlp.utils.config_files import config_names, find_config, read_yaml

CALTECH_101 = DATA_SETS["Caltech101"]
EUROSAT = DATA_SETS["EuroSAT"]
FGVC_AIRCRAFT = DATA_SETS["FGVCAircraft"]
OXFORD_PETS = DATA_SETS["OxfordPets"]
STANFORD_CARS = DATA_SETS["StanfordCars"]
SUN_397 = DATA_SETS["SUN397"]
UCF_101 = DATA_SETS["UCF101"]
IMAGENET = DATA_SETS["ImageNet"]
OFFICE_31 = DATA_SETS["Office31"]
CAMELYON_17 = DATA_SETS["Camelyon17"]
DOMAIN_NET = DATA_SETS["DomainNet"]
DOMAIN_NET_10 = DATA_SETS["DomainNet10"]
DOMAIN_NET_126 = DATA_SETS["DomainNet126"]
FED_ISIC_2019 = DATA_SETS["FedISIC2019"]
OFFICE_HOME = DATA_SETS["OfficeHome"]
PACS = DATA_SETS["PACS"]
VLCS = DATA_SETS["VLCS"]
CIFAR_10 = DATA_SETS["CIFAR10"]
CIFAR_100 = DATA_SETS["CIFAR100"]
TINY_IMAGENET = DATA_SETS["TinyImageNet"]
COOP = (
    "Caltech101",
    "OxfordPets",
    "StanfordCars",
    "Flowers102",
    "Food101",
    "FGVCAircraft",
    "SUN397",
    "DTD",
    "EuroSAT",
    "UCF101",
)
IN_ORDER_OF_LABELS = (*COOP, "ImageNet", "TinyImageNet")
each = pytest.mark.parametrize("known", DESCRIPTIONS, ids=lambda known: known.name)


def test_published_totals():
    assert {known.name: (len(known.domains), len(known.class_names), known.images) for known in DESCRIPTIONS} == {
        "PACS": (4, 7, 9_991),
        "OfficeHome": (4, 65, 15_588),
        "VLCS": (4, 5, 10_729),
        "DomainNet": (6, 345, 586_575),
        "TerraIncognita": (4, 10, 24_330),
        "DomainNet10": (6, 10, None),
        "DomainNet126": (4, 126, None),
        "FedISIC2019": (6, 8, 23_247),
        "Camelyon17": (5, 2, 455_954),
        "Office31": (3, 31, 4_110),
        "ImageCLEFDA": (4, 12, 2_400),
        "ImageNet": (5, 1_000, 1_429_556),
        "Caltech101": (1, 100, 8_242),
        "OxfordPets": (1, 37, 7_349),
        "StanfordCars": (1, 196, 16_185),
        "Flowers102": (1, 102, 8_189),
        "Food101": (1, 101, 101_000),
        "FGVCAircraft": (1, 100, 10_000),
        "SUN397": (1, 397, 108_754),
        "DTD": (1, 47, 5_640),
        "EuroSAT": (1, 10, 27_000),
        "UCF101": (1, 101, 13_320),
        "CIFAR10": (1, 10, 60_000),
        "CIFAR100": (1, 100, 60_000),
        "TinyImageNet": (1, 200, 110_000),
    }


@each
def test_numbers_agree_with_each_other(known):
    for domain, counts in known.counts.items():
        assert set(counts) == set(known.class_names)
        assert sum(counts.values()) == known.domain_counts[domain]
    for domain, parts in known.split_counts.items():
        if len(parts) == 2:
            assert sum(parts.values()) == known.domain_counts[domain]
    for form in known.layouts:
        whole = known.in_layout(form, known.domains)
        assert {*form.domain_counts, *form.split_counts} <= set(known.domains)
        for domain, parts in form.split_counts.items():
            assert sum(parts.values()) == whole.domain_counts[domain], form.of
            assert len(parts) == form.title.count("/") + 1


@each
def test_classes_are_sorted_and_every_spelling_is_found(known):
    assert list(known.class_names) == sorted(known.class_names) or known.name in IN_ORDER_OF_LABELS
    for name in known.class_names:
        assert known.class_of(name) == name
        assert known.class_of(name.replace("_", " ").upper()) == name
    for spelling, name in known.class_spellings.items():
        assert known.class_of(spelling) == name
    for domain in known.domains:
        assert known.domain_of(domain.upper()) == domain
    assert known.domain_of("splits") is None
    assert known.config in config_names()


def test_spellings_and_numbers():
    spelled = ("Real World", "Real_World", "RealWorld", "real_world")
    assert {OFFICE_HOME.domain_of(name) for name in spelled} == {"Real_World"}
    assert [VLCS.domain_of(name) for name in ("CALTECH", "SUN", "PASCAL")] == ["Caltech101", "SUN09", "VOC2007"]
    assert [VLCS.class_of(str(number)) for number in range(6)] == ["bird", "car", "chair", "dog", "person", None]
    assert PACS.class_of("0") is None
    assert [known.official_parts for known in (PACS, OFFICE_HOME, VLCS, DOMAIN_NET)] == [
        "train/crossval",
        "",
        "train/crossval/test",
        "train/test",
    ]


def test_numbers_of_those_who_number_their_sites_and_classes():
    assert [FED_ISIC_2019.domain_of(name) for name in ("0", "center_4", "6")] == ["BCN", "MSK", None]
    assert [FED_ISIC_2019.class_of(name) for name in ("4", "BKL", "8")] == ["benign_keratosis"] * 2 + [None]
    assert [CAMELYON_17.domain_of(name) for name in ("test-center", "2", "train-center2")] == [
        "hospital_2",
        "hospital_2",
        "hospital_3",
    ]
    assert [CAMELYON_17.class_of(name) for name in ("0", "non-tumor", "tumor")] == ["normal", "normal", "tumor"]
    assert DOMAIN_NET.domain_of("0") is None


@pytest.mark.parametrize("known", [each for each in DESCRIPTIONS if each.download_source], ids=lambda each: each.name)
def test_sources_of_downloads_and_where_configs_put_them(known):
    content = read_yaml(Path(find_config(known.config)))
    assert content["data"]["init_args"]["root"] == f"datasets/{known.config.removeprefix('data/')}"
    if known.hub is None:
        reader = getattr(torchvision.datasets, known.torchvision.reader)
        assert hasattr(reader, "download") or hasattr(reader, "_download")
        assert known.licence
        assert known.torchvision.is_pickled == hasattr(reader, "tgz_md5")
        return
    assert known.hub.revision is None or re.fullmatch("[0-9a-f]{40}", known.hub.revision)
    # The lists are written by the names of the hub's files, so there must be lists of these names.
    assert not known.hub.has_official_split or {"train": "train", "test": "test"} in known.lists


def test_parts_of_domain_net():
    assert set(DOMAIN_NET_10.class_names) < set(DOMAIN_NET.class_names)
    assert set(DOMAIN_NET_126.class_names) < set(DOMAIN_NET.class_names)
    assert DOMAIN_NET_10.counts["clipart"]["zebra"] == DOMAIN_NET.counts["clipart"]["zebra"]
    assert DOMAIN_NET_126.domains == ("clipart", "painting", "real", "sketch")


@each
@pytest.mark.parametrize("style", ["clip", "plain"])
def test_names_are_what_the_text_encoder_reads(known, style):
    names = prompt_names(known.name, known.class_names, style)
    assert names == clean_class_names(names), "a result would name other words than the prompts said"
    assert len(set(names)) == len(names)


def test_renamed_classes_exist():
    for known in DESCRIPTIONS:
        if not known.is_subset:
            assert set(known.clip_names) <= set(known.class_names)


def test_classes_are_called_as_coop_calls_them():
    called = [
        (CALTECH_101, "airplanes", "airplane"),
        (STANFORD_CARS, "Ram C/V Cargo Van Minivan 2012", "2012 Ram C/V Cargo Van Minivan"),
        (SUN_397, "apartment_building/outdoor", "outdoor apartment building"),
        (EUROSAT, "SeaLake", "Sea or Lake"),
        (UCF_101, "HandstandPushups", "Handstand_Pushups"),
        (FGVC_AIRCRAFT, "F-16A/B", "F-16A/B"),
        (OXFORD_PETS, "Staffordshire Bull Terrier", "staffordshire_bull_terrier"),
    ]
    for known, publishers, coops in called:
        assert known.class_of(publishers) == known.class_of(coops) == coops
    # Halves of the classes are those of CoOp: its labels follow its folders, of which capitals are first.
    assert CALTECH_101.class_names[:4] == ("face", "leopard", "motorbike", "accordion")


def test_classes_of_imagenet_are_clips_in_the_order_of_their_ids():
    ids = {name: spelling for spelling, name in IMAGENET.class_spellings.items()}
    assert [ids[name] for name in IMAGENET.class_names] == sorted(ids.values())
    assert [IMAGENET.class_of(str(number)) for number in (0, 999, 1000)] == ["tench", "toilet paper", None]
    differing = {
        (ours, clips)
        for ours, clips in zip(IMAGENET.class_names, open_clip.IMAGENET_CLASSNAMES, strict=True)
        if ours != clips
    }
    assert differing == {("projectile missile", "missile"), ("sunglass", "sunglasses")}
    tiny = {name: spelling for spelling, name in TINY_IMAGENET.class_spellings.items()}
    assert all(IMAGENET.class_of(spelling) == name for name, spelling in tiny.items())
    assert [tiny[name] for name in TINY_IMAGENET.class_names] == sorted(tiny.values())


def test_numbers_of_classes_of_which_all_have_as_many():
    for known, number in ((FGVC_AIRCRAFT, 100), (CIFAR_10, 6_000), (CIFAR_100, 600), (TINY_IMAGENET, 550)):
        (counts,) = known.counts.values()
        assert set(counts.values()) == {number}
    assert OFFICE_31.domain_counts == {"amazon": 2_817, "dslr": 498, "webcam": 795}


def test_what_is_said_of_a_form_that_is_read():
    coop, partition, plain = SUN_397.layouts
    assert [SUN_397.in_layout(form, ["SUN397"]).images for form in (coop, partition, plain)] == [
        39_700,
        39_700,
        108_754,
    ]
    assert SUN_397.in_layout(plain, ["SUN397"]).split_counts == {}
    assert IMAGENET.in_layout(IMAGENET.layouts[0], ["ImageNet", "ImageNet-R"]).images == 1_361_167
    assert PACS.in_layout(None, PACS.domains) == PACS
