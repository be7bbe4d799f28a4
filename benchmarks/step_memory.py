"""Memory of a local step, estimated from the shapes of its tensors without computing or allocating them."""

from __future__ import annotations

import ctypes
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
from itertools import product
from pathlib import Path
from typing import Any, cast
from unittest import mock

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from benchmarks.in_subprocess import in_subprocess
from benchmarks.measure import measure_for
from benchmarks.steps import BATCH_SIZES, CLASS_NAMES, Step, StepBatch, make_batch, make_module
from benchmarks.tables import Table, number
from fedvlp.clip import CLIP, CLIPSpec, load_clip
from fedvlp.core.module import FederatedModule
from fedvlp.utils.memory import M_MMAP_THRESHOLD

HEADER = ("", "weights, MB", "32-true, MB", "measured, MB", "weights, MB", "bf16-mixed, MB")
MEASURED_BELOW = 600.0
"""Steps up to this many megabytes are also run and measured; larger steps would take minutes."""

NOTES = """A step runs in PyTorch's `FakeTensorMode`, with tensors that have shapes but no values. The bytes of all live
tensors are counted, forward and backward. The result is the peak of a step in addition to the frozen CLIP (*weights*)
and the image features. *Measured* is the peak of the resident memory of a separate process that runs the step in
float32 and returns freed memory at once; about 10 MB of it are loaded code. Batches are the same as in `local_step`. A
GPU's context and its allocator's reserve need additional memory. Fast attention kernels do not keep the weights of the
softmax; on a CPU in bf16-mixed they are kept, but not counted."""


class LiveMemory(TorchDispatchMode):
    """Counter of the bytes of all tensors that are alive at the same time.

    Args:
        present: Tensors that do not count.

    Attributes:
        peak: The most so far.
    """

    def __init__(self, present: Iterable[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._known = weakref.WeakSet(tensor.untyped_storage() for tensor in present)
        self._alive = 0
        self.peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation and count the new storages in its results."""
        # Tensors without values cannot select prompts, so features of other prompts are computed and index 0 is used.
        if func is torch.ops.aten.equal.default:
            return False
        if func is torch.ops.aten._local_scalar_dense.default:
            return 0
        results = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(results):
            if isinstance(tensor, Tensor):
                self._count(tensor.untyped_storage())
        return results

    def _count(self, storage: torch.UntypedStorage) -> None:
        if storage in self._known:
            return
        self._known.add(storage)
        self._alive += storage.nbytes()
        self.peak = max(self.peak, self._alive)
        weakref.finalize(storage, self._forget, storage.nbytes())

    def _forget(self, size: int) -> None:
        self._alive -= size


def tables(quick: bool, figures: Path | None = None) -> Iterator[Table]:
    """Make a table for each CLIP."""
    for clip in ("fedvlp-tiny",) if quick else ("ViT-B-16", "ViT-L-14"):
        rows = []
        for method, classes in product(("PromptFL", "TRIP", "DiPrompT", "PLAN", "ADAPT"), CLASS_NAMES):
            found = in_subprocess(foretell, method=method, clip_name=clip, classes=classes)
            is_measured = clip != "ViT-L-14" and found[1] < MEASURED_BELOW
            measured = "-"
            if is_measured:
                measured = number(in_subprocess(measure_step, method=method, clip_name=clip, classes=classes))
            values = [number(value) for value in found]
            rows.append([f"{method}, {classes} classes", *values[:2], measured, *values[2:]])
        yield Table(f"step_memory: {clip}", HEADER, rows)


def foretell(method: str, clip_name: str, classes: int) -> list[float]:
    """Estimate the megabytes of the weights and of a step, first in float32 and then in bfloat16."""
    module, batch = _module_and_batch(method, clip_name, classes)
    # Compute the cached constants of methods, from one image and without a graph.
    one = batch.first(1)
    with torch.no_grad():
        module.training_step((one.constants, one.labels), 0)
    found = []
    for is_half in (False, True):
        if is_half:
            module.clip.cast_towers(torch.bfloat16)
        weights = sum(parameter.nbytes for parameter in cast(CLIP, module.clip).parameters())
        found += [weights / 2**20, step_megabytes(module, batch, is_half)]
    return found


def step_megabytes(module: FederatedModule, batch: StepBatch, is_half: bool) -> float:
    """Estimate the peak memory of a step's tensors, without its weights and its batch."""
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    constants = {name: fake.from_tensor(value) for name, value in batch.constants.items()}
    labels = fake.from_tensor(batch.labels)
    # The mode makes one fake of each tensor, so these are the tensors that the step uses.
    present = [fake.from_tensor(tensor) for tensor in (*module.parameters(), *module.buffers())]
    memory = LiveMemory([*present, *constants.values(), labels])
    inputs: Any = (constants, labels)
    with fake, memory, mock.patch("fedvlp.clip.blocks.keeps_scores", keeps_no_scores):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=is_half):
            loss: Any = module.training_step(inputs, 0)
        loss.backward()
    module.zero_grad()
    return memory.peak / 2**20


def keeps_no_scores(query: Tensor, key: Tensor) -> bool:
    """Report that attention stores no scores, as on a GPU; a mock would keep its tensor arguments alive."""
    return False


def measure_step(method: str, clip_name: str, classes: int) -> float:
    """Measure the peak memory of this process in a step, above the memory before it."""
    if sys.platform == "linux":
        # Return freed memory to the system at once, so that the peak of resident memory is correct.
        ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 2**16)
    module, batch = _module_and_batch(method, clip_name, classes)
    step: Callable[[], None] = Step(module, batch)
    return measure_for(step, 0.0, warm_up=True).megabytes


def _module_and_batch(method: str, clip_name: str, classes: int) -> tuple[FederatedModule, StepBatch]:
    pretrained = None if clip_name == "fedvlp-tiny" else "random"
    module = make_module(method, load_clip(CLIPSpec(clip_name, pretrained)), CLASS_NAMES[classes])
    return module, make_batch(module, BATCH_SIZES[method])
