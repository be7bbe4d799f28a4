"""A federation of sites in this process, and a simulation on the same folders."""

import csv
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import torch
import yaml
from safetensors.torch import load_file

from fedvlp.commands.lightning_cli import FederationCLI
from fedvlp.runs.events import read_events
from fedvlp.sites.server import serve
from fedvlp.sites.wire import Message, Requests, SiteError
from fedvlp.sites.worker import Site
from fedvlp.utils.config_files import configs_folder
from tests.helpers.images import CLASSES, DOMAINS
from tests.helpers.trainer_options import nested


def make_site(home: Path, name: str, root: Path, **options) -> Path:
    """Create the home folder of a site."""
    home.mkdir(parents=True, exist_ok=True)
    values = {"name": name, "root": str(root), "cache_dir": None, "accelerator": "cpu", **options}
    (home / "site.yaml").write_text(yaml.safe_dump(values))
    return home


def make_sites(folder: Path, image_root: Path, names, **options) -> dict[str, Path]:
    """Create a home for each domain. The names of the nodes do not reveal the sites."""
    homes = [make_site(folder / name, name, image_root / name, **options) for name in names]
    return {f"node-{index}": home for index, home in enumerate(homes)}


def method_config(method: str, rounds: int = 2, **trainer) -> dict:
    """Load the config of a bundled method and set the tiny CLIP."""
    config = yaml.safe_load((configs_folder() / "methods" / f"{method}.yaml").read_text())
    config["model"].setdefault("init_args", {})["clip"] = {"name": "fedvlp-tiny"}
    config["trainer"] = nested({"rounds": rounds, "accelerator": "cpu", "enable_progress_bar": False, **trainer})
    config["seed_everything"] = 3
    return config


def plan_config(rounds: int = 2, **trainer) -> dict:
    """Load the config of PLAN, a method with two phases, with only one text per class for each site's teacher."""
    config = method_config("plan", rounds, **trainer)
    config["model"]["init_args"]["templates"] = 1
    return config


def write_config(path: Path, config: dict, class_path: str, **data) -> Path:
    """Write a config that uses data of this class."""
    options = {"batch_size": 4, "split_seed": 5, **data}
    path.write_text(yaml.safe_dump({**config, "data": {"class_path": class_path, "init_args": options}}))
    return path


def sites_config(path: Path, config: dict, sites, **data) -> Path:
    """Write the server's config."""
    options = {"sites": list(sites), "class_names": CLASSES, "cache_dir": None, "arrival_seconds": 0.1, **data}
    return write_config(path, config, "fedvlp.sites.data.SitesData", **options)


def simulate(folder: Path, config: dict, root: Path, class_path: str = "fedvlp.data.DomainFolders", **data):
    """Run the simulation on all folders, or another data set, and return its federation."""
    folder.mkdir(exist_ok=True)
    options = {"root": str(root), "cache_dir": None, **data}
    path = write_config(folder / "simulation.yaml", config, class_path, **options)
    command = FederationCLI.make([f"--config={path}"])
    command.trainer.default_root_dir = folder / "simulation"
    command.trainer.fit(command.model, command.datamodule)
    return command.trainer


def description(**changed) -> dict:
    """Describe a run of PromptFL like the server's proposal to a site."""
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


def failure(name: str, reason: str) -> bytes:
    """Encode a site's failure."""
    return Message("failed", {"name": name, "reason": reason}).to_bytes()


Handler = Callable[[bytes], bytes]


class InProcess:
    """A transport that asks sites in this process sequentially and records all messages.

    Args:
        sites: Functions from a request to its reply, such as ``Site.handle``, by name. May change at any time.
    """

    def __init__(self, sites: Mapping[str, Handler]) -> None:
        self.sites = dict(sites)
        self.requests: list[bytes] = []
        self.replies: list[bytes] = []

    def names(self) -> list[str]:
        return list(self.sites)

    def exchange(self, requests: Requests, timeout: float) -> Iterator[tuple[str, bytes | SiteError]]:
        """Ask the sites sequentially. A SiteError of a site replaces its reply."""
        for name, request in requests:
            self.requests.append(request)
            try:
                if name not in self.sites:
                    raise SiteError("is not connected")
                self.replies.append(self.sites[name](request))
                yield name, self.replies[-1]
            except SiteError as error:
                yield name, error


def in_process(homes: dict[str, Path]) -> InProcess:
    """Start sites and create a transport to them."""
    return InProcess({node: Site(home).handle for node, home in homes.items()})


class Deployment:
    """Sites and their server in this process.

    Args:
        folder: Folder of all files.
        root: Folder with the images of each site.
        names: Names of the sites.
        policy: Policy of the sites.
        options: Further options of the sites.
    """

    def __init__(self, folder: Path, root: Path, names=DOMAINS, policy: Mapping | None = None, **options) -> None:
        self.folder = folder
        self.root = root
        self.names = names
        self.homes = make_sites(folder / "sites", root, names, policy=policy or {}, **options)

    def serve(
        self,
        config: dict,
        transport: InProcess | None = None,
        into: str = "deployed",
        checkpoint: str | None = None,
        **data,
    ) -> int:
        """Run the server, and return its exit code."""
        server = sites_config(self.folder / "server.yaml", config, self.names, **data)
        return serve(server, transport or in_process(self.homes), self.folder / into, checkpoint)

    def run(self, into: str = "deployed") -> Path:
        """Find the folder of the only run."""
        return run_of(self.folder / into)

    def prompts(self, into: str = "deployed") -> dict[str, torch.Tensor]:
        """Load the trained tensors."""
        return load_file(self.run(into) / "prompts.safetensors")

    def left_out(self, into: str = "deployed") -> list[tuple[int, str, str]]:
        """List round, name and reason of each skipped client."""
        events = [event for event in read_events(self.run(into)) if event["event"] == "client_left_out"]
        return [(event["round"], event["name"], event["reason"]) for event in events]


def run_of(folder: Path) -> Path:
    """Find the folder of the only run below a folder."""
    (run,) = folder.glob("*/*/")
    return run


def metrics(run: Path) -> list[dict[str, str]]:
    """Read the rows of a run's metrics, without times."""
    with open(run / "metrics.csv", newline="", encoding="utf-8") as file:
        return [{name: row[name] for name in row if "seconds" not in name} for row in csv.DictReader(file)]
