"""Self-contained HTML pages of finished runs, with tables, figures, configs and versions."""

import base64
import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import date
from itertools import chain
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
import yaml
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from fedvlp.core.predictions import LABEL_SCORES
from fedvlp.core.roles import ROLES
from fedvlp.results.record import DETECTION, SCORES, WORST, Record, runs_frame
from fedvlp.tools.compare.grouping import config_name, describe_differences, find_protocol, row_labels
from fedvlp.tools.compare.printing import TextTable, describe_result, format_cell, table_text
from fedvlp.tools.compare.tables import BEST, LAST, UNTRAINED, Cell, Row, Table, add_intervals, row_title, tables
from fedvlp.tools.report.figures import draw_figures
from fedvlp.utils.files import read_json
from fedvlp.version import __version__

MAX_OPEN_ROWS = 12  # classes shown before the list is unfolded
TITLES = {"class_auroc": "AUROC", "macro_f1": "macro F1", **DETECTION}
FOLDER = Path(__file__).parent


def report_page(
    records: Sequence[Record],
    problems: Sequence[str],
    heading: str,
    day: date,
    notes: Sequence[str] = (),
    rounds: Sequence[str] = (LAST, BEST),
) -> str:
    """Render the page of runs, with lines on unreadable runs, and notes below the heading."""
    compared = tables(records, rounds)
    titles = table_headings(compared)
    explanations, missing = _explanations(records)
    # Escape all values, such as class names and folders, except for our own style sheet.
    environment = Environment(
        loader=FileSystemLoader(FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["image"] = _data_address
    page = environment.get_template("report.html.jinja").render(
        heading=heading,
        day=day,
        style=Markup((FOLDER / "page.css").read_text(encoding="utf-8")),
        version=__version__,
        num_runs=len(records),
        num_open=MAX_OPEN_ROWS,
        methods=sorted({config_name(record) for record in records}),
        notes=notes,
        sections=[_section(f"table-{number}", title, table) for number, (title, table) in enumerate(titles, start=1)],
        differences=describe_differences([table.about for table in compared]),
        problems=[*problems, *missing],
        explanations=explanations,
        data=[(title, _about(table)) for title, table in titles],
        runs=_runs(records),
        versions=versions_table(records),
    )
    return page + "\n"


def figure_files(records: Sequence[Record]) -> Iterator[tuple[str, bytes]]:
    """Render each figure of the page as PDF and SVG with editable text; yield file names and contents."""
    for number, table in enumerate(tables(records), start=1):
        for picture in draw_figures(table.sort_rows()):
            name = "-".join(re.findall(r"\w+", f"table {number} {picture.title.lower()}"))
            with matplotlib.rc_context({"svg.fonttype": "none"}):
                files = {f"{name}.pdf": picture.image("pdf"), f"{name}.svg": picture.image("svg")}
            yield from files.items()


def table_headings(compared: Sequence[Table]) -> list[tuple[str, Table]]:
    """Pair each table with a heading: data, protocol, and settings that differ between tables, without digests."""
    names = ["data", "protocol", "clients", "shots", "split", "backbone"]
    shown = []
    for name in names:
        column = [table.about.get(name, "").partition(", weights ")[0] for table in compared]
        if name in names[:2] or len(set(column)) > 1:
            shown.append(column)
    titles = [", ".join(filter(None, parts)) for parts in zip(*shown, strict=True)]
    if len(titles) > 1:
        titles = [f"{number}. {title}" for number, title in enumerate(titles, start=1)]
    return list(zip(titles, compared, strict=True))


def _section(anchor: str, title: str, table: Table) -> dict[str, Any]:
    ordered = table.sort_rows()
    rows = ordered.compared_rows
    shown = {method for method, _ in rows}
    return {
        "anchor": anchor,
        "title": title,
        "finding": describe_result(table),
        "table": comparison(ordered),
        "best": ordered.rows.index(rows[0]) if len(rows) > 1 else None,
        "figures": list(draw_figures(ordered)),
        "left_out": [method for method in table.runs if method not in shown],
        "other_metrics": other_metrics(add_intervals(ordered)),
        "classes": labels(ordered) if ordered.records[0].has_several_labels else classes(ordered),
    }


def _explanations(records: Sequence[Record]) -> tuple[list[dict[str, Any]], list[str]]:
    sections: list[dict[str, Any]] = []
    problems: list[str] = []
    for record in records:
        folder = record.folder / "explanations"
        listed = folder / "captions.json"
        pictures: list[dict[str, Any]] = []
        for entry in read_json(listed) if listed.is_file() else []:
            # An untrusted list may name a file in another folder.
            path = folder / Path(entry["file"]).name
            if path.is_file():
                pictures.append({**entry, "content": path.read_bytes()})
            else:
                problems.append(f"{path} is missing. Run `fedvlp explain` again.")
        if pictures:
            held_out = f", {' and '.join(record.held_out)} held out" if record.held_out else ""
            sections.append({"title": f"{config_name(record)}{held_out}, seed {record.seed}", "pictures": pictures})
    return sections, problems


def _about(table: Table) -> list[tuple[str, str]]:
    records = table.records
    data = records[0].data
    splits = []
    for record in records:
        held_out = " and ".join(record.held_out)
        splits.append(f"{record.split} ({held_out} held out)" if held_out else record.split)
    return [
        *table.about.items(),
        ("domains", ", ".join(data.get("domains", table.columns))),
        ("split hashes", ", ".join(dict.fromkeys(splits))),
        ("seeds", ", ".join(map(str, table.seeds)) or "none"),
        ("runs", f"{len(records)}, {sum(record.seconds for record in records):,.0f} s of rounds"),
        ("class names", ", ".join(data.get("classes", []))),
    ]


def _runs(records: Sequence[Record]) -> list[dict[str, Any]]:
    groups = []
    for settings, label in row_labels(records).items():
        members = [record for record in records if record.settings == settings]
        configs = []
        for record in members:
            text = yaml.safe_dump(record.config, sort_keys=False, allow_unicode=True) if record.config else ""
            configs.append((record.folder, text))
        table = TextTable(f"Runs of {label}", (), pd.DataFrame(map(_run_cells, members)))
        groups.append({"label": label, "table": table, "configs": configs})
    return groups


def _run_cells(record: Record) -> dict[str, str]:
    role = find_protocol(record).role
    last, best = (f"{row[role]:.1f}" if role in row else "-" for row in (record.last, record.best))
    return {
        "folder": str(record.folder),
        "held out": ", ".join(record.held_out) or "-",
        "seed": str(record.seed),
        "rounds": str(record.rounds),
        "last (%)": last,
        "best (%)": best,
        "split": record.split,
        "seconds": f"{record.seconds:.0f}",
    }


def comparison(table: Table) -> TextTable:
    """Rearrange the table of ``fedvlp compare`` for narrow screens: average first, and all remarks below."""
    text = table_text(table)
    columns = ["method", "round", table.average_title]
    frame = text.frame[[*columns, *(title for title in text.frame if title not in columns)]]
    notes = [*text.notes, *text.lines[1:]]
    title = f"{table.records[0].name_accuracy('Accuracy in %')}, {table.about['data']}"
    return TextTable(title, (), frame, text.text_columns, notes)


def other_metrics(table: Table) -> TextTable | None:
    """Tabulate other metrics than accuracy for last rounds and baselines; None if no run has any."""
    rows = []
    for row in table.compared_rows:
        cell = table.cell(row)
        scores = _scores(table, row)
        if cell is not None and (scores or not math.isnan(cell.low)):
            with_interval = "-" if math.isnan(cell.low) else format_cell(cell)
            title = table.records[0].name_accuracy(f"accuracy [95 % over {table.resampled}]")
            rows.append({"method": row[0], title: with_interval, **scores})
    if not rows:
        return None
    note = (
        f"On {ROLES[_scored_role(table)].images} images after the last round, in % or points: means over domains, then "
        f"mean and deviation over seeds [95 % over {table.resampled}]. For the worst domain and client: the minimum of "
        "each seed. A lower calibration error and a lower FPR are better."
    )
    return TextTable("Other metrics", [note], pd.DataFrame(rows).fillna("-"))


def _scored_role(table: Table) -> str:
    """Choose the role with the shown scores: the role that ranks rows, or the first column with scores."""
    measured: set[str] = set()
    for record in table.records:
        measured.update(*record.metrics.values())
    return next((name for name in (table.role, *table.protocol.columns.values()) if name in measured), table.role)


def _scores(table: Table, row: Row) -> dict[str, str]:
    """Compute the mean and deviation over seeds, by title, of each score that all runs of a row have."""
    frame = runs_frame(table.runs[row[0]])
    frame = frame[(frame["role"] == _scored_role(table)) & (frame["domain"] == "")]
    frame = frame[frame["row"] == row_title(row)]
    if row[1] == UNTRAINED:  # the same for every seed
        frame = frame[frame["seed"] == frame["seed"].min()]
    frame = frame.drop_duplicates(["seed", "held_out"], keep="last")
    # A seed without one of the held-out domains would average over different domains.
    choices = len({record.held_out for record in table.records})
    seeds = frame.groupby("seed").filter(lambda runs: len(runs) == choices)
    folders = [record.data.get("out_of_distribution") for record in table.runs[row[0]]]
    outside = {str(each["name"]) for each in folders if each}
    scores = {}
    for name in (*SCORES, *WORST, *DETECTION):
        if len(seeds) and bool(seeds[name].notna().all()):
            # The worst domain of a seed is the minimum over its runs.
            by_seed = seeds.groupby("seed")[name].agg("min" if name in WORST else "mean")
            cell = Cell(float(by_seed.mean()), float(by_seed.std()), len(by_seed))
            if name == "calibration_error":
                cell = Cell(*cell[:3], *table.mean_interval(row, [_scored_role(table)], cell.n, name))
            title = (LABEL_SCORES if table.records[0].has_several_labels else TITLES).get(name, name.replace("_", " "))
            scores[f"{title}, {' and '.join(sorted(outside))}" if name in DETECTION else title] = format_cell(cell)
    return scores


def classes(table: Table) -> TextTable | None:
    """Tabulate the accuracy of each class, sorted by the best method's accuracy; None without predictions."""
    counts: dict[str, pd.DataFrame] = {}
    shares: dict[str, pd.Series] = {}
    for row in table.compared_rows:
        pairs = _pairs(table, row)
        if pairs is not None:
            is_right = pairs["true"] == pairs["predicted"]
            counts[row[0]] = pd.crosstab(pairs["true"], pairs["predicted"])
            shares[row[0]] = 100 * is_right.groupby(pairs["true"]).mean()
    names = table.records[0].data.get("classes", [])
    if not counts or not names:
        return None
    accuracies = pd.DataFrame(shares)
    best = next(iter(counts))
    images = _images_of_classes(table)
    rows = []
    for label in accuracies[best].dropna().sort_values(kind="stable").index:
        shown = {method: f"{value:.1f}" for method, value in accuracies.loc[label].fillna(0.0).items()}
        row = counts[best].loc[label]
        wrong = row.drop(label, errors="ignore")
        share = 100 * wrong.max() / row.sum()
        mistake = f"{names[wrong.idxmax()]} ({share:.0f} %)" if wrong.sum() else "-"
        rows.append({"class": names[label], "images": f"{images[label]:,}", **shown})
        rows[-1][f"{best} mostly predicts instead"] = mistake
    note = (
        f"Accuracy in % on the {ROLES[table.role].images} images of each class over all seeds, after the last round. "
        f"The hardest classes for {best} come first."
    )
    return TextTable(f"All {len(rows)} classes", [note], pd.DataFrame(rows))


def labels(table: Table) -> TextTable | None:
    """Tabulate the average precision of each label, sorted by the best method's; None without scores."""
    columns: dict[str, pd.Series] = {}
    for row in table.compared_rows:
        splits = [item for run in table.runs[row[0]] for item in run.metrics.get(row_title(row), {}).items()]
        by_split = [scores["class_accuracy"] for name, scores in splits if name.startswith(f"{table.role}/")]
        columns |= {row[0]: pd.DataFrame(by_split).mean()} if by_split else {}
    frame = pd.DataFrame(columns).sort_values([*columns][:1], kind="stable").rename_axis("label")
    note = f"Average precision in % on {ROLES[table.role].images} images after the last round, a mean over splits."
    cells = frame.map("{:.1f}".format).reset_index()
    return TextTable(f"All {len(cells)} labels", [note], cells) if columns else None


def _pairs(table: Table, row: Row) -> pd.DataFrame | None:
    """Collect the ``true`` and ``predicted`` class of each image of a row's runs; None if a run has no predictions."""
    runs = table.runs[row[0]]
    if row[1] == UNTRAINED:  # the same for every seed
        runs = tuple({run.held_out: run for run in runs}.values())
    frames = []
    for record in runs:
        by_split = record.predictions.get(row_title(row), {})
        splits = [part for name, part in by_split.items() if name.split("/")[0] == table.role and not part.class_names]
        if not splits:
            return None
        for split in splits:
            true = np.broadcast_to(split.labels, split.predicted.shape)
            frames.append(pd.DataFrame({"true": true.ravel(), "predicted": split.predicted.ravel()}))
    return pd.concat(frames)


def _images_of_classes(table: Table) -> pd.Series:
    # Runs with the same held-out domains are evaluated on the same images.
    runs = {record.held_out: record for record in table.records if record.predictions}.values()
    labels = [np.empty(0, int)]
    for record in runs:
        by_split = next(iter(record.predictions.values()))
        labels += [part.labels for name, part in by_split.items() if name.split("/")[0] == table.role]
    return pd.Series(np.concatenate(labels)).value_counts()


def versions_table(records: Sequence[Record]) -> TextTable:
    """Tabulate the versions of packages that affect results, with the number of runs if versions differ."""
    rows = []
    for package in dict.fromkeys(chain.from_iterable(record.versions for record in records)):
        counts = Counter(str(record.versions.get(package, "not recorded")) for record in records)
        several = [f"{version} ({count} runs)" for version, count in counts.items()]
        rows.append({"package": package, "version": ", ".join(several if len(counts) > 1 else counts)})
    return TextTable("Versions used by the runs", (), pd.DataFrame(rows), text_columns=2)


def _data_address(image: bytes, kind: str) -> str:
    media_type = {"svg": "svg+xml", "png": "png"}[kind]
    return f"data:image/{media_type};base64,{base64.b64encode(image).decode('ascii')}"
