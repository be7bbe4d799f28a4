"""DP-FPL: its two gradients, computed with projectors, its clipping and noise, and the epsilons of its card."""

import numpy as np
import pytest
import torch
import yaml

from fedvlp import DPFPL
from fedvlp.methods.dp_fpl import clipped, factor_gradients
from fedvlp.training.privacy_accounting import PrivacyAccount
from fedvlp.utils.config_files import configs_folder
from fedvlp.utils.digests import constructor_arguments
from tests.helpers.documents import ROOT, Document
from tests.helpers.slow import CLASSES, slow_cross_entropy

LABELS = torch.tensor([2, 0, 1, 2])
LENGTH = 5


def make(clip, **options):
    torch.manual_seed(5)
    options = {"local_noise_multiplier": 0.0, "rank": 2, **options}
    return DPFPL(CLASSES, clip, prompt_length=LENGTH, **options)


def drawn(*shape):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def projector(columns):
    return columns @ np.linalg.pinv(columns)


def slow_local_gradient(gradient, local, start, max_norm):
    """Compute Eq. 4 with projectors on the spans of u and v, which do not depend on the orthonormal basis."""
    left_projector = projector(local @ start)
    right_projector = projector(local.T @ local @ start)
    along_right = gradient @ right_projector
    along_right = along_right * min(1, max_norm / np.linalg.norm(along_right))
    along_left = left_projector @ gradient
    along_left = along_left * min(1, max_norm / np.linalg.norm(along_left))
    return along_right + along_left - left_projector @ along_right


@pytest.mark.parametrize("share", [2.0, 0.5, 0.05])
def test_gradients_match_the_paper(clip, images, share):
    """With one clip norm above all gradients and two below."""
    module = make(clip)
    prompt = (module.global_prompt + module.local_prompt).detach().requires_grad_()
    expected = slow_cross_entropy(clip, clip.encode_image(images), module.text(prompt), LABELS)
    (gradient,) = torch.autograd.grad(expected, prompt)
    module.clip_norm = share * gradient.norm().item()
    torch.manual_seed(9)
    loss = module.training_step((images, LABELS), 0)
    loss.backward()
    torch.manual_seed(9)
    start = torch.randn(module.clip.text_width, module.rank).numpy().astype(np.float64)
    local = module.local_prompt.detach().numpy().astype(np.float64)
    expected_local = slow_local_gradient(gradient.numpy().astype(np.float64), local, start, module.clip_norm)
    bound = 1e-5 * gradient.abs().max().clamp_min(1.0).item()
    torch.testing.assert_close(loss, expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(module.local_prompt.grad, torch.tensor(expected_local).float(), atol=bound, rtol=1e-4)
    torch.testing.assert_close(module.global_prompt.grad, min(1, share) * gradient, atol=bound, rtol=1e-4)


def test_gradients_are_clipped_before_noise_is_added():
    left = torch.linalg.qr(drawn(60, 20)).Q
    right = torch.linalg.qr(drawn(80, 20)).Q.mT
    gradient = drawn(60, 80)
    exact = factor_gradients(gradient, left, right, 0.25, 0.0)
    assert [each.norm().item() for each in exact] == pytest.approx([0.25, 0.25])
    torch.manual_seed(0)
    noise = [one - other for one, other in zip(factor_gradients(gradient, left, right, 0.25, 3.0), exact, strict=True)]
    assert [each.std().item() for each in noise] == pytest.approx([3.0, 3.0], rel=0.05)
    assert abs(torch.corrcoef(torch.stack([noise[0].flatten(), noise[1].flatten()[:1200]]))[0, 1]) < 0.1
    short = drawn(2, 3)
    assert torch.equal(clipped(short, 1e3), short)
    assert not clipped(torch.zeros(2, 3), 1e3).any()


def test_the_servers_clip_norm_is_the_longest_step():
    config = yaml.safe_load((configs_folder() / "methods" / "dp_fpl.yaml").read_text())
    defaults = constructor_arguments(DPFPL)
    optimizer = defaults["optimizer"].default([torch.nn.Parameter(torch.zeros(1))])
    server = config["trainer"]["server"]["aggregation"]["init_args"]
    assert config["trainer"]["local"]["steps"] == 1
    assert server["clip_norm"] == pytest.approx(optimizer.defaults["lr"] * defaults["clip_norm"].default)


def test_the_cards_epsilons_match_the_accountant():
    """With one noised gradient per round for the shared prompt, two for the personal prompt, three for both."""
    table = (
        Document(ROOT / "docs" / "methods" / "dp_fpl.md").text.partition("## What is private")[2].partition("## ")[0]
    )
    rows = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("| 0")]
    assert len(rows) == 5
    for claimed, multiplier, *counted in rows:
        noise = float(multiplier)
        assert noise == pytest.approx((100 * np.log(1e5)) ** 0.5 / float(claimed) / 32, rel=0.01)
        for gradients, epsilon in enumerate(counted, start=1):
            account = PrivacyAccount((noise,) * gradients, 10, 10, 1e-5, repeats=False)
            assert account.epsilon(100) == pytest.approx(float(epsilon), rel=0.01)
