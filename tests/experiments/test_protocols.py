"""The study of all protocols: every row is taken by the command line, and its tables say what runs measured."""

from __future__ import annotations

import numpy as np
import pytest
import yaml
from PIL import Image

from experiments.options import parse
from experiments.protocols import table
from experiments.protocols.other_drawings import DATA_SETS, IMAGES_PER_CLASS, write_data_set
from experiments.protocols.rows import CROSS_DATASET, METHODS, PROTOCOLS, TARGETS
from experiments.protocols.run import rows_of, study_parser
from fedvlp import ClassFolders
from fedvlp.data.protocols import PROTOCOLS as ALL_PROTOCOLS
from tests.helpers.study_runs import finish, parsed


@pytest.fixture
def choice(tmp_path):
    return parse(study_parser(""), ["--held_out", "photo,sketch", "--seeds", "0,1", "--output", str(tmp_path)])


def test_every_row_is_accepted_by_the_command_line_and_every_protocol_has_one():
    named = set()
    for protocol in PROTOCOLS:
        given = ["--config=methods/promptfl", "--config=data/styled_shapes", *protocol.arguments]
        config = parsed(given)
        named.add(config.data.init_args.protocol or "leave_domains_out")
    assert named == set(ALL_PROTOCOLS)


def test_no_two_rows_are_the_same_run(choice):
    rows = rows_of(choice)
    assert len(rows) == len(PROTOCOLS) * len(METHODS)
    names = [run.name for row in rows for of_seed in row for run in of_seed]
    assert len(set(names)) == len(names)


def test_other_drawings_are_those_that_the_config_names(tmp_path):
    (folder,) = {write_data_set(tmp_path, "colours") for _ in range(2)}
    assert sorted(path.name for path in folder.iterdir()) == sorted(DATA_SETS["colours"])
    assert len(list(folder.rglob("*.png"))) == IMAGES_PER_CLASS * len(DATA_SETS["colours"])
    red = np.asarray(Image.open(folder / "red" / "00.png"), dtype=float)
    blue = np.asarray(Image.open(folder / "blue" / "00.png"), dtype=float)
    assert (red[..., 0] - red[..., 2]).max() > 80  # somewhere it is red
    assert (blue[..., 2] - blue[..., 0]).max() > 80
    targets = yaml.safe_load(CROSS_DATASET.read_text())["data"]["init_args"]["targets"]
    assert [each["init_args"].pop("root") for each in targets] == [f"{TARGETS}/{name}" for name in DATA_SETS]
    assert ClassFolders(str(folder), **targets[1]["init_args"]).domains == ["colours"]


def test_a_table_has_the_mean_over_held_out_domains_and_the_deviation_over_seeds(choice):
    protocol = PROTOCOLS[0]
    for seed, of_seed in enumerate(protocol.runs("promptfl", choice)):
        for place, run in enumerate(of_seed):
            finish(run, 50.0 + 10 * seed + 4 * place)
    text = table.section(protocol, choice)
    assert "| PromptFL | 57.0 ± 5.0 | 2 |" in text  # 52 and 62
    assert "| zero-shot CLIP | 1.0 | 1 |" in text
    assert "each domain held out in turn; such as: held-out domain: ink" in text
    assert "Not run yet: FedTPG, pFedMoAP, TRIP." in text
    assert table.section(PROTOCOLS[1], choice).endswith("Not run yet.")
