"""Matching of nodes to sites, and checks of sites before training."""

import os

import pytest

from fedvlp.commands.cli import main
from fedvlp.runs.run_folder import WAITING
from fedvlp.sites.data import SitesData, options_for_sites
from fedvlp.sites.registry import SiteRegistry
from fedvlp.sites.wire import Message, SiteError, read_reply, read_request
from fedvlp.sites.worker import Site
from fedvlp.utils.errors import UserError
from tests.helpers.images import CLASSES, DOMAINS, draw
from tests.helpers.sites import description, failure, in_process, make_site, make_sites


def data(sites=DOMAINS, classes=CLASSES, **options):
    return SitesData(sites=list(sites), class_names=list(classes), arrival_seconds=0.05, cache_dir=None, **options)


def registry(transport, server_data=None, **options):
    server_data = data(**options) if server_data is None else server_data
    return SiteRegistry(transport, server_data, "run", description(data=options_for_sites(server_data)))


def changed(handle, **values):
    """Make a handler that changes values of the site's description."""

    def described(request):
        reply = read_reply(handle(request))
        return Message(reply.kind, {**reply.values, **values}).to_bytes()

    return described


@pytest.fixture
def sites(tmp_path, image_root):
    return in_process(make_sites(tmp_path, image_root, ["photo", "ink", "paint"]))


def test_ids_follow_the_list_and_not_the_order_of_arrival(sites, caplog):
    found = registry(sites)
    found.gather(3)
    assert [(client.id, client.domain, client.name) for client in found.data.clients] == [
        (0, 0, "ink"),
        (1, 1, "paint"),
        (2, 2, "photo"),
    ]
    assert [client.num_examples for client in found.data.clients] == [9, 15, 18]
    assert found.nodes == {"photo": "node-0", "ink": "node-1", "paint": "node-2"}
    assert "of all training images" not in caplog.text


def test_classes_missing_on_one_side_are_named(sites):
    with pytest.raises(UserError, match=r"has classes that data\.class_names does not list: 'star'") as caught:
        registry(sites, classes=["circle", "square", "moon"]).gather(3)
    assert "has no image of 'moon'" in str(caught.value)
    assert "Nothing was trained" in str(caught.value)


def test_a_class_may_be_missing_if_the_option_allows_it(tmp_path, image_root, sites):
    root = tmp_path / "half"
    (root / "star").mkdir(parents=True)
    for index in range(3):
        draw(0, 2, index).save(root / "star" / f"{index}.png")
    sites.sites["node-1"] = Site(make_site(tmp_path / "other", "ink", root)).handle
    with pytest.raises(UserError, match="'ink' has no image of 'circle', 'square'"):
        registry(sites).gather(3)
    found = registry(sites, allow_missing_classes=True)
    found.gather(3)
    assert found.data.clients[0].num_examples == 2


def test_a_site_may_be_connected_only_once(sites, tmp_path, image_root):
    sites.sites["node-9"] = Site(make_site(tmp_path / "again", "ink", image_root / "ink")).handle
    with pytest.raises(UserError, match="'ink' is connected twice, as nodes node-1 and node-9"):
        registry(sites, sites=[*DOMAINS, "other"]).gather(3)


def test_a_node_with_another_sites_name_blocks_no_site(sites, tmp_path, image_root, caplog):
    sites.sites = {"liar": Site(make_site(tmp_path / "liar", "ink", image_root / "ink")).handle, **sites.sites}
    found = registry(sites, nodes={"ink": "node-1"})
    found.gather(3)
    assert found.nodes == {"ink": "node-1", "paint": "node-2", "photo": "node-0"}
    assert "uses the name 'ink', but data.nodes expects node node-1" in caplog.text
    assert "uses the name 'ink', which" not in caplog.text
    assert "Node node-2 uses the name 'paint', which any node may use" in caplog.text
    found = registry(sites, sites=["ink", "photo"], nodes={"ink": "node-1"})
    found.gather(2)
    assert found.nodes.keys() == {"ink", "photo"}
    assert "'paint', but data.sites does not list it" in caplog.text


def test_a_site_may_move_to_another_node_once_the_old_node_is_gone(sites, caplog):
    found = registry(sites)
    found.gather(3)
    sites.sites["new node"] = sites.sites["node-1"]
    found.regather(3)
    assert found.nodes["ink"] == "node-1"
    assert "'ink' is connected twice" in caplog.text
    del sites.sites["node-1"]
    found.regather(3)
    assert found.nodes["ink"] == "new node"


def test_versions_and_numbers_of_training_images_are_checked(sites, caplog):
    usual = sites.sites["node-1"]
    versions = read_reply(usual(Message("describe", {"run": "", **description()}).to_bytes())).values["versions"]
    for values, message in (
        ({"versions": {**versions, "fedvlp": "9.9"}}, r"'ink' has fedvlp 9\.9, but the server"),
        ({"counts": {"validation": 4}}, "'ink' has no training image"),
    ):
        sites.sites["node-1"] = changed(usual, **values)
        with pytest.raises(UserError, match=message):
            registry(sites).gather(3)
    caplog.clear()
    sites.sites["node-1"] = changed(usual, versions={**versions, "torch": "1.0"}, counts={"train": 10**18})
    registry(sites).gather(3)
    assert "The site 'ink' has torch 1.0, not" in caplog.text
    assert "The site 'ink' reports 100.0 % of all training images" in caplog.text


def test_images_that_changed_during_a_run_are_rejected(sites):
    server_data = data()
    registry(sites, server_data).gather(3)
    registry(sites, server_data).gather(3)
    sites.sites["node-2"] = changed(sites.sites["node-2"], images="another")
    with pytest.raises(UserError, match="'paint' has different images than at the start of the run"):
        registry(sites, server_data).gather(3)


def test_a_site_that_times_out_is_polled_less_often(sites, monkeypatch):
    now = [0.0]
    monkeypatch.setattr("fedvlp.sites.registry.time.monotonic", lambda: now[0])
    times = []

    def hangs(request):
        times.append(now[0])
        now[0] += 600
        raise SiteError("did not answer in 600 s")

    usual = sites.sites["node-0"]
    sites.sites["node-0"] = hangs
    found = registry(sites)
    for time in (0, 700, 6599):
        now[0] = time
        found.update()
    assert times == [0]
    now[0] = 6600
    found.update()
    assert times == [0, 6600]
    del sites.sites["node-0"]
    found.update()
    sites.sites["node-0"] = usual
    found.update()
    assert found.missing() == []


def failing(handle, kinds):
    """Make a handler that cannot describe its site, and that records the kinds of its requests."""

    def fails(request):
        kinds.append(read_request(request).kind)
        return failure("ink", "can't use its images with the server's options; see the site's log")

    return fails


def test_a_problem_is_reported_once_and_a_repaired_site_joins(sites, caplog, monkeypatch):
    now = [0.0]
    monkeypatch.setattr("fedvlp.sites.registry.time.monotonic", lambda: now[0])
    kinds = []
    usual = sites.sites["node-1"]
    sites.sites["node-1"] = failing(usual, [])
    with pytest.raises(UserError, match=r"The site 'ink' can't use its images.* Nothing was trained"):
        registry(sites).gather(2)
    caplog.clear()
    del sites.sites["node-1"]
    found = registry(sites)
    found.regather(2)
    sites.sites["node-1"] = failing(usual, kinds)
    for seconds in range(0, 600, 2):
        now[0] = seconds
        found.update()
    assert kinds == ["describe"] * 2
    assert caplog.text.count("The site 'ink' can't use its images") == 1
    sites.sites["node-1"] = usual
    now[0] = 600
    found.update()
    assert found.missing() == []
    assert found.problems == {}


def test_the_server_waits_for_others_if_a_site_cannot_join(sites, monkeypatch):
    usual = sites.sites["node-1"]
    absent = sites.sites["node-2"]
    found = registry(sites)
    found.gather(3)
    sites.sites = {"node-0": sites.sites["node-0"], "other": failing(usual, [])}
    monkeypatch.setattr("fedvlp.sites.registry.time.sleep", lambda seconds: sites.sites.update({"node-2": absent}))
    found.regather(2)
    assert found.nodes.keys() == {"photo", "paint"}
    found.regather(3)
    assert found.nodes.keys() == {"photo", "paint"}, "the third site cannot join"


def test_a_node_without_a_name_is_reported_once(sites, caplog):
    def raises(request):
        raise SiteError("did not answer: its process ended")

    sites.sites["node-0"] = lambda request: Message("left").to_bytes()
    found = registry(sites)
    found.gather(2)
    assert "A site that has just connected (node-0)" in caplog.text
    assert found.missing() == ["photo"]
    caplog.clear()
    sites.sites["node-0"] = sites.sites["node-1"] = raises
    found = registry(sites, nodes={"ink": "node-1"})
    for _ in range(3):
        found.silent.clear()
        found.update()
    assert caplog.text.count("A site that has just connected (node-0) did not answer") == 1
    assert caplog.text.count("The site 'ink' (node-1) did not answer") == 1


def test_the_server_waits_forever_for_enough_sites_and_briefly_for_more(sites, tmp_path, monkeypatch, capsys):
    absent = {node: sites.sites.pop(node) for node in ("node-1", "node-2")}
    found = registry(sites)
    found.waiting = tmp_path / "runs" / WAITING
    exit_codes = []

    def sleep(seconds):
        exit_codes.append(main(["status", str(tmp_path / "runs")]))
        if len(exit_codes) == 3:
            sites.sites["node-2"] = absent["node-2"]
        now[0] += 0.04

    now = [0.0]
    monkeypatch.setattr("fedvlp.sites.registry.time.sleep", sleep)
    monkeypatch.setattr("fedvlp.sites.registry.time.monotonic", lambda: now[0])
    found.gather(2)
    assert found.missing() == ["ink"]
    assert exit_codes == [0] * 5, (
        "three checks for enough sites regardless of arrival_seconds, and two for the last site"
    )
    lines = capsys.readouterr().out.splitlines()
    first, then = (
        "for 'ink', 'paint': 1 of 3 sites are connected; 2 are needed",
        "for 'ink': 2 of 3 sites are connected; begins",
    )
    assert [line for line in lines if line.startswith("waiting f")] == [
        f"waiting {first}",
        f"waiting {then} without them in 0 s",
    ]
    assert f"waiting    {first}" in lines, "not printed by the command"
    assert not found.waiting.exists(), "the file still exists"
    found.waiting.write_text(first)
    os.utime(found.waiting, (0, 0))
    assert main(["status", str(tmp_path / "runs")]) == 1, "a killed server counts as waiting"
