"""Every argument of a method is recorded, so that a run is resumed, and compared, only with the same ones."""

from __future__ import annotations

import inspect

import pytest

from fedvlp import methods
from fedvlp.clip import load_clip
from fedvlp.runs.checkpoint import differences
from fedvlp.runs.descriptions import comparable, describe_model
from fedvlp.utils.digests import constructor_arguments
from tests.helpers.images import CLASSES, DOMAINS

METHODS = [getattr(methods, name) for name in sorted(set(methods.__all__) - {"PromptLearner"})]
NEEDED = {"class_names": CLASSES, "domains": DOMAINS, "num_clients": 3}
NOT_RECORDED = {"optimizer", "rounds"}
"""The optimizer is described by its settings, and the number of rounds may differ where a run resumes."""


def made(kind, **options):
    needed = {name: value for name, value in NEEDED.items() if name in inspect.signature(kind).parameters}
    return kind(clip=load_clip("fedvlp-tiny"), **needed, **options)


@pytest.mark.parametrize("kind", METHODS)
def test_every_argument_is_recorded(kind):
    assert set(constructor_arguments(kind)) - NOT_RECORDED <= describe_model(made(kind))["init_args"].keys()


def test_another_value_is_named():
    first, other = ({"model": describe_model(made(methods.PromptFL, prompt_length=length))} for length in (4, 8))
    assert differences(comparable(first), comparable(other)) == ["model.init_args.prompt_length: was 4, is 8"]
