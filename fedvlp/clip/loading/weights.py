"""Weights of a CLIP from files and from open_clip's published tags; no pickled code is run."""

from __future__ import annotations

import json
import warnings
import zipfile
from pathlib import Path
from typing import Any

import open_clip
import torch
from open_clip.constants import HF_CONFIG_NAME, HF_SAFE_WEIGHTS_NAME
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from fedvlp.utils.errors import UserError

WEIGHT_SUFFIXES = (".safetensors", ".pt", ".pth", ".bin")


def read_weights(path: Path) -> dict[str, Tensor]:
    """Returns the tensors of a checkpoint file, by name.

    Args:
        path: A `.safetensors` file, a `.pt`, `.pth` or `.bin` file with a state dict (also under the key `state_dict`),
            or a TorchScript archive such as OpenAI's own.

    Raises:
        UserError: If the file is missing, damaged, or holds anything but finite tensors.
    """
    if not path.is_file():
        raise UserError(
            f"There is no weights file {path}. Give --model.clip.pretrained an existing "
            f"{', '.join(WEIGHT_SUFFIXES)} file, a tag that open_clip knows, or 'random'."
        )
    content = load_file_safely(path) if path.suffix == ".safetensors" else _load_archive(path)
    if isinstance(content, dict) and isinstance(content.get("state_dict"), dict):
        content = content["state_dict"]
    if not isinstance(content, dict) or not all(isinstance(value, Tensor) for value in content.values()):
        raise UserError(
            f"{path} should hold a state dict, names with tensors, but holds other values ({type(content).__name__}). "
            "Save model.state_dict() alone and give that file."
        )
    # DataParallel puts this before every name.
    tensors = {name.removeprefix("module."): value for name, value in content.items()}
    # One NaN in a frozen weight would make every feature and so every loss NaN, far from its cause.
    for name, value in tensors.items():
        if value.is_floating_point() and not bool(value.isfinite().all()):
            raise UserError(f"The weights {path} hold NaN or infinity, in {name}. Copy or download them again.")
    return tensors


def load_file_safely(path: Path) -> dict[str, Tensor]:
    """Returns the tensors of a safetensors file.

    Raises:
        UserError: If the file is damaged or cut short.
    """
    try:
        return dict(load_file(path))
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path} is no readable safetensors file ({error}). Copy or download it again.") from error


def fetch_weights(name: str, tag: str) -> Path:
    """Returns the local path of the weights that open_clip publishes under a tag, downloaded and checked if need be.

    Raises:
        UserError: If they cannot be downloaded; names the file and the option that takes it.
    """
    published = open_clip.get_pretrained_cfg(name, tag)
    try:
        return Path(open_clip.download_pretrained(published))
    # The hub's client raises many kinds of errors; all of them mean that there is no file.
    except Exception as error:
        raise UserError(_download_help(name, tag, published, error)) from error


def config_beside(path: Path) -> dict[str, Any] | None:
    """Returns the `open_clip_config.json` in a weights file's folder; None if there is none.

    Raises:
        UserError: If it is no JSON.
    """
    beside = path.parent / HF_CONFIG_NAME
    if not beside.is_file():
        return None
    try:
        content: dict[str, Any] = json.loads(beside.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{beside} is no readable JSON ({error}). Copy it again, or take it away.") from error
    return content


def uses_quick_gelu(path: Path, weights: dict[str, Tensor]) -> bool:
    """Guesses whether a weights file is of a model with QuickGELU; its tensors do not say so themselves.

    An `open_clip_config.json` beside the file decides. Else it is assumed of TorchScript archives, in which OpenAI
    published its models; of files whose name, or whose folder in the hub's cache, contains `openai` or `quickgelu`; and
    of weights stored in single precision whose values are all half-precision numbers, as OpenAI's are.
    """
    beside = config_beside(path)
    if beside is not None:
        return bool(beside.get("model_cfg", {}).get("quick_gelu", False))
    # The hub's cache has the repository's name in a folder and a digest as the file's name.
    hub_folders = [part for part in path.parts if part.startswith("models--")]
    names = " ".join([path.name, *hub_folders]).lower()
    return "openai" in names or "quickgelu" in names or _is_torchscript(path) or _are_widened_halves(weights)


def _are_widened_halves(weights: dict[str, Tensor]) -> bool:
    """Whether the perceptrons' weights are half-precision numbers in single precision."""
    perceptrons = [value for name, value in weights.items() if name.endswith("mlp.c_fc.weight")]
    return bool(perceptrons) and all(
        value.dtype == torch.float32 and torch.equal(value, value.half().float()) for value in perceptrons
    )


def _download_help(name: str, tag: str, published: dict[str, Any], error: Exception) -> str:
    """Returns what to tell a person whose machine cannot download."""
    addresses = [_hub_address(published.get("hf_hub", "")), published.get("url", "")]
    known = " or ".join(address for address in addresses if address)
    needs_suffix = published.get("quick_gelu") and not name.endswith("-quickgelu")
    return (
        f"The weights '{tag}' of {name} are not on this machine and could not be downloaded ({type(error).__name__}: "
        f"{str(error).strip() or 'no message'}). Download {known} elsewhere, copy it here and give "
        f"--model.clip.name {name}{'-quickgelu' if needs_suffix else ''} --model.clip.pretrained /path/to/the/file."
    )


def _hub_address(entry: str) -> str:
    """Returns the address of a file that open_clip lists as `organisation/model/file`, or without a file's name."""
    parts = entry.rpartition("/")
    if not parts[0]:
        return ""
    return f"https://huggingface.co/{parts[0]}/resolve/main/{parts[2] or HF_SAFE_WEIGHTS_NAME}"


def _load_archive(path: Path) -> Any:
    """Returns what torch saved in a file, restricted to tensors and plain containers."""
    try:
        if _is_torchscript(path):
            return _load_torchscript(path)
        return torch.load(path, map_location="cpu", weights_only=True)
    # For a file of another kind the unpickler raises nearly every type.
    except Exception as error:
        raise UserError(
            f"{path} cannot be read as plain tensors: it is damaged or holds pickled code, which is never run. "
            "Save model.state_dict() alone, best as .safetensors, and give that file."
        ) from error


def _load_torchscript(path: Path) -> dict[str, Tensor]:
    """Returns the tensors of a TorchScript archive, such as OpenAI's own."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TorchScript is deprecated, but these archives still exist
        state: dict[str, Tensor] = torch.jit.load(path, map_location="cpu").state_dict()  # type: ignore[no-untyped-call]
    # OpenAI's archives have these sizes among their tensors.
    for number in ("input_resolution", "context_length", "vocab_size"):
        state.pop(number, None)
    return state


def _is_torchscript(path: Path) -> bool:
    """Whether a file is a TorchScript archive: a zip file with a table of constants."""
    if not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        return any(entry.endswith("/constants.pkl") for entry in archive.namelist())
