"""Several processes of one run, which train different clients and exchange their results."""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from importlib.metadata import version
from typing import Any, TypeVar, cast

import torch
import torch.distributed
from lightning import Fabric
from lightning.fabric.strategies.ddp import DDPStrategy
from safetensors.torch import save

from fedvlp.core.protocols import FederatedData
from fedvlp.core.state import RunState, ServerState, detached
from fedvlp.runs.descriptions import remove_clip_source
from fedvlp.utils.digests import digest, to_jsonable
from fedvlp.utils.errors import MachineError, UserError
from fedvlp.version import __version__

Value = TypeVar("Value")


class GlooStrategy(DDPStrategy):
    """Lightning's ``ddp`` with exchange of Python objects in CPU memory.

    A process waits ``limit`` seconds for the others.
    """

    def __init__(self, limit: float) -> None:
        # NCCL has no advantage, because processes share no gradients. Gloo raises an error at its time limit.
        super().__init__(process_group_backend="gloo", timeout=timedelta(seconds=limit))
        self.limit = limit

    def gather(self, value: Value) -> list[Value]:
        """Gather the values of all processes, by rank; raise MachineError if one does not answer."""
        values: list[Value | None] = [None] * self.world_size
        with self._check_answers():
            torch.distributed.all_gather_object(values, value)
        return cast(list[Value], values)

    def broadcast(self, obj: Value, src: int = 0) -> Value:
        """Send the value of one process to all; raise MachineError if one does not answer."""
        with self._check_answers():
            return super().broadcast(obj, src)

    def reduce_boolean_decision(self, decision: bool, all: bool = True) -> bool:
        """Combine the processes' decisions by ``and``, or by ``or`` if ``all`` is false."""
        # Lightning's implementation would only wait, but gather() names the missing rank.
        decisions = self.gather(bool(decision))
        return min(decisions) if all else max(decisions)

    @contextmanager
    def _check_answers(self) -> Iterator[None]:
        try:
            # Unlike other collectives, this one names the first missing rank.
            torch.distributed.monitored_barrier(timeout=timedelta(seconds=self.limit))
            yield
        except RuntimeError as error:
            reason = str(error).strip().split("\n")[0]
            raise MachineError(
                f"One of {self.world_size} processes did not answer within "
                f"runtime.collective_timeout={self.limit:g} seconds: {reason}. The last checkpoint is complete; resume "
                "with --ckpt_path last."
            ) from error


def on_every_process(fabric: Fabric, step: Callable[[], Value]) -> Value:
    """Run a step on all processes, and return its value; if it raises UserError on one process, raise it on all."""
    processes = fabric.strategy
    if not isinstance(processes, GlooStrategy):
        return step()
    # Other errors end this process, and the barrier of the others names its rank.
    value: Value | None = None
    problem = ""
    try:
        value = step()
    except UserError as error:
        problem = str(error)
    # Without this exchange the others would wait for the failed process in the next collective.
    for rank, message in enumerate(processes.gather(problem)):
        if message:
            raise UserError(message if rank == fabric.global_rank else f"{message} (found by rank {rank})")
    return cast(Value, value)


def check_same_run(
    fabric: Fabric, data: FederatedData, description: Mapping[str, Any], state: RunState, changeable: str
) -> None:
    """Raise UserError on every process if images, options, libraries or checkpoints differ between processes.

    ``changeable`` describes the options that a resumed run may change. The description does not include them.
    """
    processes = fabric.strategy
    if not isinstance(processes, GlooStrategy):
        return
    libraries = [__version__, torch.__version__, version("lightning")]
    # Files of equal names may hold different images. Data modules of other packages may lack this method.
    identify_images = getattr(data, "image_identities", dict)
    sizes = [client.num_examples for client in data.clients]
    images: list[Any] = [list(data.class_names), sizes, identify_images()]
    clients = [state.server.round, sorted(state.personal), sorted(state.optimizer_states)]
    parts = [libraries, images, remove_clip_source(description), changeable, clients, _digest(state.server)]
    fingerprints = processes.gather(digest(to_jsonable(parts)))
    for rank, fingerprint in enumerate(fingerprints):
        if fingerprint != fingerprints[0]:
            raise UserError(
                f"Rank {rank} and rank 0 have different images, options, checkpoints or versions of fedvlp, torch or "
                "lightning. Make them equal on every machine; nothing was trained."
            )


def _digest(server: ServerState) -> str:
    groups = (server.shared, server.deployed, server.memory)
    hashed = hashlib.sha256()
    for tensors in groups:
        # Copied, because safetensors accepts neither views nor tensors that share memory.
        hashed.update(save({name: value.contiguous() for name, value in detached(tensors).items()}))
    return hashed.hexdigest()
