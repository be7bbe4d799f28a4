import random

import numpy as np
import torch

from fedvlp.seeding import restored_generators, seed_generators


def draw():
    return random.random(), float(np.random.rand()), torch.rand(1).item()


def test_generators_go_on_where_they_were():
    seed_generators(5)
    expected = [draw(), draw()]
    seed_generators(5)
    first = draw()
    with restored_generators():
        seed_generators(7)
        draw()
    assert [first, draw()] == expected


def test_a_seed_fixes_every_generator():
    with restored_generators():
        seed_generators(3)
        one = draw()
        seed_generators(4)
        other = draw()
        seed_generators(3)
        assert draw() == one
    assert all(a != b for a, b in zip(one, other, strict=True))
