"""One federation in two forms: arguments of its simulation, and of its server with the sites' folders."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from experiments.sites.credentials import make_sum_keys

SECURE_SUM = "--trainer.server.secure_sum=true"
HOME = """\
name: {name}
root: {root}
num_threads: 1
accelerator: cpu
"""


@dataclass(frozen=True)
class Setting:
    """Method, images and options of a federation.

    Args:
        method: Name of the method's config.
        rounds: Number of rounds.
        images: Folder of domains with folders of classes.
        held_out: Domain of the server's images, which is not a site; None if all domains are sites.
        more: Further arguments of ``fedvlp fit``.
    """

    method: str
    rounds: int
    images: Path
    held_out: str | None
    more: tuple[str, ...] = ()

    @property
    def domains(self) -> list[str]:
        """Names of all domains."""
        return sorted(folder.name for folder in self.images.iterdir() if folder.is_dir())

    @property
    def sites(self) -> list[str]:
        """Names of the sites: the domains that are not held out."""
        return [name for name in self.domains if name != self.held_out]

    @property
    def classes(self) -> list[str]:
        """Names of the classes."""
        return sorted(folder.name for folder in (self.images / self.domains[0]).iterdir() if folder.is_dir())

    def simulation(self, output: Path) -> list[str]:
        """List the arguments of ``fedvlp`` for the simulation."""
        return ["fit", "--config=data/folders", *self._root(), *self._shared(), f"--trainer.default_root_dir={output}"]

    def server(self) -> list[str]:
        """List the config of the server as arguments."""
        own = [f"--data.sites={json.dumps(self.sites)}", f"--data.class_names={json.dumps(self.classes)}"]
        root = [] if self.held_out is None else self._root()
        return ["--data=fedvlp.sites.data.SitesData", *own, *root, "--data.arrival_seconds=120", *self._shared()]

    def make_homes(self, parent: Path) -> dict[str, Path]:
        """Make a folder for each site with only its own images; return the folders by site."""
        homes = {}
        for name in self.sites:
            home = parent / name
            home.mkdir(parents=True)
            (home / "site.yaml").write_text(HOME.format(name=name, root=self.images / name), encoding="utf-8")
            homes[name] = home
        if SECURE_SUM in self.more:
            make_sum_keys(homes)
        return homes

    def _root(self) -> list[str]:
        return [f"--data.root={self.images}"]

    def _shared(self) -> Sequence[str]:
        """List the arguments shared by simulation and server."""
        held_out = [] if self.held_out is None else [f"--data.held_out={self.held_out}"]
        return [
            f"--config=methods/{self.method}",
            "--model.clip.name=fedvlp-tiny",
            f"--trainer.rounds={self.rounds}",
            "--trainer.accelerator=cpu",
            "--trainer.runtime.num_threads=1",
            "--trainer.enable_progress_bar=false",
            "--data.cache_dir=null",
            *held_out,
            *self.more,
        ]
