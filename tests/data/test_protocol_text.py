"""Clients of one domain or several, few shots and test splits: what is served, what is said of it, what a run makes."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import yaml

from fedvlp.commands.cli import main
from fedvlp.core.phases import Phase
from fedvlp.core.slots import Slots
from fedvlp.core.strategies import ByName
from fedvlp.data import Dispersed, Shards
from fedvlp.training.evaluation import shared_predictions
from fedvlp.utils.errors import UserError
from tests.helpers.toy_federation import Linear, Points, federation


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"held_out": "b"}, "held-out domain: b; one client a domain"),
        ({"held_out": ["c", "b"], "shots": 4}, "held-out domains: b, c; one client a domain; 4-shot"),
        ({}, "all domains seen, no test split; one client a domain"),
        ({"test_fraction": 0.2}, "all domains seen, test split 20 %; one client a domain"),
        (
            {"held_out": "b", "test_fraction": 0.125, "partition": Dispersed(4, alpha=0.5)},
            "held-out domain: b; seen domains, test split 12.5 %; 4 clients, Dirichlet 0.5 within domains",
        ),
        ({"partition": Shards(4)}, "all domains seen, no test split; 4 clients, 2 class shards each"),
    ],
)
def test_protocol(arrays, options, expected):
    assert arrays(cache_dir=None, **options).protocol == expected


DISPERSED = ["--data.held_out=null", "--data.partition=Dispersed", "--data.partition.num_clients=6"]


SEEN = ["--data.held_out=null", "--data.test_fraction=0.25"]


COHORT = ["--trainer.clients.cohort_size=2", "--trainer.rounds=4"]


def fit(run, **options):
    run.trainer.fit(run.model, run.datamodule, **options)
    return run.trainer.run_state


def summary_of(run):
    return json.loads((run.trainer.folder / "summary.json").read_text(encoding="utf-8"))


def test_six_clients_of_three_domains_in_cohorts_of_two(build, capsys):
    run = build("promptfl", *DISPERSED, "--data.partition.alpha=1.0", *SEEN[1:], *COHORT)
    history = fit(run).history
    assert [client.domain for client in run.datamodule.clients] == [0, 0, 1, 1, 2, 2]
    assert len(history) == 4
    for row in history:
        assert sum(name.endswith("/loss") for name in row) == 2
    domains = {"ink", "paint", "photo"}
    for role in ("validation", "test"):
        found = {name: value for name, value in history[-1].items() if name.split("/")[0] == role}
        assert found.keys() == {role, *(f"{role}/{domain}" for domain in domains)}
        assert found[role] == pytest.approx(sum(found[f"{role}/{domain}"] for domain in domains) / 3)
    protocol = "all domains seen, test split 25 %; 6 clients, Dirichlet 1 within domains"
    summary = summary_of(run)
    assert summary["protocol"] == protocol
    assert list(summary["clients"]) == ["ink 1", "ink 2", "paint 1", "paint 2", "photo 1", "photo 2"]
    printed = capsys.readouterr().out
    table = printed[printed.rindex(protocol) :].splitlines()
    assert table[1].split() == (
        ["accuracy", "in", "%", "ink", "paint", "photo", "mean", "ink+", "paint+", "photo+", "test", "mean+"]
    )
    assert "+ test split" in printed
    assert "held out" not in printed
    assert (run.trainer.folder / "accuracy.png").is_file()


def test_another_partition_is_another_run(build):
    fit(build("promptfl", *DISPERSED, "--trainer.name=run"))
    with pytest.raises(UserError, match=r"protocol: was 'all .*IID within.*split: was"):
        fit(build("promptfl", *DISPERSED, "--data.partition.alpha=5", "--trainer.name=run"), ckpt_path="last")


def test_personal_prompts_are_measured_as_the_mean_over_the_clients_of_a_domain(build):
    run = build("single_domain", *DISPERSED, *SEEN[1:], "--trainer.rounds=3")
    progress = fit(run)
    for split in run.datamodule.evaluation_splits():
        assert len(split.clients) == 2
        alone = [
            shared_predictions(run.model, run.trainer.fabric, split, progress.personal[client.id]).accuracy
            for client in split.clients
        ]
        assert progress.history[-1][split.name] == pytest.approx(sum(alone) / 2)


def test_test_command_measures_test_splits_and_held_out_domains(build, capsys):
    run = build("promptfl", "--data.test_fraction=0.25")
    row = fit(run).history[-1]
    capsys.readouterr()
    scores = run.trainer.test(run.model, run.datamodule)
    names = ["held_out", "held_out/photo", "test", "test/ink", "test/paint"]
    assert sorted(scores) == names
    assert scores == {name: row[name] for name in names}
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == "held-out domain: photo; seen domains, test split 25 %; one client a domain"


def test_nothing_to_test_says_what_to_set(build):
    run = build("promptfl", "--data.held_out=null")
    with pytest.raises(UserError, match=r"data\.held_out or --data\.test_fraction"):
        run.trainer.test(run.model, run.datamodule)


class ByDomainSlots(Linear):
    """Keeps a row of weights for each domain, which a client of several domains can't fill."""

    def configure_phases(self):
        return [Phase("train", ("weight",), ("weight",), ByName({"weight": Slots(by="domain")}))]


def test_slots_by_domain_refuse_clients_of_several_before_training(tmp_path):
    data = Points()
    data.clients = [replace(client, domain=-1) for client in data.clients]
    with pytest.raises(UserError, match=r"3 of 3 clients have several, such as 'client0'.*ByDomain or Dispersed"):
        federation(tmp_path).fit(ByDomainSlots(), data)
    assert not list(tmp_path.iterdir())
    federation(tmp_path).fit(Linear(), data)


def test_partitions_by_name_on_the_command_line(image_root, tmp_path, capsys):
    given = ["fit", "--config=promptfl", "--config=folders", f"--data.root={image_root}", "--model.clip=fedvlp-tiny"]
    given += [f"--data.cache_dir={tmp_path}", f"--trainer.default_root_dir={tmp_path}"]
    for name, argument in {"Dispersed": "alpha", "Dirichlet": "min_examples", "Shards": "shards_per_client"}.items():
        more = [f"--data.partition={name}", "--data.partition.num_clients=4", f"--data.partition.{argument}=2"]
        with pytest.raises(SystemExit) as stopped:
            main([*given, *more, "--print_config"])
        assert stopped.value.code == 0
        config = yaml.safe_load(capsys.readouterr().out)["data"]["init_args"]["partition"]
        assert config["class_path"].endswith(f".{name}")
        assert (config["init_args"]["num_clients"], config["init_args"][argument]) == (4, 2)
        with pytest.raises(SystemExit):
            main(["fit", f"--data.partition.help={name}", "--data=DomainFolders"])
        capsys.readouterr()
    with pytest.raises(SystemExit) as stopped:
        main([*given, "--data.partition=Dispersd"])
    assert stopped.value.code == 2
    assert "Dispersd" in capsys.readouterr().err
    assert main([*given, "--data.partition=Dispersed", "--data.partition.num_clients=90"]) == 1
    assert "Lower num_clients" in capsys.readouterr().err
