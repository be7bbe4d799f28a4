"""Tokenizers and text encoders of Hugging Face: from a CLIP's own folder, the hub, or the hub's cache."""

import json
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from huggingface_hub import constants, snapshot_download
from open_clip.hf_configs import arch_dict
from open_clip.tokenizer import DEFAULT_CONTEXT_LENGTH, HFTokenizer, SimpleTokenizer

from fedvlp.clip.tokens import Tokenizer
from fedvlp.clip.weights import download
from fedvlp.utils.errors import UserError
from fedvlp.utils.files import read_json

SMALL_FILES = ("*.json", "*.txt", "*.model")
VOCABULARIES = (
    *("tokenizer.json", "tokenizer.model", "sentencepiece.bpe.model", "spiece.model", "vocab.txt", "vocab.json"),
)


def load_tokenizer(config: dict[str, Any], folder: Path | None = None) -> Tokenizer:
    """Make the tokenizer of an open_clip config as `open_clip.get_tokenizer` does; `folder` is searched before the hub.

    Raises:
        UserError: If its files or a package are missing, or the files are damaged or hold code.
    """
    text = config["text_cfg"]
    context_length = text.get("context_length", DEFAULT_CONTEXT_LENGTH)
    options = text.get("tokenizer_kwargs") or {}
    name = text.get("hf_tokenizer_name")
    if not name:
        own: Tokenizer = SimpleTokenizer(context_length=context_length, **options)
        return own
    if find_spec("transformers") is None:
        raise UserError('This CLIP has a tokenizer of Hugging Face. Run: pip install "fedvlp[hf]"')
    source = _find(name, folder, "tokenizer (tokenizer.json or a vocabulary)", _has_vocabulary)
    # Code beside a tokenizer is never run, whatever a config from the hub asks for.
    options = {**options, "trust_remote_code": False, "tokenizer_mode": text.get("tokenizer_mode")}
    try:
        tokenizer: Tokenizer = HFTokenizer(str(source), context_length=context_length, **options)
    # transformers and tokenizers raise many kinds; without sentencepiece they ask for another package.
    except Exception as error:
        raise UserError(
            f"The tokenizer in {source} cannot be loaded ({type(error).__name__}: {str(error).strip()}). Copy or "
            "download its files again; a .model file without tokenizer.json needs: pip install sentencepiece protobuf"
        ) from error
    return tokenizer


def find_encoder(name: str, folder: Path | None = None) -> Path:
    """Find the folder whose `config.json` describes a text encoder of Hugging Face; its weights are the CLIP's.

    The name is a repository of the hub, or a folder; the model's own `folder` is searched before the hub.

    Raises:
        UserError: If there is none of a kind that open_clip knows.
    """
    return _find(name, folder, f"text encoder's config.json (of {', '.join(arch_dict)})", _has_encoder)


def tokenizer_content(tokenizer: Tokenizer) -> bytes:
    """Returns rules and vocabulary of a tokenizer of Hugging Face; nothing for CLIP's own, of which there is one."""
    inner = getattr(tokenizer, "tokenizer", None)
    if inner is None:
        return b""
    backend = getattr(inner, "backend_tokenizer", None)
    content = inner.get_vocab() if backend is None else json.loads(backend.to_str())
    # These are set by each call.
    changing = ("padding", "truncation")
    return json.dumps({key: value for key, value in content.items() if key not in changing}, sort_keys=True).encode()


def hub_folder(repository: str, what: str, has_it: Callable[[Path], bool]) -> Path:
    """Find a repository's folder in the hub's cache, with all but its weights; without network, as it is.

    `has_it` checks that a folder holds `what` is needed.

    Raises:
        UserError: If it is neither there nor can be downloaded.
    """
    try:
        folder = Path(snapshot_download(repository, allow_patterns=list(SMALL_FILES)))
        if not has_it(folder):
            raise FileNotFoundError(f"not in {folder}")
    # The hub's client raises many kinds; all of them mean that there is no file.
    except Exception as error:
        raise _missing(what, repository, error) from error
    return folder


def hub_weights(repository: str) -> Path:
    """Returns the weights file of a CLIP on the hub, from its cache if it is there.

    Raises:
        UserError: If it cannot be downloaded.
    """
    try:
        return download({"hf_hub": f"{repository}/"})
    except Exception as error:
        raise _missing("weights", repository, error) from error


def _missing(what: str, repository: str, error: Exception) -> UserError:
    reason = str(error).partition("\n")[0]
    return UserError(
        f"Expected the {what} of https://huggingface.co/{repository}, but it is not on this machine and could not be "
        f"downloaded ({type(error).__name__}: {reason or 'no message'}). Check the name. Without network, run "
        f"`hf download {repository}` elsewhere and copy its folder of the hub's cache into {constants.HF_HUB_CACHE}; "
        "or put all files of the CLIP into one folder and give --model.clip.name local-dir:/path/to/the/folder."
    )


def _find(name: str, folder: Path | None, what: str, has_it: Callable[[Path], bool]) -> Path:
    candidates = [Path(name)] if folder is None else [folder / name, folder]
    for candidate in candidates:
        if has_it(candidate):
            return candidate
    return hub_folder(name, what, has_it)


def _has_vocabulary(folder: Path) -> bool:
    return any((folder / name).is_file() for name in VOCABULARIES)


def _has_encoder(folder: Path) -> bool:
    """Whether there is an encoder's config, and not that of a whole CLIP, which may have the same name."""
    path = folder / "config.json"
    return path.is_file() and read_json(path).get("model_type") in arch_dict
