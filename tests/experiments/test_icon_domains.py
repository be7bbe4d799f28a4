import io
import json
import tarfile
from dataclasses import replace

import numpy as np
import pytest

from experiments.icon_domains import build, unknown
from experiments.icon_domains.icons import (
    DOMAINS,
    Icon,
    IconSet,
    by_class,
    download,
    fingerprints,
    has_words_of,
    icon_sets,
    on_white,
    read_icons,
    things,
)
from experiments.options import parse, shared_parser
from fedvlp.data.icon_domains.module import manifest
from fedvlp.utils.errors import UserError
from tests.helpers.study_runs import parsed

SET = IconSet("mine", "1.0.0", "line", "(?<!-fill)$", "MIT", "Ada", "0" * 64)


def save_package(folder, icons, categories):
    with tarfile.open(folder / "iconify-json-mine-1.0.0.tgz", "w:gz") as archive:
        contents = {"icons": {"icons": icons, "width": 24, "height": 12}, "metadata": {"categories": categories}}
        for name, content in contents.items():
            data = json.dumps(content).encode()
            member = tarfile.TarInfo(f"package/{name}.json")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))


def test_brands_hidden_icons_and_other_styles_are_dropped(tmp_path):
    icons = {
        "birthday-cake-alt-2": {"body": "<path/>"},
        "car-fill": {"body": ""},
        "old": {"body": "", "hidden": True},
        "acme": {"body": ""},
        "wide": {"body": "", "width": 30},
    }
    save_package(tmp_path, icons, {"Brands": ["acme"]})
    cake, wide = read_icons(SET, tmp_path)
    assert cake.words == "birthday cake"
    assert 'viewBox="0.0 -6.0 24 24"><path/></svg>' in cake.svg
    assert 'viewBox="0.0 -9.0 30 30"' in wide.svg


def test_a_package_with_another_digest_is_rejected(tmp_path):
    save_package(tmp_path, {}, {})
    with pytest.raises(UserError, match="SHA-256 0000"):
        download([SET], tmp_path)


def test_without_npm_the_error_names_the_installation(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(UserError, match=r"Install Node\.js"):
        download([SET], tmp_path)


def test_pictures_get_a_white_background():
    pixels = np.zeros((64, 64, 4), np.uint8)
    pixels[0, 0] = (200, 100, 0, 255)
    pixels[0, 1] = (200, 100, 0, 51)
    assert on_white(pixels)[0, :3].tolist() == [[200, 100, 0], [244, 224, 204], [255, 255, 255]]


def test_the_same_drawing_is_recognised_if_moved_but_not_if_turned_or_recoloured():
    arrow = np.full((64, 64, 3), 255, np.uint8)
    arrow[20:40, 10:30] = 0
    arrow[26:34, 30:50] = 0
    moved = np.roll(arrow, (9, -4), axis=(0, 1))
    turned = np.rot90(arrow).copy()
    red = arrow.copy()
    red[..., 0] = 255
    similarity = fingerprints(np.stack([arrow, moved, turned, red])) @ fingerprints(arrow[None])[0]
    assert similarity[:2] == pytest.approx([1, 1])
    assert similarity[2:].max() < 0.9
    assert build.first_of_each_drawing(np.stack([turned, arrow, moved])).tolist() == [True, True, False]


def test_consecutive_words_and_plurals_are_found():
    assert has_words_of("two paper clips", ["paper clip"])
    assert has_words_of("glass boxes", ["box"])
    assert not has_words_of("paper and clip", ["paper clip"])
    assert not has_words_of("eclipse", ["clip"])


def test_icons_of_a_class_alternate_between_icon_sets():
    other = replace(SET, name="other")
    icons = [Icon(SET, "car-2", ""), Icon(SET, "car", ""), Icon(other, "car", ""), Icon(SET, "carport", "")]
    found = by_class(icons)
    assert set(found) == {("car", "line")}
    in_turn = [(icon.of.name, icon.name) for icon in build.in_turn(found["car", "line"])]
    assert in_turn == [("mine", "car"), ("other", "car"), ("mine", "car-2")]


def test_a_class_missing_in_a_domain_is_named(tmp_path):
    chosen = [("line", "car", Icon(SET, "car", ""))]
    with pytest.raises(UserError, match="none of car in line"):
        build.write([np.zeros((64, 64, 3), np.uint8)], chosen, np.array([False]), tmp_path)


def test_the_tables_agree_with_the_images():
    synonyms = [words for thing in things() for words in thing.synonyms]
    assert len(set(synonyms)) == len(synonyms)
    classes = {thing.name for thing in things() if thing.is_class}
    assert classes == {row["class"] for row in manifest()}
    use_of = {icons.name: icons.use for icons in icon_sets()}
    assert all(use_of[row["set"]] == row["domain"] for row in manifest())
    authors = {use: {icons.author for icons in icon_sets() if icons.use == use} for use in use_of.values()}
    others = authors.pop("pretraining") | authors.pop("validation")
    assert set(authors) == set(DOMAINS)
    for domain, domain_authors in authors.items():
        assert not domain_authors & others, domain
        others |= domain_authors


def test_unknown_icons_have_the_held_out_styles_and_no_class_of_the_runs(tmp_path):
    choice = parse(shared_parser(None, 5), [f"--output={tmp_path}", "--held_out=emoji+pixel", "--data=icon_domains"])
    folder = unknown.write_unknown(choice)
    known = sorted({row["class"] for row in manifest()})[:80]
    written = [path.relative_to(folder).parts[:2] for path in folder.rglob("*.png")]
    rows = [row for row in manifest() if row["domain"] in ("emoji", "pixel") and row["class"] not in known]
    assert sorted(written) == sorted((row["domain"], row["class"]) for row in rows)
    run = unknown.run_of(choice, folder, unknown.PROMPTFL, 0.003, 1)
    config = parsed([f"--config=methods/{run.config}", *run.setting.arguments, *run.overrides])
    assert config.data.init_args.num_classes == len(known) == 80
    assert config.model.init_args.entropy_weight == 0
