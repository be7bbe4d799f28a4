"""Methods go through a pickle in memory, and can be copied: worker processes and other libraries do both."""

import io
import pickle

import pytest
import torch

from fedvlp import CLIP, PLAN, SWAD, Classifier, PromptFL
from fedvlp.utils.digests import constructor_arguments
from tests.helpers.assertions import assert_equal

KNOWN = {"class_names": ["red", "pale blue", "green"], "num_clients": 2}


class Pickler(pickle.Pickler):
    """Leaves the CLIP out, the same in all methods and by far the largest part of each."""

    def persistent_id(self, value):
        return "clip" if isinstance(value, CLIP) else None


def through_a_pickle(method):
    file = io.BytesIO()
    Pickler(file).dump(method)
    unpickler = pickle.Unpickler(io.BytesIO(file.getvalue()))
    unpickler.persistent_load = {"clip": method.clip}.__getitem__
    return unpickler.load()


@pytest.mark.parametrize("kind", [PromptFL, PLAN, SWAD])
def test_a_method_comes_out_of_a_pickle_as_it_was(kind, clip, images):
    arguments = constructor_arguments(kind)
    method = kind(clip=clip, **{option: value for option, value in KNOWN.items() if option in arguments}).eval()
    again = through_a_pickle(method)
    assert_equal(again.state_dict(), method.state_dict())
    with torch.no_grad():
        assert torch.equal(again(images), method(images))
    assert again.make_optimizer is method.make_optimizer  # of the signature, by reference
    assert again.describe() == method.describe()


def test_a_classifier_takes_its_clip_along(clip, images):
    classifier = Classifier(PromptFL(["red", "blue"], clip))
    again = pickle.loads(pickle.dumps(classifier))
    assert again.method.clip is not clip
    assert torch.equal(again(images), classifier(images))


def test_an_optimizer_of_the_users_own_is_kept(clip):
    method = PromptFL(["red", "blue"], clip, optimizer=torch.optim.Adagrad)
    assert through_a_pickle(method).make_optimizer is torch.optim.Adagrad
