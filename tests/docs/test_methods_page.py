"""The table of methods has every config, and what it sends."""

from __future__ import annotations

import re

import pytest

from fedvlp.clip import CLIPSpec, load_clip
from fedvlp.core.state import Client
from fedvlp.data import Pooled
from fedvlp.training.communication import communication_cost
from fedvlp.utils.signatures import constructor_arguments
from tests.helpers.configs import METHODS
from tests.helpers.documents import ROOT, Document

TEXT = Document(ROOT / "docs" / "methods.md").text


@pytest.fixture(scope="module")
def vit():
    """Of which only shapes matter."""
    return load_clip(CLIPSpec("ViT-B-16", "random"))


@pytest.mark.parametrize("method", METHODS)
def test_table_of_methods(build, vit, method):
    """With ViT-B/16, and as many domains, with a client each, as the row says; three if it says nothing."""
    (line,) = [line for line in TEXT.splitlines() if line.startswith("|") and f"`methods/{method}`" in line]
    run = build(method)
    model = run.model
    is_pooled = isinstance(run.datamodule.partition, Pooled)
    parameters = constructor_arguments(type(model))
    options = {name: value for name, value in model.hparams.items() if name in parameters}
    if "without" in options:  # a list, as in the config; the parser makes a tuple of it
        options["without"] = tuple(options["without"])
    number = 6 if "six domains" in line else 3
    counts = {"domains": [f"domain {index}" for index in range(number)], "num_clients": number}
    options |= {name: count for name, count in counts.items() if name in options}
    if "seven classes" in line:
        options["class_names"] = [f"class {index}" for index in range(7)]
    module = type(model)(**options | {"clip": vit})
    clients = [Client(0, -1, 10, is_pool=True)] if is_pooled else [Client(i, i, 10) for i in range(number)]
    cost = communication_cost(module, clients).rows(rounds=1)[-1]
    sent = line.split("|")[3].strip()
    received = re.search(r"([\d,]+)(?: are)? received", line)
    assert f"{cost['upload_parameters']:,}" == sent
    assert f"{cost['download_parameters']:,}" == (received.group(1) if received else sent)
