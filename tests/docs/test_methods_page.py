"""The table of methods has every config, and what it sends."""

import re

import pytest

from docs import privacy
from fedvlp.core.state import Client
from fedvlp.training.communication import communication_cost
from fedvlp.utils.config_files import configs_folder
from tests.helpers.configs import METHODS
from tests.helpers.documents import ROOT, Document

TEXT = Document(ROOT / "docs" / "methods.md").text


@pytest.mark.parametrize("method", METHODS)
def test_table_of_methods(vit_b_16, method):
    """With ViT-B/16, and as many domains, with a client each, as the row says; three if it says nothing."""
    (line,) = [line for line in TEXT.splitlines() if line.startswith("|") and f"`methods/{method}`" in line]
    config = configs_folder() / "methods" / f"{method}.yaml"
    number = 6 if "six domains" in line else 3
    module = privacy.method(config, vit_b_16, 7 if "seven classes" in line else 3, number, number)
    pool = [Client(0, -1, 10, is_pool=True)]
    clients = pool if privacy.is_centralised(config) else [Client(i, i, 10) for i in range(number)]
    cost = communication_cost(module, clients).rows(rounds=1)[-1]
    sent = line.split("|")[3].strip()
    received = re.search(r"([\d,]+)(?: are)? received", line)
    assert f"{cost['upload_parameters']:,}" == sent
    assert f"{cost['download_parameters']:,}" == (received.group(1) if received else sent)
