"""Methods can be pickled, as worker processes and other libraries do."""

import io
import pickle

import pytest
import torch

from fedvlp import CLIP, PLAN, SWAD, Classifier, PromptFL
from fedvlp.utils.digests import constructor_arguments
from tests.helpers.assertions import assert_equal

KNOWN = {"class_names": ["red", "pale blue", "green"], "num_clients": 2}


class Pickler(pickle.Pickler):
    """Skips the CLIP, which is the same in all methods and by far their largest part."""

    def persistent_id(self, value):
        return "clip" if isinstance(value, CLIP) else None


def pickle_and_load(method):
    file = io.BytesIO()
    Pickler(file).dump(method)
    unpickler = pickle.Unpickler(io.BytesIO(file.getvalue()))
    unpickler.persistent_load = {"clip": method.clip}.__getitem__
    return unpickler.load()


@pytest.mark.parametrize("kind", [PromptFL, PLAN, SWAD])
def test_a_pickled_method_stays_equal(kind, clip, images):
    arguments = constructor_arguments(kind)
    method = kind(clip=clip, **{option: value for option, value in KNOWN.items() if option in arguments}).eval()
    again = pickle_and_load(method)
    assert_equal(again.state_dict(), method.state_dict())
    with torch.no_grad():
        assert torch.equal(again(images), method(images))
    assert again.make_optimizer is method.make_optimizer  # the signature's default, by reference
    assert again.describe() == method.describe()


def test_a_pickled_classifier_contains_its_clip(clip, images):
    classifier = Classifier(PromptFL(["red", "blue"], clip))
    again = pickle.loads(pickle.dumps(classifier))
    assert again.method.clip is not clip
    assert torch.equal(again(images), classifier(images))


def test_a_custom_optimizer_survives_pickling(clip):
    method = PromptFL(["red", "blue"], clip, optimizer=torch.optim.Adagrad)
    assert pickle_and_load(method).make_optimizer is torch.optim.Adagrad
