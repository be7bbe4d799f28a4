"""ADAPT's two cross-entropies, written out token by token, and what it shares with Fed-DPT."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedvlp.core.phases import RoundContext
from fedvlp.core.state import Client
from fedvlp.methods import ADAPT, FedDPT
from fedvlp.methods.adapt import pairs_correspondence
from fedvlp.utils.errors import UserError

CLASSES = ["red circle", "star", "big square"]
DOMAINS = ["ink", "paint", "photo"]
LABELS = torch.tensor([0, 1, 2, 1])


@pytest.fixture
def make(clip):
    def make(domain=None, **options):
        torch.manual_seed(0)
        module = ADAPT(CLASSES, options.pop("domains", DOMAINS), clip, prompt_length=5, **options)
        generator = torch.Generator().manual_seed(2)
        for _, value in sorted(module.state_dict().items()):
            value.copy_(torch.randn(value.shape, generator=generator) * 0.5)
        if domain is not None:
            module.start_client(RoundContext(0, module.configure_phases()[0], Client(domain, domain, 10)))
        return module

    return make


def log_softmax(values):
    return values - values.max() - np.log(np.exp(values - values.max()).sum())


def cosine(one, other):
    return one @ other / np.linalg.norm(one) / np.linalg.norm(other)


def parts(module, images):
    """Returns a client's features as arrays."""
    features = module.features(images)
    return {name: getattr(features, name).detach().double().numpy() for name in ("image", "text", "scores", "tokens")}


def class_loss(module, seen):
    losses = []
    for i, label in enumerate(LABELS):
        w = np.exp(log_softmax(seen["scores"][i] / 0.1))
        mixed = np.einsum("k,kcd->cd", w, seen["text"])
        logits = np.array([module.clip.logit_scale * cosine(seen["image"][i], row) for row in mixed])
        losses.append(-log_softmax(logits)[label])
    return np.mean(losses)


def test_loss_is_over_classes_and_over_pairs_of_tokens_and_prompts(make, images):
    """First reading: token j is nearest to prompt j, for the image's own class."""
    module = make(1, domain_weight=0.3)
    seen = parts(module, images)
    domain_losses = []
    for i, label in enumerate(LABELS):
        for j in range(3):
            row = [module.clip.logit_scale * cosine(seen["tokens"][i, j], seen["text"][k, label]) for k in range(3)]
            domain_losses.append(-log_softmax(np.array(row))[j])
    expected = class_loss(module, seen) + 0.3 * np.mean(domain_losses)
    assert module.training_step((images, LABELS), 0).item() == pytest.approx(expected, rel=1e-3)


def test_second_reading_finds_the_clients_domain_by_attention(make, images):
    module = make(2, domain_loss="attention", domain_weight=2.0)
    seen = parts(module, images)
    domain_loss = np.mean([-log_softmax(seen["scores"][i] / 0.1)[2] for i in range(4)])
    expected = class_loss(module, seen) + 2 * domain_loss
    assert module.training_step((images, LABELS), 0).item() == pytest.approx(expected, rel=1e-3)


def test_second_reading_is_left_out_where_images_have_no_domain(make, images):
    module = make(domain_loss="attention")
    without = make(domain_weight=0.0)
    assert module.training_step((images, LABELS), 0) == without.training_step((images, LABELS), 0)


@pytest.mark.parametrize("domain_loss", ["pairs", "attention"])
def test_only_the_own_text_prompt_gets_a_gradient_and_all_image_tokens_do(make, images, domain_loss):
    module = make(1, domain_loss=domain_loss)
    module.training_step((images, LABELS), 0).backward()
    assert [bool(slot.any()) for slot in module.dual.text.shared.grad] == [False, True, False]
    assert all(slot.any() for slot in module.dual.visual.shared.grad)


def test_outside_a_federation_all_prompts_get_gradients(make, images):
    module = make()
    module.training_step((images, LABELS), 0).backward()
    assert all(slot.any() for slot in module.dual.text.shared.grad)


def test_one_domain_has_nothing_to_correspond_to(make, images):
    module = make(0, domains=["ink"])
    without = make(0, domains=["ink"], domain_weight=0.0)
    assert module.training_step((images, LABELS), 0).item() == pytest.approx(
        without.training_step((images, LABELS), 0).item(), abs=1e-6
    )


def test_pairs_do_not_mind_how_domains_are_ordered():
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randn(4, 3, 8, generator=generator)
    texts = torch.randn(3, 3, 8, generator=generator)
    order = [2, 0, 1]
    loss = pairs_correspondence(tokens, texts, LABELS, scale=5.0)
    assert torch.allclose(pairs_correspondence(tokens[:, order], texts[order], LABELS, scale=5.0), loss)
    assert not torch.allclose(pairs_correspondence(tokens[:, order], texts, LABELS, scale=5.0), loss)


def test_predicts_as_fed_dpt_does(make, images, clip):
    module = make()
    fed_dpt = FedDPT(CLASSES, DOMAINS, clip, prompt_length=5)
    fed_dpt.load_state(module.state_dict())
    assert torch.equal(module(images), fed_dpt(images))


def test_options_that_make_no_sense_are_refused(clip):
    with pytest.raises(UserError):
        ADAPT(CLASSES, DOMAINS, clip, components="visual")


def test_fewer_components_train_by_cross_entropy_alone(make, images):
    for components in ("agnostic", "text", "visual"):
        module = make(1, components=components, domain_weight=0.0)
        expected = torch.nn.functional.cross_entropy(module(images), LABELS)
        assert module.training_step((images, LABELS), 0).item() == pytest.approx(expected.item())


def test_a_client_with_several_domains_trains_and_sends_all_prompts(make, images):
    module = make(text_momentum=None, domain_loss="attention")
    module.start_client(RoundContext(0, module.configure_phases()[0], Client(0, -1, 10)))
    module.training_step((images, LABELS), 0).backward()
    assert all(slot.any() for slot in module.dual.text.shared.grad)
    assert module.upload_state()["dual.text.shared"].shape[0] == 3
