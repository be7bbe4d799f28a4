"""Inversion of clients' gradients: of the prompts that clients send, and of a full model for comparison."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from scipy.optimize import linear_sum_assignment
from torch import Tensor
from torchmetrics.functional.image import peak_signal_noise_ratio, structural_similarity_index_measure

from fedvlp.core.module import FederatedModule
from fedvlp.core.phases import Phase, RoundContext
from fedvlp.core.state import Client
from fedvlp.tools.audit.gradients import Gradient, loss_gradient, recover_image, trainable_tower, uploaded_parameters
from fedvlp.tools.audit.inversion import InversionOptions, invert
from fedvlp.tools.trained_run import RunImage, denormalise, pixel_scale, read_pixels
from fedvlp.utils.errors import UserError
from fedvlp.utils.seeding import derive_seed

START_DEVIATION = 0.1  # of an attack's first pixels, in standard deviations of CLIP's normalised pixels
SOURCES = ("prompts", "full model", "full model, closed form")
"""Sources of recovered images; all others are baselines."""
MEASURES = ("mse", "psnr", "ssim", "feature_cosine")
MAX_PSNR = 100.0  # in dB; larger ratios are infinite or due to rounding


@dataclass(frozen=True)
class Recovered:
    """Images recovered from one source.

    Attributes:
        source: One of ``SOURCES``, or a baseline.
        distance: Distance of their gradient from the sent gradient; None without a search.
        scores: Similarity of each image to its true image.
    """

    source: str
    images: Float[Tensor, "B 3 V V"]
    distance: float | None = None
    scores: Sequence[dict[str, float]] = ()


Attacked = tuple[Client, Sequence[RunImage], Sequence[Recovered]]
"""A gradient: its client, the true images, and the recovered images with the baselines."""


def invert_gradients(
    module: FederatedModule,
    images: Mapping[Client, Sequence[RunImage]],
    options: InversionOptions,
    round: int,
    seed: int,
) -> tuple[str, dict[str, list[int]], list[Attacked]]:
    """Recover images of the clients from gradients.

    Args:
        module: The method as downloaded by a client; afterwards in training mode, with no client started.
        images: Each client's training images.
        options: Options of the attack.
        round: Number of finished rounds, which some losses use.
        seed: Seed of the sampled images, and of the attack's start.

    Returns:
        Name of the gradients' phase; shapes of the parameters that a client sends in the phase; all gradients.

    Raises:
        UserError: If nothing is trained, a client has too few images, or a gradient is zero or not finite.
    """
    module.train()
    phase = choose_phase(module, options.phase, next(iter(images)))
    uploaded: Mapping[str, Tensor] = {}
    attacked: list[Attacked] = []
    for number, (client, chosen) in enumerate(choose_targets(images, options, seed)):
        module.start_client(RoundContext(round, phase, client))
        uploaded = uploaded_parameters(module)
        others = other_images(images, chosen, derive_seed(seed, client.id, number))
        recovered = _recover(module, chosen, others, uploaded, options, derive_seed(seed, number))
        attacked.append((client, chosen, recovered))
    module.context = None
    return phase.name, {name: list(value.shape) for name, value in uploaded.items()}, attacked


def choose_phase(module: FederatedModule, name: str | None, client: Client) -> Phase:
    """Choose a phase with gradients: by name, or the first in which a client sends parameters, otherwise the first."""
    phases = [phase for phase in module.configure_phases() if not phase.one_pass]
    names = ", ".join(phase.name for phase in phases)
    if name is not None:
        phases = [phase for phase in phases if phase.name == name]
    if not phases:
        method = type(module).__name__
        problem = f"has no phase {name!r}; it has {names}" if names else "has no gradient, because it trains nothing"
        raise UserError(f"{method} {problem}. Correct --inversion.phase, or leave inversion out of --what.")
    for phase in phases:
        module.start_client(RoundContext(0, phase, client))
        if uploaded_parameters(module):
            return phase
    return phases[0]


def choose_targets(
    images: Mapping[Client, Sequence[RunImage]], options: InversionOptions, seed: int
) -> list[tuple[Client, list[RunImage]]]:
    """Sample images of each client in turn; raise a UserError if a client has too few."""
    clients = list(images)
    targets = []
    for number in range(options.gradients):
        client = clients[number % len(clients)]
        candidates = images[client]
        if len(candidates) < options.images:
            raise UserError(
                f"The client {client.name!r} has {len(candidates)} training images, but inversion.images is "
                f"{options.images}. Pass a smaller number."
            )
        generator = torch.Generator().manual_seed(derive_seed(seed, client.id))
        order = torch.randperm(len(candidates), generator=generator).tolist()
        # Continue after the client's previous sample, so that no two samples share an image.
        first = number // len(clients) * options.images
        rows = [order[(first + index) % len(order)] for index in range(options.images)]
        targets.append((client, [candidates[row] for row in rows]))
    return targets


def other_images(
    images: Mapping[Client, Sequence[RunImage]], targets: Sequence[RunImage], seed: int
) -> Float[Tensor, "B 3 V V"]:
    """Sample another image of each target's class, from any client, for comparison."""
    generator = torch.Generator().manual_seed(seed)
    others = []
    for target in targets:
        candidates = [image for client_images in images.values() for image in client_images if image is not target]
        same_class = [image for image in candidates if image.label == target.label]
        candidates = same_class or candidates or [target]  # if the class has no other image, use other classes
        others.append(candidates[int(torch.randint(len(candidates), (1,), generator=generator))])
    return read_pixels(others)


def _recover(
    module: FederatedModule,
    targets: Sequence[RunImage],
    others: Float[Tensor, "B 3 V V"],
    uploaded: Mapping[str, Tensor],
    options: InversionOptions,
    seed: int,
) -> list[Recovered]:
    clip: Any = module.clip
    true = read_pixels(targets).to(module.device)
    labels = torch.tensor([target.label for target in targets], device=true.device)
    noise = torch.randn(true.shape, generator=torch.Generator().manual_seed(seed)).to(true.device)
    mean, deviation = pixel_scale(clip, true)
    bounds = (-mean / deviation, (1 - mean) / deviation)  # black and white

    def attack(source: str, parameters: Mapping[str, Tensor]) -> tuple[Recovered, Gradient]:
        gradient = loss_gradient(module, true, labels, parameters)
        length = torch.stack([part.norm() for part in gradient.values()]).norm().item()
        if not 0 < length < math.inf:
            raise UserError(
                f"The gradient of the {source} can't be inverted, because its length is {length:g}. Pass another "
                "--inversion.phase, or a trained method with a finite loss."
            )
        # The attacker is assumed to know the labels.
        compute_gradient = partial(loss_gradient, module, labels=labels, parameters=parameters, is_differentiable=True)
        images, distance = invert(compute_gradient, gradient, START_DEVIATION * noise, bounds, options)
        return Recovered(source, images, distance), gradient

    recovered = []
    if uploaded:
        recovered.append(attack("prompts", uploaded)[0])
    # As if clients trained the whole model and the prompts.
    with trainable_tower(module) as tower:
        trained = {name: value for name, value in module.communicable_state().items() if value.requires_grad}
        attacked, gradient = attack("full model", {**trained, **tower})
    recovered.append(attacked)
    # With several images, there are more unknowns than equations.
    exact = recover_image(gradient) if options.images == 1 else None
    if exact is not None:
        recovered.append(Recovered("full model, closed form", exact))
    # Baselines without a gradient.
    recovered.append(Recovered("same class", others.to(noise)))
    recovered.append(Recovered("grey", (torch.full_like(noise, 0.5) - mean) / deviation))
    recovered.append(Recovered("noise", noise.clamp(*bounds)))
    return [_score(clip, result, true) for result in recovered]


def _score(clip: Any, recovered: Recovered, true: Tensor) -> Recovered:
    """Match recovered and true images, because a gradient has no order of images, and score them."""
    images = recovered.images
    if recovered.source in SOURCES:
        pixels = [denormalise(clip, batch).flatten(1).cpu().double() for batch in (true, images)]
        _, order = linear_sum_assignment(torch.cdist(pixels[0], pixels[1]).numpy())
        images = images[torch.as_tensor(order, device=images.device)]
    return replace(recovered, images=images, scores=similarities(clip, images, true))


@torch.no_grad()
def similarities(
    clip: Any, images: Float[Tensor, "B 3 V V"], others: Float[Tensor, "B 3 V V"]
) -> list[dict[str, float]]:
    """Compute the ``MEASURES`` of each pair of normalised images.

    ``mse``, ``psnr`` (in dB, at most 100) and ``ssim`` (Wang et al., 2004; images of at least 11 x 11 pixels) compare
    pixels in [0, 1]; ``feature_cosine`` compares CLIP's joint image features.
    """
    one = denormalise(clip, images)
    other = denormalise(clip, others)
    errors = (one - other).square().flatten(1).mean(dim=1)
    ratios = peak_signal_noise_ratio(one, other, data_range=1.0, reduction="none", dim=(1, 2, 3))
    structure: Any = structural_similarity_index_measure(one, other, data_range=1.0, reduction="none")
    mean, deviation = pixel_scale(clip, images)
    features = [clip.encode_image((pixels - mean) / deviation).float() for pixels in (one, other)]
    columns = [errors, ratios.clamp(max=MAX_PSNR), structure, F.cosine_similarity(*features)]
    # torchmetrics reduces a single image to a scalar.
    rows = torch.stack([column.reshape(-1).cpu().double() for column in columns], dim=1).tolist()
    return [dict(zip(MEASURES, row, strict=True)) for row in rows]
