import pytest
import torch

from fedvlp.methods.trip.hashing import image_seeds, mix, random_start


def slow_mix(number):
    """Compute SplitMix64's finaliser with Python integers."""
    number %= 2**64
    number = ((number ^ (number >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
    number = ((number ^ (number >> 27)) * 0x94D049BB133111EB) % 2**64
    return number ^ (number >> 31)


def test_mixing_is_splitmix():
    numbers = torch.tensor([0, 1, -1, 123456789, -(2**63), 2**63 - 1])
    assert [value % 2**64 for value in mix(numbers).tolist()] == [slow_mix(value) for value in numbers.tolist()]


def test_seeds_depend_only_on_the_image():
    images = torch.randn(5, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    seeds = image_seeds(images)
    assert len(set(seeds.tolist())) == 5
    assert torch.equal(image_seeds(images.flip(0)), seeds.flip(0))
    assert torch.equal(image_seeds(images[2:3]), seeds[2:3])
    assert torch.equal(image_seeds(images.to(memory_format=torch.channels_last)), seeds)
    assert torch.equal(image_seeds(images.double()), seeds)


def test_starts_are_distinct_seeded_and_independent_of_the_batch():
    seeds = torch.arange(1000)
    start = random_start(seeds, 197, 4, seed=1)
    assert start.shape == (1000, 4)
    assert all(len(set(row)) == 4 for row in start.tolist())
    assert torch.equal(random_start(seeds[7:9], 197, 4, seed=1), start[7:9])
    assert not torch.equal(random_start(seeds, 197, 4, seed=2), start)
    assert torch.equal(random_start(seeds, 197, 197, seed=1)[:, :4], start)


@pytest.mark.parametrize("seed", [0, 1])
def test_starts_are_uniform(seed):
    counts = random_start(torch.arange(20000), 10, 2, seed).flatten().bincount(minlength=10)
    assert counts.sum() == 40000
    assert (counts - 4000).abs().max() < 5 * 4000**0.5
