"""Tables of a page beside the comparison itself: what is measured beside accuracy, classes, runs, and a ranking."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from fedvlp.core.metrics import Confusion, confusion_of
from fedvlp.core.roles import role_title
from fedvlp.results.grouping import measure_of
from fedvlp.results.printing import TextTable, describe_group, format_cell, format_range, table_text
from fedvlp.results.record import DETECTION, LAST_ROW, SCORES, WORST, ZERO_SHOT_ROW, Record, runs_frame
from fedvlp.results.tables import AVERAGE, UNTRAINED, Cell, Row, Table, costs, ranking
from fedvlp.tools.report.figures import compared_rows

MAX_OPEN_ROWS = 12
"""How many classes are shown before a reader unfolds the others."""

TITLES = {
    "balanced_accuracy": "balanced accuracy",
    "macro_f1": "macro F1",
    "calibration_error": "calibration error",
    "worst_domain": "worst domain",
    "worst_client": "worst client",
    "auroc": "AUROC",
    "fpr_at_95": "FPR at 95 %",
}


def comparison(table: Table) -> TextTable:
    """Returns the table as ``fedvlp compare`` prints it, but the average first and all remarks below."""
    text = table_text(table)
    # The average is where a narrow screen shows it.
    columns = ["method", "round", table.average_title]
    frame = text.frame[[*columns, *(title for title in text.frame if title not in columns)]]
    notes = [*text.notes, *text.lines[1:]]
    return TextTable(f"Accuracy in %, {table.about['data']}", (), frame, text.text_columns, notes)


def beside_accuracy(table: Table) -> TextTable | None:
    """Returns what is measured beside accuracy, of last rounds and zero-shot CLIP; None if no run has measured more.

    Args:
        table: with intervals.
    """
    rows = []
    for row in compared_rows(table):
        cell = table.cell(row, AVERAGE)
        scores = _scores(table, row)
        if cell is not None and (scores or not math.isnan(cell.low)):
            with_interval = "-" if math.isnan(cell.low) else f"{format_cell(cell)} [{cell.low:.1f}, {cell.high:.1f}]"
            rows.append({"method": row[0], "accuracy [95 % over images]": with_interval, **scores})
    if not rows:
        return None
    note = (
        f"On {role_title(_scored_role(table))} images after the last round, in % or points: means over domains, then "
        "mean and deviation over seeds; of the worst domain and client the lowest of each seed. A lower calibration "
        "error and a lower FPR are better."
    )
    return TextTable("Beside accuracy", [note], pd.DataFrame(rows).fillna("-"))


def _scored_role(table: Table) -> str:
    """Returns the role whose scores are shown: what rows are ranked by, or the first column that has scores."""
    measured: set[str] = set()
    for record in table.records:
        measured.update(*record.metrics.values())
    return next((name for name in (table.role, *table.measure.columns.values()) if name in measured), table.role)


def _scores(table: Table, row: Row) -> dict[str, str]:
    """Returns mean and deviation over seeds of each score that all runs of a row have, by title."""
    is_trained = row[1] != UNTRAINED
    frame = runs_frame(table.runs[row[0]])
    frame = frame[(frame["role"] == _scored_role(table)) & (frame["domain"] == "")]
    frame = frame[frame["row"] == (LAST_ROW if is_trained else ZERO_SHOT_ROW)]
    if not is_trained:  # the same for every seed
        frame = frame[frame["seed"] == frame["seed"].min()]
    frame = frame.drop_duplicates(["seed", "held_out"], keep="last")
    # A seed without some held-out domain would have the mean of other domains than the rest.
    choices = len({record.held_out for record in table.records})
    seeds = frame.groupby("seed").filter(lambda runs: len(runs) == choices)
    outside = {str(record.data["out_of_distribution"]["name"]) for record in table.runs[row[0]] if _has_outside(record)}
    scores = {}
    for name in (*SCORES, *WORST, *DETECTION):
        if len(seeds) and bool(seeds[name].notna().all()):
            # The worst domain of a seed is the worst of all its runs, whichever domains each of them held out.
            by_seed = seeds.groupby("seed")[name].agg("min" if name in WORST else "mean")
            cell = Cell(float(by_seed.mean()), float(by_seed.std()), len(by_seed), math.nan, math.nan)
            title = f"{TITLES[name]}, {' and '.join(sorted(outside))}" if name in DETECTION else TITLES[name]
            scores[title] = format_cell(cell)
    return scores


def _has_outside(record: Record) -> bool:
    return isinstance(record.data.get("out_of_distribution"), Mapping)


def classes(table: Table) -> TextTable | None:
    """Returns the accuracy of each class, the hardest for the best method first; None without predictions."""
    counted: dict[str, Confusion] = {}
    for row in ranking(table).index:
        confusion = _confusion(table, row)
        if confusion:
            counted[row[0]] = confusion
    if not counted:
        return None
    best = next(iter(counted))
    names = [str(name) for name in table.records[0].data.get("classes", [])]
    hardest_first = sorted(_totals(counted[best]), key=lambda label: (_percent(counted[best], label), label))
    images = _images_of_classes(table)
    rows = []
    for label in hardest_first:
        accuracies = {method: f"{_percent(confusion, label):.1f}" for method, confusion in counted.items()}
        mistake = {f"{best} mostly predicts instead": _mistake(counted[best], label, names)}
        rows.append({"class": names[label], "images": f"{images[label]:,}", **accuracies, **mistake})
    note = (
        f"Share of the images of a class that are classified rightly, in %, over all its {role_title(table.role)} "
        f"images and all seeds, after the last round; the hardest classes for {best} come first."
    )
    return TextTable(f"All {len(rows)} classes", [note], pd.DataFrame(rows))


def _confusion(table: Table, row: Row) -> Confusion:
    """Returns the counts of true and predicted classes over all runs of a row; empty if a run has none."""
    title = LAST_ROW if row[1] != UNTRAINED else ZERO_SHOT_ROW
    total: Confusion = Counter()
    measured = set()
    for record in table.runs[row[0]]:
        if title == ZERO_SHOT_ROW and record.held_out in measured:
            continue  # the same images and predictions for every seed
        measured.add(record.held_out)
        by_split = record.predictions.get(title, {})
        splits = [each for name, each in by_split.items() if name.split("/")[0] == table.role and not each.class_names]
        if not splits:
            return Counter()
        for of_split in splits:
            total += confusion_of(of_split)
    return total


def _images_of_classes(table: Table) -> Counter[int]:
    """Returns how many images of each class one seed measured."""
    # Runs that hold out the same domains measure the same images, so one of each is enough.
    totals: Counter[int] = Counter()
    for record in {record.held_out: record for record in table.records if record.predictions}.values():
        by_split = next(iter(record.predictions.values()))
        for split, of_split in by_split.items():
            if split.split("/")[0] == table.role:
                totals.update(of_split.labels.tolist())
    return totals


def _totals(confusion: Confusion) -> Counter[int]:
    totals: Counter[int] = Counter()
    for (true, _), count in confusion.items():
        totals[true] += count
    return totals


def _percent(confusion: Confusion, label: int) -> float:
    total = _totals(confusion)[label]
    return 100 * confusion[label, label] / total if total else 0.0


def _mistake(confusion: Confusion, label: int, names: Sequence[str]) -> str:
    """Returns the most frequent wrong prediction for a class, with its share of the images."""
    wrong = {predicted: count for (true, predicted), count in confusion.items() if true == label != predicted}
    if not wrong:
        return "-"
    predicted = max(wrong, key=lambda each: (wrong[each], -each))
    return f"{names[predicted]} ({100 * wrong[predicted] / _totals(confusion)[label]:.0f} %)"


def runs_table(label: str, records: Sequence[Record]) -> TextTable:
    """Returns the runs of one row of a comparison."""
    rows = []
    for record in records:
        role = measure_of(record).role
        last, best = (f"{row[role]:.1f}" if role in row else "-" for row in (record.last, record.best))
        rows.append(
            {
                "folder": str(record.folder),
                "held out": ", ".join(record.held_out) or "-",
                "seed": str(record.seed),
                "rounds": str(record.rounds),
                "last (%)": last,
                "best (%)": best,
                "split": record.split,
                "seconds": f"{record.seconds:.0f}",
            }
        )
    return TextTable(f"Runs of {label}", (), pd.DataFrame(rows))


def versions_table(records: Sequence[Record]) -> TextTable:
    """Returns the versions of all packages that numbers depend on; of several versions how many runs had which."""
    packages: dict[str, None] = {}
    for record in records:
        packages |= dict.fromkeys(record.versions)
    rows = []
    for package in packages:
        counts = Counter(str(record.versions.get(package, "not said")) for record in records)
        several = [f"{version} ({count} runs)" for version, count in counts.items()]
        rows.append({"package": package, "version": ", ".join(several if len(counts) > 1 else counts)})
    return TextTable("Versions that the runs were made with", (), pd.DataFrame(rows), text_columns=2)


def ranking_table(table: Table) -> TextTable:
    """Returns the methods of a leaderboard with their places, accuracies and what a client sends."""
    rows = []
    for place, row in enumerate(ranking(table).index, start=1):
        runs = table.runs[row[0]]
        accuracies = {title: format_cell(table.cell(row, title)) for title in table.columns}
        sent = {} if row[1] == UNTRAINED else costs(runs)
        is_trained = row[1] != UNTRAINED
        rows.append(
            {
                "method": f"{place}. {row[0]}",
                table.average_title: format_cell(table.cell(row, AVERAGE)),
                **accuracies,
                "rounds": str(runs[0].rounds) if is_trained else "-",
                "seeds": str(len({run.seed for run in runs})) if is_trained else "-",
                "up": format_range(*sent["upload_parameters"]) if sent else "-",
                "down": format_range(*sent["download_parameters"]) if sent else "-",
            }
        )
    notes = [describe_group(table.about), "up, down: parameters of one client and round"]
    return TextTable("Accuracy after the last round, in %", (), pd.DataFrame(rows), notes=notes)


def entries(records: Sequence[Record], root: Path) -> str:
    """Returns the folders of a method's entries, below that of all."""
    resolved = root.resolve()
    names = []
    for record in records:
        folder = record.folder.resolve()
        names.append(folder.relative_to(resolved).as_posix() if folder.is_relative_to(resolved) else folder.as_posix())
    return ", ".join(sorted(names))
