"""Build the tiny CLIP, which most tests load, once per process and copy it afterwards."""

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
    with torch._C.DisableTorchFunction():  # real weights, even if the first call is inside `shapes_only`
        return loading.build_model(TINY, seed)


def _build_model(config: dict[str, Any], seed: int = 0, folder: Path | None = None) -> nn.Module:
    """Replace `build_model` and copy the tiny CLIP. Tests of `build_model` itself call the original."""
    if config == TINY:
        return deepcopy(_tiny(seed))
    return loading.build_model(config, seed, folder)


def cache_tiny_clip() -> None:
    """Cache the model and its weights, which take three quarters of the time of `load_clip`."""
    backbone.build_model = _build_model
    loading.bundled_state_dict = cache(loading.bundled_state_dict)
