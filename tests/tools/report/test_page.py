"""The page: its content, and that it loads nothing else."""

import json
import re
from datetime import date
from html.parser import HTMLParser
from itertools import pairwise

import numpy as np
from PIL import Image

from fedvlp.core.predictions import Predictions
from fedvlp.results import find_records
from fedvlp.results.predictions import write_predictions
from fedvlp.tools.report.page import report_page
from tests.helpers.predictions import draw
from tests.helpers.report_runs import write_run


class Reader(HTMLParser):
    """Parser that collects elements and text, and rejects unclosed elements."""

    def __init__(self, text):
        super().__init__()
        self.elements = []
        self.text = ""
        self.open = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in ("img", "meta"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data

    def all(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]


def page_of(folder, problems=(), heading="Three methods"):
    records, unreadable = find_records([folder])
    return report_page(records, [*unreadable, *problems], heading, date(2026, 3, 9))


def test_page_has_tables_figures_configs_and_versions(whole_page):
    read = Reader(whole_page)
    assert whole_page.startswith('<!doctype html>\n<html lang="en">')
    assert [name for name, _ in read.elements].count("h1") == 1
    assert [attributes["id"] for attributes in read.all("section")] == ["table-1", "details"]
    for word in ("one client per domain", "hash-photo (photo held out)", "CLIP tiny, weights abcd1234", "58.0 ± 1.4"):
        assert word in read.text
    assert {"row", "col"} == {attributes["scope"] for attributes in read.all("th")}
    assert len(read.all("caption")) == len(read.all("table"))
    images = read.all("img")
    assert len(images) == whole_page.count("<figcaption>") == 3
    assert all(len(attributes["alt"]) > 20 for attributes in images)
    assert read.text.count("seed_everything: 0") == 6
    assert read.text.count("Config of ") == 10
    assert "2.5" in read.text.split("Environment")[-1]
    levels = [int(name[1]) for name, _ in read.elements if re.fullmatch("h[1-6]", name)]
    assert all(after <= before + 1 for before, after in pairwise(levels))
    # The result comes first, and rows are sorted by it.
    assert "9 March 2026" in read.text[: read.text.index("Accuracy in %")]
    assert "trip has the highest result, 58.0 ± 1.4 % mean accuracy on held-out domains" in read.text
    assert re.findall(r'<th scope="row">([^<]*)', whole_page)[:4] == ["trip", "trip", "promptfl", "promptfl"]
    (best,) = re.findall(r'<tr class="best"><th scope="row">(.*?)</th>(.*?)</tr>', whole_page)
    assert best[0].startswith("trip<span")
    assert best[1].startswith('<td class="word">last</td><td class="number">58.0 ± 1.4</td>')


def test_classes_are_shown_with_the_most_frequent_mistake(tmp_path, no_figures):
    names = [f"class {index}" for index in range(14)]
    labels = np.repeat(np.arange(1, 14, dtype=np.int32), 13)
    # 13 - k images of class k are predicted as class 0; zero-shot CLIP always predicts class 13.
    index_in_class = np.tile(np.arange(13), 13)
    predicted = np.where(index_in_class < 13 - labels, 0, labels).astype(np.int32)
    sure = np.ones((1, len(labels)), np.float32)
    last = Predictions(labels, predicted[None], sure)
    zero_shot = Predictions(labels, np.full_like(predicted, 13)[None], sure)
    for seed in (0, 1):
        run = write_run(tmp_path, [50.0, 51.0], seed=seed, data={"classes": names})
        splits = {"held_out/photo": last, "test/photo": draw(9)}
        write_predictions(run, {"zero-shot CLIP": {"held_out/photo": zero_shot}, "last round": splits})
    text = page_of(tmp_path)
    hardest, everything = re.findall(r"<caption>[^<]* classes</caption>.*?<tbody>(.*?)</tbody>", text, re.DOTALL)
    rows = [re.findall(r">([^<>]+)</t[hd]>", row) for row in hardest.split("</tr>")[:-1]]
    assert rows[0] == ["class 1", "13", "7.7", "0.0", "class 0 (92 %)"]
    assert rows[11] == ["class 12", "13", "92.3", "0.0", "class 0 (8 %)"]
    assert len(rows) == 12
    assert everything.count("<tr>") == 13
    assert ">-</td></tr>" in everything


def test_other_metrics_are_shown_for_each_method(tmp_path, no_figures):
    for seed in (0, 1):
        for held_out, worst in (("photo", 31.0), ("sketch", 27.0 + seed)):
            role = {"balanced_accuracy": 40.0 + seed, "macro_f1": 33.0, "class_auroc": 90.0}
            role["calibration_error"] = 12.0 + 2 * seed
            role["worst_domain"] = {"name": "x", "accuracy": worst}
            outside = {"noise": {"auroc": 81.0, "fpr_at_95": 70.0}}
            metrics = {"last round": {"held_out": {**role, "out_of_distribution": outside}}}
            data = {"out_of_distribution": {"name": "noise", "images": "5 images"}, "classes": list("abcde")}
            run = write_run(tmp_path, [50.0, 51.0], held_out=held_out, seed=seed, data=data)
            summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
            (run / "summary.json").write_text(json.dumps(summary | {"metrics": metrics}), encoding="utf-8")
            write_predictions(run, {"last round": {f"held_out/{held_out}": draw(40)}})
    text = page_of(tmp_path)
    (table,) = re.findall(r"<caption>Other metrics</caption>(.*?)</table>", text, re.DOTALL)
    head = ["method", "accuracy [95 % over images]", "balanced accuracy", "macro F1", "calibration error"]
    head += ["AUROC", "worst domain", "AUROC, noise", "FPR at 95 %, noise"]
    assert re.findall(r"<th[^>]*>([^<]+)", table.split("<tbody>")[0]) == head
    (row,) = table.split("<tbody>")[1].split("</tr>")[:-1]
    name, with_interval, *cells = re.findall(r">([^<>]+)</t[hd]>", row)
    assert re.fullmatch(r"13\.0 ± 1\.4 \[\d+\.\d, \d+\.\d\]", cells.pop(2))
    assert [name, *cells] == [
        "trip",
        "40.5 ± 0.7",
        "33.0 ± 0.0",
        "90.0 ± 0.0",
        "27.5 ± 0.7",
        "81.0 ± 0.0",
        "70.0 ± 0.0",
    ]
    assert re.fullmatch(r"51\.0 ± 0\.0 \[\d\d\.\d, \d\d\.\d\]", with_interval)


def test_page_loads_nothing(whole_page):
    read = Reader(whole_page)
    policy = next(a for a in read.all("meta") if a.get("http-equiv") == "Content-Security-Policy")
    assert policy["content"].startswith("default-src 'none'; img-src data:; style-src 'unsafe-inline'")
    assert not {"script", "link", "iframe", "object", "base", "form"} & {name for name, _ in read.elements}
    for name, attributes in read.elements:
        for attribute in ("src", "href", "srcset", "style", "data", "poster", "background"):
            assert attributes.get(attribute, "#").startswith(("#", "data:image/")), (name, attribute)
    assert "url(" not in whole_page
    assert "@import" not in whole_page


def test_names_with_markup_are_escaped(tmp_path):
    names = ('<img src="x">', "a & b", "$c_$")
    write_run(tmp_path, [50.0, 51.0], held_out=names[1], domains=names, data={"classes": ["<b>dog</b>", '"cat"']})
    read = Reader(page_of(tmp_path, ["<i>/nowhere</i>: there is no such folder."], "<u>title</u>"))
    assert not {"b", "i", "u"} & {name for name, _ in read.elements}
    assert all(attributes["src"].startswith("data:image/") for attributes in read.all("img"))
    for word in (*names, "<b>dog</b>", '"cat"', "<i>/nowhere</i>", "<u>title</u>"):
        assert word in read.text


def test_missing_runs_come_first_and_data_sets_are_separate(runs, no_figures):
    write_run(runs, [50.0], seed=7, data={"images": "1234"})
    folder = write_run(runs, [50.0], seed=9)
    (folder / "summary.json").unlink()
    read = Reader(page_of(runs))
    assert [attributes["id"] for attributes in read.all("section")][:3] == ["problems", "table-1", "table-2"]
    assert f"{folder} has not ended" in read.text
    assert "cannot be compared" in read.text


def test_headings_have_words_and_no_digests(tmp_path, no_figures):
    for number, data in enumerate(
        ({}, {"shots": 4}, {"shots": 4, "images": "0123"}, {"name": "Icons", "images": "45"})
    ):
        write_run(tmp_path / str(number), [50.0], data=data)
    titles = re.findall("<h2>(.*?)</h2>", page_of(tmp_path))
    protocol = "leave-domains-out, 1 held out"
    assert titles[:-1] == [
        f"1. Made, {protocol}, all images",
        f"2. Made, {protocol}, 4-shot",
        f"3. Made, {protocol}, 4-shot",
        f"4. Icons, {protocol}, all images",
    ]


def test_explanations_are_read_only_from_their_folder(tmp_path, no_figures):
    run = write_run(tmp_path, [50.0, 51.0])
    entry = {"file": "map.png", "title": "Map", "caption": "Where it looks.", "alt": "A dark square."}
    (run / "explanations").mkdir()
    for path in (run / "explanations" / "map.png", run / "secret.png"):
        Image.new("RGB", (8, 8)).save(path)
    listed = run / "explanations" / "captions.json"
    listed.write_text(json.dumps([entry, {**entry, "file": "../secret.png", "alt": "seen"}]), encoding="utf-8")
    read = Reader(page_of(tmp_path))
    pictures = {attributes["alt"]: attributes["src"] for attributes in read.all("img")}
    assert pictures["A dark square."].startswith("data:image/png;base64,")
    assert "Where it looks." in read.text
    assert "seen" not in pictures
    assert "secret.png is missing" in read.text
