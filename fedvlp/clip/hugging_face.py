"""Find Hugging Face tokenizers and text encoders in a CLIP's own folder, on the hub, or in the hub's cache."""

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
TOKENIZERS = ("tokenizer.json", "tokenizer.model", "sentencepiece.bpe.model", "spiece.model", "vocab.txt", "vocab.json")


def load_tokenizer(config: dict[str, Any], folder: Path | None = None) -> Tokenizer:
    """Make the tokenizer of an open_clip config as `open_clip.get_tokenizer` does; `folder` is searched before the hub.

    Raises UserError if its files or a package are missing, or the files are damaged or contain code.
    """
    text = config["text_cfg"]
    context_length = text.get("context_length", DEFAULT_CONTEXT_LENGTH)
    options = text.get("tokenizer_kwargs") or {}
    name = text.get("hf_tokenizer_name")
    if not name:
        return SimpleTokenizer(context_length=context_length, **options)
    if find_spec("transformers") is None:
        raise UserError('This CLIP needs a Hugging Face tokenizer. Run: pip install "fedvlp[hf]"')
    source = _find(name, folder, "tokenizer (tokenizer.json or a vocabulary)", _has_vocabulary)
    # A tokenizer's code is never run, even if a config from the hub requests it.
    options = {**options, "trust_remote_code": False, "tokenizer_mode": text.get("tokenizer_mode")}
    try:
        return HFTokenizer(str(source), context_length=context_length, **options)
    # transformers and tokenizers raise many types; without sentencepiece they name the wrong package.
    except Exception as error:
        raise UserError(
            f"The tokenizer in {source} cannot be loaded ({type(error).__name__}: {str(error).strip()}). Copy or "
            "download its files again. A .model file without tokenizer.json needs: pip install sentencepiece protobuf"
        ) from error


def find_encoder(name: str, folder: Path | None = None) -> Path:
    """Find the folder with the `config.json` of a Hugging Face text encoder; the CLIP contains its weights.

    The name is a repository on the hub or a folder. The model's own `folder` is searched before the hub. Raises
    UserError if there is no encoder of a kind that open_clip supports.
    """
    return _find(name, folder, f"text encoder's config.json (of {', '.join(arch_dict)})", _has_encoder)


def tokenizer_content(tokenizer: Tokenizer) -> bytes:
    """Serialise the rules and vocabulary of a Hugging Face tokenizer; empty for CLIP's own, which never changes."""
    inner = getattr(tokenizer, "tokenizer", None)
    if inner is None:
        return b""
    backend = getattr(inner, "backend_tokenizer", None)
    content = inner.get_vocab() if backend is None else json.loads(backend.to_str())
    # Each call sets these.
    volatile = ("padding", "truncation")
    return json.dumps({key: value for key, value in content.items() if key not in volatile}, sort_keys=True).encode()


def hub_folder(repository: str, content: str, has_content: Callable[[Path], bool]) -> Path:
    """Find a repository's folder in the hub's cache and update all files except weights if there is network.

    `has_content` checks that a folder has the `content` that messages name. Raises UserError if it is not in the cache
    and cannot be downloaded.
    """
    try:
        folder = Path(snapshot_download(repository, allow_patterns=list(SMALL_FILES)))
        if not has_content(folder):
            raise FileNotFoundError(f"not in {folder}")
    # The hub's client raises many types of exceptions, and all of them mean that there is no file.
    except Exception as error:
        raise _missing(content, repository, error) from error
    return folder


def hub_weights(repository: str) -> Path:
    """Find the weights file of a CLIP in the hub's cache, or download it; raise UserError if that fails."""
    try:
        return download({"hf_hub": f"{repository}/"})
    except Exception as error:
        raise _missing("weights", repository, error) from error


def _missing(content: str, repository: str, error: Exception) -> UserError:
    reason = str(error).partition("\n")[0]
    return UserError(
        f"Expected the {content} of https://huggingface.co/{repository}, but it is not on this machine and could not "
        f"be downloaded ({type(error).__name__}: {reason or 'no message'}). Check the name. Without network, run "
        f"`hf download {repository}` elsewhere and copy its folder of the hub's cache into {constants.HF_HUB_CACHE}; "
        "or put all files of the CLIP into one folder and use --model.clip.name local-dir:/path/to/the/folder."
    )


def _find(name: str, folder: Path | None, content: str, has_content: Callable[[Path], bool]) -> Path:
    candidates = [Path(name)] if folder is None else [folder / name, folder]
    return next(filter(has_content, candidates), None) or hub_folder(name, content, has_content)


def _has_vocabulary(folder: Path) -> bool:
    return any((folder / name).is_file() for name in TOKENIZERS)


def _has_encoder(folder: Path) -> bool:
    """Whether a folder has an encoder's config; the config of a whole CLIP may have the same file name."""
    path = folder / "config.json"
    return path.is_file() and read_json(path).get("model_type") in arch_dict
