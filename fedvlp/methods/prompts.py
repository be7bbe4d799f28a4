"""Shared parts of methods that learn prompts around a frozen CLIP: base classes, distillation, prompted towers."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from lightning.pytorch.cli import OptimizerCallable
from torch import Tensor, nn
from torch.optim import SGD

from fedvlp.clip import CLIP, CLIPSpec, PromptedImageEncoder, PromptedTextEncoder, cosine_logits, load_clip
from fedvlp.clip.zero_shot import clean_class_name
from fedvlp.core.module import FederatedModule
from fedvlp.core.protocols import DOMAIN, Batch, Inputs, Targets
from fedvlp.core.several_labels import classification_loss, label_pairs
from fedvlp.core.state import Client
from fedvlp.methods.zero_shot import ZeroShotCLIP
from fedvlp.utils.errors import UserError
from fedvlp.utils.ranges import Names, PositiveInt


class PromptLearner(FederatedModule):
    """Base class of methods that adapt CLIP; tables compare them with zero-shot CLIP and class means.

    Batches hold CLIP's image features, which are computed once, unless the method ``needs_images``. The docstrings of
    methods list their additional arguments.

    Args:
        class_names: Class names, in the order of the labels.
        clip: Frozen CLIP; see ``load_clip``.
        optimizer: Factory of the optimizer for a client's local training.
    """

    clip: CLIP

    def __init__(
        self, class_names: Names, clip: CLIPSpec | CLIP | str = "ViT-B-16", optimizer: OptimizerCallable | None = None
    ) -> None:
        super().__init__(optimizer)
        self.class_names = class_names
        self.set_backbone(load_clip(clip))

    def losses(self, inputs: Inputs, labels: Targets) -> dict[str, Tensor]:
        """Compute the values to log for a batch; ``loss`` is minimised, by default the cross-entropy."""
        return {"loss": self.loss(self(inputs), labels)}

    def training_step(self, batch: Batch, batch_idx: int) -> Any:
        """Log the losses of a batch, and return the loss to minimise."""
        losses = self.losses(*batch)
        self.log_dict(losses)
        return losses["loss"]

    def baseline(self) -> ZeroShotCLIP:
        """Create zero-shot CLIP with the same towers."""
        return ZeroShotCLIP(self.class_names, self.clip)


class PersonalPromptLearner(PromptLearner):
    """Base class of methods with a shared text prompt and a personal prompt per client; both start at random.

    A held-out domain has no client, so the shared prompt or the mean over all clients classifies its images.

    Args:
        prompt_length: Number of learned vectors L of a prompt.
        held_out_evaluation: Classifier for held-out domains: the ``shared`` prompt, or the ``mean`` of the
            probabilities under all clients' prompts.

    Attributes:
        global_prompt: Prompt shared by all clients.
        local_prompt: Personal prompt of the client; absent if a method builds it from other tensors.
    """

    personal: tuple[str, ...] = ("local_prompt",)

    def __init__(
        self,
        class_names: Names,
        clip: CLIPSpec | CLIP | str = "ViT-B-16",
        *,
        prompt_length: PositiveInt = 16,
        held_out_evaluation: Literal["shared", "mean"] = "shared",
        optimizer: OptimizerCallable = lambda parameters: SGD(parameters, lr=0.001, momentum=0.9, weight_decay=5e-4),
    ) -> None:
        super().__init__(class_names, clip, optimizer)
        self.held_out_evaluation = held_out_evaluation
        self.text = PromptedTextEncoder(self.clip, class_names, prompt_length=prompt_length)
        self.global_prompt = nn.Parameter(self.text.initial_prompt())  # [L, D]
        if "local_prompt" in self.personal:
            self.local_prompt = nn.Parameter(self.text.initial_prompt())  # [L, D]

    def client_prompt(self) -> Float[Tensor, "L D"]:
        """Compute the prompt for a client's images."""
        return self.local_prompt

    def forward(self, inputs: Inputs) -> Float[Tensor, "B C"]:
        """Compute the logits under the client's prompt, or under the shared prompt if there is no client."""
        prompt = self.client_prompt() if self.uses_personal else self.global_prompt
        return cosine_logits(self.precomputed(inputs)["features"], self.text(prompt), self.clip.logit_scale)


def distillation_kl(
    teacher_logits: Float[Tensor, "B *labels C"], student_logits: Float[Tensor, "B *labels C"]
) -> Float[Tensor, ""]:
    """Compute the mean over images of KL(teacher || student), without a gradient for the teacher (TRIP, Eq. 11).

    For several labels per image, pass their :func:`.label_pairs`; the divergence is averaged over labels.

    >>> logits = torch.tensor([[1.0, 2.0]])
    >>> distillation_kl(logits, logits).item()
    0.0
    """
    # Use float32 even under autocast, which would round small probabilities to 0.
    teacher = F.log_softmax(teacher_logits.detach().float(), dim=-1)
    student = F.log_softmax(student_logits.float(), dim=-1)
    return (teacher.exp() * (teacher - student)).sum() / student[..., 0].numel()


def distillation_losses(
    logits: Float[Tensor, "B C"], labels: Targets, teacher: Float[Tensor, "B C"], kl_weight: float
) -> dict[str, Tensor]:
    """Compute the cross-entropy, `kl` = KL(teacher || student), and `loss` = cross-entropy + beta kl (TRIP, Eq. 12).

    beta is `kl_weight`. The teacher's logits get no gradient. With several labels per image, the cross-entropy is
    binary, over known labels, and `kl` is the mean over all labels, because the teacher knows all.
    """
    cross_entropy = classification_loss(logits, labels)
    if labels.ndim == 2:
        logits, teacher = label_pairs(logits), label_pairs(teacher)
    divergence = distillation_kl(teacher, logits)
    return {"cross_entropy": cross_entropy, "kl": divergence, "loss": cross_entropy + kl_weight * divergence}


Prompts = Mapping[str, Tensor] | nn.ParameterDict
"""`text` [J, L, D] and `visual` [J, L, W]: prompts for the first J blocks of each tower."""


class DeepPromptedCLIP(nn.Module):
    """Classifier with prompts in both towers and no parameters of its own.

    Args:
        clip: Frozen CLIP, shared and not copied.
        class_names: Class names, in the order of the labels.
        prompt_length: Number of learned vectors in each block's prompt.
        init_words: Initial words of the first text prompt. A shorter prompt replaces the first words; the other words
            remain before the class name.
    """

    def __init__(self, clip: CLIP, class_names: list[str], prompt_length: int, init_words: str | None = None) -> None:
        super().__init__()
        self.clip = clip
        self.prompt_length = prompt_length
        words = (init_words or "").split()
        self.learned_words = " ".join(words[:prompt_length]) or None
        # Words beyond the prompt's length stay words: "[v1][v2] of a dog." with two vectors for "a photo of a". Names
        # are cleaned first, because the encoder removes the mark of the negative class only from the front.
        strings = [" ".join([*words[prompt_length:], clean_class_name(name)]) for name in class_names]
        self.text = PromptedTextEncoder(clip, strings, prompt_length=prompt_length)
        self.visual = PromptedImageEncoder(clip)

    def initial_prompts(self, depth: int | None) -> dict[str, Tensor]:
        """Draw prompts from N(0, 0.02) for the first blocks of each tower, or for all blocks if `depth` is None."""
        text_blocks = checked_depth(depth, self.clip.text.depth)
        visual_blocks = checked_depth(depth, self.visual.depth)
        return {
            "text": initial_prompt((text_blocks, self.prompt_length, self.clip.text_width)),
            "visual": initial_prompt((visual_blocks, self.prompt_length, self.clip.image_width)),
        }

    def initial_text_prompts(self, depth: int | None) -> Float[Tensor, "J L D"]:
        """Compute the initial words' embeddings for the first block, and draw later prompts from N(0, 0.02).

        Args:
            depth: Number of blocks J; if None, 9 or the number of blocks of a smaller CLIP.
        """
        most = min(self.clip.text.depth, self.visual.depth)
        blocks = checked_depth(min(9, most) if depth is None else depth, most)
        first = self.text.initial_prompt(self.learned_words)
        return torch.cat([first[None], initial_prompt((blocks - 1, *first.shape))])

    def text_features(self, prompts: Prompts) -> Float[Tensor, "C d"]:
        """Compute w_c, not normalised (PLAN, Eqs. 2, 3)."""
        return self.text(prompts["text"][0], prompts["text"][1:])

    def logits(self, images: Float[Tensor, "B 3 V V"], prompts: Prompts) -> Float[Tensor, "B C"]:
        """Compute the logits cos(w_c, f) / tau (PLAN, Eqs. 2-6)."""
        text = self.text_features(prompts)
        image = self.visual.encode(images, prompts["visual"])
        return cosine_logits(image, text, self.clip.logit_scale)


def initial_prompt(shape: Sequence[int]) -> Tensor:
    """Draw values from N(0, 0.02)."""
    return 0.02 * torch.randn(*shape)


def checked_depth(depth: int | None, blocks: int) -> int:
    """Validate a number of prompted blocks; None means all blocks."""
    if depth is not None and depth > blocks:
        raise UserError(f"Expected a depth in [1, {blocks}] (the number of blocks) or null; got {depth}.")
    return blocks if depth is None else depth


def known_domain(client: Client, needed_by: str, otherwise: str = "") -> int:
    """Look up the domain of a client, and check that it has images of only one.

    >>> known_domain(Client(0, 2, 9), "FedAPT")
    2
    """
    # A client with several domains has the domain -1.
    if client.domain < 0:
        raise UserError(
            f"{needed_by} needs clients of one domain each, but {client.name!r} has several. "
            f"Use the partition ByDomain or Dispersed{otherwise}."
        )
    return client.domain


def image_domains(inputs: Inputs, needed_by: str) -> Int[Tensor, "B"]:
    """Look up the index of each training image's source domain."""
    # A data module adds domains to batches only on request.
    if isinstance(inputs, dict) and DOMAIN in inputs:
        return inputs[DOMAIN]
    raise UserError(
        f"{needed_by} needs the source domain of each training image, but these batches contain none. Train it on a "
        f"data module of fedvlp, or add {DOMAIN!r} [B] to the inputs."
    )


class BlockLinear(nn.Module):
    """A linear map from width ``inputs`` to width ``outputs`` for each of J ``blocks``.

    Initial weights are uniform within ``weight_bound``, by default 1 / sqrt(inputs), and initial biases within
    ``bias_bound``, by default 0.
    """

    def __init__(
        self, blocks: int, inputs: int, outputs: int, weight_bound: float | None = None, bias_bound: float = 0.0
    ) -> None:
        super().__init__()
        bound = inputs**-0.5 if weight_bound is None else weight_bound
        self.weight = nn.Parameter(torch.empty(blocks, inputs, outputs).uniform_(-bound, bound))
        # All blocks' maps are in one tensor: a loop over blocks would run many small products.
        self.bias = nn.Parameter(torch.zeros(blocks, outputs))
        if bias_bound:
            nn.init.uniform_(self.bias, -bias_bound, bias_bound)

    def forward(self, tokens: Float[Tensor, "K J L inputs"]) -> Float[Tensor, "K J L outputs"]:
        """Apply each block's map to its tokens."""
        return torch.einsum("kjli,jio->kjlo", tokens, self.weight) + self.bias[:, None]
