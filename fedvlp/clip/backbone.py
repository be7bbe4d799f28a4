"""The frozen CLIP of all methods: the two towers of an open_clip model, its transforms and its tokenizer."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import Any, cast

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from open_clip.transform import AugmentationCfg, PreprocessCfg, image_transform_v2
from torch import Tensor, nn
from torchvision.transforms import Compose, RandomHorizontalFlip

from fedvlp.clip.blocks import Blocks
from fedvlp.clip.hugging_face import tokenizer_content
from fedvlp.clip.image_towers import ImageTower, make_image_tower
from fedvlp.clip.loading import CLIPSpec, ImageTransform, build_model, install_weights, resolve, shapes_only
from fedvlp.clip.text_towers import make_text_tower
from fedvlp.clip.tokens import Tokenizer, TokenLayout
from fedvlp.utils.errors import UserError


class CLIP(nn.Module):
    """A frozen CLIP, always in evaluation mode. Its weights have no gradients and are absent from every state dict.

    Args:
        model: An open_clip `CLIP` or `CustomTextCLIP`, which the constructor freezes.
        tokenizer: Maps texts to token ids [texts, context].
        config: open_clip's model config, part of the fingerprint.
        preprocess: Options of the evaluation transform, by open_clip's names; missing options get CLIP's own values.
        spec: Name and weights that were requested.

    Attributes:
        image: The image tower. Modules that share a CLIP read this and `text` at each use and store neither, since a
            copy of the CLIP has its own towers.
        text: The text tower, which takes embeddings.
        text_width: D, the width of a text token and of a prompt's vectors.
        logit_scale: The factor from cosines to logits.
    """

    image: ImageTower
    preprocess: ImageTransform
    train_preprocess: ImageTransform

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
        self.spec = spec or CLIPSpec(name="custom")
        self.config = config
        self.model = model.requires_grad_(False).eval()
        self.tokenizer = tokenizer
        self.token_layout = TokenLayout.from_tokenizer(tokenizer)
        # The towers are not modules, so that weights are listed only once, under `model`.
        self.image = make_image_tower(cast(nn.Module, model.visual))
        self.text = make_text_tower(model, self.token_layout)
        self.image_size = self.image.image_size
        self.image_width = self.image.width
        self.num_image_tokens = self.image.num_tokens
        self.text_width = self.text.width
        self.embed_dim = int(config["embed_dim"])
        self.context_length = self.token_layout.context_length
        # Some models store a list of one number.
        self.logit_scale = float(cast(Any, model).logit_scale.exp())
        # Published tags also have keys that are not options of the transform, such as their URL.
        options = {key: value for key, value in (preprocess or {}).items() if key in PreprocessCfg.__annotations__}
        self.preprocess_options = PreprocessCfg(**{**options, "size": self.image_size})
        # CLIP's own: bicubic resize of the shorter side, centre crop, RGB, CLIP's mean and standard deviation.
        self.preprocess = image_transform_v2(self.preprocess_options, is_train=False)
        # CoOp's augmentation: mirrors half of the images and takes a bicubic crop of 8 to 100 % of the area.
        crop = AugmentationCfg(scale=(0.08, 1.0))
        augmented = image_transform_v2(self.preprocess_options, is_train=True, aug_cfg=crop)
        self.train_preprocess = Compose([RandomHorizontalFlip(), augmented])
        for transform in (self.preprocess, self.train_preprocess):
            cast(Any, transform).intensity = self.spec.intensity  # for reading image files
        self._fingerprint: str | None = None
        # `state_dict` is empty, so loading must not report the frozen weights as missing.
        self.register_load_state_dict_post_hook(_forget_missing)  # type: ignore[no-untyped-call]

    def encode_image(self, images: Float[Tensor, "B 3 V V"]) -> Float[Tensor, "B d"]:
        """Compute joint image features f(x), not normalised."""
        return self.image.features(images)

    def encode_image_tokens(
        self, images: Float[Tensor, "B 3 V V"]
    ) -> tuple[Float[Tensor, "B d"], Float[Tensor, "B P W"]]:
        """Compute joint image features f(x), not normalised, and the image's tokens x_0 .. x_N.

        A ViT's tokens are the output of its last block before the last normalisation. The first `image.num_prefix`
        tokens are not patches: a class token, if there is one, and registers. A ResNet's tokens are the mean of its
        last feature map's pixels, then the pixels, in its attention pool's order and without positions.
        """
        return self.image.encode(images)

    def encode_text(self, token_ids: Int[Tensor, "texts context"]) -> Float[Tensor, "texts d"]:
        """Compute joint text features of tokenised strings by open_clip's own forward pass, not normalised."""
        # CoCa normalises by default.
        return cast(Any, self.model).encode_text(token_ids, normalize=False)

    def tokenize(self, texts: Iterable[str]) -> list[list[int]]:
        """Tokenize whole texts, from start to end token, without padding; they may be longer than the context."""
        # With the model's own context length, the tokenizer would silently truncate long texts.
        padded = self.tokenizer(list(texts), context_length=2 * self.context_length)
        return [self.token_layout.trim(ids) for ids in padded.tolist()]

    def cast_towers(self, dtype: torch.dtype) -> None:
        """Round the large weights of both transformers to a data type, once, and compute their products in it.

        Tokens, normalisations and projections stay in float32, and so do towers that are not CLIP's own kind. The
        fingerprint does not change. Rounded weights raise UserError for `torch.float32`.
        """
        is_cast = any(blocks.is_cast for blocks in self._transformers)
        if dtype == torch.float32 and is_cast:
            raise UserError(
                "The weights of this CLIP were rounded to bfloat16 for a run in bf16-mixed, so no other precision can "
                "use them. Load it again with load_clip, or use bf16-mixed."
            )
        if dtype == torch.float32 or is_cast:
            return
        # The feature cache uses it in its keys, so rounding must not change it.
        self.fingerprint()
        for blocks in self._transformers:
            blocks.cast(dtype)

    def fingerprint(self) -> str:
        """Compute 16 hexadecimal digits that identify architecture, transform, tokenizer and weights together."""
        if self._fingerprint is None:
            digest = hashlib.sha256(json.dumps(self.config, sort_keys=True, default=str).encode())
            digest.update(repr(self.preprocess_options).encode())
            digest.update(tokenizer_content(self.tokenizer))
            # Names, shapes and types are hashed as well, so that equal bytes in a different layout differ.
            for name, tensor in sorted(self.model.state_dict().items()):
                values = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
                digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
                digest.update(values.numpy().data)
            self._fingerprint = digest.hexdigest()[:16]
        return self._fingerprint

    @property
    def _transformers(self) -> list[Blocks]:
        return [blocks for blocks in (self.text.blocks, self.image.blocks) if blocks is not None]

    # A method's `train()` also calls its CLIP's, but dropout and batch statistics must stay off.
    def train(self, mode: bool = True) -> CLIP:
        """Stay in evaluation mode."""
        return super().train(False)

    def state_dict(self, *args: Any, destination: Any = None, prefix: str = "", keep_vars: bool = False) -> Any:
        """Add nothing, since a frozen CLIP is named in a config and never saved."""
        return {} if destination is None else destination


def load_clip(spec: CLIPSpec | str | dict[str, Any] | CLIP) -> CLIP:
    """Load the frozen CLIP of a spec, or of a name with its default weights.

    A loaded CLIP is returned unchanged, so that several modules can share it. Raises UserError if the name or the
    weights are unknown, missing, do not fit or cannot be downloaded.

    >>> load_clip("fedvlp-tiny").text_width
    64
    """
    if isinstance(spec, CLIP):
        return spec
    if isinstance(spec, str):
        spec = CLIPSpec(name=spec)
    elif isinstance(spec, dict):
        spec = CLIPSpec(**spec)
    blueprint = resolve(spec)
    if blueprint.weights is None:
        model = build_model(blueprint.config, spec.seed, blueprint.folder)
    else:
        with shapes_only():
            model = build_model(blueprint.config, folder=blueprint.folder)
        install_weights(model, blueprint, str(spec.pretrained))
    return CLIP(model, blueprint.tokenizer, blueprint.config, preprocess=blueprint.preprocess, spec=spec)


def _forget_missing(clip: nn.Module, incompatible: Any) -> None:
    # Keys start with the CLIP's path in the loaded module, so only their ends are compared.
    frozen = tuple(f"model.{name}" for name in cast(CLIP, clip).model.state_dict())
    incompatible.missing_keys[:] = [key for key in incompatible.missing_keys if not key.endswith(frozen)]


def cosine_logits(
    image_features: Float[Tensor, "B d"], text_features: Float[Tensor, "C d"] | Float[Tensor, "B C d"], scale: float
) -> Float[Tensor, "B C"]:
    """Compute CLIP's logits in float32: `scale` (1 / tau) times the cosine of each image and each class.

    Args:
        image_features: f(x), of any norm.
        text_features: w_c, of any norm: one set for all images, or one set for each image.
        scale: CLIP's logit scale, 100 for OpenAI's models.

    >>> cosine_logits(torch.tensor([[3.0, 4.0]]), torch.tensor([[1.0, 0.0], [0.0, 2.0]]), scale=10.0)
    tensor([[6., 8.]])
    """
    with torch.autocast(image_features.device.type, enabled=False):
        images = F.normalize(image_features.float(), dim=-1)
        texts = F.normalize(text_features.float(), dim=-1)
        if texts.ndim == 2:
            return scale * images @ texts.T
        return scale * torch.einsum("bd,bcd->bc", images, texts)
