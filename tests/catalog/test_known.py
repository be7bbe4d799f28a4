from __future__ import annotations

import re
from pathlib import Path

import pytest

from fedvlp.catalog import DESCRIPTIONS, prompt_names
from fedvlp.catalog.class_name_maps import CLIP_NAMES
from fedvlp.catalog.hub_sources import HUB_SOURCES
from fedvlp.catalog.known import (
    CAMELYON_17,
    DOMAIN_NET,
    DOMAIN_NET_10,
    DOMAIN_NET_126,
    FED_ISIC_2019,
    OFFICE_HOME,
    PACS,
    VLCS,
)
from fedvlp.clip import clean_class_names
from fedvlp.utils.config_files import config_names, find_config
from fedvlp.utils.yaml_limits import read_yaml

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
    }


@each
def test_numbers_agree_with_each_other(known):
    for domain, counts in known.counts.items():
        assert set(counts) == set(known.class_names)
        assert sum(counts.values()) == known.domain_counts[domain]
    for domain, parts in known.split_counts.items():
        if len(parts) == 2:
            assert sum(parts.values()) == known.domain_counts[domain]


@each
def test_classes_are_sorted_and_every_spelling_is_found(known):
    assert list(known.class_names) == sorted(known.class_names)
    for name in known.class_names:
        assert known.class_of(name) == name
        assert known.class_of(name.replace("_", " ").upper()) == name
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


def test_sources_are_of_known_data_sets_and_their_configs_say_where_to():
    by_name = {known.name: known for known in DESCRIPTIONS}
    for name, source in HUB_SOURCES.items():
        content = read_yaml(Path(find_config(by_name[name].config)))
        assert content["data"]["init_args"]["root"] == f"datasets/{by_name[name].config.removeprefix('data/')}"
        assert source.revision is None or re.fullmatch("[0-9a-f]{40}", source.revision)
        # The lists are written by the names of the hub's files, so there must be lists of these names.
        assert not source.has_official_split or {"train": "train", "test": "test"} in by_name[name].lists


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
            assert set(CLIP_NAMES.get(known.name, {})) <= set(known.class_names)
