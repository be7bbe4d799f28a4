"""All arguments of a method are recorded, so that runs are resumed and compared only with equal arguments."""

import pytest

import fedvlp
from fedvlp.clip import load_clip
from fedvlp.runs.descriptions import describe_model
from fedvlp.utils.digests import constructor_arguments
from tests.helpers.configs import method_classes
from tests.helpers.images import CLASSES, DOMAINS

NEEDED = {"class_names": CLASSES, "domains": DOMAINS, "num_clients": 3}
NOT_RECORDED = {"optimizer", "rounds"}
"""The optimizer is described by its settings, and a resumed run may have another number of rounds."""


def made(kind, **options):
    needed = {name: value for name, value in NEEDED.items() if name in constructor_arguments(kind)}
    return kind(clip=load_clip("fedvlp-tiny"), **needed, **options)


@pytest.mark.parametrize("name", method_classes())
def test_every_argument_is_recorded(name):
    kind = getattr(fedvlp, name)
    assert set(constructor_arguments(kind)) - NOT_RECORDED <= describe_model(made(kind))["init_args"].keys()
