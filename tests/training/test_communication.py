"""Communication cost: counted by hand for made-up methods, and the command `fedvlp cost` without weights or images."""

import json

import torch
from torch import nn

from fedvlp.commands.cli import main
from fedvlp.core.phases import Phase
from fedvlp.core.slots import Slots
from fedvlp.core.state import Client
from fedvlp.core.strategies import FedAvg, Local
from fedvlp.training.communication import communication_cost
from tests.helpers.toy_federation import Linear

CLIENTS = [Client(i, i, 10) for i in range(3)]
COLUMNS = ["upload_parameters", "upload_bytes", "download_parameters", "download_bytes"]


class TwoStages(Linear):
    """Uploads one slot of a stack [3, 5], then 7 bfloat16 router weights. The server sends 11 constants once."""

    broadcast_once = ("keys",)

    def __init__(self):
        super().__init__()
        self.prompts = nn.Parameter(torch.zeros(3, 5))
        self.router = nn.Parameter(torch.zeros(7, dtype=torch.bfloat16))
        self.register_buffer("keys", torch.zeros(11), persistent=False)

    def configure_phases(self):
        return [
            Phase("prompts", train=("prompts",), upload=("prompts",), strategy=Slots(by="domain")),
            Phase("router", train=("router",), upload=("router",), strategy=FedAvg()),
        ]

    def upload_state(self):
        state = super().upload_state()
        return {
            name: value[self.context.client.domain] if name == "prompts" else value for name, value in state.items()
        }


def test_phases_match_counts_by_hand():
    """Download in each phase: stack and router, 15 * 4 + 7 * 2 bytes. Upload: 5 floats, then 7 bfloat16."""
    rows = communication_cost(TwoStages(), CLIENTS).rows(rounds=10)
    assert [row["phase"] for row in rows] == ["prompts", "router", "all"]
    for row, counts in zip(rows, [(5, 20, 22, 74), (7, 14, 22, 74), (12, 34, 44, 148)], strict=True):
        assert tuple(row[name] for name in COLUMNS) == counts
    assert [(row["once_parameters"], row["once_bytes"]) for row in rows] == [(0, 0), (0, 0), (11, 44)]
    each_way = 12 + 44
    assert rows[-1]["total_parameters"] == 10 * 3 * each_way + 3 * 11
    assert rows[0]["total_bytes"] == 10 * 3 * (20 + 74)
    assert rows[-1]["total_bytes"] == 10 * 3 * (34 + 148) + 3 * 44
    of_two = communication_cost(TwoStages(), CLIENTS).rows(rounds=10, cohort_size=2)
    assert of_two[0]["total_parameters"] == 10 * 2 * (5 + 22)
    assert communication_cost(TwoStages(), CLIENTS).rows(10, cohort_size=9) == rows


def test_rows_show_the_largest_upload_and_totals_sum_all_clients():
    class Uneven(TwoStages):
        def configure_phases(self):
            return [Phase("prompts", train=("prompts",), upload=("prompts",), strategy=Keep())]

        def upload_state(self):
            return {"prompts": self.prompts[: 1 + self.context.client.id]}

    class Keep(Local):
        def broadcast(self, server, client):
            return {"prompts": server.shared["prompts"]} if client.id == 0 else {}

    row = communication_cost(Uneven(), CLIENTS).rows(rounds=1)[-1]
    assert (row["upload_parameters"], row["download_parameters"]) == (15, 15)
    assert row["total_parameters"] == 5 + 10 + 15 + 15 + 3 * 11


def test_counting_leaves_the_method_unchanged():
    module = TwoStages()
    with torch.no_grad():
        module.prompts += torch.arange(15).view(3, 5)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    communication_cost(module, CLIENTS)
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert module.context is None


def print_cost(capsys, *arguments):
    assert main(["cost", *arguments]) == 0
    return capsys.readouterr().out


TINY = "--model.clip.name=fedvlp-tiny"


def test_the_command_prints_all_formats(capsys):
    """Each direction has 16 vectors of the tiny CLIP's width 64, with 4 bytes per value."""
    given = ["--config", "promptfl", TINY, "--trainer.rounds=3", "--data.num_clients=4"]
    (record,) = json.loads(print_cost(capsys, *given, "--format=json"))
    assert record["upload_parameters"] == record["download_parameters"] == 16 * 64
    assert record["total_bytes"] == 3 * 4 * 2 * 4 * 16 * 64
    assert (record["clip"], record["classes"], record["domains"], record["all_clients"]) == ("fedvlp-tiny", 7, 3, 4)
    markdown = print_cost(capsys, *given, "--format=markdown").splitlines()
    assert markdown[2].startswith("| PromptFL | promptfl | all | 1,024 | 4,096 | 1,024 | 4,096 | 0 | 0 | 4 | 3 |")
    table = print_cost(capsys, *given).splitlines()
    assert table[2].split() == markdown[2].replace("|", " ").split()
    assert any(line.startswith("once: ") for line in table)


def test_several_methods_share_the_other_configs_and_no_image_is_opened(capsys, image_root, tmp_path):
    """Class names and clients come from file and folder names, so broken images are no problem."""
    for path in image_root.rglob("*.png"):
        copy = tmp_path / path.relative_to(image_root)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(b"broken")
    given = ["--config=trip", "-c", "folders", "--config", "promptfl", "--config=zero_shot", TINY]
    given += [f"--data.root={tmp_path}", "--data.held_out=photo"]
    rows = json.loads(print_cost(capsys, *given, "--format=json"))
    uploads = {row["config"]: row["upload_parameters"] for row in rows}
    assert uploads == {"trip": 4 * 32 * 64, "promptfl": 16 * 64, "zero_shot": 0}
    assert {(row["classes"], row["domains"], row["clients"]) for row in rows} == {(3, 2, 2)}


def test_a_missing_method_is_explained(capsys):
    assert main(["cost", "--config=icon_domains"]) == 1
    assert "No method was chosen" in capsys.readouterr().err
