"""What methods have in common that train CLIP's image tower itself: a copy of it, its classifier, its rates."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
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
    """Trains a copy of CLIP's image tower, in float32, and perhaps a classifier on it; the shared CLIP is frozen.

    A subclass has ``image_features`` and ``logits`` for its losses, and changes pixels before the one, or what is
    inside the tower by its argument ``between``. Batch normalisation keeps CLIP's own running statistics.
    Papers train other networks, by SGD or Adam; here all have fine-tuning's AdamW, whose rate and decay suit CLIP.

    Args:
        clip: The CLIP that is trained: see ``load_clip``; the one passed in is not changed.
        head: What classifies: CLIP's frozen text features (``text``), or a trained linear layer that starts from them
            (``linear``).
        layer_decay: Factor on the learning rate from each layer of a tower to the one below it, in (0, 1].
        optimizer: Makes the optimizer of a client's local training. Vectors, such as biases, get no weight decay.

    Attributes:
        visual: the trained tower, open_clip's own module; its parameters are named ``visual.<open_clip's name>``.
        image_tower: how it is run.
        head: the linear classifier; None with the text head.
        text_features: w_c, normalised; neither sent nor saved, as every client can compute them.
        statistics: what clients send of their images; None where they send none.
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
        # In float32 whatever the shared CLIP was rounded to: small steps would be lost in bfloat16.
        self.visual = deepcopy(cast(nn.Module, self.clip.model.visual)).float().requires_grad_(True)
        self.image_tower = make_image_tower(self.visual)
        texts = zero_shot_text_features(self.clip, class_names)
        self.register_buffer("text_features", texts, persistent=False)
        self.head = NormalizedLinear(self.clip.logit_scale * texts) if head == "linear" else None
        self.statistics: ClientStatistics | None = None

    def share_statistics(self, num_clients: int, shape: Sequence[int], renewed: bool = True) -> None:
        """Let clients send statistics of their images after training; arguments as of :class:`.ClientStatistics`."""
        self.statistics = ClientStatistics(num_clients, shape, renewed)
        self.train_only_personal = ("statistics.own", "statistics.images_seen")
        self.image_statistics = ("statistics.clients",)

    def image_features(self, images: Float[Tensor, "B 3 V V"], between: Sequence[Between] = ()) -> Float[Tensor, "B d"]:
        """Compute the trained tower's joint features f(x), not normalised.

        Args:
            images: Pixels, as CLIP's transform puts them out.
            between: `between[j]` changes what stage j + 1 of the tower puts out: the tokens [B, P, W] of a ViT's block,
                or the feature map [B, channels, height, width] of one of the four stages of a ResNet or ConvNeXt.
        """
        return self.image_tower.features(images, between)

    def logits(self, features: Float[Tensor, "B d"]) -> Float[Tensor, "B C"]:
        """Compute the logits of features, of which only the direction counts."""
        if self.head is not None:
            classified: Tensor = self.head(features)
            return classified
        return cosine_logits(features, self.text_features, self.clip.logit_scale)

    def forward(self, inputs: Inputs) -> Float[Tensor, "B C"]:
        """Compute the logits of a batch."""
        return self.logits(self.image_features(self.precomputed(inputs)["images"]))

    def configure_phases(self) -> Sequence[Phase]:
        """Return one phase that trains and averages all; with statistics, a second one that sends these."""
        tensors = self.communicable_state()  # gradients are off in a phase that trains nothing
        kept = (*self.personal, *self.train_only_personal)
        trained = tuple(name for name, tensor in tensors.items() if isinstance(tensor, nn.Parameter))
        sent = tuple(name for name in trained if not matches_prefix(kept, name))
        train = Phase("train", self._shortened(trained), self._shortened(sent), FedAvg())
        if self.statistics is None:
            return (train,)
        # The phase after training sends what was collected and deploys what was trained.
        slots = Slots("client", slots=len(self.statistics.clients))
        return (train, Phase("share", (), ("statistics.clients",), slots, download=(), deploy=train.upload))

    def _shortened(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """The first parts of names in place of hundreds of names, where they stand for the same tensors."""
        parts = tuple(dict.fromkeys(name.partition(".")[0] for name in names))
        return parts if set(select(self.communicable_state(), parts)) == set(names) else names

    def start_client(self, context: RoundContext) -> None:
        """Prepare for a client's phase."""
        super().start_client(context)
        if self.statistics is not None:
            self.statistics.start_client(context)

    def upload_state(self) -> State:
        """Return what the client sends after the running phase; after the second its statistics."""
        if self.statistics is not None and self.context is not None and self.context.phase.name == "share":
            return {"statistics.clients": self.statistics.own}
        return super().upload_state()

    def parameter_groups(self, trainable: Mapping[str, Tensor]) -> list[LayerGroup]:
        """Return the trained parameters in groups that are trained alike; by default one for each layer."""
        return layer_groups(trainable, self.layer_decay, timm_layers("visual", self.visual))

    def configure_optimizers(self) -> torch.optim.Optimizer | None:
        """Return a fresh optimizer with a group of parameters for each layer; None if nothing is trainable."""
        if self.make_optimizer is None or not (trainable := self.trainable_by_name()):
            return super().configure_optimizers()
        groups = self.parameter_groups(trainable)
        optimizer = self.make_optimizer([{"params": group.parameters, **group.options} for group in groups])
        # The optimizer has filled in the rate and the decay of its options, from which each group takes its share.
        for settings, group in zip(optimizer.param_groups, groups, strict=True):
            settings["lr"] *= group.factor
            if not group.decays and "weight_decay" in settings:
                settings["weight_decay"] = 0.0
        return optimizer

    def train(self, mode: bool = True) -> ImageTowerLearner:
        """Go into training mode or out of it, but for batch normalisation, whose statistics are frozen."""
        super().train(mode)
        for module in self.visual.modules():
            if isinstance(module, _BatchNorm):
                module.train(False)
        return self

    def num_channels(self, stage: int) -> int:
        """Return W, the number of channels behind a stage of the tower, from 1."""
        widths: list[int] = []

        def measured(features: Tensor) -> Tensor:
            widths.append(positions(features, self.image_tower.num_prefix).shape[2])
            return features

        # The towers do not say how wide their stages are: a blank image shows it.
        size = self.clip.image_size
        with torch.no_grad():
            self.image_features(torch.zeros(1, 3, size, size), after_stage(stage, measured))
        return widths[0]


def after_stage(stage: int, change: Between) -> list[Between]:
    """Return `between` where the output of one stage alone is changed, counted from 1."""
    return [nn.Identity()] * (stage - 1) + [change]


class NormalizedLinear(nn.Module):
    """Returns W f / |f| + b; starts from given rows W and no bias (Wortsman et al., CVPR 2022, Section 2).

    Args:
        weight: W at the start, a class's text feature times CLIP's logit scale, which makes it zero-shot CLIP.
    """

    def __init__(self, weight: Float[Tensor, "C d"]) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight.detach().clone().float())
        self.bias = nn.Parameter(torch.zeros(len(weight), device=weight.device))

    def forward(self, features: Float[Tensor, "B d"]) -> Float[Tensor, "B C"]:
        """Compute the logits, in float32."""
        with torch.autocast(features.device.type, enabled=False):
            return F.linear(F.normalize(features.float(), dim=-1), self.weight, self.bias)


# The last three are those of Hugging Face's encoders. Other networks of a method may have layers of these names.
_BLOCK = re.compile(r"\.transformer\.(?:encoder\.)?(?:resblocks|layer|layers|block)\.(\d+)\.")
_STAGE = re.compile(r"\.layer(\d+)\.")
_BOTTOM = {"class_embedding", "positional_embedding", "token_embedding", "ln_pre", "cls_emb"}
_BOTTOM |= {"conv1", "bn1", "conv2", "bn2", "conv3", "bn3"}  # a ResNet's stem
_BOTTOM |= {"embeddings", "embed_tokens"}  # of Hugging Face's encoders


@dataclass(frozen=True)
class LayerGroup:
    """Parameters that are trained alike."""

    factor: float  # on the learning rate
    decays: bool  # whether they get weight decay
    parameters: list[Tensor] = field(default_factory=list)
    options: Mapping[str, float] = field(default_factory=dict)  # in place of the optimizer's


def timm_layers(name: str, visual: nn.Module) -> dict[str, int | None]:
    """Return the layer of each parameter of an image tower of timm, as timm groups them; of other towers nothing.

    Layers count from the bottom: blocks of a ViT, stages of others. The top has none: it is open_clip's head or, where
    that has no parameters, the highest of timm's layers.
    """
    if not isinstance(visual, TimmModel):
        return {}
    trunk: Any = visual.trunk
    layers = group_parameters(trunk, trunk.group_matcher(coarse=True), reverse=True)
    numbers = {f"{name}.trunk.{parameter}": layer for parameter, layer in layers.items()}
    behind = 1 + max(layers.values())
    numbers |= {f"{name}.head.{parameter}": behind for parameter, _ in visual.head.named_parameters()}
    top = max(numbers.values())
    return {parameter: None if layer == top else layer for parameter, layer in numbers.items()}


def layer_groups(
    parameters: Mapping[str, Tensor], decay: float, layers: Mapping[str, int | None] | None = None
) -> list[LayerGroup]:
    """Return groups with a factor decay^(layers above) on the learning rate; vectors and scalars get no weight decay.

    The layers of a tower are its embeddings or stem (0), its blocks or stages, and the layers after them. The last of
    these, classifiers and parameters outside the towers have the factor 1. Names are open_clip's, with the tower's in
    front; ``layers`` overrides the layers that follow from names.

    >>> import torch
    >>> names = ["visual.conv1.weight", "visual.transformer.resblocks.0.ln_1.bias", "visual.proj"]
    >>> groups = layer_groups({name: torch.zeros(2, 2) for name in names}, decay=0.5)
    >>> [(group.factor, group.decays) for group in groups]
    [(0.25, True), (0.5, True), (1.0, True)]
    """
    # The number of layers below the top of each tower: that of its highest block, and one for the embeddings.
    tops: dict[str, int] = {}
    depths = {name: _depth(name) for name in parameters} | dict(layers or {})
    for name in parameters:
        tower = name.partition(".")[0]
        tops[tower] = max(tops.get(tower, 0), 1 + (depths[name] or 0))
    groups: dict[tuple[float, bool], LayerGroup] = {}
    for name, parameter in parameters.items():
        depth = depths[name]
        factor = 1.0 if depth is None else decay ** (tops[name.partition(".")[0]] - depth)
        key = (factor, parameter.ndim > 1)
        groups.setdefault(key, LayerGroup(*key)).parameters.append(parameter)
    return list(groups.values())


def _depth(name: str) -> int | None:
    """The number of a parameter's layer from the bottom of its tower; None for the top or no tower's."""
    if block := _BLOCK.search(name):
        return 1 + int(block[1])
    if stage := _STAGE.search(name):
        return int(stage[1])
    parts = set(name.split("."))
    # The attention pool of a ResNet has a positional embedding, too, but is at the top.
    return 0 if parts & _BOTTOM and "attnpool" not in parts else None


def prompted_features(
    tower: VisionTransformerTower, images: Float[Tensor, "B 3 V V"], prompts: Sequence[Float[Tensor, "B L W"]]
) -> Float[Tensor, "B d"]:
    """Compute joint features, not normalised, of `[image tokens][prompt]`, differentiable in all of them.

    Args:
        tower: whose weights may be trained.
        images: Pixels, as CLIP's transform puts them out.
        prompts: for each of the first blocks; the first goes in before `ln_pre`, without positions, each other one
            replaces the prompt's tokens before its block. Further blocks take the tokens as they come.
    """
    hidden = run_before_last_block(tower, images, prompts)  # [B, P + L, W]
    hidden = tower.blocks.run(len(tower.blocks) - 1, hidden)
    return tower.pool(hidden[:, tower.read])
