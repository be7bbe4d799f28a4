"""Load an open_clip model by its name in a config: architecture, weights, tokenizer and image transforms."""

import json
import re
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
from open_clip.transform import merge_preprocess_dict
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

import fedvlp.clip.conv_vit  # noqa: F401, registers the model with timm
from fedvlp.clip.hugging_face import find_encoder, hub_folder, hub_weights, load_tokenizer
from fedvlp.clip.tokens import Tokenizer
from fedvlp.clip.weights import (
    WEIGHT_SUFFIXES,
    assume_options,
    fetch_weights,
    find_weights,
    published_weights,
    read_neighbour_config,
    read_weights,
)
from fedvlp.utils.errors import UserError, nearest_names
from fedvlp.utils.ranges import Intensity, Seed

BUNDLED = {"fedvlp-small": Path(__file__).parent / "small", "fedvlp-tiny": Path(__file__).parent / "tiny"}
"""The CLIPs that the package ships, by name: folders with their config and weights."""
HUB_PREFIX = "hf-hub:"
FOLDER_PREFIX = "local-dir:"
QUICK_GELU_SUFFIX = "-quickgelu"
ImageTransform = Callable[[Image.Image], Tensor]


@dataclass
class CLIPSpec:
    """Architecture and weights of the CLIP to load.

    Args:
        name: `fedvlp-small` or `fedvlp-tiny`, which come with fedvlp; a name from open_clip's list, such as `ViT-B-16`
            or `RN50`; `hf-hub:organisation/model`; or `local-dir:/path/to/folder` with an `open_clip_config.json`,
            weights, and optionally a tokenizer's files. The suffix `-quickgelu` runs the weights of a local file with
            QuickGELU, as weights by OpenAI need. OpenAI's own archives always run so.
        pretrained: `auto` loads the bundled weights, the weights of the hub's model or of the folder, or OpenAI's
            weights of any other name. Otherwise one of open_clip's tags, the path of a `.safetensors`, `.pt` or `.bin`
            file, or `random`. An `open_clip_config.json` next to a file sets its activation and preprocessing, and a
            tokenizer next to it is used before the hub's. A file without this config gets the options that all
            published weights of the architecture share.
        seed: Seed of random weights.
        templates: Sentences with one `{}` for the class's name, such as "a dermoscopic image of {}.". They replace
            CLIP's 80 templates wherever a method uses handwritten prompts.
        tag: The published weights that a weights file comes from. Sets the file's activation and preprocessing.
        intensity: The values that become black and white in greyscale images of more than 8 bits and in DICOM files:
            `full`, the range of the format; `percentile`, an image's 0.5th and 99.5th; or `window`, a DICOM file's own.
    """

    name: str = "ViT-B-16"
    pretrained: str | None = "auto"
    seed: Seed = 0
    templates: list[str] = field(default_factory=list)
    tag: str | None = None
    intensity: Intensity = "full"


@dataclass(frozen=True)
class Blueprint:
    """All that is needed to build a CLIP: open_clip's model config, the transform's options, weights, tokenizer."""

    name: str
    config: dict[str, Any]
    tokenizer: Tokenizer
    weights: dict[str, Tensor] | None
    preprocess: dict[str, Any] = field(default_factory=dict)
    folder: Path | None = None  # may hold the files of a text encoder


def resolve(spec: CLIPSpec) -> Blueprint:
    """Make the blueprint of a spec and read its weights; raise UserError if name or weights cannot be found."""
    tags = [*published_weights(spec.name.replace("/", "-"))]
    if spec.tag is not None and (spec.tag not in tags or spec.pretrained in (None, "auto", "random", *tags)):
        raise UserError(
            f"Expected --model.clip.tag for a weights file, as one of {', '.join(tags) or 'no tags'} of {spec.name}; "
            f"got '{spec.tag}' for --model.clip.pretrained '{spec.pretrained}'. Correct or remove the tag."
        )
    if spec.name in BUNDLED:
        return _resolve_bundled(spec)
    if spec.name.startswith((HUB_PREFIX, FOLDER_PREFIX)):
        return _resolve_described(spec)
    return _resolve_registered(spec)


def _resolve_bundled(spec: CLIPSpec) -> Blueprint:
    config = bundled_config(spec.name)
    tokenizer = _bundled_tokenizer(config["text_cfg"].get("context_length", 77))
    if spec.pretrained == "auto":
        return Blueprint(spec.name, config, tokenizer, bundled_state_dict(spec.name))
    path = _weights_path(spec, tags=[])
    if path is None:
        return Blueprint(spec.name, config, tokenizer, None)
    options = _transform_options(read_neighbour_config(path) or {}, config, str(path))
    return Blueprint(spec.name, config, tokenizer, read_weights(path), options)


def bundled_config(name: str = "fedvlp-tiny") -> dict[str, Any]:
    """Read a bundled CLIP's keyword arguments of open_clip's ``CLIP`` class."""
    return json.loads((BUNDLED[name] / "model.json").read_text(encoding="utf-8"))


def bundled_state_dict(name: str = "fedvlp-tiny") -> dict[str, Tensor]:
    """Read a bundled CLIP's weights in float32, by the names of open_clip's ``CLIP`` class."""
    stored = load_file(BUNDLED[name] / "weights.safetensors")
    return expand(stored, int(bundled_config(name)["text_cfg"]["vocab_size"]))


def expand(stored: dict[str, Tensor], vocabulary_size: int) -> dict[str, Tensor]:
    """Make a full state dict in float32 from one that stores only trained rows of the vocabulary.

    ``stored`` has ``token_embedding.index`` (the trained rows' numbers) and ``token_embedding.rows`` (their values)
    instead of ``token_embedding.weight``. Words that no caption used are random as before training, from N(0, 0.02).
    """
    state = {name: tensor.float() for name, tensor in stored.items() if not name.startswith("token_embedding.")}
    rows = stored["token_embedding.rows"].float()
    # Captions used few of the vocabulary's 49,408 rows, and the package contains only these.
    generator = torch.Generator().manual_seed(0)
    weight = 0.02 * torch.randn(vocabulary_size, rows.shape[1], generator=generator)
    weight[stored["token_embedding.index"].long()] = rows
    state["token_embedding.weight"] = weight
    return state


# Making it takes longer than the rest of a small CLIP, and it never changes.
@cache
def _bundled_tokenizer(context_length: int) -> Tokenizer:
    return open_clip.SimpleTokenizer(context_length=context_length)


def _resolve_described(spec: CLIPSpec) -> Blueprint:
    path = None if spec.pretrained == "auto" else _weights_path(spec, tags=[])
    is_on_hub = spec.name.startswith(HUB_PREFIX)
    source = spec.name.removeprefix(HUB_PREFIX).removeprefix(FOLDER_PREFIX)
    if path is not None and read_neighbour_config(path) is not None:
        folder = path.parent
    elif is_on_hub:
        folder = hub_folder(source, HF_CONFIG_NAME, lambda candidate: (candidate / HF_CONFIG_NAME).is_file())
    else:
        folder = Path(source).expanduser()
    description = read_neighbour_config(folder / HF_CONFIG_NAME) or {}
    config: dict[str, Any] = description.get("model_cfg") or {}
    missing = ""
    if not isinstance(config, dict) or not all(isinstance(config.get(key), dict) for key in ("vision_cfg", "text_cfg")):
        missing = f"{HF_CONFIG_NAME} with a model_cfg of vision_cfg and text_cfg"
    # Random weights and a local file need only the description.
    elif spec.pretrained == "auto":
        path = find_weights(folder) or (hub_weights(source) if is_on_hub else None)
        missing = "" if path else "weights"
    if missing:
        raise UserError(
            f"Expected a CLIP in the folder {folder}, but it has no {missing}. It should hold {HF_CONFIG_NAME} and the "
            f"weights as one of {', '.join(WEIGHT_SUFFIXES)}. If the config names a tokenizer or an encoder of Hugging "
            "Face, it also needs their tokenizer.json and config.json."
        )
    options = _transform_options(description, config, spec.name)
    weights = read_weights(path) if path else None
    return Blueprint(spec.name, config, load_tokenizer(config, folder), weights, options, folder)


def _resolve_registered(spec: CLIPSpec) -> Blueprint:
    name = spec.name.replace("/", "-")
    config = _registered_config(spec.name)
    path = _weights_path(spec, tags=open_clip.list_pretrained_tags_by_model(name))
    folder = None if path is None else path.parent
    tag = spec.tag
    if path is None and spec.pretrained not in (None, "random"):
        tag = "openai" if spec.pretrained == "auto" else str(spec.pretrained).lower().replace("-", "_")
        path = fetch_weights(name, tag)
    if path is None:
        return Blueprint(spec.name, config, load_tokenizer(config, folder), None)
    weights = read_weights(path)
    description = read_neighbour_config(path)
    # A wrong activation or transform raises no error but costs accuracy.
    if tag is not None:
        options = published_weights(name)[tag]
    elif description is not None:
        options = _transform_options(description, config, str(path))
        options["quick_gelu"] = description.get("model_cfg", {}).get("quick_gelu", False)
    else:
        options = assume_options(name, path, weights, config.get("quick_gelu", False))
    config["quick_gelu"] = config.get("quick_gelu", False) or options.get("quick_gelu", False)
    return Blueprint(spec.name, config, load_tokenizer(config, folder), weights, options, folder)


def _registered_config(spelling: str) -> dict[str, Any]:
    name = spelling.replace("/", "-")
    registered = open_clip.list_models()
    # Some names in open_clip's list have the suffix. For others it only changes the activation.
    base = name if name in registered else name.removesuffix(QUICK_GELU_SUFFIX)
    if base not in registered:
        near = nearest_names(name, [*BUNDLED, *registered], count=len(registered), cutoff=0.2)
        near.sort(key=lambda other: len(_words(other) - _words(name)) - len(_words(other) & _words(name)))
        raise UserError(
            f"There is no CLIP named '{spelling}'. Nearest: {', '.join(near[:3]) or 'none'}. Use one of "
            f"{', '.join(BUNDLED)}, a name of open_clip.list_models(), {FOLDER_PREFIX}/path/to/folder, or {HUB_PREFIX}"
            f"{spelling if '/' in spelling else 'organisation/model'} for a repository that has an {HF_CONFIG_NAME}."
        )
    config: dict[str, Any] = open_clip.get_model_config(base)
    if name.endswith(QUICK_GELU_SUFFIX):
        config["quick_gelu"] = True
    return config


def _words(name: str) -> set[str]:
    """Split a name in open_clip's or Hugging Face's spelling (`clip-vit-base-patch16`) into parts to compare."""
    name = re.sub("(?<=b)ase|(?<=l)arge|(?<=h)uge", "", name.lower()).replace("multilingual", "i18n")
    return set(re.findall(r"[a-z]+|\d+m?", name))


def _transform_options(description: dict[str, Any], config: dict[str, Any], origin: str) -> dict[str, Any]:
    """Read the transform's options from an `open_clip_config.json`; raise UserError for unsupported options."""
    options: dict[str, Any] = merge_preprocess_dict({}, description.get("preprocess_cfg", {}))
    problem = ""
    try:  # lists in JSON, and part of the fingerprint
        options |= {name: tuple(map(float, options[name])) for name in ("mean", "std") if name in options}
    except (TypeError, ValueError):
        problem = f"mean {options.get('mean')} and std {options.get('std')}; expected lists of numbers"
    model_size = config["vision_cfg"].get("image_size", 224)  # open_clip's own default
    size = options.pop("size", None) or model_size
    if size not in (model_size, [model_size, model_size]):
        problem = f"size {size!r}; expected {model_size}, the size of the model's images"
    # open_clip would silently replace any other interpolation by bicubic.
    valid = {"mode": ("RGB",), "interpolation": ("bicubic", "bilinear")}
    valid["resize_mode"] = ("shortest", "longest", "squash")
    for name, values in valid.items():
        if options.get(name, values[0]) not in values:
            problem = f"{name} {options[name]!r}; expected {' or '.join(values)}"
    if problem:
        raise UserError(
            f"The preprocess_cfg of {origin} has {problem}. Set --model.clip.name to the architecture of these "
            "weights, or correct the file."
        )
    return options


def _weights_path(spec: CLIPSpec, tags: list[str]) -> Path | None:
    """Find the local file of a spec; None for random weights and published tags; raise UserError for other names."""
    pretrained = spec.pretrained
    if pretrained in (None, "random"):
        return None
    tag = "openai" if pretrained == "auto" else str(pretrained).lower().replace("-", "_")
    if tag in tags:
        return None
    path = Path(str(pretrained)).expanduser()
    # A misspelt tag must not be reported as a missing file, so a path must look like one.
    if pretrained != "auto" and (path.suffix in WEIGHT_SUFFIXES or path.exists() or len(path.parts) > 1):
        return path
    missing = "no weights by OpenAI" if pretrained == "auto" else f"no weights '{pretrained}'"
    raise UserError(
        f"There are {missing} for {spec.name}. Give --model.clip.pretrained one of: "
        f"{', '.join([*tags, 'random', 'the path of a weights file'])}."
    )


class shapes_only(TorchFunctionMode):  # noqa: N801, a context manager
    """Fill new weights with zeros if they are overwritten or only counted; drawing random numbers takes seconds."""

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, arguments: Any = (), options: dict[str, Any] | None = None
    ) -> Any:
        options = options or {}
        fills = {"kaiming_normal_", "kaiming_uniform_", "normal_", "trunc_normal_", "uniform_"}
        if function.__name__ not in fills:
            return function(*arguments, **options)
        with torch.no_grad():
            return (arguments[0] if arguments else options["tensor"]).zero_()


def build_model(config: dict[str, Any], seed: int = 0, folder: Path | None = None) -> nn.Module:
    """Build an open_clip model with random weights; global random generators keep their states.

    Raises UserError if the config has a wrong entry, or its text encoder's config is not available.

    Args:
        config: open_clip's model config: `embed_dim`, `vision_cfg`, `text_cfg`, optionally `quick_gelu`, `custom_text`.
        seed: Seed of the weights.
        folder: Folder that is searched before the hub for the config of a Hugging Face text encoder.
    """
    options = deepcopy(config)
    vision = options["vision_cfg"]
    text = options["text_cfg"]
    # CoCa has a CLIP's two towers. Its third tower, which writes captions, is not built.
    is_coca = options.pop("multimodal_cfg", None) is not None
    # open_clip's factory would add its own transform and tokenizer, so its classes are called directly.
    is_custom = options.pop("custom_text", False) or is_coca or "hf_model_name" in text
    if is_coca:
        # Only its decoder reads tokens in addition to the features.
        vision["output_tokens"] = False
        text["output_tokens"] = False
    # Otherwise the towers' own weights would be downloaded, only to be overwritten.
    if "timm_model_name" in vision:
        vision["timm_model_pretrained"] = False
    if text.get("hf_model_name"):
        text["hf_model_name"] = str(find_encoder(text["hf_model_name"], folder))
        text["hf_model_pretrained"] = False
    # open_clip draws from the global generator, but a run's random numbers must not depend on how its CLIP was loaded.
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        try:
            model: nn.Module = (open_clip.CustomTextCLIP if is_custom else open_clip.CLIP)(**options)
        # open_clip does not check a config, so a wrong entry raises one of many exception types.
        except (AssertionError, AttributeError, TypeError, ValueError, ZeroDivisionError) as error:
            raise UserError(
                f"The model_cfg{f' in {folder / HF_CONFIG_NAME}' if folder else ''} describes no CLIP of open_clip "
                f"{open_clip.__version__} ({error}). Correct or remove that entry, or update open_clip_torch."
            ) from error
    # An encoder's config may ask for half precision.
    return model.float()


def install_weights(model: nn.Module, blueprint: Blueprint, origin: str) -> None:
    """Load a blueprint's weights into a model, cast to the model's types; ``origin`` names them in messages.

    Raises UserError if the weights belong to another architecture.
    """
    if any(name.startswith(("vision_model.", "text_model.")) for name in blueprint.weights or {}):
        raise UserError(
            f"Expected open_clip's tensor names in the weights '{origin}', but they have transformers' names. Rename "
            "them as 'Which CLIP' in the documentation shows, or use published weights, such as ViT-B-16 with the tag "
            "openai."
        )
    # Convert OpenAI's and other published tensor names to open_clip's.
    state: dict[str, Tensor] = convert_state_dict(model, dict(blueprint.weights or {}))
    # The file holds a `CLIP`, but the model is a `CustomTextCLIP`, which has a separate text module.
    if "positional_embedding" in state and not hasattr(model, "positional_embedding"):
        state = convert_to_custom_text_state_dict(state)
    expected = model.state_dict()
    if "logit_bias" in expected and "logit_scale" in state:
        # A softmax over classes does not depend on it. open_clip also uses 0 if a file has none.
        state.setdefault("logit_bias", torch.zeros_like(state["logit_scale"]))
    for name in ("logit_scale", "logit_bias"):
        if name in state and name in expected:  # a scalar in some files, a list of one number in others
            state[name] = state[name].reshape(expected[name].shape)
    state = {name: value for name, value in state.items() if name in expected or not _is_not_a_weight(name)}
    try:
        model.load_state_dict(state)
    except RuntimeError as error:  # PyTorch names every tensor that is missing, unexpected or has another shape
        raise UserError(
            f"The weights '{origin}' do not fit {blueprint.name}: {' '.join(str(error).split()):.500}. "
            "Set --model.clip.name to the architecture that they were trained with."
        ) from error


def _is_not_a_weight(name: str) -> bool:
    # Buffers that only some versions of open_clip and transformers save, and sizes in OpenAI's archives.
    buffers = ("position_ids", "attn_mask", "num_batches_tracked", "embed_positions.weights")
    sizes = ("input_resolution", "context_length", "vocab_size")
    # CoCa's third tower writes captions.
    return name.endswith((*buffers, *sizes)) or name.startswith("text_decoder.")
