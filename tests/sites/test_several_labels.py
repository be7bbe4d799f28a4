"""Sites whose images have several labels: the same results as in a simulation, and refusals."""

import pytest

from fedvlp.core.several_labels import has_negative_class
from fedvlp.sites.data import SiteImages, SitesData
from fedvlp.sites.policy import Policy, Proposal, decide, record_decision
from fedvlp.sites.wire import Message, WireError, read_reply
from fedvlp.utils.errors import UserError
from tests.helpers.images import CLASSES, DOMAINS
from tests.helpers.sites import Deployment, description, in_process, make_site, method_config, metrics, simulate
from tests.sites.test_equals_simulation import assert_equal_runs

SEVERAL = {"several_labels": True, "test_fraction": 0.3}


def label_set(domain, name, index):
    """Choose an image's labels; the first domain has no star, and other images may have no label."""
    labels = [name, f"{name}|{CLASSES[0]}", f"{name}|?{CLASSES[1]}", ""][index % 4]
    return "" if domain == DOMAINS[0] and "star" in labels else labels


def write_tables(folder, image_root):
    """Write a table for each domain and one for all; labels are in any order."""
    header, everything = "path,label,domain", []
    for domain in DOMAINS:
        rows = []
        for path in sorted((image_root / domain).rglob("*.png")):
            labels = label_set(domain, path.parent.name, int(path.stem))
            rows.append(f"{path.relative_to(image_root)},{labels},{domain}")
        (folder / f"{domain}.csv").write_text("\n".join([header, *reversed(rows)]))
        everything += rows
    (folder / "all.csv").write_text("\n".join([header, *everything]))


@pytest.fixture(scope="module")
def runs(tmp_path_factory, image_root):
    """Run PromptFL on tables of several labels, and return the simulation's run folder and the deployment."""
    folder = tmp_path_factory.mktemp("several")
    write_tables(folder, image_root)
    config = method_config("promptfl", rounds=1)
    options = {"class_path": "fedvlp.data.ImageTable", "table": str(folder / "all.csv")}
    simulated = simulate(folder, config, image_root, **options, **SEVERAL).folder
    deployment = Deployment(folder, image_root, policy={"class_counts": True})
    for node, home in deployment.homes.items():
        table = {"table": str(folder / f"{home.name}.csv"), "several_labels": True}
        deployment.homes[node] = make_site(home, home.name, image_root, policy={"class_counts": True}, **table)
    deployment.transport = in_process(deployment.homes)
    assert deployment.serve(config, deployment.transport, **SEVERAL) == 0
    return simulated, deployment


def test_sites_with_several_labels_equal_a_simulation(runs):
    simulated, deployment = runs
    assert_equal_runs(simulated, deployment.run())
    last = metrics(deployment.run())[-1]
    assert {"validation/ink", "validation", "test/photo", "test"} <= last.keys()
    assert 0 < float(last["test"]) < 100


def test_a_site_reports_only_its_mean_and_the_number_of_images(runs, tmp_path):
    replies = [reply for reply in map(read_reply, runs[1].transport.replies) if reply.kind == "evaluated"]
    assert replies
    for reply in replies:
        assert reply.values["precision"].keys() == reply.values["count"].keys()
        assert not reply.values["correct"]
        assert not reply.values["by_class"]
    wrong = Message("evaluated", {**replies[0].values, "precision": {"test/ink": 101.0}})
    with pytest.raises(WireError, match="sent a wrong precision"):
        read_reply(wrong.to_bytes())
    run = Proposal("run", description(data={"several_labels": True}))
    assert decide(Policy(approve="ask"), tmp_path, run, dict)[0] == "waiting"
    assert any(
        "numbers of images and mean average precisions" in line for line in record_decision(tmp_path, "approve", "")
    )


@pytest.mark.parametrize(
    ("own", "data", "reason"),
    [
        ({"several_labels": True}, {}, "has several_labels: true in its site.yaml, unlike the run"),
        ({}, {"several_labels": True}, "has several_labels: false in its site.yaml, unlike the run"),
        (
            {"several_labels": True},
            {"several_labels": True, "class_names": CLASSES[1:]},
            "has classes that data.class_names does not list: 'circle'",
        ),
    ],
)
def test_sites_that_do_not_fit_the_run_are_refused(own, data, reason, runs, tmp_path, image_root, capsys):
    home = make_site(tmp_path / "home", "ink", image_root, table=str(runs[1].folder / "ink.csv"), **own)
    deployment = Deployment(tmp_path, image_root, ["ink"])
    assert deployment.serve(method_config("promptfl"), in_process({"node": home}), **data) == 1
    assert reason in capsys.readouterr().err


def test_targets_follow_the_servers_labels(runs, image_root):
    table = str(runs[1].folder / "ink.csv")
    site = SiteImages(str(image_root), "ink", [*CLASSES, "zebra"], table=table, several_labels=True, cache_dir=None)
    assert site.class_names == [*CLASSES, "zebra"]
    assert site.classes_with_images == ["circle", "square"]
    assert has_negative_class(site.method_names)
    assert site._label_targets[1].shape[1] == 4
    assert len(site.images["ink"]) == 12


def test_held_out_domains_are_refused():
    with pytest.raises(UserError, match=r"Leave out data\.held_out"):
        SitesData(["a"], CLASSES, held_out="b", root=".", several_labels=True)
