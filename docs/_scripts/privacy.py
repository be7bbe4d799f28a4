"""Write the table of ``docs/privacy.md``: the uploads of each method, computed from the methods themselves.

Usage, in the repository's folder::

    python -m docs._scripts.privacy            write the table
    python -m docs._scripts.privacy --check    check whether it matches the code
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from string import ascii_lowercase
from typing import Any

import torch
import yaml
from torch import Tensor

import fedvlp
from fedvlp.clip import CLIP, load_clip
from fedvlp.core.module import FederatedModule
from fedvlp.core.phases import Phase, RoundContext
from fedvlp.core.protocols import DOMAIN, Inputs
from fedvlp.core.roles import CENTRALISED
from fedvlp.core.several_labels import with_negative_class
from fedvlp.core.state import Client, ClientUpdate, ServerState, State, num_bytes, select
from fedvlp.data import Pooled
from fedvlp.utils.config_files import configs_folder
from fedvlp.utils.digests import constructor_arguments
from fedvlp.utils.text_table import markdown_table

PAGE = Path(__file__).resolve().parents[1] / "privacy.md"
COMMAND = "python -m docs._scripts.privacy"
BEGIN = f"<!-- uploads: written by {COMMAND} -->"
END = "<!-- end of uploads -->"
HEAD = (
    "config",
    "phase",
    "tensors sent",
    "bytes",
    "the server uses",
    "a sum suffices",
    "logged",
    "stays on the client",
)
CLIENTS = [Client(0, 0, 30), Client(1, 1, 30), Client(2, 2, 30), Client(3, 0, 30)]
"""Two clients of one domain, and one client of each of two others."""
CENTRAL_ROW = ("", f"nothing: {CENTRALISED}", "0", "", "", "", "")
MOST_NAMED = 4
"""Maximum number of tensors that are named one by one."""


def main(arguments: Sequence[str]) -> int:
    """Write the page, or check it. The exit code is 1 if the check fails."""
    text = PAGE.read_text(encoding="utf-8")
    made = with_table(text, uploads_table())
    if "--check" in arguments:
        sys.stdout.write("" if made == text else f"{PAGE.name} is older than the code: run {COMMAND}\n")
        return int(made != text)
    PAGE.write_text(made, encoding="utf-8")
    return 0


def with_table(text: str, table: str) -> str:
    """Insert a table between the marks of a page.

    Raises:
        ValueError: If the page lacks a mark.
    """
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        raise ValueError(f"Expected one pair of marks, {BEGIN} and {END}.")
    return f"{text.partition(BEGIN)[0]}{BEGIN}\n\n{table}\n\n{END}{text.partition(END)[2]}"


def uploads_table() -> str:
    """Make a row for each phase of each config. Configs with equal uploads share a row."""
    clip = load_clip("fedvlp-tiny")
    configs_by_row: dict[tuple[str, ...], list[str]] = {}
    for path in sorted((configs_folder() / "methods").glob("*.yaml")):
        rows_of_config = [CENTRAL_ROW] if is_centralised(path) else rows_of(method(path, clip))
        for row in rows_of_config:
            configs_by_row.setdefault(row, []).append(path.stem)
    rows = [[", ".join(f"`{name}`" for name in configs), *row] for row, configs in configs_by_row.items()]
    return markdown_table(HEAD, ["---", "---", "---", "---:", "---", "---", "---", "---"], sorted(rows))


def is_centralised(config: Path) -> bool:
    """Whether a config pools the images of all domains, so that no client sends anything."""
    data = yaml.safe_load(config.read_text(encoding="utf-8")).get("data", {})
    return bool(data.get("init_args", {}).get("partition") == Pooled.__name__)


def method(config: Path, clip: CLIP, classes: int = 7, domains: int = 3, clients: int = 4) -> FederatedModule:
    """Construct the method of a config for these numbers of classes, domains and clients."""
    model = yaml.safe_load(config.read_text(encoding="utf-8"))["model"]
    kind = getattr(fedvlp, model["class_path"])
    linked: dict[str, Any] = {
        "class_names": [f"class {index}" for index in range(classes)],
        "domains": list(ascii_lowercase[:domains]),
        "num_clients": clients,
    }
    if not kind.supports_one_label:
        linked["class_names"] = with_negative_class(linked["class_names"], "thing")
    known = constructor_arguments(kind)
    options = {**model.get("init_args", {}), **{name: value for name, value in linked.items() if name in known}}
    options.pop("optimizer", None)
    if "templates" in known:
        options["templates"] = 1  # of the teacher, which sends nothing
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # the server's use of uploads depends on the initial tensors
        module: FederatedModule = kind(**{**options, "clip": clip})
    return module


def rows_of(module: FederatedModule) -> list[tuple[str, ...]]:
    """Make the cells of each phase of a method, without the config."""
    module.train()
    kept = personal_cell(list(module.personal_state()))
    server = ServerState.start(module.shared_state())
    rows: list[tuple[str, ...]] = []
    for phase in module.configure_phases():
        uploads = [upload_of(module, server, phase, client) for client in CLIENTS]
        sent = uploads[0]
        logged = ", ".join(logged_names(module)) if sent or phase.train else ""
        named = tensors_cell(sent, phase, module.image_statistics)
        uses = ", ".join(used(phase, server, uploads)) if sent else ""
        linear = ("yes" if sum_suffices(phase, server, uploads) else "no") if sent else ""
        rows.append((phase.name, named, f"{num_bytes(sent):,}", uses, linear, logged, kept))
        server = phase.strategy.aggregate(server, updates_of(uploads))
    module.context = None
    return rows or [("", "nothing", "0", "", "", "", kept)]


def upload_of(module: FederatedModule, server: ServerState, phase: Phase, client: Client) -> State:
    """Copy the upload of a client that did not train."""
    module.load_state(phase.strategy.broadcast(server, client))
    module.start_client(RoundContext(0, phase, client))
    return {name: value.detach().clone() for name, value in module.upload_state().items()}


def tensors_cell(sent: Mapping[str, Tensor], phase: Phase, of_images: Sequence[str]) -> str:
    """Describe the tensors sent, and mark statistics of images. Many tensors are grouped by their prefixes."""
    if not sent:
        return "nothing"
    if len(sent) > MOST_NAMED:
        return grouped({prefix: len(select(sent, (prefix,))) for prefix in phase.upload})
    marks = dict.fromkeys(select(sent, of_images), " **of images**")
    cells = [f"`{name}` {'×'.join(map(str, value.shape))}{marks.get(name, '')}" for name, value in sent.items()]
    return ", ".join(cells)


def personal_cell(names: Sequence[str]) -> str:
    """List the tensors that stay on the client. Many tensors are grouped by their prefixes."""
    if len(names) > MOST_NAMED:
        return grouped(dict.fromkeys(names, 1))
    return ", ".join(f"`{name}`" for name in names) or "nothing"


def grouped(counts: Mapping[str, int]) -> str:
    """Group single tensors by the first part of their names.

    >>> grouped({"prompt": 1, "network.0.weight": 1, "network.0.bias": 1, "visual": 56})
    '`prompt`, `network.*` (2 tensors), `visual.*` (56 tensors)'
    """
    groups: dict[str, dict[str, int]] = {}
    for name, count in counts.items():
        groups.setdefault(name.partition(".")[0] if count == 1 else name, {})[name] = count
    totals = {group: sum(members.values()) for group, members in groups.items()}
    cells = [f"`{next(iter(groups[name]))}`" if n == 1 else f"`{name}.*` ({n} tensors)" for name, n in totals.items()]
    return ", ".join(cells)


def logged_names(module: FederatedModule) -> list[str]:
    """List the names of the values that a client logs in a step of its current phase."""
    size = int(module.clip.image_size)  # type: ignore[attr-defined]
    images = torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(0))
    inputs: Inputs = images
    if module.needs_domains:
        inputs = {"images": images, DOMAIN: torch.tensor([0, 1])}
    labels = torch.tensor([0, 1]) if module.supports_one_label else torch.eye(2, len(module.label_names))
    module.training_step((inputs, labels), 0)
    return list(module.logged_means())


def used(phase: Phase, server: ServerState, uploads: Sequence[State]) -> list[str]:
    """List the properties of an update, besides tensors, that change the server's next state."""
    moved = [shifted(upload, 0.1 * (index + 1)) for index, upload in enumerate(uploads)]
    before = after(phase, server, updates_of(moved))
    changes: dict[str, Callable[[ClientUpdate], ClientUpdate]] = {
        "images": lambda update: replace(update, num_examples=update.num_examples + 7 * update.client.id),
        "domain": lambda update: replace(update, client=replace(update.client, domain=2 - update.client.domain)),
        "client": lambda update: replace(update, client=replace(update.client, id=3 - update.client.id)),
    }
    found = []
    for name, change in changes.items():
        if not alike(after(phase, server, [change(update) for update in updates_of(moved)]), before):
            found.append(name)
    return found


def sum_suffices(phase: Phase, server: ServerState, uploads: Sequence[State]) -> bool:
    """Whether the server's next state is unchanged if one upload gains and another loses the same amount."""
    moved = [shifted(upload, 0.1 * (index + 1)) for index, upload in enumerate(uploads)]
    moved[1] = uploads[1]  # unchanged, because some strategies detect untrained clients
    exchanged = [shifted(moved[0], 0.7), shifted(moved[1], -0.7), *moved[2:]]
    return alike(after(phase, server, updates_of(moved)), after(phase, server, updates_of(exchanged)))


def shifted(upload: State, by: float) -> State:
    """Add random multiples of a number to an upload's entries, and their opposites for the opposite number."""
    generator = torch.Generator().manual_seed(round(10 * abs(by)))  # equal multiples would leave ratios as they are
    return {name: value + by * (0.5 + torch.rand(value.shape, generator=generator)) for name, value in upload.items()}


def updates_of(uploads: Sequence[State]) -> list[ClientUpdate]:
    """Wrap uploads as updates of the clients, with equal numbers of images."""
    return [ClientUpdate(client, upload, 30) for client, upload in zip(CLIENTS, uploads, strict=True)]


def after(phase: Phase, server: ServerState, updates: Sequence[ClientUpdate]) -> State:
    """Compute the server's tensors after a phase."""
    made: Any = phase.strategy.aggregate(server, sorted(updates, key=lambda update: update.client.id))
    return {**made.shared, **{f"deployed {name}": value for name, value in made.deployed.items()}}


def alike(one: State, other: State) -> bool:
    """Whether two states are equal up to rounding."""
    return all(torch.allclose(value, other[name], rtol=1e-3, atol=1e-3) for name, value in one.items())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
