"""The number of times that a local step would wait for the GPU, counted on the CPU for each config.

The counted step is a client's second step, because the first step fills caches. The gradient scaler of 16-mixed, which
checks in each step whether gradients are finite, is not included.
"""

from collections import Counter
from functools import reduce
from operator import or_

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fedvlp.testing.runs import fit
from tests.helpers.configs import EQUIVALENT, METHODS, each_config, few_templates

READING = {"_local_scalar_dense", "equal", "masked_select", "nonzero", "repeat_interleave", "_unique2", "unique_dim"}
READING |= {"bincount", "_linalg_svd", "_linalg_check_errors"}
ALLOWED = {
    # Compares a frozen prompt with the cached one, to reuse its text features.
    "pfed_moap": {"equal": 1},
    "fast_pt": {"equal": 1},
    "fed_purel": {"equal": 1},
    # The same, and reads which domains a batch contains, to encode only their prompts.
    "diprompt": {"equal": 1, "tolist": 1},
    # The same for first and deeper prompts. Stage 2 also reads which clients' slots are filled, per tower.
    "plan": {"equal": 2, "index": 2},
    # Decomposes the global prompt, which is trained.
    "fed_pha": {"_linalg_svd": 1},
    # Three losses select the images that have a positive.
    "hcvp": {"nonzero": 3},
    # Draws images by their labels and styles.
    "stable_fdg": {"cpu": 2},
    # None on a GPU, because one_hot checks classes only on the CPU.
    "do_prompt": {"_local_scalar_dense": 2},
    **{
        name: {"_local_scalar_dense": 2}
        for name in ("centred_means", "fed3r", "fed_cof", "fed_gda", "fed_ncm", "tip_adapter")
    },
    "fed_adg": {"_local_scalar_dense": 2},
}


class Values(TorchDispatchMode):
    """Counts operations that read values of tensors, except tensors that are always on the CPU: draws, literals."""

    def __init__(self):
        super().__init__()
        self.waits = Counter()
        self.on_cpu = {}  # storages, which stay alive so that no other storage gets the same address

    def is_on_cpu(self, tensor):
        return tensor.untyped_storage()._cdata in self.on_cpu

    def put_on_cpu(self, tensor):
        storage = tensor.untyped_storage()
        self.on_cpu[storage._cdata] = storage

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        tensors = [each for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)]
        is_on_cpu = name == "lift_fresh" or all(map(self.is_on_cpu, tensors))
        by_mask = name.strip("_").startswith("index") and any(each.dtype == torch.bool for each in tensors[1:])
        if not is_on_cpu and (name in READING or by_mask):
            self.waits[name] += 1
        result = func(*args, **kwargs or {})
        for each in tree_leaves(result):
            if is_on_cpu and isinstance(each, Tensor):
                self.put_on_cpu(each)
        return result


class Copies(TorchFunctionMode):
    """Counts copies from and to the GPU, except non-blocking copies to it, which are queued."""

    def __init__(self, values):
        self.values = values

    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = func(*args, **kwargs or {})
        is_read = func in (Tensor.cpu, Tensor.numpy, Tensor.tolist) and not self.values.is_on_cpu(args[0])
        is_listed = func is Tensor.__getitem__ and isinstance(args[1], list)
        is_sent = func is Tensor.to and result is args[0] and self.values.is_on_cpu(result)
        if is_read or is_listed or (is_sent and not (kwargs or {}).get("non_blocking")):
            self.values.waits[func.__name__] += 1
        if is_sent:
            result = result.clone()
            del self.values.on_cpu[result.untyped_storage()._cdata]
        if func is Tensor.cpu:
            result = result.clone()
            self.values.put_on_cpu(result)
        return result


@pytest.mark.parametrize("name", each_config({*METHODS} - EQUIVALENT - {"zero_shot"}, {"trip"}))
def test_a_step_waits_no_more_than_allowed(name, build):
    options = [f"--trainer.local.{each}" for each in ("steps=2", "epochs=1", "gradient_clip_val=1")]
    # Only steps are counted, so one evaluation is enough.
    options += ["--trainer.evaluate_every=2", "--trainer.runtime.default_callbacks=false"]
    run = build(name, *few_templates(name), *options)
    values = Values()
    begin = run.model.training_step
    end = run.model.on_train_batch_end
    steps = []

    def counted_begin(batch, index):
        values.waits.clear()
        loss = begin(batch, index)
        if loss is None:  # a pass without gradients
            note(index)
        return loss

    def counted_end(loss, batch, index):
        end(loss, batch, index)
        note(index)

    def note(index):
        # The second round has statistics and prompts of other clients.
        if index == 1 and run.model.context.round == 1:
            steps.append(values.waits.copy())

    run.model.training_step = counted_begin
    run.model.on_train_batch_end = counted_end
    with values, Copies(values):
        fit(run)
    assert reduce(or_, steps) == ALLOWED.get(name, {})
