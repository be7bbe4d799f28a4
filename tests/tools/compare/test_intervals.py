"""Intervals over images in tables: seeds share their images, and domains do not."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from fedvlp.core.predictions import Predictions, calibration_errors, interval, resample
from fedvlp.results.predictions import write_predictions
from fedvlp.tools.compare.printing import table_text
from fedvlp.tools.compare.tables import add_intervals, tables
from tests.helpers.predictions import draw, select_images
from tests.helpers.records import make_record

SEEDS = (0, 1)
DOMAINS = ("photo", "sketch")
CLASSES = {"classes": list("abcde")}
ROWS = ("zero-shot CLIP", "last round")


@pytest.fixture
def write(tmp_path):
    """Make a function that writes predictions for each seed and domain, and returns the runs."""

    def make(predict, seeds=SEEDS):
        runs = []
        for domain in DOMAINS:
            for seed in seeds:
                folder = tmp_path / f"{domain}-{seed}"
                folder.mkdir(exist_ok=True)
                predictions = predict(domain, seed)
                if predictions is not None:
                    split = f"held_out/{domain}"
                    write_predictions(folder, {ROWS[0]: {split: predict(domain, 0)}, ROWS[1]: {split: predictions}})
                runs.append(make_record(50.0, held_out=domain, seed=seed, folder=folder, data=CLASSES))
        return runs

    return make


def drawn(domain, seed):
    """Draw the labels of the domain and the predicted classes of a seed."""
    first = draw(120, seed=DOMAINS.index(domain))
    return replace(draw(120, seed=10 + seed + 7 * DOMAINS.index(domain)), labels=first.labels)


def row_intervals(runs):
    """Compute the intervals by round and column."""
    (table,) = tables(runs)
    cells = add_intervals(table).cells.dropna(subset=["low"]).reset_index()
    rows = {name: {} for _, name in table.rows}
    for _, cell in cells.iterrows():
        rows[cell["round"]][cell["column"]] = (cell["low"], cell["high"])
    return rows


def test_images_are_drawn_with_the_predictions_of_all_seeds(write):
    rows = row_intervals(write(drawn))
    slow = {domain: [] for domain in DOMAINS}
    generator = np.random.default_rng(1)
    for domain in DOMAINS:
        seed_predictions = [drawn(domain, seed) for seed in SEEDS]
        rights = [each.predicted[0] == each.labels for each in seed_predictions]
        for _ in range(600):
            order = generator.integers(120, size=120)
            slow[domain].append(np.mean([100 * right[order].mean() for right in rights]))
        assert rows["last"][domain] == pytest.approx(np.quantile(slow[domain], [0.025, 0.975]), abs=1.5)
    average = np.quantile(np.mean([slow[domain] for domain in DOMAINS], axis=0), [0.025, 0.975])
    assert rows["last"]["average"] == pytest.approx(average, abs=1.5)
    assert rows["best"] == {}
    assert rows["-"].keys() == {*DOMAINS, "average"}


def test_calibration_errors_of_all_seeds_have_one_interval(write):
    runs = write(drawn)
    (table,) = tables(runs)
    found = table.mean_interval(("promptfl", "last"), ["held_out"], len(SEEDS), "calibration_error")
    slow = []
    generator = np.random.default_rng(1)
    for _ in range(300):
        errors = []
        for domain in DOMAINS:
            order = generator.integers(120, size=120)
            drawn_seeds = [select_images(drawn(domain, seed), order) for seed in SEEDS]
            errors += [calibration_errors(each, resamples=0)[0] for each in drawn_seeds]
        slow.append(np.mean(errors))
    error = np.mean([calibration_errors(drawn(*run), resamples=0)[0] for run in itertools.product(DOMAINS, SEEDS)])
    assert found == pytest.approx(np.quantile(slow, [0.025, 0.975]) + error - np.mean(slow), abs=1)
    missing = table.mean_interval(("promptfl", "last"), ["test"], len(SEEDS), "calibration_error")
    assert np.isnan(missing).all()


def test_missing_or_mismatching_predictions_have_no_interval(write):
    missing = row_intervals(write(lambda domain, seed: None if (domain, seed) == ("photo", 1) else drawn(domain, seed)))
    assert missing["last"].keys() == {"sketch"}
    shuffled = select_images(drawn("photo", 1), np.arange(120)[::-1])
    other = row_intervals(
        write(lambda domain, seed: shuffled if (domain, seed) == ("photo", 1) else drawn(domain, seed))
    )
    assert other["last"].keys() == {"sketch"}
    two = Predictions(shuffled.labels, shuffled.predicted.repeat(2, 0), shuffled.confidence.repeat(2, 0))
    several = row_intervals(write(lambda domain, seed: two if (domain, seed) == ("photo", 1) else drawn(domain, seed)))
    assert several["last"].keys() == {"sketch"}


def test_means_of_roles_have_intervals_and_computed_columns_have_none(tmp_path):
    splits = {
        f"{role}/{client}": drawn(client, role == "global") for role in ("personal", "global") for client in DOMAINS
    }
    write_predictions(tmp_path, {"last round": splits})
    last = {"personal": 61.0, "personal_worst": 50.0, "global": 40.0, "validation": 9.0, "personal/photo": 60.0}
    record = make_record(
        held_out=(), data={"kind": "personal", **CLASSES}, folder=tmp_path, accuracy={"last round (3)": last}
    )
    row = row_intervals([record])["last"]
    assert row.keys() == {"global model", "average"}
    samples = [resample(splits[f"personal/{name}"], 5, f"personal/{name}")["accuracy"] for name in DOMAINS]
    assert list(row["average"]) == interval(np.mean(samples, axis=0))


def test_tables_show_intervals_after_the_deviation(write):
    (table,) = tables(write(drawn))
    text = table_text(add_intervals(table))
    row = text.frame[text.frame["round"] == "last"].iloc[0]
    low, high = row_intervals(write(drawn))["last"]["photo"]
    assert row["photo"] == f"50.0 ± 0.0 [{low:.1f}, {high:.1f}]"
    assert "bootstrap interval over images" in " ".join(text.lines)
    assert "bootstrap" not in " ".join(table_text(table).lines)
    cells = add_intervals(table).cells.sort_index().loc["promptfl", "last"]
    assert (cells.loc["photo", "low"], cells.loc["photo", "high"]) == (low, high)
    assert np.isnan(cells.loc["spread", "low"])
