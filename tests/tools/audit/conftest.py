"""Untrained methods with the tiny CLIP and clients' images, to audit."""

import inspect

import pytest

from fedvlp.tools.trained_run import TrainedRun


@pytest.fixture
def audited(folders, clip):
    """Make a function from a method's class and options to an untrained method with images of its clients."""

    def audited_run(kind, **options):
        data = folders()
        linked = {"domains": data.source_domains, "num_clients": data.num_clients}
        parameters = inspect.signature(kind).parameters
        options |= {name: value for name, value in linked.items() if name in parameters}
        module = kind(class_names=data.class_names, clip=clip, **options)
        return TrainedRun(module, module.shared_state(), {}, data)

    return audited_run
