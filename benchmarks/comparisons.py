"""The sides of the comparisons: text encoders of three layouts, and routing token by token or by batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor

from benchmarks.sequential import sequential_routing
from fedvlp.clip import CLIP, CLIPSpec, PromptedTextEncoder, load_clip
from fedvlp.clip.packing import CausalRows, Layout
from fedvlp.methods.trip.clustering import capacity_kmeans, cluster_capacities
from fedvlp.methods.trip.hashing import random_start
from fedvlp.methods.trip.routing import expert_shares, make_keys

_NAMES = (
    "Alarm Clock,Backpack,Batteries,Bed,Bike,Bottle,Bucket,Calculator,Calendar,Candles,Chair,Clipboards,Computer,Couch,"
    "Curtains,Desk Lamp,Drill,Eraser,Exit Sign,Fan,File Cabinet,Flipflops,Flowers,Folder,Fork,Glasses,Hammer,Helmet,"
    "Kettle,Keyboard,Knives,Lamp Shade,Laptop,Marker,Monitor,Mop,Mouse,Mug,Notebook,Oven,Pan,Paper Clip,Pen,Pencil,"
    "Postit Notes,Printer,Push Pin,Radio,Refrigerator,Ruler,Scissors,Screwdriver,Shelf,Sink,Sneakers,Soda,Speaker,"
    "Spoon,TV,Table,Telephone,ToothBrush,Toys,Trash Can,Webcam"
)
CLASS_NAMES = _NAMES.split(",")


class TextCase:
    """Features of all classes for some prompts, forward and backward, on ViT-B/16 with random weights.

    Args:
        layout: The encoder's layout.
        num_prompts: How many prompts there are, one for each image of TRIP's batch.
        prompt_length: Tokens in a prompt.
        one_by_one: Whether prompts are encoded one after another, each with its own backward pass, so that 77-token
            sequences fit into memory; else in one batch.
    """

    def __init__(self, layout: Layout, num_prompts: int, prompt_length: int, one_by_one: bool) -> None:
        clip = load_clip(CLIPSpec("ViT-B-16", "random"))
        self._encoder = PromptedTextEncoder(clip, CLASS_NAMES, prompt_length=prompt_length, layout=layout)
        generator = torch.Generator().manual_seed(0)
        self._prompts = 0.02 * torch.randn(num_prompts, prompt_length, clip.text_width, generator=generator)
        self._signal = torch.randn(num_prompts, len(CLASS_NAMES), clip.embed_dim, generator=generator)
        self._one_by_one = one_by_one
        self._encode: Callable[[Tensor], Tensor] = (
            OpenCLIPText(clip, self._encoder) if layout == "plain" else self._encoder
        )

    def __call__(self) -> tuple[Tensor, Tensor]:
        """Returns features and the prompts' gradients."""
        prompts = self._prompts.clone().requires_grad_()
        features = []
        parts = range(len(prompts)) if self._one_by_one else [slice(None)]
        for part in parts:
            # Each part has its own backward pass, so that only one part's graph is in memory at a time.
            features.append(self._encode(prompts[part]))
            torch.autograd.backward(features[-1], self._signal[part])
        gradient = prompts.grad
        if gradient is None:
            raise RuntimeError("The encoder gave no gradient to its prompts.")
        joined = torch.stack(features) if self._one_by_one else features[0]
        return joined.detach(), gradient


class OpenCLIPText:
    """Features as prompt learning has them elsewhere: each class's 77 tokens go through open_clip's own text tower.

    Args:
        clip: The frozen CLIP.
        encoder: The plain layout, which knows the tokens and where the prompt stands.
    """

    def __init__(self, clip: CLIP, encoder: PromptedTextEncoder) -> None:
        self._model: Any = clip.model
        rows = cast(CausalRows, encoder.rows)
        self._ids = rows.ids
        self._ends = rows.ends.flatten()

    def __call__(self, prompts: Tensor) -> Tensor:
        """Returns features [..., C, d] of a prompt or of a batch of one."""
        model = self._model
        prompt = prompts.reshape(prompts.shape[-2:])
        words = model.token_embedding(self._ids.clamp(min=0))  # [C, 77, D]
        tokens = torch.cat([words[:, :1], prompt.expand(len(words), -1, -1), words[:, 1 + len(prompt) :]], dim=1)
        hidden = model.transformer(tokens + model.positional_embedding, attn_mask=model.attn_mask)
        features: Tensor = model.ln_final(hidden)[torch.arange(len(hidden)), self._ends] @ model.text_projection
        return features.reshape(*prompts.shape[:-2], *features.shape)


class RoutingCase:
    """Routing weights of a batch of images, with capacity factors 1 (training) and 2 (evaluation), as TRIP needs both.

    Tokens are made up, in the shape of ViT-B/16's: a class token and 196 others that vary smoothly over the image.

    Args:
        batched: Whether images are routed together, or one by one, token after token in a Python loop.
        num_images: B.
    """

    def __init__(self, batched: bool, num_images: int) -> None:
        self._tokens = smooth_tokens(num_images)
        self._start = random_start(torch.arange(num_images), 197, 4)
        self._keys = make_keys("orthogonal", 4, 768, seed=0)
        self._batched = batched

    def __call__(self) -> tuple[Tensor, Tensor]:
        """Returns the routing weights for training and for evaluation."""
        return self._route(1.0), self._route(2.0)

    def _route(self, capacity: float) -> Tensor:
        capacities = cluster_capacities(197, 4, capacity)
        if self._batched:
            return expert_shares(capacity_kmeans(self._tokens, self._start, capacities), self._keys)
        images = zip(self._tokens, self._start, strict=True)
        return torch.stack([sequential_routing(tokens, start, capacities, self._keys) for tokens, start in images])


def smooth_tokens(num_images: int, num_waves: int = 12) -> Tensor:
    """Returns made-up tokens [B, 197, 768]: directions, each weighted by a wave over the 14 x 14 patches, and noise.

    Args:
        num_images: B.
        num_waves: How many directions each image has.
    """
    generator = torch.Generator().manual_seed(0)
    rows, columns = torch.meshgrid(torch.linspace(0, 1, 14), torch.linspace(0, 1, 14), indexing="ij")
    places = torch.stack([rows.flatten(), columns.flatten()])  # [2, 196]
    angles = 3 * torch.pi * torch.randn(num_images, num_waves, 2, generator=generator) @ places
    waves = torch.cos(angles + 2 * torch.pi * torch.rand(num_images, num_waves, 1, generator=generator))
    directions = torch.randn(num_images, num_waves, 768, generator=generator) / num_waves**0.5
    patches = waves.transpose(1, 2) @ directions  # [B, 196, 768]
    tokens = torch.cat([patches.mean(dim=1, keepdim=True), patches], dim=1)
    return tokens + torch.randn(tokens.shape, generator=generator)
