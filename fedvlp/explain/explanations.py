"""What a trained method is explained by: of each kind, whether the method has it, and its pictures and tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor

from fedvlp.core.module import FederatedModule
from fedvlp.core.state import State
from fedvlp.data import FederatedDataModule
from fedvlp.explain.artifacts import Exhibit, exhibit
from fedvlp.explain.embeddings import check_tsne, embedding, tsne, tsne_picture
from fedvlp.explain.hooks import ChangesImageFeatures, HasTextPrompts, RoutesTokens
from fedvlp.explain.overlays import FIXED, classes_in_question, overlay_picture, views
from fedvlp.explain.relevance import Method, check_tower, suited_method
from fedvlp.explain.samples import Samples, read_samples, rows_of_run, visible
from fedvlp.explain.token_maps import token_map_picture
from fedvlp.explain.words import format_words, prompt_words, token_embeddings, typical_distance, words_picture
from fedvlp.utils.errors import UserError

IMAGES_IN_A_FIGURE = 6
BATCH = 64


@dataclass(frozen=True)
class Subject:
    """A trained method, and what it is shown.

    Attributes:
        module: in evaluation mode, with the deployed tensors.
        deployed: these tensors.
        personal: what each client keeps, by the client's name.
        samples: images to look at one by one; None where only words are wanted.
        data: the run's own images, set up and bound, for t-SNE; None where there are none.
        toward: the class that overlays are of: ``predicted``, ``true``, or a class's name.
        relevance: how overlays are measured; as suits the image tower if None.
        most_points: largest number of images in t-SNE.
        perplexity: of t-SNE; chosen by the number of images if None.
    """

    module: FederatedModule
    deployed: State
    personal: Mapping[str, State]
    samples: Samples | None
    data: FederatedDataModule | None
    toward: str = "predicted"
    relevance: Method | None = None
    most_points: int = 1000
    perplexity: float | None = None

    @property
    def name(self) -> str:
        """The method's name."""
        return type(self.module).__name__

    @property
    def clip(self) -> Any:
        """The frozen CLIP."""
        return self.module.clip

    @property
    def method(self) -> Method:
        """How overlays are measured."""
        return self.relevance or suited_method(self.clip)

    @property
    def class_names(self) -> list[str]:
        """All classes."""
        return list(self.module.hparams["class_names"])

    def shown(self) -> Samples:
        """Returns the images to look at."""
        if self.samples is None:
            raise UserError("There are no images to look at. Pass --images, or a run folder with its config.yaml.")
        return self.samples

    def move(self, images: Float[Tensor, "B 3 H V"]) -> Float[Tensor, "B 3 H V"]:
        """Returns images on the method's device."""
        return images.to(next(self.clip.parameters()).device)

    def check_shared(self) -> None:
        """Refuses a method that has no one model to show."""
        if self.module.personal and self.personal:
            raise UserError(f"{self.name} keeps tensors on each client, so there is no one model to look at.")


def check_overlays(subject: Subject) -> None:
    """Raises UserError where there is nothing to overlay."""
    subject.check_shared()
    check_tower(subject.clip, subject.method)
    classes_in_question(subject.toward, subject.shown(), subject.class_names)


def make_overlays(subject: Subject) -> list[Exhibit]:
    """Returns what speaks for a class, a few images in each figure."""
    made = []
    for file, samples in _pages(subject.shown(), "overlays"):
        toward = classes_in_question(subject.toward, samples, subject.class_names)
        asked = None if toward is None else subject.move(toward)
        seen, classes = views(subject.module, subject.move(samples.pixels), asked, subject.method)
        pictures = visible(subject.clip, samples.pixels)
        picture = overlay_picture(samples, pictures, seen, classes, subject.class_names, subject.method)
        made.append(exhibit(file, picture))
    return made


def check_experts(subject: Subject) -> None:
    """Raises UserError where no token has an expert."""
    module, images = subject.module, subject.shown().pixels[:1]
    if not isinstance(module, RoutesTokens) or module.token_experts(subject.move(images)) is None:
        raise UserError(f"{subject.name}, as it is set up here, sends no token to an expert.")


def make_experts(subject: Subject) -> list[Exhibit]:
    """Returns which expert each patch went to, a few images in each figure."""
    module: Any = subject.module
    made = []
    for file, samples in _pages(subject.shown(), "experts"):
        experts = module.token_experts(subject.move(samples.pixels)).cpu()
        pictures = visible(subject.clip, samples.pixels)
        picture = token_map_picture(samples, pictures, experts, list(module.text_prompts()), subject.class_names)
        made.append(exhibit(file, picture))
    return made


def check_tsne_of(subject: Subject) -> None:
    """Raises UserError where there is no before and after to draw."""
    subject.check_shared()
    if subject.module.baseline() in (None, subject.module):
        raise UserError(f"{subject.name} has nothing before training to compare with.")
    if subject.data is None:
        raise UserError("t-SNE shows a run's own labelled images. Pass a run folder with its config.yaml.")
    check_tsne(len(rows_of_run(subject.data, subject.most_points)), subject.perplexity)


@torch.no_grad()
def make_tsne(subject: Subject) -> list[Exhibit]:
    """Returns the images on which nobody trained, before and after training."""
    rows = rows_of_run(cast(FederatedDataModule, subject.data), subject.most_points)
    baseline = cast(FederatedModule, subject.module.baseline())
    labels: list[int] = []
    parts: dict[str, list[Tensor]] = {FIXED: [], subject.name: []}
    for start in range(0, len(rows), BATCH):
        samples = read_samples(rows[start : start + BATCH])
        images = subject.move(samples.pixels)
        labels += samples.labels.tolist()
        for name, module in ((FIXED, baseline), (subject.name, subject.module)):
            parts[name].append(embedding(module, subject.module, images).cpu())
    perplexity = check_tsne(len(rows), subject.perplexity)
    panels = {name: tsne(torch.cat(found), perplexity) for name, found in parts.items()}
    changes = isinstance(subject.module, ChangesImageFeatures)
    shown = "image features" if changes else "class logits (the method leaves image features as they are)"
    shown += f", perplexity {perplexity:.3g}, seed 0"
    domains = [row.domain for row in rows]
    return [exhibit("tsne.png", tsne_picture(panels, labels, domains, subject.class_names, shown))]


def check_words(subject: Subject) -> None:
    """Raises UserError where the method learns nothing among words."""
    if not isinstance(subject.module, HasTextPrompts) or not subject.module.text_prompts():
        raise UserError(f"{subject.name} learns no vectors that stand among words.")


def make_words(subject: Subject) -> list[Exhibit]:
    """Returns the words nearest to the learned prompts: a picture, the same as Markdown, and more of them as CSV."""
    words = prompt_words(subject.clip, named_prompts(subject))
    picture = words_picture(words, subject.name, typical_distance(token_embeddings(subject.clip)))
    page = f"# {picture.title}\n\n{format_words(words, 'markdown')}\n\n{picture.caption}\n"
    return [
        exhibit("words.png", picture),
        Exhibit("words.md", "", "", "", page.encode()),
        Exhibit("words.csv", "", "", "", format_words(words, "csv").encode() + b"\n"),
    ]


def named_prompts(subject: Subject) -> dict[str, Tensor]:
    """Returns all text prompts by name, those that differ between clients once for each client."""
    module: Any = subject.module
    found: dict[str, dict[str, Tensor]] = {}
    for client, state in (subject.personal or {"": {}}).items():
        module.load_state({**subject.deployed, **state})
        for name, prompt in module.text_prompts().items():
            found.setdefault(name, {})[client] = prompt.detach().cpu().clone()
    module.load_state(subject.deployed)
    named: dict[str, Tensor] = {}
    for name, of_clients in found.items():
        prompts = list(of_clients.values())
        if all(torch.equal(prompt, prompts[0]) for prompt in prompts):
            named[name] = prompts[0]
        else:
            named |= {f"{name} of {client}": prompt for client, prompt in of_clients.items()}
    return named


Kind = tuple[Callable[[Subject], None], Callable[[Subject], list[Exhibit]]]
KINDS: dict[str, Kind] = {
    "overlays": (check_overlays, make_overlays),
    "experts": (check_experts, make_experts),
    "tsne": (check_tsne_of, make_tsne),
    "words": (check_words, make_words),
}
"""For each kind, what refuses a method that has none, and what makes it."""


def _pages(samples: Samples, kind: str) -> list[tuple[str, Samples]]:
    """Returns a file's name for each few of the images."""
    starts = range(0, len(samples), IMAGES_IN_A_FIGURE)
    parts = [samples.part(start, start + IMAGES_IN_A_FIGURE) for start in starts]
    names = [f"{kind}.png"] if len(parts) == 1 else [f"{kind}_{page + 1}.png" for page in range(len(parts))]
    return list(zip(names, parts, strict=True))
