"""DiPrompT: the prompts trained by each image, its predictions, and its limit cases.

tests/methods/test_diprompt_losses.py tests the equations of its losses and of the ensemble, and
tests/core/test_strategies.py tests the server's equations.
"""

import pytest
import torch
import torch.nn.functional as F

from fedvlp import DiPrompT
from fedvlp.methods.diprompt import domain_terms, query_terms
from tests.helpers.slow import CLASSES, begin, plain_encoder

DOMAINS = ["cartoon", "photo", "sketch"]
LABELS = torch.tensor([0, 1, 2, 0, 1, 2])
PROMPTS = ("global_prompt", "domain_prompts", "query_prompt")


@pytest.fixture
def make(clip):
    """Return a function that starts a client with large random prompts, so that they affect the result."""

    def make_method(**options):
        torch.manual_seed(0)
        module = DiPrompT(CLASSES, DOMAINS, clip, **options)
        with torch.no_grad():
            for prompt in module.parameters():
                if prompt.requires_grad:
                    prompt.mul_(10)
        begin(module, 0)
        return module

    return make_method


def find_domains(module, images):
    """Find the Q-prompt's domain for each image under its true class, one image at a time."""
    features = F.normalize(module.precompute(images)["features"], dim=-1)
    found = []
    for feature, label in zip(features, LABELS.tolist(), strict=True):
        texts = [f"{CLASSES[label]} with the domain of {domain}" for domain in DOMAINS]
        encode = plain_encoder(module.clip, texts, prompt_length=16)
        found.append(int((F.normalize(encode(module.query_prompt), dim=-1) @ feature).argmax()))
    return torch.tensor(found)


def optimizer_step(module, images):
    """Take one step of the method's own optimizer and return the change of each tensor."""
    before = {name: value.clone() for name, value in module.state_dict().items()}
    optimizer = module.configure_optimizers()
    module.training_step((images, LABELS), 0).backward()
    optimizer.step()
    return {name: value - before[name] for name, value in module.state_dict().items()}


def test_loss_is_the_sum_of_its_parts(make, images):
    module = make(domain_weight=0.7)
    features = module.precompute(images)["features"]
    scale = module.clip.logit_scale
    texts = module.domain_text
    domains = find_domains(module, images)
    own = domain_terms(
        features, LABELS, domains, texts.encode_with_domain_prompts(module.domain_prompts), texts.handwritten, scale
    )
    pairs = texts.encode_with_prompt(module.query_prompt)
    query = query_terms(features, LABELS, pairs, pairs, scale)
    common = F.cross_entropy(
        scale * F.normalize(features, dim=-1) @ F.normalize(module.text(module.global_prompt)).T, LABELS
    )
    expected = common + 0.7 * (own["domain"] + own["contrast"]) + query["query"]
    assert module.training_step((images, LABELS), 0).item() == pytest.approx(expected.item(), rel=1e-4)


def test_prompts_of_domains_without_images_do_not_change(make, images):
    module = make()
    domains = find_domains(module, images)
    chosen = set(domains.tolist())
    assert 0 < len(chosen) < 3, "the images of this test should leave one domain without images"
    moved = optimizer_step(module, images)
    for m in range(3):
        assert bool(moved["domain_prompts"][m].any()) == (m in chosen)
    assert moved["global_prompt"].any()


ABSENT = {
    "global_prompt": {"global_prompt"},
    "domain_prompts": {"domain_prompts", "query_prompt"},
    "query_prompt": {"query_prompt"},
}
"""The prompts that do not exist without a part. Without any other part, all prompts exist."""


def test_removed_parts_match_table_3(make, images):
    losses, logits = {}, {}
    for part in ("", *PROMPTS, "contrast", "mse", "kl", "ensemble"):
        module = make(without=(part,) if part else ())
        absent = {name for name in PROMPTS if getattr(module, name) is None}
        assert absent == ABSENT.get(part, set())
        module.training_step((images, LABELS), 0)
        with torch.no_grad():
            for name in set(PROMPTS) - absent:
                getattr(module, name).mul_(1.5)  # makes mse and kl nonzero
            losses[part] = module.training_step((images, LABELS), 1).item()
            logits[part] = module(images)
    assert {part for part in losses if losses[part] == losses[""]} == {"", "ensemble"}
    same_logits = {part for part in logits if torch.equal(logits[part], logits[""])}
    assert same_logits == {"", "query_prompt", "contrast", "mse", "kl"}
