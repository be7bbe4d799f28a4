"""Build once per process what most tests load: the tiny CLIP, which is copied afterwards, and CLIP's tokenizer."""

from functools import cache
from pathlib import Path
from typing import Any

import torch
from open_clip import SimpleTokenizer
from torch import nn

from fedvlp.clip import backbone, hugging_face, loading

TINY = loading.bundled_config()

make_tokenizer = cache(SimpleTokenizer)
"""Make CLIP's tokenizer. Models share it, because it never changes and takes longer than the rest of a small CLIP."""


@cache
def _tiny(seed: int) -> nn.Module:
    with torch._C.DisableTorchFunction():  # real weights, even if the first call is inside `shapes_only`
        return loading.build_model(TINY, seed)


def _copied(module: nn.Module) -> nn.Module:
    """Copy a module whose other attributes are constants. `deepcopy` takes several times as long."""
    copied = object.__new__(type(module))
    for name, value in vars(module).items():
        vars(copied)[name] = value.copy() if isinstance(value, dict | set) else value
    for name, parameter in copied._parameters.items():
        if parameter is not None:
            copied._parameters[name] = nn.Parameter(parameter.detach().clone(), parameter.requires_grad)
    for name, buffer in copied._buffers.items():
        copied._buffers[name] = None if buffer is None else buffer.clone()
    copied._modules.update((name, _copied(child)) for name, child in module._modules.items() if child is not None)
    return copied


def _build_model(config: dict[str, Any], seed: int = 0, folder: Path | None = None) -> nn.Module:
    """Replace `build_model` and copy the tiny CLIP. Tests of `build_model` itself call the original."""
    if config == TINY:
        with torch._C.DisableTorchFunction():
            return _copied(_tiny(seed))
    return loading.build_model(config, seed, folder)


def cache_tiny_clip() -> None:
    """Cache the model and its weights, which take three quarters of the time of `load_clip`."""
    backbone.build_model = _build_model
    loading.bundled_state_dict = cache(loading.bundled_state_dict)


def share_tokenizers() -> None:
    """Let all models of a process and their copies share CLIP's tokenizer."""
    hugging_face.SimpleTokenizer = make_tokenizer
    SimpleTokenizer.__deepcopy__ = lambda tokenizer, _: tokenizer
