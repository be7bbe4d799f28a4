"""What a secure sum gives the server is what linear rules need: masks cancel exactly, also where a client drops out.

As in Bonawitz et al., Practical secure aggregation, CCS 2017, Section 4: uploads become whole numbers modulo 2^k; each
pair of clients has a mask, which the one with the smaller id adds and the other subtracts; the masks of a client that
drops out are told by those who share them.
"""

import itertools

import numpy as np
import pytest
import torch

from fedvlp.core.aggregation import WeightedMean

MODULUS = 2**32
SCALE = 2**16
"""Whole numbers to 1; values are well below 2^31 / SCALE / the sum of weights."""
WEIGHTS = {3: 7, 5: 2, 8: 9, 11: 4}
SIZE = 5


def uploads():
    generator = torch.Generator().manual_seed(3)
    return {id: {"p": torch.randn(SIZE, generator=generator)} for id in WEIGHTS}


def quantised(state, weight):
    whole = np.round(state["p"].double().numpy() * SCALE).astype(np.int64)
    return (weight * whole) % MODULUS


def mask(one, other):
    """Returns what two clients have agreed on."""
    return np.random.default_rng((17, one, other)).integers(MODULUS, size=SIZE, dtype=np.int64)


def masked(id, number):
    for one, other in itertools.combinations(sorted(WEIGHTS), 2):
        sign = {one: 1, other: -1}.get(id, 0)
        number = (number + sign * mask(one, other)) % MODULUS
    return number


def unmasked_sum(arrived):
    """Returns the sum of those who arrived, once the masks that they shared with the others are told."""
    total = sum(arrived.values()) % MODULUS
    for one, other in itertools.combinations(sorted(WEIGHTS), 2):
        if (one in arrived) != (other in arrived):
            sign = 1 if one in arrived else -1
            total = (total - sign * mask(one, other)) % MODULUS
    return total


def signed(number):
    return np.where(number >= MODULUS // 2, number - MODULUS, number)


@pytest.mark.parametrize("dropped", [set(), {5}, {3, 11}])
def test_masks_cancel_exactly(dropped):
    plain = {id: quantised(state, WEIGHTS[id]) for id, state in uploads().items()}
    arrived = {id: masked(id, number) for id, number in plain.items() if id not in dropped}
    expected = sum(number for id, number in plain.items() if id not in dropped) % MODULUS
    assert unmasked_sum(arrived).tolist() == expected.tolist()
    for id, number in arrived.items():
        assert not (number == plain[id]).any(), "a mask hides every number"
    if dropped:
        assert (sum(arrived.values()) % MODULUS != expected).all(), "masks of who dropped out stay until they are told"


@pytest.mark.parametrize("dropped", [set(), {5}])
def test_sum_is_what_the_weighted_mean_needs(dropped):
    present = [id for id in WEIGHTS if id not in dropped]
    arrived = {id: masked(id, quantised(uploads()[id], WEIGHTS[id])) for id in present}
    weights = [WEIGHTS[id] for id in present]
    mean = signed(unmasked_sum(arrived)) / SCALE / sum(weights)
    expected = WeightedMean().combine([uploads()[id] for id in present], weights, {})["p"]
    assert mean == pytest.approx(expected.numpy(), abs=1 / SCALE)
