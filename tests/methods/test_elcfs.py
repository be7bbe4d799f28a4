"""ELCFS: its transform by a full Fourier transform, its two steps by hand, and the exchange of spectra."""

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fedvlp import ELCFS
from tests.helpers.slow import CLASSES, begin

LABELS = torch.tensor([2, 0, 1, 2])


def make(clip, client=1, **options):
    module = ELCFS(CLASSES, 4, clip, **{"spectra": 3, **options})
    begin(module, client)
    return module


def pixels(clip, count=4, seed=1):
    size = clip.image_size
    return torch.randn(count, 3, size, size, generator=torch.Generator().manual_seed(seed))


def raw(clip, image):
    """Undo the normalisation, which maps the pixels of photos to [0, 1]."""
    options = clip.preprocess_options
    return image * torch.tensor(options.std)[:, None, None] + torch.tensor(options.mean)[:, None, None]


def slow_transform(clip, image, other, share, frequency):
    """Mix amplitudes with NumPy's full spectrum, frequency by frequency and channel by channel."""
    own, theirs = raw(clip, image).double().numpy(), raw(clip, other).double().numpy()
    made = []
    for channel in range(3):
        spectrum, foreign = np.fft.fft2(own[channel]), np.abs(np.fft.fft2(theirs[channel]))
        amplitude, phase = np.abs(spectrum), np.angle(spectrum)
        for row in range(-frequency, frequency + 1):
            for column in range(-frequency, frequency + 1):
                mixed = (1 - share) * amplitude[row, column] + share * foreign[row, column]
                amplitude[row, column] = mixed
        result = np.fft.ifft2(amplitude * np.exp(1j * phase))
        assert np.abs(result.imag).max() < 1e-9
        made.append((result.real - clip.preprocess_options.mean[channel]) / clip.preprocess_options.std[channel])
    return torch.tensor(np.stack(made), dtype=torch.float32)


@pytest.mark.parametrize("frequency", [0, 2, 5])
def test_low_amplitudes_are_mixed_and_phases_stay(clip, frequency):
    module = make(clip, frequency=frequency)
    images, others = pixels(clip), pixels(clip, seed=2)
    shares = torch.tensor([0.0, 0.3, 0.8, 1.0])
    amplitudes = module.low_frequencies(module.spectrum(others)).abs()
    made = module.transformed(images, amplitudes, shares)
    for image, other, share, result in zip(images, others, shares.tolist(), made, strict=True):
        torch.testing.assert_close(result, slow_transform(clip, image, other, share, frequency), atol=1e-5, rtol=1e-5)


def test_the_inner_step_precedes_the_loss_on_transformed_images(clip, monkeypatch):
    """The gradient after the inner step, taken by hand on a copy, is added to the gradient before it."""
    module, images, looks = make(clip, inner_rate=0.05), pixels(clip), pixels(clip, seed=3)
    monkeypatch.setattr(ELCFS, "mix_amplitudes", lambda self, images: looks)
    other = copy.deepcopy(module)
    inner = F.cross_entropy(other(images), LABELS)
    inner.backward()
    first = {name: value.grad.clone() for name, value in other.named_parameters() if value.requires_grad}
    other.zero_grad()
    with torch.no_grad():
        for name, value in other.named_parameters():
            if name in first:
                value -= 0.05 * first[name]
    outer = F.cross_entropy(other(looks), LABELS)
    outer.backward()
    loss = module.training_step((images, LABELS), 0)
    loss.backward()
    assert loss.item() == pytest.approx((inner + outer).item(), rel=1e-5)
    assert abs(outer.item() - F.cross_entropy(module(looks), LABELS).item()) > 1e-3
    second = dict(other.named_parameters())
    for name, gradient in first.items():
        expected = gradient + second[name].grad
        found = module.get_parameter(name).grad
        assert (found - expected).abs().max() < 1e-5 * max(expected.abs().max(), 1.0), name


def test_only_the_first_images_of_a_client_are_shared(clip):
    module, images = make(clip, spectra=5), pixels(clip, count=7)
    for part in (images[:3], images[3:6], images[6:]):
        module.training_step((part, LABELS[: len(part)]), 0)
    expected = module.low_frequencies(module.spectrum(images[:5])).abs()
    begin(module, 1, phase=1)
    torch.testing.assert_close(module.upload_state()["statistics.clients"], expected)
    begin(module, 1)
    module.training_step((pixels(clip, seed=9), LABELS), 0)
    torch.testing.assert_close(module.statistics.own, expected)


def test_amplitudes_come_from_other_clients_that_have_uploaded(clip, monkeypatch):
    module, images = make(clip, client=1), pixels(clip)
    assert module.mix_amplitudes(images) is images
    used = []
    monkeypatch.setattr(ELCFS, "transformed", lambda self, images, amplitudes, share: used.append(amplitudes) or images)
    module.statistics.clients[1] = 7.0
    module.statistics.clients[3, :2] = torch.tensor([2.0, 5.0])[:, None, None, None]
    begin(module, 1)
    for _ in range(20):
        module.mix_amplitudes(images)
    assert set(torch.cat(used).unique().tolist()) == {2.0, 5.0}
