"""The tables of methods list every config, with the parameters that it sends and its accuracy on icons."""

import re

import pytest

import fedvlp
from docs._scripts import privacy
from experiments.fair_comparison.methods import METHODS as COMPARED
from fedvlp.core.state import Client
from fedvlp.training.communication import communication_cost
from fedvlp.utils.config_files import configs_folder, read_yaml
from tests.helpers.configs import EQUIVALENT, METHODS
from tests.helpers.documents import ROOT, Document

PAGE = Document(ROOT / "docs" / "methods.md")
FAIR = Document(ROOT / "experiments" / "fair_comparison" / "README.md")
NUM_CLASSES = 7
NUM_DOMAINS = 3


def rows() -> dict[str, dict[str, str]]:
    """Map each config to the row of the table that lists it, by column."""
    found: dict[str, dict[str, str]] = {}
    header: list[str] = []
    for line in PAGE.text.splitlines():
        if not line.startswith("|"):
            header = []
            continue
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not header:
            header = cells
        elif config := re.fullmatch(r"`methods/(\w+)`", dict(zip(header, cells, strict=True)).get("config", "")):
            assert config[1] not in found, f"two rows for {config[1]}"
            found[config[1]] = dict(zip(header, cells, strict=True))
    return found


ROWS = rows()


def test_every_config_has_a_row():
    assert ROWS.keys() == set(METHODS)


@pytest.mark.parametrize("method", METHODS)
def test_parameters_sent(vit_b_16, method):
    """With ViT-B/16, seven classes, and three source domains with one client each."""
    config = configs_folder() / "methods" / f"{method}.yaml"
    module = privacy.method(config, vit_b_16, NUM_CLASSES, NUM_DOMAINS, NUM_DOMAINS)
    pool = [Client(0, -1, 10, is_pool=True)]
    clients = pool if privacy.is_centralised(config) else [Client(i, i, 10) for i in range(NUM_DOMAINS)]
    cost = communication_cost(module, clients).rows(rounds=1)[-1]
    sent, _, received = ROWS[method]["sent"].removesuffix(" received").partition("; ")
    assert f"{cost['upload_parameters']:,}" == sent
    assert f"{cost['download_parameters']:,}" == (received or sent)


def test_methods_for_several_labels():
    sentence = re.search(r"support several labels per image: ([^.]+)\.", PAGE.text.replace("\n", " "))[1].lower()
    for config, row in ROWS.items():
        kind = getattr(fedvlp, read_yaml(configs_folder() / "methods" / f"{config}.yaml")["model"]["class_path"])
        title = re.match(r"\[([^],]+)", row.get("method", ""))
        if title and config not in EQUIVALENT:  # such as CoOp
            assert bool(re.search(rf"\b{title[1].lower()}\b", sentence)) == kind.supports_several_labels, title[1]


def test_accuracies_on_icons():
    """Each accuracy is the mean of the comparison's first row with this config; configs without one have none."""
    compared_rows = FAIR.rows("<!-- icon_domains -->") + FAIR.rows("<!-- icon_domains_test_time -->")
    measured = {row[0]: row[5].split(" ")[0] for row in compared_rows}
    expected: dict[str, str] = {}
    for compared in COMPARED:
        expected.setdefault(compared.config, measured.get(compared.title, ""))
    assert {config: row["icons"] for config, row in ROWS.items()} == {
        config: expected.get(config, "") for config in ROWS
    }
