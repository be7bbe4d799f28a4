"""A working folder like the documentation's reader has: configs, images, and runs that all tests share."""

import re
import shutil
from dataclasses import dataclass, field
from pathlib import Path

from fedvlp.commands.cli import main
from tests.helpers.documents import BRIEF, EXAMPLE_PAGES, PAGES, ROOT, brief
from tests.helpers.images import draw

OWN_IMAGES = "runs/TRIP-DomainFolders-drawing/2026-01-31_12-00-00"
QUICKSTART = "runs/PromptFL-IconDomains-pixel/2026-01-31_12-00-00"
SWEEP = "runs/first"
FITS = {
    OWN_IMAGES: "--config methods/trip --config data/folders --data.root my_images --data.held_out drawing",
    QUICKSTART: "--config quickstart",
    "runs/promptfl": (
        "--config methods/promptfl --config data/icon_domains --data.test_fraction 0.2 --model.clip.name fedvlp-small "
        "--trainer.rounds 10 --trainer.name promptfl"
    ),
    "runs/shapes": (
        "--config methods/promptfl --config data/folders --data.root my_images --data.held_out photo "
        "--model.clip.name fedvlp-tiny --trainer.name shapes"
    ),
    SWEEP: (
        "--config methods/promptfl --config data/icon_domains --model.clip.name fedvlp-small "
        f"--trainer.default_root_dir {SWEEP}"
    ),
}
"""Arguments of ``fedvlp fit`` for each run that pages name. A single run replaces a whole sweep."""

COPIES = {
    "runs/second": SWEEP,
    "runs/pacs": SWEEP,
    "prompts.safetensors": f"{OWN_IMAGES}/prompts.safetensors",
    "photos/new": "my_images/photo/cat",
    "other_images": "my_images/painting/dog",
    "cat.png": "my_images/photo/cat/0.png",
}
"""Paths in pages, and the files or runs that replace them."""


def offline(words: list[str]) -> list[str]:
    """Choose options that avoid downloads: the tiny CLIP, unless the command uses a CLIP of the package."""
    has_one = any("quickstart" in word or "fedvlp-small" in word for word in words)
    return [] if has_one else ["--model.clip.name=fedvlp-tiny", "--model.clip.pretrained=auto"]


@dataclass(frozen=True)
class Desk:
    """The working folder. A run is made when a command first names it.

    Attributes:
        folder: The working folder of the tests that use it.
        names: Runs and copies that exist already.
    """

    folder: Path
    names: set[str] = field(default_factory=set)

    def lay_out(self) -> None:
        """Create the configs, images of three domains, and the files that pages tell the reader to write."""
        (self.folder / "configs").symlink_to(ROOT / "configs")
        for domain, domain_name in enumerate(("drawing", "painting", "photo")):
            for label, class_name in enumerate(("cat", "dog")):
                folder = self.folder / "my_images" / domain_name / class_name
                folder.mkdir(parents=True)
                for index in range(5):
                    draw(domain, label, index).save(folder / f"{index}.png")
        rows, scans, findings = ["path,label,domain"], ["path,label"], ["path,opacity,effusion,fracture"]
        sets = ("effusion|opacity", "", "opacity|?fracture", "effusion", "fracture|opacity")
        for number, path in enumerate(sorted((self.folder / "my_images").glob("*/*/*.png"))):
            domain_name, class_name, name = path.parts[-3:]
            rows.append(f"{domain_name}/{class_name}/{name},{class_name},{domain_name}")
            path_name = f"my_images/{domain_name}/{class_name}/{name}"
            scans.append(f"{path_name},{sets[number % 5]}")
            findings.append(f"{path_name},{number % 2},{number // 2 % 2},{('0', '1', '')[number % 3]}")
        for table, lines in {"images": rows, "scans": scans, "findings": findings}.items():
            (self.folder / f"{table}.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
        for page in PAGES:
            if page not in EXAMPLE_PAGES:
                for name, code in page.files().items():
                    (self.folder / name).write_text(code, encoding="utf-8")

    def fetch(self, name: str) -> Path:
        """Make a run or copy that pages name, unless it exists, and return its path."""
        if name in COPIES:
            self._copy(name)
        elif name in FITS and name not in self.names:
            self._train(name)
        self.names.add(name)
        return self.folder / name

    def find_run(self, words: list[str]) -> str | None:
        """Find the named run that a command makes, if any."""
        arguments = " ".join(words[1:]).replace("configs/quickstart.yaml", "quickstart")
        return next((name for name, given in FITS.items() if given == arguments), None)

    def fetch_all(self, words: list[str]) -> None:
        """Make all runs and copies that the words of a command name."""
        for word in words:
            if word == "runs":  # the folder of all runs
                self.fetch(SWEEP)
            for name in (*FITS, *COPIES):
                if word == name or word.startswith(f"{name}/"):
                    self.fetch(name)

    def _copy(self, name: str) -> None:
        source = self.folder / COPIES[name]
        self.fetch_all([COPIES[name]])
        target = self.folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, dirs_exist_ok=True)
        else:
            shutil.copyfile(source, target)

    def _train(self, name: str) -> None:
        """Train briefly, and rename the run to the time that pages use."""
        run = self.folder / name
        parent = run.parent if re.match(r"\d{4}-", run.name) else run
        before = set(parent.glob("*"))
        given = FITS[name].split()
        # The README shows the accuracies of zero-shot CLIP on the validation images of all classes.
        short = [*BRIEF, "--data.shots=1"] if name == QUICKSTART else brief(given)
        assert main(["fit", *given, *offline(given), *short]) == 0
        (made,) = set(parent.glob("*")) - before
        if parent != run:
            made.rename(run)
