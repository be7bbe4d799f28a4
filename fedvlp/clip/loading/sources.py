"""What a name in a config stands for: a CLIP's architecture, transform, tokenizer and weights, perhaps bundled ones."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import open_clip
import torch
from open_clip.constants import HF_CONFIG_NAME
from open_clip.pretrained import download_pretrained_from_hf
from open_clip.transform import PreprocessCfg
from safetensors.torch import load_file
from torch import Tensor

from fedvlp.clip.loading.weights import WEIGHT_SUFFIXES, config_beside, fetch_weights, read_weights, uses_quick_gelu
from fedvlp.utils.errors import UserError, nearest_names
from fedvlp.utils.ranges import Seed

BUNDLED_NAME = "fedvlp-tiny"
HUB_PREFIX = "hf-hub:"
QUICK_GELU_SUFFIX = "-quickgelu"
TINY_FOLDER = Path(__file__).parent / "tiny"
Tokenizer = Callable[[Sequence[str]], Tensor]


@dataclass
class CLIPSpec:
    """Which CLIP to load, and with which weights.

    Args:
        name: `fedvlp-tiny`, a name that open_clip knows such as `ViT-B-16` or `RN50`, or `hf-hub:organisation/model`.
            With `-quickgelu` behind it, a local file's weights are run with QuickGELU, as OpenAI's must be; a file
            that is known to be OpenAI's is so anyway.
        pretrained: `auto` takes the bundled weights of `fedvlp-tiny`, a hub model's own, and OpenAI's of any other
            name; else one of open_clip's tags, the path of a `.safetensors`, `.pt` or `.bin` file, or `random`. An
            `open_clip_config.json` beside a file says its activation and how images are made its input.
        seed: Seed of random weights.
    """

    name: str = "ViT-B-16"
    pretrained: str | None = "auto"
    seed: Seed = 0


@dataclass(frozen=True)
class Blueprint:
    """All that is needed to build a CLIP: open_clip's model config, the transform's options, weights, tokenizer."""

    name: str
    config: dict[str, Any]
    tokenizer: Tokenizer
    weights: dict[str, Tensor] | None
    preprocess: dict[str, Any] = field(default_factory=dict)


def resolve(spec: CLIPSpec) -> Blueprint:
    """Returns what to build for a spec, with its weights read.

    Raises:
        UserError: If the name or the weights are unknown, missing or cannot be downloaded.
    """
    if spec.name == BUNDLED_NAME:
        return _resolve_bundled(spec)
    if spec.name.startswith(HUB_PREFIX):
        return _resolve_hub(spec)
    return _resolve_registered(spec)


def _resolve_bundled(spec: CLIPSpec) -> Blueprint:
    """Returns the tiny CLIP that the package ships."""
    config = bundled_config()
    tokenizer = _bundled_tokenizer(config["text_cfg"].get("context_length", 77))
    if spec.pretrained == "auto":
        weights: dict[str, Tensor] | None = bundled_state_dict()
        options: dict[str, Any] = {}
    else:
        path = _weights_path(spec, tags=[])
        weights = read_weights(path) if path else None
        options = _options(config_beside(path) or {}, config, str(path)) if path else {}
    return Blueprint(spec.name, config, tokenizer, weights, options)


def bundled_config() -> dict[str, Any]:
    """Returns the keyword arguments with which open_clip's ``CLIP`` class builds the tiny CLIP."""
    config: dict[str, Any] = json.loads((TINY_FOLDER / "model.json").read_text(encoding="utf-8"))
    return config


def expand(stored: dict[str, Tensor], vocabulary_size: int, seed: int = 0) -> dict[str, Tensor]:
    """Returns a full state dict in float32 from one that stores trained rows of the vocabulary only.

    Words that no caption used have no row; theirs are random as before training, from N(0, 0.02).

    Args:
        stored: Tensors by name, with ``token_embedding.index`` (the trained rows' numbers) and
            ``token_embedding.rows`` (their values) instead of ``token_embedding.weight``.
        vocabulary_size: Number of rows of the whole vocabulary.
        seed: Seed of these random rows.
    """
    state = {name: tensor.float() for name, tensor in stored.items() if not name.startswith("token_embedding.")}
    rows = stored["token_embedding.rows"].float()
    # Of the vocabulary's 49,408 rows captions used few; the package ships these alone.
    generator = torch.Generator().manual_seed(seed)
    weight = 0.02 * torch.randn(vocabulary_size, rows.shape[1], generator=generator)
    weight[stored["token_embedding.index"].long()] = rows
    state["token_embedding.weight"] = weight
    return state


def bundled_state_dict() -> dict[str, Tensor]:
    """Returns the tiny CLIP's weights in float32, by the names of open_clip's ``CLIP`` class."""
    stored = load_file(TINY_FOLDER / "weights.safetensors")
    return expand(stored, int(bundled_config()["text_cfg"]["vocab_size"]))


@cache
def _bundled_tokenizer(context_length: int) -> Tokenizer:
    """Returns the tiny CLIP's tokenizer; it takes longer to make than all else of that CLIP, and never changes."""
    tokenizer: Tokenizer = open_clip.SimpleTokenizer(context_length=context_length)
    return tokenizer


def _resolve_hub(spec: CLIPSpec) -> Blueprint:
    """Returns a model of the hub, or from its cache on this machine."""
    path = None if spec.pretrained == "auto" else _weights_path(spec, tags=[])
    repository = spec.name.removeprefix(HUB_PREFIX)
    try:
        description = json.loads(Path(download_pretrained_from_hf(repository, HF_CONFIG_NAME)).read_text("utf-8"))
        tokenizer = open_clip.get_tokenizer(spec.name)
        # Random weights, or those of a local file, need only the hub's description.
        if spec.pretrained == "auto":
            path = Path(download_pretrained_from_hf(repository))
    except ImportError as error:  # its tokenizer is of a package that is not installed
        raise _foreign_tokenizer(spec.name) from error
    except Exception as error:  # the hub's client raises many kinds; all of them mean that there is no file
        raise UserError(
            f"{spec.name} is not on this machine and could not be downloaded ({error}). Check the name; without "
            f"network, download https://huggingface.co/{repository} elsewhere and give its weights file with the "
            "architecture's name: --model.clip.name NAME --model.clip.pretrained /path/to/the/file."
        ) from error
    weights = read_weights(path) if path else None
    config = description["model_cfg"]
    return Blueprint(spec.name, config, tokenizer, weights, _options(description, config, spec.name))


def _resolve_registered(spec: CLIPSpec) -> Blueprint:
    """Returns a model of open_clip's own list, with the activation that its weights were trained with."""
    name = spec.name.replace("/", "-")
    config = _registered_config(name)
    path = _weights_path(spec, tags=open_clip.list_pretrained_tags_by_model(name))
    published: dict[str, Any] = {}
    weights: dict[str, Tensor] | None = None
    if path is not None:
        weights = read_weights(path)
        # A wrong activation raises no error but costs accuracy, so it is found out from the file.
        config["quick_gelu"] = config.get("quick_gelu", False) or uses_quick_gelu(path, weights)
        published = _options(config_beside(path) or {}, config, str(path))
    elif spec.pretrained not in (None, "random"):
        tag = "openai" if spec.pretrained == "auto" else str(spec.pretrained)
        published = open_clip.get_pretrained_cfg(name, tag)
        weights = read_weights(fetch_weights(name, tag))
        config["quick_gelu"] = bool(published.get("quick_gelu", False))
    # open_clip lists some architectures twice, with and without the suffix; both read the same tokens.
    tokenizer = open_clip.get_tokenizer(name.removesuffix(QUICK_GELU_SUFFIX))
    return Blueprint(spec.name, config, tokenizer, weights, published)


def _registered_config(name: str) -> dict[str, Any]:
    """Returns open_clip's config of a name, with QuickGELU if the name ends so."""
    known = open_clip.list_models()
    # Some names end so in open_clip's own list; for others the suffix only changes the activation.
    base = name if name in known else name.removesuffix(QUICK_GELU_SUFFIX)
    if base not in known:
        nearest = nearest_names(name, [BUNDLED_NAME, *known], count=3, cutoff=0.4)
        raise UserError(
            f"There is no CLIP named '{name}'. Nearest: {', '.join(nearest) or 'none'}. Take {BUNDLED_NAME}, a name of "
            f"open_clip.list_models(), or {HUB_PREFIX}organisation/model."
        )
    config: dict[str, Any] = open_clip.get_model_config(base)
    if {"hf_tokenizer_name", "hf_model_name"} & {*config["text_cfg"]}:
        raise _foreign_tokenizer(name)
    if name.endswith(QUICK_GELU_SUFFIX):
        config["quick_gelu"] = True
    return config


def _foreign_tokenizer(name: str) -> UserError:
    return UserError(
        f"Expected a CLIP that reads text with open_clip's own tokenizer, but {name} has one of Hugging Face's, as "
        "SigLIP and CLIPs on RoBERTa do; that tokenizer is not loaded, and text towers of this kind learn no prompts. "
        "Choose another --model.clip.name, for example ViT-B-16, ViT-L-14 or RN50."
    )


def _options(description: dict[str, Any], config: dict[str, Any], origin: str) -> dict[str, Any]:
    """Reads the transform's options from the content of an `open_clip_config.json`, for a model of this config.

    Raises:
        UserError: If the transform can't do what they ask for: images would not be as in training.
    """
    published = description.get("preprocess_cfg", {})
    known = {*PreprocessCfg.__annotations__} - {"size"}
    options = {name: value for name, value in published.items() if name in known and value is not None}
    for name in ("mean", "std"):
        if name in options:  # a list in JSON, and part of the fingerprint
            options[name] = tuple(float(number) for number in options[name])
    model_size = config["vision_cfg"].get("image_size", 224)  # open_clip's own default
    size = published.get("size") or model_size
    if size not in (model_size, [model_size, model_size]):
        raise _unfit(origin, "size", size, f"{model_size}, for which the model is built")
    interpolation = options.get("interpolation", "bicubic")
    if interpolation not in ("bicubic", "bilinear"):  # open_clip would take bicubic without a word
        raise _unfit(origin, "interpolation", interpolation, "bicubic or bilinear")
    return options


def _unfit(origin: str, name: str, value: Any, expected: str) -> UserError:
    return UserError(
        f"The preprocess_cfg of {origin} has {name} {value!r}, but expected was {expected}. Give --model.clip.name the "
        "architecture of these weights, or correct the file."
    )


def _weights_path(spec: CLIPSpec, tags: list[str]) -> Path | None:
    """Returns the local file that a spec names; None for random weights and for a published tag.

    Raises:
        UserError: If the spec names neither a file nor one of the tags.
    """
    wanted = spec.pretrained
    if wanted in (None, "random"):
        return None
    tag = "openai" if wanted == "auto" else str(wanted).lower().replace("-", "_")
    if tag in tags:
        return None
    path = Path(str(wanted)).expanduser()
    # A misspelt tag must not be reported as a missing file: only what looks like a path is taken for one.
    if wanted != "auto" and (path.suffix in WEIGHT_SUFFIXES or path.exists() or len(path.parts) > 1):
        return path
    found = "no weights by OpenAI" if wanted == "auto" else f"no weights '{wanted}'"
    raise UserError(
        f"There are {found} for {spec.name}. Give --model.clip.pretrained one of: "
        f"{', '.join([*tags, 'random', 'the path of a weights file'])}."
    )
