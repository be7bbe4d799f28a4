"""Shared parts of methods that train CLIP's image tower: the copied tower, its classifier, its learning rates."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any, Literal, cast

import torch
import torch.nn.functional as F
from jaxtyping import Float
from lightning.pytorch.cli import OptimizerCallable
from open_clip.timm_model import TimmModel
from timm.models import group_parameters
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedvlp.clip import CLIP, CLIPSpec, cosine_logits, zero_shot_text_features
from fedvlp.clip.blocks import Between
from fedvlp.clip.image_towers import VisionTransformerTower, make_image_tower
from fedvlp.clip.prompted_image import run_before_last_block
from fedvlp.core.phases import Phase, RoundContext
from fedvlp.core.protocols import Inputs
from fedvlp.core.slots import Slots
from fedvlp.core.state import State, matches_prefix, select
from fedvlp.core.strategies import FedAvg
from fedvlp.methods.client_statistics import ClientStatistics, positions
from fedvlp.methods.prompts import PromptLearner
from fedvlp.utils.ranges import FractionAboveZero, Names


class ImageTowerLearner(PromptLearner):
    """Base class of methods that train a float32 copy of CLIP's image tower, and optionally a linear head.

    Subclasses build their losses from ``image_features`` and ``logits``. They can change the pixels, or features inside
    the tower through ``between``. The shared CLIP is frozen. Batch normalisation keeps CLIP's running statistics.
    Papers train ImageNet networks and a linear layer with SGD or Adam; fedvlp trains CLIP's image tower, with CLIP's
    text features by default, and fine-tuning's AdamW, as its rate and decay suit CLIP.

    Args:
        clip: CLIP to copy the tower from; see ``load_clip``. A module passed in is not changed.
        head: Classifier: CLIP's frozen ``text`` features, or a trained ``linear`` layer that starts from them.
        layer_decay: Factor on the learning rate from each layer of a tower to the layer below, in (0, 1].
        optimizer: Factory of the optimizer for a client's local training. Vectors, such as biases, get no weight decay.

    Attributes:
        visual: Trained tower, open_clip's own module; its parameters are named ``visual.<open_clip's name>``.
        image_tower: Wrapper that runs the tower.
        head: Linear classifier; None with the text head.
        text_features: Normalised w_c, neither sent nor saved because every client can compute them.
        statistics: Image statistics that clients send; None if they send none.
    """

    needs_images = True
    text_features: Tensor  # [C, d]

    def __init__(
        self,
        class_names: Names,
        clip: CLIPSpec | CLIP | str = "ViT-B-16",
        head: Literal["text", "linear"] = "text",
        layer_decay: FractionAboveZero = 0.7,
        optimizer: OptimizerCallable = lambda parameters: torch.optim.AdamW(parameters, lr=3e-5, weight_decay=0.1),
    ) -> None:
        super().__init__(class_names, clip, optimizer)
        self.layer_decay = layer_decay
        # Use float32 even if the shared CLIP has a lower precision: bfloat16 would lose small steps.
        self.visual = deepcopy(cast(nn.Module, self.clip.model.visual)).float().requires_grad_(True)
        self.image_tower = make_image_tower(self.visual)
        texts = zero_shot_text_features(self.clip, class_names)
        self.register_buffer("text_features", texts, persistent=False)
        self.head = NormalizedLinear(self.clip.logit_scale * texts) if head == "linear" else None
        self.statistics: ClientStatistics | None = None

    def share_statistics(self, num_clients: int, shape: Sequence[int], renewed: bool = True) -> None:
        """Let clients send image statistics after training; arguments as in :class:`.ClientStatistics`."""
        self.statistics = ClientStatistics(num_clients, shape, renewed)
        self.train_only_personal = ("statistics.own", "statistics.images_seen")
        self.image_statistics = ("statistics.clients",)

    def image_features(self, images: Float[Tensor, "B 3 V V"], between: Sequence[Between] = ()) -> Float[Tensor, "B d"]:
        """Compute the trained tower's joint features f(x), not normalised.

        Args:
            images: Pixels preprocessed by CLIP's transform.
            between: `between[j]` changes the output of stage j + 1. A ViT's stage is a block with tokens [B, P, W].
                ResNets and ConvNeXts have four stages with feature maps [B, channels, height, width].
        """
        return self.image_tower.features(images, between)

    def logits(self, features: Float[Tensor, "B d"]) -> Float[Tensor, "B C"]:
        """Compute the logits of features; their lengths do not matter."""
        if self.head is not None:
            return self.head(features)
        return cosine_logits(features, self.text_features, self.clip.logit_scale)

    def forward(self, inputs: Inputs) -> Float[Tensor, "B C"]:
        """Compute the logits of a batch."""
        return self.logits(self.image_features(self.precomputed(inputs)["images"]))

    def configure_phases(self) -> Sequence[Phase]:
        """Describe one phase that trains and averages everything, and with statistics a second phase to send them."""
        tensors = self.communicable_state()  # not the trainable ones: a phase without training turns gradients off
        personal = (*self.personal, *self.train_only_personal)
        trained = tuple(name for name, tensor in tensors.items() if isinstance(tensor, nn.Parameter))
        sent = tuple(name for name in trained if not matches_prefix(personal, name))
        train = Phase("train", self._shorten(trained), self._shorten(sent), FedAvg())
        if self.statistics is None:
            return (train,)
        # The second phase sends the collected statistics and deploys the trained tensors.
        slots = Slots("client", slots=len(self.statistics.clients))
        return (train, Phase("share", (), ("statistics.clients",), slots, download=(), deploy=train.upload))

    def _shorten(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Replace hundreds of names by their first parts, if these select the same tensors."""
        parts = tuple(dict.fromkeys(name.partition(".")[0] for name in names))
        return parts if set(select(self.communicable_state(), parts)) == set(names) else names

    def start_client(self, context: RoundContext) -> None:
        """Prepare for a client's phase."""
        super().start_client(context)
        if self.statistics is not None:
            self.statistics.start_client(context)

    def upload_state(self) -> State:
        """Upload the trained tensors after the first phase, and the statistics after the second."""
        if self.statistics is not None and self.context is not None and self.context.phase.name == "share":
            return {"statistics.clients": self.statistics.own}
        return super().upload_state()

    def parameter_groups(self, trainable: Mapping[str, Tensor]) -> list[Any]:
        """Group the trained parameters by learning rate and weight decay, as :func:`layer_groups` does."""
        return layer_groups(trainable, self.layer_decay, timm_layers("visual", self.visual))

    def configure_optimizers(self) -> torch.optim.Optimizer | None:
        """Create a fresh optimizer with a parameter group per layer; None if nothing is trainable."""
        optimizer = super().configure_optimizers()
        # The optimizer has filled in its learning rate and weight decay; scale them per group.
        for group in optimizer.param_groups if optimizer is not None else ():
            group["lr"] *= group.pop("factor")
            if not group.pop("decays") and "weight_decay" in group:
                group["weight_decay"] = 0.0
        return optimizer

    def train(self, mode: bool = True) -> ImageTowerLearner:
        """Set the training mode, except for batch normalisation, which keeps its statistics frozen."""
        super().train(mode)
        for module in self.visual.modules():
            if isinstance(module, _BatchNorm):
                module.train(False)
        return self

    def num_channels(self, stage: int) -> int:
        """Measure the number of channels W after a stage of the tower; stages count from 1."""
        widths: list[int] = []

        def record_width(features: Tensor) -> Tensor:
            widths.append(positions(features, self.image_tower.num_prefix).shape[2])
            return features

        # Towers do not report the widths of their stages, so run a blank image.
        size = self.clip.image_size
        with torch.no_grad():
            self.image_features(torch.zeros(1, 3, size, size), edit_stage(stage, record_width))
        return widths[0]


def edit_stage(stage: int, change: Between) -> list[Between]:
    """Build the argument `between` that changes the output of one stage, counted from 1."""
    return [nn.Identity()] * (stage - 1) + [change]


class NormalizedLinear(nn.Module):
    """Linear classifier W f / |f| + b that starts from given rows W and b = 0 (Wortsman et al., CVPR 2022, Section 2).

    Args:
        weight: Initial W. Text features times CLIP's logit scale make the classifier equal to zero-shot CLIP.
    """

    def __init__(self, weight: Float[Tensor, "C d"]) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight.detach().clone().float())
        self.bias = nn.Parameter(torch.zeros(len(weight), device=weight.device))

    def forward(self, features: Float[Tensor, "B d"]) -> Float[Tensor, "B C"]:
        """Compute the logits, in float32."""
        with torch.autocast(features.device.type, enabled=False):
            return F.linear(F.normalize(features.float(), dim=-1), self.weight, self.bias)


# "layer", "layers" and "block" occur in Hugging Face's encoders. A method's other networks may use these names, too.
_BLOCK = re.compile(r"\.transformer\.(?:encoder\.)?(?:resblocks|layer|layers|block)\.(\d+)\.")
_STAGE = re.compile(r"\.layer(\d+)\.")
_BOTTOM = {"class_embedding", "positional_embedding", "token_embedding", "ln_pre", "cls_emb"}
_BOTTOM |= {"conv1", "bn1", "conv2", "bn2", "conv3", "bn3"}  # a ResNet's stem
_BOTTOM |= {"embeddings", "embed_tokens"}  # in Hugging Face's encoders


def timm_layers(name: str, visual: nn.Module) -> dict[str, int | None]:
    """Find the layer of each parameter of a timm tower by timm's grouping; empty for other towers.

    Layers count from the bottom: blocks of a ViT, stages of other networks. Parameters of the top have the layer None.
    The top is open_clip's head, or timm's highest layer if the head has no parameters.
    """
    if not isinstance(visual, TimmModel):
        return {}
    trunk: Any = visual.trunk
    layers = group_parameters(trunk, trunk.group_matcher(coarse=True), reverse=True)
    numbers = {f"{name}.trunk.{parameter}": layer for parameter, layer in layers.items()}
    head = 1 + max(layers.values())
    numbers |= {f"{name}.head.{parameter}": head for parameter, _ in visual.head.named_parameters()}
    top = max(numbers.values())
    return {parameter: None if layer == top else layer for parameter, layer in numbers.items()}


def layer_groups(
    parameters: Mapping[str, Tensor], decay: float, layers: Mapping[str, int | None] | None = None
) -> list[dict[str, Any]]:
    """Group parameters by a factor decay^(layers above) on the learning rate; vectors and scalars get no weight decay.

    Each group is an optimizer's parameter group with the entries ``factor`` and ``decays``.

    A tower's layers are its embeddings or stem (layer 0), its blocks or stages, and the layers after them. The top
    layers, classifiers and parameters outside the towers have the factor 1. Names are open_clip's, prefixed by the
    tower's name; ``layers`` overrides the layers inferred from names.

    >>> import torch
    >>> names = ["visual.conv1.weight", "visual.transformer.resblocks.0.ln_1.bias", "visual.proj"]
    >>> groups = layer_groups({name: torch.zeros(2, 2) for name in names}, decay=0.5)
    >>> [(group["factor"], group["decays"]) for group in groups]
    [(0.25, True), (0.5, True), (1.0, True)]
    """
    # The top of each tower is one layer above its highest block.
    tops: dict[str, int] = {}
    depths = {name: _depth(name) for name in parameters} | dict(layers or {})
    for name in parameters:
        tower = name.partition(".")[0]
        tops[tower] = max(tops.get(tower, 0), 1 + (depths[name] or 0))
    groups: dict[tuple[float, bool], list[Tensor]] = {}
    for name, parameter in parameters.items():
        depth = depths[name]
        factor = 1.0 if depth is None else decay ** (tops[name.partition(".")[0]] - depth)
        groups.setdefault((factor, parameter.ndim > 1), []).append(parameter)
    return [{"params": params, "factor": factor, "decays": decays} for (factor, decays), params in groups.items()]


def _depth(name: str) -> int | None:
    """Infer a parameter's layer, counted from the bottom of its tower; None at the top or outside the towers."""
    if block := _BLOCK.search(name):
        return 1 + int(block[1])
    if stage := _STAGE.search(name):
        return int(stage[1])
    parts = set(name.split("."))
    # A ResNet's attention pool also has a positional embedding, but is at the top.
    return 0 if parts & _BOTTOM and "attnpool" not in parts else None


def prompted_features(
    tower: VisionTransformerTower, images: Float[Tensor, "B 3 V V"], prompts: Sequence[Float[Tensor, "B L W"]]
) -> Float[Tensor, "B d"]:
    """Compute joint features, not normalised, of `[image tokens][prompt]`, differentiable in every input.

    Args:
        tower: Image tower; its weights may be trained.
        images: Pixels preprocessed by CLIP's transform.
        prompts: Prompts of the first blocks. The first is inserted before `ln_pre`, without positions. Each other
            prompt replaces the prompt tokens before its block. Later blocks keep the tokens of the block before.
    """
    hidden = run_before_last_block(tower, images, prompts)  # [B, P + L, W]
    hidden = tower.blocks.run(len(tower.blocks) - 1, hidden)
    return tower.pool(hidden[:, tower.read])
