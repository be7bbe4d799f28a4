"""Names of classes, domains and files that were chosen to forge lines or pages."""

from __future__ import annotations

import unicodedata
from pathlib import Path

from benchmarks.faults.bench import Bench
from benchmarks.faults.fault import fault
from benchmarks.faults.page import FOUND
from benchmarks.synthetic import write_images

FORGED = "cat\x1b[2Jfedvlp: error: nothing\rround 9/9"
REVERSED = "photo\u202egpj.exe"
MARKUP = "<img src=x onerror=alert(1)>"


def renamed(bench: Bench, name: str, class_name: str, domain: str) -> Path:
    """Makes images with a class and a held-out domain of these names."""
    root = bench.folder / name
    write_images(root, 3, ["dog", class_name], 12, size=48)
    (root / "domain 2").rename(root / domain)
    return root


def invisible(text: str) -> set[str]:
    """Returns the control and format characters of a text, but line ends."""
    return {letter for letter in text if unicodedata.category(letter) in ("Cc", "Cf") and letter not in "\n"}


@fault(
    FOUND,
    17,
    injected="control characters and marks of direction in names of classes, domains and broken files",
    must="shown escaped",
    peers="–",
)
def control_characters(bench: Bench) -> None:
    """Trains on them, breaks a file, and compares."""
    root = renamed(bench, "images", FORGED, REVERSED)
    options = (f"--data.root={root}", f"--data.held_out={REVERSED}")
    good = bench.fit(*options)
    bench.expect_success(good)
    (root / "domain 0" / FORGED / f"{REVERSED}.jpg").write_text("no image")
    bad = bench.fit(*options, "--trainer.name=bad")
    bench.expect_refusal(bad, "can't be read")
    skipped = bench.fit(*options, "--data.on_bad_image=skip", "--trainer.name=skip")
    compared = bench.command("compare", str(bench.run()))
    shown = {"fit": good, "error": bad, "warning": skipped, "compare": compared}
    raw = {name: sorted(map(ascii, invisible(finished.output))) for name, finished in shown.items()}
    for name, letters in raw.items():
        bench.expect(not letters, f"{name} shows {', '.join(letters)}")
    bench.note(f"{sum(not letters for letters in raw.values())} of {len(raw)} outputs show them escaped")


@fault(
    FOUND,
    18,
    injected="a domain whose name is HTML",
    must="no table in Markdown and no page holds a tag",
    peers="–",
)
def markup(bench: Bench) -> None:
    """Trains, and makes the table and the page."""
    root = renamed(bench, "images", "cat", MARKUP)
    bench.expect_success(bench.fit(f"--data.root={root}", f"--data.held_out={MARKUP}"))
    run = bench.run()
    markdown = bench.command("compare", str(run), "--format=markdown")
    bench.expect_success(markdown, "compare")
    bench.expect_success(bench.command("report", str(run), "--output=report.html"), "report")
    bench.expect("<img" not in markdown.output, "the table in Markdown holds a tag")
    bench.expect("<img src=x" not in (bench.folder / "report.html").read_text(), "the page holds the tag")
    bench.note("no tag in Markdown and HTML")
