"""The tiny CLIP, which most tests load, is made once in a process and then copied."""

from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fedvlp.clip import backbone, loading

TINY = loading.bundled_config()


@cache
def _tiny(seed: int) -> nn.Module:
    with torch._C.DisableTorchFunction():  # real weights, even if the first to ask is in `shapes_only`
        return loading.build_model(TINY, seed)


def _build_model(config: dict[str, Any], seed: int = 0, folder: Path | None = None) -> nn.Module:
    """Does as `build_model`, whose model depends on its arguments alone; tests of that call it itself."""
    if config == TINY:
        return deepcopy(_tiny(seed))
    return loading.build_model(config, seed, folder)


def make_once() -> None:
    """Lets `load_clip` copy what takes three quarters of its time."""
    backbone.build_model = _build_model
    loading.bundled_state_dict = cache(loading.bundled_state_dict)
