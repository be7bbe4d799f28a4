"""From a name in a config to an open_clip model: architecture, weights, tokenizer and image transforms."""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import open_clip
import torch
from open_clip.constants import HF_CONFIG_NAME
from open_clip.convert import convert_state_dict
from open_clip.model import convert_to_custom_text_state_dict
from open_clip.pretrained import download_pretrained_from_hf
from open_clip.transform import PreprocessCfg
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from fedvlp.clip.tokens import Tokenizer
from fedvlp.clip.weights import WEIGHT_SUFFIXES, check_hub, config_beside, fetch_weights, read_weights, uses_quick_gelu
from fedvlp.utils.errors import UserError, nearest_names
from fedvlp.utils.ranges import Seed

BUNDLED_NAME = "fedvlp-tiny"
HUB_PREFIX = "hf-hub:"
QUICK_GELU_SUFFIX = "-quickgelu"
TINY_FOLDER = Path(__file__).parent / "tiny"
ImageTransform = Callable[[Image.Image], Tensor]


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
    """The tiny CLIP that the package ships."""
    config = bundled_config()
    tokenizer = _bundled_tokenizer(config["text_cfg"].get("context_length", 77))
    if spec.pretrained == "auto":
        return Blueprint(spec.name, config, tokenizer, bundled_state_dict())
    path = _weights_path(spec, tags=[])
    if path is None:
        return Blueprint(spec.name, config, tokenizer, None)
    options = _transform_options(config_beside(path) or {}, config, str(path))
    return Blueprint(spec.name, config, tokenizer, read_weights(path), options)


def bundled_config() -> dict[str, Any]:
    """Returns the keyword arguments with which open_clip's ``CLIP`` class builds the tiny CLIP."""
    config: dict[str, Any] = json.loads((TINY_FOLDER / "model.json").read_text(encoding="utf-8"))
    return config


def bundled_state_dict() -> dict[str, Tensor]:
    """Returns the tiny CLIP's weights in float32, by the names of open_clip's ``CLIP`` class."""
    stored = load_file(TINY_FOLDER / "weights.safetensors")
    return expand(stored, int(bundled_config()["text_cfg"]["vocab_size"]))


def expand(stored: dict[str, Tensor], vocabulary_size: int) -> dict[str, Tensor]:
    """Returns a full state dict in float32 from one that stores trained rows of the vocabulary only.

    Words that no caption used have no row; theirs are random as before training, from N(0, 0.02).

    Args:
        stored: Tensors by name, with ``token_embedding.index`` (the trained rows' numbers) and
            ``token_embedding.rows`` (their values) instead of ``token_embedding.weight``.
        vocabulary_size: Number of rows of the whole vocabulary.
    """
    state = {name: tensor.float() for name, tensor in stored.items() if not name.startswith("token_embedding.")}
    rows = stored["token_embedding.rows"].float()
    # Of the vocabulary's 49,408 rows captions used few; the package ships these alone.
    generator = torch.Generator().manual_seed(0)
    weight = 0.02 * torch.randn(vocabulary_size, rows.shape[1], generator=generator)
    weight[stored["token_embedding.index"].long()] = rows
    state["token_embedding.weight"] = weight
    return state


# It takes longer to make than all else of the tiny CLIP, and never changes.
@cache
def _bundled_tokenizer(context_length: int) -> Tokenizer:
    tokenizer: Tokenizer = open_clip.SimpleTokenizer(context_length=context_length)
    return tokenizer


def _resolve_hub(spec: CLIPSpec) -> Blueprint:
    """A model of the hub, or from its cache on this machine."""
    path = None if spec.pretrained == "auto" else _weights_path(spec, tags=[])
    repository = spec.name.removeprefix(HUB_PREFIX)
    try:
        check_hub(repository)
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
    return Blueprint(spec.name, config, tokenizer, weights, _transform_options(description, config, spec.name))


def _resolve_registered(spec: CLIPSpec) -> Blueprint:
    """A model of open_clip's own list, with the activation that its weights were trained with."""
    name = spec.name.replace("/", "-")
    config = _registered_config(name)
    path = _weights_path(spec, tags=open_clip.list_pretrained_tags_by_model(name))
    options: dict[str, Any] = {}
    weights: dict[str, Tensor] | None = None
    if path is not None:
        weights = read_weights(path)
        # A wrong activation raises no error but costs accuracy, so it is inferred from the file.
        config["quick_gelu"] = config.get("quick_gelu", False) or uses_quick_gelu(path, weights)
        options = _transform_options(config_beside(path) or {}, config, str(path))
    elif spec.pretrained not in (None, "random"):
        tag = "openai" if spec.pretrained == "auto" else str(spec.pretrained)
        options = open_clip.get_pretrained_cfg(name, tag)
        weights = read_weights(fetch_weights(name, tag))
        config["quick_gelu"] = bool(options.get("quick_gelu", False))
    # open_clip lists some architectures twice, with and without the suffix; both read the same tokens.
    tokenizer = open_clip.get_tokenizer(name.removesuffix(QUICK_GELU_SUFFIX))
    return Blueprint(spec.name, config, tokenizer, weights, options)


def _registered_config(name: str) -> dict[str, Any]:
    """open_clip's config of a name, with QuickGELU if the name ends so."""
    registered = open_clip.list_models()
    # Some names end so in open_clip's own list; for others the suffix only changes the activation.
    base = name if name in registered else name.removesuffix(QUICK_GELU_SUFFIX)
    if base not in registered:
        nearest = nearest_names(name, [BUNDLED_NAME, *registered], count=3, cutoff=0.4)
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


def _transform_options(description: dict[str, Any], config: dict[str, Any], origin: str) -> dict[str, Any]:
    """Reads the transform's options from the content of an `open_clip_config.json`, for a model of this config.

    Raises:
        UserError: If the transform can't do what they ask for: images would not be as in training.
    """
    published = description.get("preprocess_cfg", {})
    names = {*PreprocessCfg.__annotations__} - {"size"}
    options = {name: value for name, value in published.items() if name in names and value is not None}
    for name in ("mean", "std"):
        if name in options:  # a list in JSON, and part of the fingerprint
            options[name] = tuple(float(number) for number in options[name])
    model_size = config["vision_cfg"].get("image_size", 224)  # open_clip's own default
    size = published.get("size") or model_size
    interpolation = options.get("interpolation", "bicubic")
    problem = ""
    if size not in (model_size, [model_size, model_size]):
        problem = f"size {size!r}, but expected was {model_size}, for which the model is built"
    elif interpolation not in ("bicubic", "bilinear"):  # open_clip would take bicubic without a word
        problem = f"interpolation {interpolation!r}, but expected was bicubic or bilinear"
    if problem:
        raise UserError(
            f"The preprocess_cfg of {origin} has {problem}. Give --model.clip.name the architecture of these weights, "
            "or correct the file."
        )
    return options


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
    missing = "no weights by OpenAI" if wanted == "auto" else f"no weights '{wanted}'"
    raise UserError(
        f"There are {missing} for {spec.name}. Give --model.clip.pretrained one of: "
        f"{', '.join([*tags, 'random', 'the path of a weights file'])}."
    )


class shapes_only(TorchFunctionMode):  # noqa: N801, a context manager
    """Fills new weights with zeros, where they are overwritten or only counted: random numbers take seconds."""

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, arguments: Any = (), options: dict[str, Any] | None = None
    ) -> Any:
        """Calls the function, or fills with zeros the tensor that it would fill with random numbers."""
        options = options or {}
        fills = {"kaiming_normal_", "kaiming_uniform_", "normal_", "trunc_normal_", "uniform_"}
        if function.__name__ not in fills:
            return function(*arguments, **options)
        with torch.no_grad():
            return (arguments[0] if arguments else options["tensor"]).zero_()


def build_model(config: dict[str, Any], seed: int = 0) -> nn.Module:
    """Builds an open_clip model with random weights; global random generators keep their states.

    Args:
        config: open_clip's model config: `embed_dim`, `vision_cfg`, `text_cfg` and perhaps `quick_gelu`, `custom_text`.
        seed: Seed of the weights.

    Raises:
        UserError: If the architecture is one in which prompts cannot be learned.
    """
    options = deepcopy(config)
    # open_clip's factory would add a transform and a tokenizer of its own, so its classes are called.
    custom = options.pop("custom_text", False)
    if "multimodal_cfg" in options or options["text_cfg"].get("hf_model_name"):
        raise UserError(
            "Prompts are learned in CLIP's own text transformer, but this model has a text tower of another library or "
            "a caption decoder. Choose another --model.clip.name, for example ViT-B-16."
        )
    if "timm_model_name" in options["vision_cfg"]:
        # Else timm would download the image tower's weights, which are overwritten.
        options["vision_cfg"]["timm_model_pretrained"] = False
    # open_clip draws from the global generator; a run's own draws must not depend on how its CLIP was loaded.
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        model: nn.Module = (open_clip.CustomTextCLIP if custom else open_clip.CLIP)(**options)
    return model


def install_weights(model: nn.Module, blueprint: Blueprint, origin: str) -> None:
    """Loads a blueprint's weights into a model, cast to the model's types; ``origin`` is for the message.

    Raises:
        UserError: If the weights are those of another architecture.
    """
    # OpenAI's and other published names become open_clip's.
    state: dict[str, Tensor] = convert_state_dict(model, dict(blueprint.weights or {}))
    # The file is of a `CLIP`, and the model a `CustomTextCLIP`, whose text tower is a module of its own.
    if "positional_embedding" in state and not hasattr(model, "positional_embedding"):
        state = convert_to_custom_text_state_dict(state)
    expected = model.state_dict()
    if "logit_scale" in state:  # a number in some files, a list of one in others
        state["logit_scale"] = state["logit_scale"].reshape(expected["logit_scale"].shape)
    differences = _differences(expected, state)
    if differences:
        more = f"; and {len(differences) - 3} more" if len(differences) > 3 else ""
        raise UserError(
            f"The weights '{origin}' do not fit {blueprint.name}: {'; '.join(differences[:3])}{more}. "
            "Give --model.clip.name the architecture that they were trained with."
        )
    model.load_state_dict({name: state[name].to(expected[name].dtype) for name in expected})


def _differences(expected: dict[str, Tensor], state: dict[str, Tensor]) -> list[str]:
    """Describes tensors that are missing, unexpected or of another shape."""
    differences = []
    for name, value in expected.items():
        if name not in state:
            differences.append(f"{name} is missing")
        elif state[name].shape != value.shape:
            shape = tuple(state[name].shape)
            # A wrong shape says more than a missing name, and only three differences are shown.
            differences.insert(0, f"{name} has shape {shape} instead of {tuple(value.shape)}")
    # Buffers that some versions of open_clip save and others compute.
    ignored = ("position_ids", "attn_mask", "num_batches_tracked")
    unexpected = [name for name in state if name not in expected and not name.endswith(ignored)]
    return [*differences, *(f"{name} is unexpected" for name in unexpected)]
