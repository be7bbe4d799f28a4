"""Facts of the data sets: consistent with each other, with CoOp's and torchvision's names, and with the configs."""

from __future__ import annotations

import re
from pathlib import Path

import open_clip
import pytest
import torchvision.datasets

from fedvlp.catalog.description import DATA_SETS, DESCRIPTIONS, prompt_names
from fedvlp.clip import clean_class_name
from fedvlp.utils.config_files import bundled_configs, find_config, read_yaml

CAMELYON_17 = DATA_SETS["Camelyon17"]
DOMAIN_NET = DATA_SETS["DomainNet"]
FED_ISIC_2019 = DATA_SETS["FedISIC2019"]
IMAGENET = DATA_SETS["ImageNet"]
OFFICE_HOME = DATA_SETS["OfficeHome"]
PACS = DATA_SETS["PACS"]
SUN_397 = DATA_SETS["SUN397"]
TINY_IMAGENET = DATA_SETS["TinyImageNet"]
VLCS = DATA_SETS["VLCS"]
each = pytest.mark.parametrize("known", DESCRIPTIONS, ids=lambda known: known.name)


@each
def test_numbers_agree_with_each_other(known):
    for domain, counts in known.counts.items():
        assert set(counts) == set(known.class_names)
        assert sum(counts.values()) == known.domain_counts[domain]
    for domain, parts in known.split_counts.items():
        assert len(parts) != 2 or sum(parts.values()) == known.domain_counts[domain]
    for layout in known.layouts:
        whole = known.in_layout(layout, known.domains)
        assert {*layout.domain_counts, *layout.split_counts} <= set(known.domains)
        for domain, parts in layout.split_counts.items():
            assert sum(parts.values()) == whole.domain_counts[domain], layout.of
            assert len(parts) == layout.title.count("/") + 1


@each
def test_classes_are_sorted_and_every_spelling_is_known(known):
    # Where CoOp or the publisher numbers the classes, they are in the order of its labels.
    is_numbered = len(known.domains) == 1 or known.name == "ImageNet"
    assert list(known.class_names) == sorted(known.class_names) or is_numbered
    for name in known.class_names:
        assert known.class_of(name) == name
        assert known.class_of(name.replace("_", " ").upper()) == name
    for spelling, name in known.class_spellings.items():
        assert known.class_of(spelling) == name
    for domain in known.domains:
        assert known.domain_of(domain.upper()) == domain
    assert known.domain_of("splits") is None
    assert known.config in bundled_configs()
    assert set(known.clip_names) <= set(known.class_names)


@pytest.mark.parametrize(
    ("known", "names", "domains"),
    [
        (OFFICE_HOME, ["Real World", "RealWorld", "real_world"], ["Real_World"] * 3),
        (VLCS, ["CALTECH", "SUN", "PASCAL"], ["Caltech101", "SUN09", "VOC2007"]),
        (FED_ISIC_2019, ["0", "center_4", "6"], ["BCN", "MSK", None]),
        (CAMELYON_17, ["test-center", "2", "train-center2"], ["hospital_2", "hospital_2", "hospital_3"]),
        (DOMAIN_NET, ["0"], [None]),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_names_of_domains(known, names, domains):
    assert [known.domain_of(name) for name in names] == domains


@pytest.mark.parametrize(
    ("known", "names", "classes"),
    [
        (VLCS, ["0", "4", "5"], ["bird", "person", None]),
        (PACS, ["0"], [None]),
        (FED_ISIC_2019, ["4", "BKL", "8"], ["benign_keratosis", "benign_keratosis", None]),
        (CAMELYON_17, ["0", "non-tumor", "tumor"], ["normal", "normal", "tumor"]),
        (IMAGENET, ["0", "999", "1000"], ["tench", "toilet paper", None]),
        # As CoOp calls them.
        (DATA_SETS["Caltech101"], ["airplanes"], ["airplane"]),
        (DATA_SETS["StanfordCars"], ["Ram C/V Cargo Van Minivan 2012"], ["2012 Ram C/V Cargo Van Minivan"]),
        (SUN_397, ["apartment_building/outdoor"], ["outdoor apartment building"]),
        (DATA_SETS["EuroSAT"], ["SeaLake"], ["Sea or Lake"]),
        (DATA_SETS["UCF101"], ["HandstandPushups"], ["Handstand_Pushups"]),
        (DATA_SETS["FGVCAircraft"], ["F-16A/B"], ["F-16A/B"]),
        (DATA_SETS["OxfordPets"], ["Staffordshire Bull Terrier"], ["staffordshire_bull_terrier"]),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_names_of_classes(known, names, classes):
    assert [known.class_of(name) for name in names] == classes


def test_halves_of_the_classes_are_those_of_coop():
    """Its labels follow its folders, of which capitals are first."""
    assert DATA_SETS["Caltech101"].class_names[:4] == ("face", "leopard", "motorbike", "accordion")


def test_parts_of_the_official_split():
    parts = [known.official_parts for known in (PACS, OFFICE_HOME, VLCS, DOMAIN_NET)]
    assert parts == ["train/crossval", "", "train/crossval/test", "train/test"]


@pytest.mark.parametrize("known", [each for each in DESCRIPTIONS if each.download_source], ids=lambda each: each.name)
def test_sources_of_downloads_and_where_configs_put_them(known):
    content = read_yaml(Path(find_config(known.config)))
    assert content["data"]["init_args"]["root"] == f"datasets/{known.short_name}"
    if known.hub is None:
        reader = getattr(torchvision.datasets, known.torchvision.reader)
        assert hasattr(reader, "download") or hasattr(reader, "_download")
        assert known.licence
        return
    assert known.hub.revision is None or re.fullmatch("[0-9a-f]{40}", known.hub.revision)
    # The lists are written by the names of the hub's files, so there must be lists of these names.
    assert not known.hub.has_official_split or {"train": "train", "test": "test"} in known.lists


@pytest.mark.parametrize("name", ["DomainNet10", "DomainNet126"])
def test_parts_of_domain_net(name):
    part = DATA_SETS[name]
    for domain, counts in part.counts.items():
        assert counts == {each: DOMAIN_NET.counts[domain][each] for each in part.class_names}
    assert set(part.domains) <= set(DOMAIN_NET.domains)
    assert set(part.domains) - set(part.counts) == {"real"}
    assert prompt_names(name, part.class_names, "clip") == prompt_names("DomainNet", part.class_names, "clip")


@each
@pytest.mark.parametrize("style", ["clip", "plain"])
def test_names_are_what_the_text_encoder_reads(known, style):
    names = prompt_names(known.name, known.class_names, style)
    assert names == list(map(clean_class_name, names)), "a result would name other words than the prompts said"
    assert len(set(names)) == len(names)


def test_classes_of_imagenet_are_clips_in_the_order_of_their_ids():
    ids = {name: spelling for spelling, name in IMAGENET.class_spellings.items()}
    assert [ids[name] for name in IMAGENET.class_names] == sorted(ids.values())
    pairs = zip(IMAGENET.class_names, open_clip.IMAGENET_CLASSNAMES, strict=True)
    differing = {(ours, clips) for ours, clips in pairs if ours != clips}
    assert differing == {("projectile missile", "missile"), ("sunglass", "sunglasses")}
    tiny = {name: spelling for spelling, name in TINY_IMAGENET.class_spellings.items()}
    assert all(IMAGENET.class_of(spelling) == name for name, spelling in tiny.items())
    assert [tiny[name] for name in TINY_IMAGENET.class_names] == sorted(tiny.values())


def test_what_was_published_depends_on_the_layout():
    images = [SUN_397.in_layout(layout, ["SUN397"]).images for layout in SUN_397.layouts]
    assert images == [39_700, 39_700, 108_754]
    assert SUN_397.in_layout(SUN_397.layouts[-1], ["SUN397"]).split_counts == {}
    assert IMAGENET.in_layout(IMAGENET.layouts[0], ["ImageNet", "ImageNet-R"]).images == 1_361_167
    assert PACS.in_layout(None, PACS.domains) == PACS
