"""The frozen CLIP on which everything else stands: two towers of an open_clip model, its transforms, its tokenizer."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterable
from copy import deepcopy
from typing import Any, cast

import open_clip
import torch
from jaxtyping import Float, Int
from open_clip.convert import convert_state_dict
from open_clip.model import convert_to_custom_text_state_dict
from open_clip.transform import PreprocessCfg
from PIL import Image
from torch import Tensor, nn

from fedvlp.clip.loading.sources import Blueprint, CLIPSpec, Tokenizer, resolve
from fedvlp.clip.loading.transforms import evaluation_transform, training_transform
from fedvlp.clip.towers.blocks import Blocks
from fedvlp.clip.towers.image_tower import ImageTower
from fedvlp.clip.towers.text_tower import TextTower
from fedvlp.utils.errors import UserError


class CLIP(nn.Module):
    """A frozen CLIP: always in evaluation mode, without gradients of its own, and absent from every state dict.

    Args:
        model: An open_clip `CLIP` or `CustomTextCLIP`; frozen here.
        tokenizer: From texts to token ids [N, context].
        config: open_clip's model config, part of the fingerprint.
        preprocess: Options of the evaluation transform, by open_clip's names; CLIP's own where absent.
        spec: Name and weights by which it was asked for.
    """

    preprocess: Callable[[Image.Image], Tensor]
    train_preprocess: Callable[[Image.Image], Tensor]

    def __init__(
        self,
        model: nn.Module,
        tokenizer: Tokenizer,
        config: dict[str, Any],
        *,
        preprocess: dict[str, Any] | None = None,
        spec: CLIPSpec | None = None,
    ) -> None:
        super().__init__()
        self.spec, self.config = spec or CLIPSpec(name="custom"), config
        self.model = model.requires_grad_(False).eval()
        self.tokenizer = tokenizer
        towers = cast(Any, self.model)
        visual = ImageTower(towers.visual)
        self.image_size, self.image_width, self.num_image_tokens = visual.image_size, visual.width, visual.num_tokens
        options = {key: value for key, value in (preprocess or {}).items() if key in PreprocessCfg.__annotations__}
        self.preprocess_options = PreprocessCfg(**{**options, "size": self.image_size})
        self.preprocess = evaluation_transform(self.preprocess_options)
        self.train_preprocess = training_transform(self.preprocess_options)
        self.embed_dim = int(config["embed_dim"])
        self.context_length = int(towers.context_length)
        self.logit_scale = float(towers.logit_scale.exp())
        if self.spec.prepack:
            for blocks in self._towers():
                blocks.pack()
        self._fingerprint: str | None = None
        self._state_prefix = ""
        self.register_load_state_dict_post_hook(_forget_missing)  # type: ignore[no-untyped-call]

    @property
    def text(self) -> TextTower:
        """The text tower, fed with embeddings; refused where prompts cannot be learned in it."""
        return TextTower(self.model)

    @property
    def text_width(self) -> int:
        """D, the width of a text token and of a prompt's vectors."""
        return self.text.width

    def encode_image(self, images: Float[Tensor, "B 3 height width"]) -> Float[Tensor, "B d"]:
        """Returns joint image features f(x), not normalised."""
        return ImageTower(cast(nn.Module, self.model.visual)).features(images)

    def encode_image_tokens(
        self, images: Float[Tensor, "B 3 height width"]
    ) -> tuple[Float[Tensor, "B d"], Float[Tensor, "B P W"]]:
        """Returns joint image features f(x), not normalised, and the image's tokens x_0 .. x_N.

        A ViT's tokens are the output of its last block, CLS first, before `ln_post`. A ResNet's are the pixels of its
        last feature map behind their mean, in which order its attention pool reads them, without positions.
        """
        return ImageTower(cast(nn.Module, self.model.visual)).encode(images)

    def encode_text(self, token_ids: Int[Tensor, "N context"]) -> Float[Tensor, "N d"]:
        """Returns joint text features of tokenised texts, not normalised."""
        features: Tensor = cast(Any, self.model).encode_text(token_ids)
        return features

    def tokenize(self, texts: Iterable[str]) -> list[list[int]]:
        """Returns each text's token ids, from the start token through the end token, without padding."""
        return self.text.trim(self.tokenizer(list(texts)))

    def compile_towers(self) -> None:
        """Lets ``torch.compile`` fuse what prompts go through, when it is first used.

        Raises:
            UserError: If there is no compiler.
        """
        found = [name for name in ("c++", "g++", "clang++", "cl") if shutil.which(name)]
        if not found:
            raise UserError(
                "Towers are compiled by a C++ compiler, but none was found (c++, g++, clang++ or cl). "
                "Install one, or leave out --trainer.compile."
            )
        for blocks in self._towers():
            blocks.compile()

    def fingerprint(self) -> str:
        """Returns 16 hexadecimal digits that stand for architecture, transform and weights together."""
        if self._fingerprint is None:
            digest = hashlib.sha256(json.dumps(self.config, sort_keys=True, default=str).encode())
            digest.update(repr(self.preprocess_options).encode())
            for name, tensor in sorted(self.model.state_dict().items()):
                values = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
                digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
                digest.update(values.numpy().data)
            self._fingerprint = digest.hexdigest()[:16]
        return self._fingerprint

    def _apply(self, fn: Any, recurse: bool = True) -> CLIP:
        """Forgets packed weights where weights move."""
        for blocks in self._towers():
            blocks.forget()
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return self

    def _towers(self) -> list[Blocks]:
        """Returns the blocks of those towers that are transformers."""
        towers = (getattr(self.model, "text", self.model), self.model.visual)
        found = (getattr(tower, "transformer", None) for tower in towers)
        return [Blocks(transformer) for transformer in found if transformer is not None]

    def train(self, mode: bool = True) -> CLIP:
        """Stays in evaluation mode."""
        return super().train(False)

    def state_dict(self, *args: Any, destination: Any = None, prefix: str = "", keep_vars: bool = False) -> Any:
        """Returns nothing of its own: a frozen CLIP is named in a config, never saved."""
        return {} if destination is None else destination

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        self._state_prefix = prefix
        super()._load_from_state_dict(state_dict, prefix, *args)


def load_clip(spec: CLIPSpec | str | dict[str, Any] | CLIP) -> CLIP:
    """Returns the frozen CLIP that a spec, or a name with its default weights, asks for.

    A CLIP that was loaded before is returned as it is, so that several modules can share it.

    Raises:
        UserError: If the name or the weights are unknown, missing, unfit or cannot be downloaded.
    """
    if isinstance(spec, CLIP):
        return spec
    wanted = CLIPSpec(name=spec) if isinstance(spec, str) else CLIPSpec(**spec) if isinstance(spec, dict) else spec
    blueprint = resolve(wanted)
    model = build_model(blueprint.config, seed=wanted.seed)
    if blueprint.weights is not None:
        _install(model, blueprint, str(wanted.pretrained))
    return CLIP(
        model,
        blueprint.tokenizer,
        blueprint.config,
        preprocess=blueprint.preprocess,
        spec=wanted,
    )


def build_model(config: dict[str, Any], seed: int = 0) -> nn.Module:
    """Returns an open_clip model with random weights, leaving every global generator as it was.

    Args:
        config: open_clip's model config: `embed_dim`, `vision_cfg`, `text_cfg` and perhaps `quick_gelu`, `custom_text`.
        seed: Seed of the weights.

    Raises:
        UserError: If the architecture is one in which prompts cannot be learned.
    """
    options = deepcopy(config)
    custom = options.pop("custom_text", False)
    if "multimodal_cfg" in options or options["text_cfg"].get("hf_model_name"):
        raise UserError(
            "Prompts are learned in CLIP's own text transformer, but this model has a text tower of another library or "
            "a caption decoder. Choose another --model.clip.name, for example ViT-B-16."
        )
    if "timm_model_name" in options["vision_cfg"]:
        options["vision_cfg"]["timm_model_pretrained"] = False
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        model: nn.Module = (open_clip.CustomTextCLIP if custom else open_clip.CLIP)(**options)
    return model


def _install(model: nn.Module, blueprint: Blueprint, origin: str) -> None:
    """Puts weights into a model, in float32, refusing those of another architecture."""
    state: dict[str, Tensor] = convert_state_dict(model, dict(blueprint.weights or {}))
    if "positional_embedding" in state and not hasattr(model, "positional_embedding"):
        state = convert_to_custom_text_state_dict(state)
    own = model.state_dict()
    if "logit_scale" in state:
        state["logit_scale"] = state["logit_scale"].reshape(own["logit_scale"].shape)
    differences = _differences({name: tuple(value.shape) for name, value in own.items()}, state)
    if differences:
        raise UserError(
            f"The weights '{origin}' do not fit {blueprint.name}: {'; '.join(differences[:3])}"
            f"{f'; and {len(differences) - 3} more' if len(differences) > 3 else ''}. "
            "Give --model.clip.name the architecture that they were trained with."
        )
    model.load_state_dict({name: state[name].to(own[name].dtype) for name in own})


def _differences(expected: dict[str, tuple[int, ...]], state: dict[str, Tensor]) -> list[str]:
    """Returns what is missing, unexpected or of another shape, in words."""
    missing = [f"{name} is missing" for name in expected if name not in state]
    shapes = [
        f"{name} has shape {tuple(state[name].shape)} instead of {shape}"
        for name, shape in expected.items()
        if name in state and tuple(state[name].shape) != shape
    ]
    ignored = ("position_ids", "attn_mask", "num_batches_tracked")
    unexpected = [f"{name} is unexpected" for name in state if name not in expected and not name.endswith(ignored)]
    return [*shapes, *missing, *unexpected]


def _forget_missing(clip: nn.Module, incompatible: Any) -> None:
    """Takes the frozen weights off the list of keys that a state dict lacks."""
    prefix = f"{clip._state_prefix}model."
    incompatible.missing_keys[:] = [key for key in incompatible.missing_keys if not key.startswith(prefix)]
