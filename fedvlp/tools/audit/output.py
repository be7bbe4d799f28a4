"""An audit written down: ``audit.json``, ``audit.csv``, a picture, and a short table."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fedvlp.tools.audit.audit import Audit, Facts
from fedvlp.tools.audit.similarity import MEASURES
from fedvlp.utils.files import write_bytes, write_json, write_text
from fedvlp.utils.text_table import align_columns, text_table

JSON_FILE = "audit.json"
CSV_FILE = "audit.csv"
PICTURE_FILE = "inversion.png"
COLUMNS = ("measure", "client", "of", "source", "quantity", "value")
MEMBERSHIP_QUANTITIES = ("members", "others", "member_loss", "other_loss", "auc", "low", "high")


def write_audit(folder: Path, audit: Audit) -> list[Path]:
    """Writes the files, each in one step, and returns them; a picture of an audit before is removed.

    Args:
        folder: Made if it is not there.
        audit: What was measured.
    """
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / JSON_FILE, folder / CSV_FILE]
    write_json(paths[0], audit.facts)
    write_text(paths[1], audit_csv(audit.facts))
    picture = folder / PICTURE_FILE
    if audit.picture is None:
        picture.unlink(missing_ok=True)
        return paths
    write_bytes(picture, audit.picture.image("png"))
    return [*paths, picture]


def audit_csv(facts: Facts) -> str:
    """Returns a row for each number: what was measured, whose it is, of what, from which source, and the value."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(COLUMNS)
    for rows in (_inversion_rows, _membership_rows, _word_rows):
        writer.writerows(rows(facts))
    return file.getvalue()


def audit_table(facts: Facts) -> str:
    """Returns the short tables that are printed, one for each measure."""
    tables = {
        "inversion": _inversion_table,
        "membership": _membership_table,
        "words": _word_table,
    }
    return "\n\n".join(make(facts[kind]) for kind, make in tables.items() if facts[kind] is not None)


Row = list[Any]


def _inversion_rows(facts: Facts) -> Iterator[Row]:
    for row in (facts["inversion"] or {"images": []})["images"]:
        for measure in (*MEASURES, "gradient_distance"):
            if row[measure] is not None:
                yield ["inversion", row["client"], row["image"], row["source"], measure, row[measure]]


def _membership_rows(facts: Facts) -> Iterator[Row]:
    found = facts["membership"]
    if found is not None:
        for result in (*found["clients"], found["all"]):
            for quantity in MEMBERSHIP_QUANTITIES:
                yield ["membership", result["name"], found["others"], found["model"], quantity, result[quantity]]


def _word_rows(facts: Facts) -> Iterator[Row]:
    for name, vectors in (facts["words"] or {"prompts": {}})["prompts"].items():
        for place, near in enumerate(vectors, start=1):
            for word in near:
                yield ["words", "", f"{name}, vector {place}", word["text"], "distance", word["distance"]]


def _inversion_table(found: Mapping[str, Any]) -> str:
    count = sum(row["source"] == found["images"][0]["source"] for row in found["images"])
    head = [f"images recovered from gradients, mean of {count}", "MSE", "PSNR in dB", "SSIM", "cosine of features"]
    rows = [head]
    for source, means in found["mean"].items():
        numbers = [
            f"{means['mse']:.4f}",
            f"{means['psnr']:.2f}",
            f"{means['ssim']:.3f}",
            f"{means['feature_cosine']:.3f}",
        ]
        rows.append([source, *numbers])
    lines = [text_table(rows)]
    if not found["sent"]:
        lines.append(f"In phase {found['phase']!r} clients send nothing, so there is no gradient of prompts to invert.")
    if found["options"]["labels"] == "guessed":
        lines += _guesses(found["images"])
    return "\n".join(lines)


def _guesses(rows: list[dict[str, Any]]) -> list[str]:
    lines = []
    by_source: dict[str, list[bool]] = {}
    for row in rows:
        if row["guessed_class"] is not None:
            by_source.setdefault(row["source"], []).append(row["guessed_class"] == row["class"])
    for source, are_right in by_source.items():
        lines.append(f"class guessed from the gradient of the {source}: right for {sum(are_right)} of {len(are_right)}")
    return lines


def _membership_table(found: Mapping[str, Any]) -> str:
    coverage = f"{found['options']['confidence']:.0%}"
    rows = [["members told by their loss, client", "images", "others", "AUC", f"{coverage} from", "to"]]
    for result in (*found["clients"], found["all"]):
        numbers = [f"{result[name]:.3f}" for name in ("auc", "low", "high")]
        rows.append([result["name"], str(result["members"]), str(result["others"]), *numbers])
    return (
        f"{text_table(rows)}\nmodel: {found['model']}; others: {found['others']} images of the same domains; "
        "0.5 says nothing of membership"
    )


def _word_table(found: Mapping[str, Any]) -> str:
    rows = [["nearest words of the server's prompts", "nearest", "distance", "within a word's reach"]]
    for name, vectors in found["prompts"].items():
        nearest = [near[0] for near in vectors]
        distances = [word["distance"] for word in nearest]
        closest = nearest[distances.index(min(distances))]
        within = sum(distance <= found["typical_distance"] for distance in distances)
        rows.append([name, closest["text"], f"{closest['distance']:.3f}", f"{within} of {len(vectors)}"])
    lines = align_columns(rows) if found["prompts"] else ["The server has no text prompts."]
    lines.append(f"half of all words have another within {found['typical_distance']:.3f}")
    if found["hidden"]:
        lines.append(f"kept by clients: {', '.join(found['hidden'])}")
    return "\n".join(lines)
