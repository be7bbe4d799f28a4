"""Whether all processes of a run have the same data, config, code and checkpoint, asked before anything is trained."""

from __future__ import annotations

import hashlib
import platform
import sys
from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable

import torch
from lightning import Fabric

from fedvlp.core.protocols import FederatedData
from fedvlp.core.run_state import RunState
from fedvlp.runs.run_folder import comparable
from fedvlp.training.several_processes import SeveralProcesses
from fedvlp.utils.digests import digest, to_jsonable
from fedvlp.utils.errors import UserError

PACKAGE = Path(__file__).parents[1]
LIBRARIES = ("torch", "torchvision", "lightning", "numpy", "open_clip_torch")
"""Whose version may change a result."""
MOST_SHOWN = 4  # differences of a rank
LONGEST_SHOWN = 120  # characters of a value

Facts = dict[str, dict[str, Any]]
"""What must be equal, by part (data, config, code, checkpoint) and name."""
Result = TypeVar("Result")


@runtime_checkable
class IdentifiesImages(Protocol):
    """Data that can tell their images from others of the same names."""

    def image_identities(self) -> dict[str, str]:
        """Returns a text for each domain that is equal on all machines with the same images."""
        ...


def on_every_process(fabric: Fabric, step: Callable[[], Result]) -> Result:
    """Returns what a step gives on this process, once it succeeded on all.

    Raises:
        UserError: on every process, if the step raised one on any.
    """
    processes = fabric.strategy
    if not isinstance(processes, SeveralProcesses):
        return step()
    found: list[Result] = []
    problem = ""
    try:
        found.append(step())
    except UserError as error:
        problem = str(error)
    for rank, text in enumerate(processes.gather(problem)):
        if text:
            raise UserError(text if rank == fabric.global_rank else f"{text} (found by rank {rank})")
    return found[0]


def check_agreement(fabric: Fabric, make_facts: Callable[[], Facts]) -> None:
    """Compares the facts of all processes; one process has nobody to differ from, and makes none.

    Raises:
        UserError: on every process, if they differ on any.
    """
    processes = fabric.strategy
    if not isinstance(processes, SeveralProcesses):
        return
    gathered = processes.gather((platform.node(), make_facts()))
    problems = [
        _difference(rank, gathered[rank], gathered[0])
        for rank in range(1, len(gathered))
        if gathered[rank][1] != gathered[0][1]
    ]
    if problems:
        raise UserError(
            f"The processes of a run must have the same data, config and code. {' '.join(problems)} "
            "Make them equal on every machine; nothing was trained."
        )


def facts_of_run(
    data: FederatedData,
    description: Mapping[str, Any],
    state: RunState,
    parts: Iterable[Any],
    options: Mapping[str, Any],
) -> Facts:
    """Returns what must be equal on all processes.

    Args:
        data: clients and splits.
        description: of the run.
        state: what the run goes on from.
        parts: objects whose classes may be written by the user: method, data, strategies, rules.
        options: how the run goes on, as far as the description leaves it open.
    """
    described = comparable(description)
    split = described.pop("split")
    images = data.image_identities() if isinstance(data, IdentifiesImages) else {}
    own = {f"images of {domain}": text for domain, text in images.items()}
    sizes = [client.num_examples for client in data.clients]
    return {
        "data": {
            "training images": sum(sizes),
            "clients": len(sizes),
            "classes": list(data.class_names),
            **own,
            "split": split,
            "images by client": sizes,
        },
        "config": {**_flat(described), **_flat(to_jsonable(dict(options)))},
        "code": {**_versions(), **source_digests(parts)},
        "checkpoint": {"finished rounds": state.server.round, "tensors": _state_digest(state)},
    }


def source_digests(parts: Iterable[Any]) -> dict[str, str]:
    """Returns digests of the package's source files, and of those files outside of it that define the parts' classes.

    Args:
        parts: objects of any classes; libraries are known by their versions, and left out.
    """
    files = {f"fedvlp/{path.relative_to(PACKAGE).as_posix()}": path for path in sorted(PACKAGE.rglob("*.py"))}
    for part in parts:
        for kind in type(part).__mro__:
            module = sys.modules.get(kind.__module__)
            file = getattr(module, "__file__", None)
            if file is not None and not _is_library(file):
                files.setdefault(f"{kind.__module__} ({Path(file).name})", Path(file))
    return {name: hashlib.sha256(path.read_bytes()).hexdigest()[:16] for name, path in files.items()}


def _is_library(file: str) -> bool:
    """Whether a module is of Python or installed beside it, or of this package."""
    path = Path(file)
    is_installed = "site-packages" in path.parts or "dist-packages" in path.parts
    return is_installed or path.is_relative_to(PACKAGE) or path.is_relative_to(Path(hashlib.__file__).parent)


def _versions() -> dict[str, str]:
    found = {"python": ".".join(platform.python_version_tuple()[:2])}
    for name in LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "unknown"
    return found


def _state_digest(state: RunState) -> str:
    """Returns a digest of the server's tensors, and of who has personal ones."""
    server = state.server
    parts: list[Any] = [sorted(state.personal), sorted(state.optimizer_states)]
    for tensors in (server.shared, server.deployed, server.memory):
        for name in sorted(tensors):
            value = tensors[name].detach().cpu()
            content = value.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
            parts.append([name, str(value.dtype), list(value.shape), hashlib.sha256(content).hexdigest()])
    return digest(parts)


def _flat(value: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Returns nested options by dotted names.

    >>> _flat({"model": {"length": 16, "names": ["a"]}})
    {'model.length': 16, 'model.names': ['a']}
    """
    flat: dict[str, Any] = {}
    for name, each in value.items():
        if isinstance(each, dict) and each:
            flat |= _flat(each, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = each
    return flat


def _difference(rank: int, found: tuple[str, Facts], expected: tuple[str, Facts]) -> str:
    """Says how the facts of a rank differ from those of rank 0."""
    parts: list[str] = []
    for part in expected[1]:
        own = found[1][part]
        first = expected[1][part]
        names = [name for name in {**first, **own} if own.get(name) != first.get(name)]
        if names:
            shown = [f"{name} {_short(own.get(name))}, not {_short(first.get(name))}" for name in names[:MOST_SHOWN]]
            more = f" and {len(names) - MOST_SHOWN} more" if len(names) > MOST_SHOWN else ""
            parts.append(f"other {part} ({'; '.join(shown)}{more})")
    return f"Rank {rank} on {found[0]} has, compared with rank 0 on {expected[0]}, {' and '.join(parts)}."


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}..."
