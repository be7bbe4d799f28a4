"""The study of all protocols: the command line accepts every row, and the tables show the runs' results."""

import pytest

from experiments.options import parse
from experiments.protocols import table
from experiments.protocols.rows import METHODS, PROTOCOLS
from experiments.protocols.run import rows_of, study_parser
from fedvlp.core.roles import PROTOCOLS as ALL_PROTOCOLS
from tests.helpers.study_runs import finish, parsed


@pytest.fixture
def choice(tmp_path):
    return parse(study_parser(""), ["--held_out", "photo,sketch", "--seeds", "0,1", "--output", str(tmp_path)])


def test_every_row_is_accepted_by_the_command_line_and_every_protocol_has_one():
    named = set()
    choice = parse(study_parser(""), ["--seeds", "0", "--", "--data.batch_size=4"])
    for protocol in PROTOCOLS:
        ((run,),) = protocol.runs("promptfl", choice)
        config = parsed(["--config=methods/promptfl", *run.setting.arguments, *run.overrides])
        assert config.data.init_args.batch_size == 4
        named.add(config.data.init_args.protocol or "leave_domains_out")
    assert named == set(ALL_PROTOCOLS)


def test_rows_are_different_runs(choice):
    rows = rows_of(choice)
    assert len(rows) == len(PROTOCOLS) * len(METHODS)
    names = [run.name for row in rows for seed_runs in row for run in seed_runs]
    assert len(set(names)) == len(names)


def test_a_table_has_the_mean_over_held_out_domains_and_the_deviation_over_seeds(choice):
    protocol = PROTOCOLS[0]
    for seed, seed_runs in enumerate(protocol.runs("promptfl", choice)):
        for index, run in enumerate(seed_runs):
            finish(run, 50.0 + 10 * seed + 4 * index)
    text = table.section(protocol, choice)
    assert "| PromptFL | 57.0 ± 5.0 | 2 |" in text  # 52 and 62
    assert "| zero-shot CLIP | 1.0 | 1 |" in text
    assert "held out in turn: photo, sketch; such as: held-out domain: ink" in text
    assert "Not run yet: FedTPG, FedMaPLe, FedPGP, pFedMoAP, TRIP, fine-tuning." in text
    assert table.section(PROTOCOLS[1], choice).endswith("Not run yet.")
