"""LoRA: both towers equal plain towers with updated weights, and zero-shot CLIP stays unchanged."""

import copy

import numpy as np
import pytest
import torch

from fedvlp import FedLoRA, PFedMMA, ZeroShotCLIP
from fedvlp.clip import load_clip
from fedvlp.core.module import check_phases
from fedvlp.core.state import Client, ClientUpdate, ServerState
from fedvlp.utils.errors import UserError
from tests.helpers.made_up_clips import made_up_clip
from tests.helpers.made_up_image_towers import image_clip, vision
from tests.helpers.slow import CLASSES, begin, slow_cross_entropy, spread

LABELS = torch.tensor([0, 2, 1, 1])
LITTLE = {"alpha": 0.05}


def make(clip, **options):
    torch.manual_seed(0)
    module = FedLoRA(CLASSES, clip, **options)
    spread([module.text_updates.up, module.image_updates.up], 0.3)
    return module


@pytest.mark.parametrize(
    ("text", "image", "options"),
    [("clip", None, {"rank": 5, "alpha": 3.0}), ("biomedclip", "eva02", LITTLE), ("nllb", "siglip", LITTLE)],
)
def test_loss_and_gradients_equal_those_of_updated_weights(text, image, options, tmp_path):
    """Compare with open_clip's forward pass after adding s B A to the query, key and value projections."""
    clip = made_up_clip(text, tmp_path, *([vision(image)] if image else []))
    module = make(clip, **options)
    images = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    merged = copy.deepcopy(clip)
    maps = []
    for kind, updates in {"text": module.text_updates, "image": module.image_updates}.items():
        for index, names in enumerate(np.split(np.array(module.adapted.names[kind]), len(updates.up))):
            assert all(f".{index}." in name for name in names)
            weights = [merged.get_parameter(name.removeprefix("clip.")).requires_grad_() for name in names]
            update = (updates.scale * updates.up[index] @ updates.down[index]).flatten(0, 1)  # [3 W, W]
            with torch.no_grad():
                for weight, part in zip(weights, update.chunk(len(names)), strict=True):
                    weight.add_(part)
            maps.append((updates, index, weights))
    texts = merged.model.encode_text(merged.tokenizer([f"a photo of a {name}." for name in CLASSES]))
    expected = slow_cross_entropy(merged, merged.model.encode_image(images), texts, LABELS)
    expected.backward()
    loss = module.training_step((images, LABELS), 0)
    loss.backward()
    torch.testing.assert_close(loss, expected, atol=1e-4, rtol=1e-4)
    for updates, index, weights in maps:
        gradient = updates.scale * torch.cat([weight.grad for weight in weights]).unflatten(0, (3, -1))  # [3, W, W]
        expected_up = gradient @ updates.down[index].mT
        expected_down = updates.up[index].mT @ gradient
        for found, wanted in ((updates.up.grad[index], expected_up), (updates.down.grad[index], expected_down)):
            assert wanted.any()
            torch.testing.assert_close(found, wanted, atol=1e-4 * wanted.abs().max().item(), rtol=1e-3)
    assert not torch.allclose(module(images), ZeroShotCLIP(CLASSES, clip)(images), atol=1e-3)


@pytest.mark.parametrize(("kind", "name"), [("swin", "SwinTransformer"), ("convnext", "ConvNeXt")])
def test_towers_without_transformer_blocks_are_rejected(kind, name):
    for method in (FedLoRA, PFedMMA):
        with pytest.raises(UserError, match=name):
            method(CLASSES, image_clip(kind))


def test_it_starts_as_zero_shot_clip(clip, images):
    expected = ZeroShotCLIP(CLASSES, clip)(images)
    torch.testing.assert_close(FedLoRA(CLASSES, clip, rank=7)(images), expected, atol=1e-4, rtol=1e-5)


def test_clip_stays_unchanged_even_if_a_call_fails(clip, images):
    module = make(clip)
    before = dict(clip.named_parameters())
    versions = {name: parameter._version for name, parameter in before.items()}
    with pytest.raises(RuntimeError):
        module(images[..., :16, :16])
    module(images)
    after = dict(clip.named_parameters())
    assert all(after[name] is parameter for name, parameter in before.items())
    assert {name: parameter._version for name, parameter in after.items()} == versions
    assert torch.equal(ZeroShotCLIP(CLASSES, clip)(images), ZeroShotCLIP(CLASSES, load_clip("fedvlp-tiny"))(images))


def test_text_features_follow_the_updates(clip, images):
    module = make(clip).eval()
    with torch.no_grad():
        first = module(images)
        assert torch.equal(module(images), first)
        module.text_updates.up.mul_(-1)
        assert not torch.allclose(module(images), first, atol=1e-2)
    torch.testing.assert_close(copy.deepcopy(module)(images), module(images))


def test_a_client_without_its_own_a_classifies_like_zero_shot_clip(clip, images):
    """With ``share: B``, each client keeps A and sends B."""
    module = make(clip, share="B")
    (phase,) = check_phases(module)
    assert set(module.shared_state()) == set(phase.upload) == {"text_updates.up", "image_updates.up"}
    assert set(module.personal_state()) == {"text_updates.down", "image_updates.down"}
    expected = ZeroShotCLIP(CLASSES, clip)(images)
    assert not torch.allclose(module(images), expected, atol=1e-2)
    with module.shared_part_only():
        torch.testing.assert_close(module(images), expected, atol=1e-4, rtol=1e-5)


def parts_of(name, factor):
    """View a factor with its parts, one for each singular value, as rows."""
    return factor.mT if name.endswith("up") else factor


def test_a_client_trains_only_the_parts_of_its_rank(clip, images):
    module = make(clip, rank=[3, 1])
    start = module.shared_state()
    for client, rank in ((0, 3), (1, 1), (2, 3)):
        module.load_state(start)
        begin(module, client)
        optimizer = module.configure_optimizers()
        for _ in range(2):
            optimizer.zero_grad()
            module.training_step((images, LABELS), 0).backward()
            optimizer.step()
        for name, tensor in module.upload_state().items():
            before = parts_of(name, start[name])
            after = parts_of(name, tensor)
            assert not torch.equal(after[..., :rank, :], before[..., :rank, :])
            assert not after[..., rank:, :].any()


def test_the_server_averages_the_products_and_keeps_their_largest_parts(clip):
    """Compare with the truncated SVD of each mean product; equal products of any client are their own mean."""
    module = make(clip, rank=[2, 4])
    (phase,) = check_phases(module)
    server = ServerState.start(module.shared_state())
    updates = []
    for client, (rank, size) in enumerate([(2, 30), (4, 10), (2, 5)]):
        state = {name: torch.randn_like(tensor) for name, tensor in server.shared.items()}
        for name, tensor in state.items():
            parts_of(name, tensor)[..., rank:, :] = 0
        updates.append(ClientUpdate(Client(client, client, size), state, size))
    after = phase.strategy.aggregate(server, updates).shared
    for tower in ("text_updates", "image_updates"):
        products = [update.state[f"{tower}.up"] @ update.state[f"{tower}.down"] for update in updates]
        mean = (30 * products[0] + 10 * products[1] + 5 * products[2]) / 45
        found = after[f"{tower}.up"] @ after[f"{tower}.down"]
        for block, row in ((0, 0), (1, 2)):
            u, singular, vt = torch.linalg.svd(mean[block, row].double())
            for rank in (1, 2, 4):  # what a client of this rank gets
                expected = sum(singular[i] * torch.outer(u[:, i], vt[i]) for i in range(rank))
                cut = after[f"{tower}.up"][block, row, :, :rank] @ after[f"{tower}.down"][block, row, :rank]
                torch.testing.assert_close(cut.double(), expected, atol=1e-4, rtol=1e-4)
        same = phase.strategy.aggregate(server, [ClientUpdate(Client(0, 0, 3), after, 3)] * 2).shared
        torch.testing.assert_close(same[f"{tower}.up"] @ same[f"{tower}.down"], found, atol=1e-4, rtol=1e-4)


def test_a_list_of_ranks_needs_both_factors(clip):
    with pytest.raises(UserError, match="share: both"):
        FedLoRA(CLASSES, clip, rank=[2, 4], share="B")
