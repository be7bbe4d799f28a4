"""The kinds of explanations: for each, whether a method has it, and its pictures and tables."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from fedvlp.clip.loading import BUNDLED_NAME
from fedvlp.core.module import FederatedModule
from fedvlp.data import FederatedDataModule
from fedvlp.tools.explain.artifacts import Artifact, picture_artifact
from fedvlp.tools.explain.context import ExplainContext
from fedvlp.tools.explain.embeddings import check_tsne, embeddings, tsne, tsne_picture
from fedvlp.tools.explain.methods import text_prompts, token_experts
from fedvlp.tools.explain.overlays import FIXED, classes_in_question, overlay_picture, views
from fedvlp.tools.explain.predictions import prediction_picture
from fedvlp.tools.explain.relevance import check_tower
from fedvlp.tools.explain.samples import Samples, read_samples, run_images, visible
from fedvlp.tools.explain.token_maps import token_map_picture
from fedvlp.tools.explain.words import format_words, prompt_words, token_embeddings, typical_distance, words_picture
from fedvlp.utils.errors import UserError

IMAGES_IN_A_FIGURE = 6
BATCH_SIZE = 64


def check_predictions(context: ExplainContext) -> None:
    """Raises UserError where there is nothing to predict."""
    context.require_one_model()
    context.require_samples()


@torch.no_grad()
def make_predictions(context: ExplainContext) -> list[Artifact]:
    """Returns the predicted classes before and after training, a few images in each figure."""
    baseline = context.module.baseline()
    modules: dict[str, FederatedModule] = {} if baseline in (None, context.module) else {FIXED: baseline}
    modules[context.name] = context.module
    artifacts = []
    for file, samples in _pages(context.require_samples(), "predictions"):
        pixels = samples.pixels.to(context.device)
        by_classifier = {name: module(pixels).float().softmax(-1).cpu() for name, module in modules.items()}
        pictures = visible(context.clip, samples.pixels)
        picture = prediction_picture(samples, pictures, by_classifier, context.class_names)
        artifacts.append(picture_artifact(file, picture))
    return artifacts


def check_overlays(context: ExplainContext) -> None:
    """Raises UserError where there is nothing to overlay."""
    context.require_one_model()
    check_tower(context.clip, context.method)
    classes_in_question(context.toward, context.require_samples(), context.class_names)


def make_overlays(context: ExplainContext) -> list[Artifact]:
    """Returns what speaks for a class, a few images in each figure."""
    artifacts = []
    for file, samples in _pages(context.require_samples(), "overlays"):
        toward = classes_in_question(context.toward, samples, context.class_names)
        toward = None if toward is None else toward.to(context.device)
        found, classes = views(context.module, samples.pixels.to(context.device), toward, context.method)
        pictures = visible(context.clip, samples.pixels)
        picture = overlay_picture(samples, pictures, found, classes, context.class_names, context.method)
        artifacts.append(picture_artifact(file, picture))
    return artifacts


def check_experts(context: ExplainContext) -> None:
    """Raises UserError where no token has an expert."""
    images = context.require_samples().pixels[:1].to(context.device)
    if token_experts(context.module, images) is None:
        raise UserError(f"{context.name}, as it is set up here, sends no token to an expert.")


def make_experts(context: ExplainContext) -> list[Artifact]:
    """Returns which expert each patch went to, a few images in each figure."""
    names = list(text_prompts(context.module))
    artifacts = []
    for file, samples in _pages(context.require_samples(), "experts"):
        experts = cast(Tensor, token_experts(context.module, samples.pixels.to(context.device))).cpu()
        pictures = visible(context.clip, samples.pixels)
        picture = token_map_picture(samples, pictures, experts, names, context.class_names)
        artifacts.append(picture_artifact(file, picture))
    return artifacts


def check_tsne_of(context: ExplainContext) -> None:
    """Raises UserError where there is no before and after to draw."""
    context.require_one_model()
    if context.module.baseline() in (None, context.module):
        raise UserError(f"{context.name} has nothing before training to compare with.")
    if context.data is None:
        raise UserError("t-SNE shows a run's own labelled images. Pass a run folder with its config.yaml.")
    check_tsne(len(run_images(context.data, context.most_points)), context.perplexity)


@torch.no_grad()
def make_tsne(context: ExplainContext) -> list[Artifact]:
    """Returns the images on which nobody trained, before and after training."""
    images = run_images(cast(FederatedDataModule, context.data), context.most_points)
    baseline = cast(FederatedModule, context.module.baseline())
    before: list[Tensor] = []
    after: list[Tensor] = []
    labels: list[int] = []
    for start in range(0, len(images), BATCH_SIZE):
        samples = read_samples(images[start : start + BATCH_SIZE])
        pixels = samples.pixels.to(context.device)
        labels += samples.labels.tolist()
        of_trained, of_baseline, shown = embeddings(context.module, baseline, pixels)
        before.append(of_baseline.cpu())
        after.append(of_trained.cpu())
    perplexity = check_tsne(len(images), context.perplexity)
    panels = {FIXED: tsne(torch.cat(before), perplexity), context.name: tsne(torch.cat(after), perplexity)}
    remark = " (the method leaves image features unchanged)" if shown == "class logits" else ""
    caption = f"{shown}{remark}, perplexity {perplexity:.3g}, seed 0"
    domains = [image.domain for image in images]
    return [picture_artifact("tsne.png", tsne_picture(panels, labels, domains, context.class_names, caption))]


def check_words(context: ExplainContext) -> None:
    """Raises UserError where the method learns nothing among words."""
    if not text_prompts(context.module):
        raise UserError(f"{context.name} learns no vectors that stand among words.")


def check_vocabulary(context: ExplainContext) -> None:
    """Raises UserError where the nearest words say nothing, since most of the vocabulary was never trained."""
    spec = context.clip.spec
    if spec.name == BUNDLED_NAME and spec.pretrained == "auto":
        raise UserError(
            f"{BUNDLED_NAME} has learned few words, and those nearest to a vector mean nothing. "
            "Ask for them with --what words."
        )


def make_words(context: ExplainContext) -> list[Artifact]:
    """Returns the words nearest to the learned prompts: a picture, the same as Markdown, and more of them as CSV."""
    words = prompt_words(context.clip, named_prompts(context))
    picture = words_picture(words, context.name, typical_distance(token_embeddings(context.clip)))
    page = f"# {picture.title}\n\n{format_words(words, 'markdown')}\n\n{picture.caption}\n"
    return [
        picture_artifact("words.png", picture),
        Artifact("words.md", "", "", "", page.encode()),
        Artifact("words.csv", "", "", "", format_words(words, "csv").encode() + b"\n"),
    ]


def named_prompts(context: ExplainContext) -> dict[str, Tensor]:
    """Returns all text prompts by name, those that differ between clients once for each client."""
    module = context.module
    by_client: dict[str, dict[str, Tensor]] = {}
    for client, state in (context.personal or {"": {}}).items():
        module.load_state({**context.deployed, **state})
        for name, prompt in text_prompts(module).items():
            by_client.setdefault(name, {})[client] = prompt.detach().cpu().clone()
    module.load_state(context.deployed)
    named: dict[str, Tensor] = {}
    for name, prompts in by_client.items():
        first = next(iter(prompts.values()))
        if all(torch.equal(prompt, first) for prompt in prompts.values()):
            named[name] = first
        else:
            named |= {f"{name} of {client}": prompt for client, prompt in prompts.items()}
    return named


@dataclass(frozen=True)
class Explanation:
    """A kind of explanation.

    Attributes:
        check: raises UserError for a method that has none of the kind.
        make: returns its files, whose names begin with the kind's.
        advise: raises UserError where the kind says nothing, and is made only if it is asked for by name.
    """

    check: Callable[[ExplainContext], None]
    make: Callable[[ExplainContext], list[Artifact]]
    advise: Callable[[ExplainContext], None] | None = None


EXPLANATIONS = {
    "predictions": Explanation(check_predictions, make_predictions),
    "overlays": Explanation(check_overlays, make_overlays),
    "experts": Explanation(check_experts, make_experts),
    "tsne": Explanation(check_tsne_of, make_tsne),
    "words": Explanation(check_words, make_words, check_vocabulary),
}


def _pages(samples: Samples, kind: str) -> list[tuple[str, Samples]]:
    """Returns a file's name for each few of the images; a single figure has no number."""
    starts = range(0, len(samples), IMAGES_IN_A_FIGURE)
    parts = [samples.part(start, start + IMAGES_IN_A_FIGURE) for start in starts]
    if len(parts) == 1:
        return [(f"{kind}.png", parts[0])]
    return [(f"{kind}_{number}.png", part) for number, part in enumerate(parts, start=1)]
