"""Read CLIP weights from files and from open_clip's published tags, without ever running code from a file."""

import logging
import os
import warnings
import zipfile
from hashlib import sha256
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any

import open_clip
import torch
from huggingface_hub import constants, get_session, try_to_load_from_cache
from open_clip.constants import HF_CONFIG_NAME, HF_SAFE_WEIGHTS_NAME, HF_WEIGHTS_NAME
from open_clip.transform import merge_preprocess_dict
from safetensors.torch import load_file
from torch import Tensor

from fedvlp.utils.errors import UserError
from fedvlp.utils.files import read_json

log = logging.getLogger(__name__)
WEIGHT_SUFFIXES = (".safetensors", ".pt", ".pth", ".bin")


def read_weights(path: Path) -> dict[str, Tensor]:
    """Read the tensors of a checkpoint file, by name.

    Supports `.safetensors` files, `.pt`, `.pth` or `.bin` files with a state dict (also under the key `state_dict`),
    and the TorchScript archives that OpenAI published. Raises UserError if the file is missing, damaged, another
    TorchScript archive, or holds anything but finite tensors.
    """
    if not path.is_file():
        raise UserError(
            f"There is no weights file {path}. Set --model.clip.pretrained to an existing "
            f"{', '.join(WEIGHT_SUFFIXES)} file, one of open_clip's tags, or 'random'."
        )
    content = _load(path)
    if isinstance(content, dict) and isinstance(content.get("state_dict"), dict):
        content = content["state_dict"]
    if not isinstance(content, dict) or not all(isinstance(value, Tensor) for value in content.values()):
        raise UserError(
            f"Expected a state dict (tensors by name) in {path}; it has other values ({type(content).__name__}). "
            "Save only model.state_dict() and use that file."
        )
    # Wrappers add a prefix to every name: DataParallel `module.`, torch.compile `_orig_mod.`, Lightning `model.`.
    shared, dot, _ = os.path.commonprefix([*content]).rpartition(".")  # noqa: RUF071, these are not paths
    tensors = {name.removeprefix(shared + dot): value for name, value in content.items()}
    # A NaN in a frozen weight would make every feature and loss NaN, far from its cause.
    for name, value in tensors.items():
        if value.is_floating_point() and not bool(value.isfinite().all()):
            raise UserError(f"The weights {path} contain NaN or infinity, in {name}. Copy or download them again.")
    return tensors


def _load(path: Path) -> Any:
    try:
        if not is_torchscript(path):
            return load_file(path) if path.suffix == ".safetensors" else torch.load(path, "cpu", weights_only=True)
        # TorchScript is a program: loading an archive runs its `__setstate__`, which can write files.
        _check_digest(path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # TorchScript is deprecated, but these archives are still in use
            return torch.jit.load(path, map_location="cpu").state_dict()  # type: ignore[no-untyped-call]
    except UserError:
        raise
    # The unpickler raises many types of exceptions for other kinds of files.
    except Exception as error:
        raise UserError(
            f"{path} cannot be read as plain tensors: it is damaged, or it contains Python objects, which fedvlp never "
            "unpickles. Copy or download it again, or save only model.state_dict(), preferably as .safetensors."
        ) from error


def is_torchscript(path: Path) -> bool:
    """Whether a file is a TorchScript archive: a zip file with constants."""
    if not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        return any(entry.endswith("/constants.pkl") for entry in archive.namelist())


def _check_digest(path: Path) -> None:
    """Check that a TorchScript archive is one of OpenAI's, by the SHA-256 digests in open_clip's URLs."""
    addresses = [open_clip.get_pretrained_url(name, "openai") for name in open_clip.list_openai_models()]
    with path.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as content:
        digest = sha256(content).hexdigest()
    if not any(digest == address.split("/")[-2] for address in addresses):
        raise UserError(
            f"{path} is a TorchScript archive: a program, which could change your files. fedvlp loads only archives "
            f"that OpenAI published, and this file has another SHA-256 ({digest}). Use a state dict instead. "
            "If you trust the archive's author, save its tensors in Python and use that file: "
            "torch.save(torch.jit.load('archive.pt').state_dict(), 'weights.pt')."
        )


def fetch_weights(name: str, tag: str) -> Path:
    """Find the weights that open_clip publishes under a tag; download and check them if necessary.

    Raises UserError if they cannot be downloaded; the message has the file's URL and the options to set.
    """
    published = open_clip.get_pretrained_cfg(name, tag)
    try:
        return download(published)
    # The hub's client raises many types of exceptions, and all of them mean that there is no file.
    except Exception as error:
        # open_clip lists a file of the hub as `organisation/model/file`, or without a file's name.
        repository, _, file = published.get("hf_hub", "").rpartition("/")
        addresses = [published.get("url", "")]
        if repository:
            addresses.insert(0, f"https://huggingface.co/{repository}/resolve/main/{file or HF_SAFE_WEIGHTS_NAME}")
        raise UserError(
            f"The weights '{tag}' of {name} are not on this machine and could not be downloaded "
            f"({type(error).__name__}: {str(error).strip() or 'no message'}). Download "
            f"{' or '.join(filter(None, addresses))} elsewhere, copy it here and use --model.clip.name {name} "
            f"--model.clip.pretrained /path/to/the/file --model.clip.tag {tag}."
        ) from error


def find_weights(folder: Path) -> Path | None:
    """Find the weights file in a model's folder, trying open_clip's names first; None if there is none."""
    files = sorted(path for path in folder.iterdir() if path.suffix in WEIGHT_SUFFIXES)
    by_name = [folder / name for name in (HF_SAFE_WEIGHTS_NAME, HF_WEIGHTS_NAME)]
    return next((path for path in [*by_name, *files] if path.is_file()), None)


def download(published: dict[str, Any]) -> Path:
    """Find published weights in the hub's cache without asking the hub, or download them."""
    # `hf_hub` is `organisation/model/file`, or ends in `/` for open_clip's usual file.
    repository, _, file = published.get("hf_hub", "").rpartition("/")
    if repository:
        # open_clip searches for them in this order.
        names = [str(Path(file).with_suffix(".safetensors")), file] if file else [HF_SAFE_WEIGHTS_NAME, HF_WEIGHTS_NAME]
        for name in names:
            cached = try_to_load_from_cache(repository, name)
            if isinstance(cached, str):
                return Path(cached)
        check_hub()
    return Path(open_clip.download_pretrained(published))


def check_hub() -> None:
    """Raise the client's error if the hub does not respond; a download without network would retry for a minute."""
    get_session().head(constants.ENDPOINT, timeout=5.0)  # seconds


def read_neighbour_config(path: Path) -> dict[str, Any] | None:
    """Read the `open_clip_config.json` in a weights file's folder, if any; raise UserError for invalid JSON."""
    config = path.parent / HF_CONFIG_NAME
    return read_json(config) if config.is_file() else None


def published_weights(name: str) -> dict[str, dict[str, Any]]:
    """List open_clip's entries for an architecture's published weights by tag."""
    # A name that only adds QuickGELU to an architecture has no weights.
    listed = name if open_clip.list_pretrained_tags_by_model(name) else name.removesuffix("-quickgelu")
    return {tag: open_clip.get_pretrained_cfg(listed, tag) for tag in open_clip.list_pretrained_tags_by_model(listed)}


def assume_options(name: str, path: Path, weights: dict[str, Tensor], quick_gelu: bool) -> dict[str, Any]:
    """Derive the transform's options and `quick_gelu` of a weights file without config, and log the assumption.

    OpenAI's archives get OpenAI's options; other files get the options shared by all published weights. Raises
    UserError if the published weights differ in preprocessing.
    """
    published = published_weights(name)
    if is_torchscript(path):
        return published.get("openai", {})
    transforms = [merge_preprocess_dict({}, entry) for entry in published.values()] or [{}]
    remedy = f"put its {HF_CONFIG_NAME} next to it, or set --model.clip.tag to the published weights that it comes from"
    if any(transform != transforms[0] for transform in transforms):
        raise UserError(
            f"The published weights of {name} differ in preprocessing, and {path} does not state its own. Please "
            f"{remedy}: {', '.join(published)}."
        )
    activations = {bool(entry.get("quick_gelu", quick_gelu)) for entry in published.values()}
    quick_gelu = quick_gelu or (True in activations if len(activations) == 1 else is_likely_openai(path, weights))
    activation = "QuickGELU" if quick_gelu else "GELU"
    source = f"{name}'s published weights" if published else "OpenAI's weights"
    log.warning("Assuming %s and the preprocessing of %s for %s. If wrong, %s.", activation, source, path, remedy)
    return {**transforms[0], "quick_gelu": quick_gelu}


def is_likely_openai(path: Path, weights: dict[str, Tensor]) -> bool:
    """Whether weights were probably trained by OpenAI with QuickGELU, which their tensors do not record.

    True if the name of the file, or of its folder in the hub's cache, contains `openai` or `quickgelu`, or if all
    single-precision values are exact half-precision values, as in OpenAI's weights.
    """
    # In the hub's cache, a folder has the repository's name and the file's name is a digest.
    hub_folders = [part for part in path.parts if part.startswith("models--")]
    names = " ".join([path.name, *hub_folders]).lower()
    if "openai" in names or "quickgelu" in names:
        return True
    perceptrons = [value for name, value in weights.items() if name.endswith("mlp.c_fc.weight")]
    are_halves = [value.dtype == torch.float32 and torch.equal(value, value.half().float()) for value in perceptrons]
    return bool(are_halves) and all(are_halves)
