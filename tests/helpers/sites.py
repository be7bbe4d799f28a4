"""A federation of sites in this process, and the simulation on the same folders."""

import csv
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import yaml

from fedvlp.commands.lightning_cli import FederationCLI
from fedvlp.sites.wire import SiteError
from fedvlp.sites.worker import Site
from fedvlp.utils.config_files import configs_folder
from tests.helpers.images import CLASSES
from tests.helpers.trainer_options import nested


def make_site(home: Path, name: str, root: Path, **options) -> Path:
    """Makes the home folder of a site."""
    home.mkdir(parents=True, exist_ok=True)
    values = {"name": name, "root": str(root), "cache_dir": None, "accelerator": "cpu", **options}
    (home / "site.yaml").write_text(yaml.safe_dump(values))
    return home


def make_sites(folder: Path, image_root: Path, names, **options) -> dict[str, Path]:
    """Makes a home for each domain; places have names that say nothing of the sites."""
    homes = [make_site(folder / name, name, image_root / name, **options) for name in names]
    return {f"node-{place}": home for place, home in enumerate(homes)}


def method_config(method: str, rounds: int = 2, **trainer) -> dict:
    """Returns the config of a bundled method with the tiny CLIP."""
    config = yaml.safe_load((configs_folder() / "methods" / f"{method}.yaml").read_text())
    config["model"].setdefault("init_args", {})["clip"] = {"name": "fedvlp-tiny"}
    config["trainer"] = nested({"rounds": rounds, "accelerator": "cpu", "enable_progress_bar": False, **trainer})
    config["seed_everything"] = 3
    return config


def write_config(path: Path, config: dict, class_path: str, **data) -> Path:
    """Writes a config with data of this class."""
    options = {"batch_size": 4, "split_seed": 5, **data}
    path.write_text(yaml.safe_dump({**config, "data": {"class_path": class_path, "init_args": options}}))
    return path


def sites_config(path: Path, config: dict, sites, **data) -> Path:
    """Writes the server's config."""
    options = {"sites": list(sites), "class_names": CLASSES, "cache_dir": None, "arrival_seconds": 0.1, **data}
    return write_config(path, config, "fedvlp.sites.data.SitesData", **options)


def simulate(folder: Path, config: dict, root: Path, **data):
    """Runs the simulation on all folders; returns the federation."""
    folder.mkdir(exist_ok=True)
    options = {"root": str(root), "cache_dir": None, **data}
    path = write_config(folder / "simulation.yaml", config, "fedvlp.data.DomainFolders", **options)
    command = FederationCLI.make([f"--config={path}"])
    command.trainer.default_root_dir = folder / "simulation"
    command.trainer.fit(command.model, command.datamodule)
    return command.trainer


def description(**changed) -> dict:
    """Returns the description of a run of PromptFL, as a site is asked about it."""
    return {
        "data": {"classes": CLASSES},
        "model": {"class_path": "fedvlp.PromptFL", "init_args": {"clip": "fedvlp-tiny"}},
        "training": {"local": {"add_ons": [{"class": "FedProx", "mu": 0.1}]}},
        "fingerprint": "0f1e",
        "rounds": 2,
        "noise": None,
        "sites": ["ink", "paint"],
        "signature": "",
        **changed,
    }


Handler = Callable[[bytes], bytes]


class InProcess:
    """A transport to sites in this process, asked sequentially, which keeps all that crosses.

    Args:
        sites: from a request to its reply, such as ``Site.handle``, by name; may be changed at any time.
    """

    def __init__(self, sites: Mapping[str, Handler]) -> None:
        self.sites = dict(sites)
        self.requests: list[bytes] = []
        self.replies: list[bytes] = []

    def names(self) -> list[str]:
        """Names of the sites."""
        return list(self.sites)

    def exchange(self, requests: Mapping[str, bytes], timeout: float) -> Iterator[tuple[str, bytes | SiteError]]:
        """Asks the sites sequentially; a SiteError that a site raises is why it gave no reply."""
        for name, request in requests.items():
            self.requests.append(request)
            try:
                if name not in self.sites:
                    raise SiteError("is not connected")
                self.replies.append(self.sites[name](request))
                yield name, self.replies[-1]
            except SiteError as error:
                yield name, error


def in_process(homes: dict[str, Path]) -> InProcess:
    """Returns a transport to freshly started sites."""
    return InProcess({place: Site(home).handle for place, home in homes.items()})


def run_of(folder: Path) -> Path:
    """Returns the only run's folder below another."""
    (run,) = folder.glob("*/*/")
    return run


def metrics(run: Path) -> list[dict[str, str]]:
    """Read the rows of a run's metrics without times."""
    with open(run / "metrics.csv", newline="", encoding="utf-8") as file:
        return [{name: row[name] for name in row if "seconds" not in name} for row in csv.DictReader(file)]
