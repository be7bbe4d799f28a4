"""Facts of the data sets: consistent with each other, with CoOp's and torchvision's names, and with the configs."""

import re
from pathlib import Path

import open_clip
import pytest
import torchvision.datasets

from fedvlp.catalog.description import DATA_SETS, DESCRIPTIONS, HubSource, prompt_names
from fedvlp.clip import clean_class_name
from fedvlp.utils.config_files import bundled_configs, find_config, read_yaml

DOMAIN_NET = DATA_SETS["DomainNet"]
IMAGENET = DATA_SETS["ImageNet"]
each = pytest.mark.parametrize("known", DESCRIPTIONS, ids=lambda known: known.name)


@each
def test_numbers_agree_with_each_other(known):
    for domain, counts in known.counts.items():
        assert set(counts) == set(known.class_names)
        # An image may have several labels, or none.
        assert sum(counts.values()) == known.domain_counts[domain] or known.several_labels
    for layout in known.layouts:
        numbers = known.counts_in(layout)
        assert {*numbers, *layout.split_counts} <= set(known.domains)
        for domain, parts in layout.split_counts.items():
            # VLCS publishes only counts of test images.
            assert sum(parts.values()) == numbers[domain] or known.name == "VLCS"
            assert len(parts) == layout.title.count("/") + 1 or known.name == "VLCS"


@each
def test_classes_are_sorted_and_every_spelling_is_known(known):
    # If CoOp or the publisher numbers the classes, they are in the order of these labels.
    is_numbered = len(known.domains) == 1 or known.name == "ImageNet"
    assert list(known.class_names) == sorted(known.class_names) or is_numbered
    for name in known.class_names:
        assert known.match_class(name) == known.match_class(name.replace("_", " ").upper()) == name
    for spelling, name in known.class_spellings.items():
        assert known.match_class(spelling) == name
    for domain in known.domains:
        assert known.match_domain(domain.upper()) == domain
    assert known.match_domain("splits") is None
    assert known.config in bundled_configs()
    assert set(known.clip_names) <= set(known.class_names)


@pytest.mark.parametrize(
    ("known", "names", "domains"),
    [
        ("OfficeHome", ["Real World", "RealWorld", "real_world"], ["Real_World"] * 3),
        ("VLCS", ["CALTECH", "SUN", "PASCAL"], ["Caltech101", "SUN09", "VOC2007"]),
        ("FedISIC2019", ["0", "center_4", "6"], ["BCN", "MSK", None]),
        ("Camelyon17", ["test-center", "2", "train-center2"], ["hospital_2", "hospital_2", "hospital_3"]),
        ("DomainNet", ["0"], [None]),
    ],
)
def test_names_of_domains(known, names, domains):
    assert [DATA_SETS[known].match_domain(name) for name in names] == domains


@pytest.mark.parametrize(
    ("known", "names", "classes"),
    [
        ("VLCS", ["0", "4", "5"], ["bird", "person", None]),
        ("PACS", ["0"], [None]),
        ("FedISIC2019", ["4", "BKL", "8"], ["benign_keratosis", "benign_keratosis", None]),
        ("Camelyon17", ["0", "non-tumor", "tumor"], ["normal", "normal", "tumor"]),
        ("ImageNet", ["0", "999", "1000"], ["tench", "toilet paper", None]),
        # CoOp's names.
        ("Caltech101", ["airplanes"], ["airplane"]),
        ("StanfordCars", ["Ram C/V Cargo Van Minivan 2012"], ["2012 Ram C/V Cargo Van Minivan"]),
        ("SUN397", ["apartment_building/outdoor"], ["outdoor apartment building"]),
        ("EuroSAT", ["SeaLake"], ["Sea or Lake"]),
        ("UCF101", ["HandstandPushups"], ["Handstand_Pushups"]),
        ("FGVCAircraft", ["F-16A/B"], ["F-16A/B"]),
        ("OxfordPets", ["Staffordshire Bull Terrier"], ["staffordshire_bull_terrier"]),
    ],
)
def test_names_of_classes(known, names, classes):
    assert [DATA_SETS[known].match_class(name) for name in names] == classes


def test_order_of_classes_and_parts_of_splits():
    # CoOp's labels follow its folders, where capitals come first.
    assert DATA_SETS["Caltech101"].class_names[:4] == ("face", "leopard", "motorbike", "accordion")
    parts = [DATA_SETS[name].official_parts for name in ("PACS", "OfficeHome", "VLCS", "DomainNet")]
    assert parts == ["train/crossval", "", "train/crossval/test", "train/test"]


@pytest.mark.parametrize("known", [each for each in DESCRIPTIONS if each.download_source], ids=lambda each: each.name)
def test_sources_of_downloads_and_where_configs_put_them(known):
    content = read_yaml(Path(find_config(known.config)))
    assert content["data"]["init_args"]["root"] == f"datasets/{known.short_name}"
    assert known.licence
    source = known.download_source
    if isinstance(source, HubSource):
        assert source.revision is None or re.fullmatch("[0-9a-f]{40}", source.revision)
        # Lists are named after the hub's files, so layouts must have lists of these names.
        assert not source.has_official_split or {"train": "train", "test": "test"} in known.layouts[0].lists
    else:
        reader = getattr(torchvision.datasets, source.reader)
        assert hasattr(reader, "download") or hasattr(reader, "_download")


@pytest.mark.parametrize("name", ["DomainNet10", "DomainNet126"])
def test_parts_of_domain_net(name):
    part = DATA_SETS[name]
    for domain, counts in part.counts.items():
        assert counts == {each: DOMAIN_NET.counts[domain][each] for each in part.class_names}
    assert set(part.domains) <= set(DOMAIN_NET.domains)
    assert set(part.domains) - set(part.counts) == {"real"}
    assert prompt_names(name, part.class_names, "clip") == prompt_names("DomainNet", part.class_names, "clip")


@each
def test_class_names_match_the_prompts(known):
    for style in ("clip", "plain"):
        names = prompt_names(known.name, known.class_names, style)
        assert names == list(map(clean_class_name, names)), "results would list other names than the prompts"
        assert len(set(names)) == len(names)


def test_classes_of_imagenet_are_clips_in_the_order_of_their_ids():
    ids = {name: spelling for spelling, name in IMAGENET.class_spellings.items()}
    assert [ids[name] for name in IMAGENET.class_names] == sorted(ids.values())
    pairs = zip(IMAGENET.class_names, open_clip.IMAGENET_CLASSNAMES, strict=True)
    differing = {(ours, clips) for ours, clips in pairs if ours != clips}
    assert differing == {("projectile missile", "missile"), ("sunglass", "sunglasses")}
    assert {domain: 1000 - len(names) for domain, names in IMAGENET.gaps.items()} == {
        "ImageNet-A": 200,
        "ImageNet-R": 200,
    }
    tiny_imagenet = DATA_SETS["TinyImageNet"]
    tiny = {name: spelling for spelling, name in tiny_imagenet.class_spellings.items()}
    assert all(IMAGENET.match_class(spelling) == name for name, spelling in tiny.items())
    assert [tiny[name] for name in tiny_imagenet.class_names] == sorted(tiny.values())


def test_published_numbers_depend_on_the_layout():
    sun397 = DATA_SETS["SUN397"]
    assert [sun397.counts_in(layout)["SUN397"] for layout in sun397.layouts] == [39_700, 39_700, 108_754]
