"""A site answers every request without revealing anything about its images and files."""

from pathlib import Path

import pytest
import torch

from benchmarks.house import House
from fedvlp.core.state import select
from fedvlp.sites.wire import Message, read_reply, read_request
from fedvlp.sites.worker import Site
from tests.helpers.images import CLASSES, DOMAINS, draw
from tests.helpers.sites import Deployment, description, in_process, make_site, method_config, plan_config

NOISE = {"clip_norm": 1.0, "noise_multiplier": 2.0, "seed": None}


def ask(site, kind, **values):
    return read_reply(site.handle(Message(kind, values).to_bytes()))


def reason(site, kind, **values):
    found = ask(site, kind, **values)
    assert found.kind == "failed"
    return found.values["reason"]


def promptfl(clip):
    return {"class_path": "PromptFL", "init_args": {"class_names": CLASSES, "clip": clip}}


@pytest.fixture
def site(tmp_path, image_root):
    return Site(make_site(tmp_path / "site", "ink", image_root / "ink"))


def record(folder, image_root, config):
    """Run sites with a method, and return the transport with all messages."""
    deployment = Deployment(folder, image_root)
    transport = in_process(deployment.homes)
    assert deployment.serve(config, transport) == 0
    return transport


@pytest.fixture(scope="module")
def traffic(tmp_path_factory):
    """Record all messages of a run of sites with recognisable folder and file names."""
    folder = tmp_path_factory.mktemp("traffic")
    for domain, name in enumerate(DOMAINS):
        for label, class_name in enumerate(CLASSES):
            (folder / name / class_name / "SECRETFOLDER").mkdir(parents=True)
            for index in range(4):
                draw(domain, label, index).save(folder / name / class_name / "SECRETFOLDER" / f"PATIENT{index}.png")
    config = plan_config(rounds=1, steps=2)
    return record(folder, folder, config)


def test_only_uploads_of_the_phase_that_the_policy_allows_leave_a_site(traffic):
    for reply in traffic.replies:
        assert not [name for name in (b"PATIENT", b"SECRET", b".png") if name in reply]
    replies = list(map(read_reply, traffic.replies))
    assert {reply.kind for reply in replies} >= {"described", "prepared", "trained", "evaluated"}
    assert all(reply.values["by_class"] == {} for reply in replies if reply.kind == "evaluated")
    assert all(reply.kind == "trained" for reply in replies if reply.tensors)
    names = {name for reply in replies for name in reply.tensors}
    assert names
    assert not [name for name in names if name.startswith("pool.own")]


def test_an_unreadable_image_is_named_only_in_the_sites_log(tmp_path, caplog):
    for class_name in CLASSES:
        (tmp_path / "images" / class_name).mkdir(parents=True)
        (tmp_path / "images" / class_name / "PATIENT.png").write_bytes(b"no image")
    site = Site(make_site(tmp_path / "site", "ink", tmp_path / "images"))
    expected = "can't use its images with the server's options; see the site's log"
    assert reason(site, "describe", run="run", **description(data={"classes": CLASSES, "split_seed": 5})) == expected
    assert "PATIENT.png" in caplog.text


def test_a_site_describes_its_classes_and_rejects_unknown_options(site):
    data = {"classes": [*CLASSES, "moon"], "validation_fraction": 0.5}
    found = ask(site, "describe", run="", **description(data=data))
    assert (found.values["name"], found.values["classes"]) == ("ink", CLASSES)
    assert found.values["counts"] == {"train": 6, "validation": 6}
    # Names of class folders are case-sensitive.
    found = reason(site, "describe", run="", **description(data={"classes": ["CIRCLE", "SQUARE"]}))
    assert found.startswith("has none of the classes in data.class_names; its folders are 'circle', ")
    found = reason(site, "describe", run="", **description(data={"classes": CLASSES, "root": "/", "cache_dir": "/"}))
    assert found.startswith("does not support the data options cache_dir, root")


def test_an_invalid_request_gets_a_failure_reply(site):
    for content in (b"", b"rubbish", Message("left").to_bytes()):
        assert read_reply(site.handle(content)).kind == "failed"


def test_an_unprepared_site_replies_unprepared(site):
    order = {"run": "run", "client": 0, "domain": 0, "personal": ""}
    assert ask(site, "evaluate", baseline=False, **order).kind == "unprepared"
    more = {"round": 0, "phase": 0, "seed": 1, "factor": 1.0, "share": 1.0, "noise": None, "weighting": None}
    more["optimizer"] = ""
    assert ask(site, "train", **order, **more).kind == "unprepared"
    assert ask(site, "sum", run="run", step="share", client=0, domain=0).kind == "unprepared"
    assert ask(site, "leave", run="run").kind == "left"


class TestPrepared:
    """Requests of a real run, each with one change."""

    @pytest.fixture
    def request_of(self, traffic):
        messages = [read_request(request) for request in traffic.requests]

        def first(kind, phase=0, /, **values):
            candidates = [message for message in messages if message.kind == kind]
            found = next(
                message
                for message in candidates
                if message.values.get("client") in (0, None) and message.values.get("phase", phase) == phase
            )
            return Message(kind, {**found.values, **values}, found.tensors).to_bytes()

        return first

    def test_a_repeated_request_trains_to_the_same_result(self, site, request_of, traffic):
        assert read_reply(site.handle(request_of("prepare"))).kind == "prepared"
        one = site.handle(request_of("train"))
        assert read_reply(one).kind == "trained"
        again = read_reply(site.handle(request_of("train")))
        first = read_reply(one)
        assert all(torch.equal(again.tensors[name], first.tensors[name]) for name in first.tensors)
        assert again.values["personal"] != first.values["personal"], "a stored file was replaced"
        site.handle(request_of("leave"))
        assert site.worker is None, "the method stays after the run"

    @pytest.mark.parametrize(
        ("model", "reason"),
        [
            ({"class_path": "os.system", "init_args": {}}, "--allow os.system"),
            ({"class_path": "PLAN", "init_args": {"optimizer": {"class_path": "os.system"}}}, "--allow os.system"),
            ({"class_path": "PLAN", "init_args": {"init_words": "[&a [x], *a]"}}, "without YAML's *aliases"),
            (promptfl("{name: 'hf-hub:a/b'}"), "add hf-hub:a/b to allow"),
            (promptfl("local-dir:/srv"), "add local-dir:/srv to allow"),
        ],
    )
    def test_an_untrusted_config_is_rejected(self, model, reason, site, request_of, caplog):
        found = read_reply(site.handle(request_of("prepare", model=model)))
        assert found.values["reason"].startswith("does not allow ")
        assert reason in caplog.text

    @pytest.mark.parametrize(
        ("kind", "values", "text"),
        [
            ("prepare", {"fingerprint": "another"}, "has different CLIP weights than the server"),
            ("train", {"phase": 7}, "has no phase 7"),
            (
                "train",
                {"personal": "000000-00009-0.safetensors"},
                "has lost its personal tensors or optimizer state of an earlier round",
            ),
            ("train", {"noise": NOISE}, "is asked to add noise that differs from the run's description"),
            ("prepare", {"run": "../elsewhere"}, "sent a wrong run: Input should be the plain name of a file"),
        ],
    )
    def test_mismatching_requests_are_rejected(self, site, request_of, kind, values, text):
        site.handle(request_of("prepare"))
        assert read_reply(site.handle(request_of(kind, **values))).values["reason"] == text

    def test_another_run_or_client_needs_another_preparation(self, site, request_of):
        site.handle(request_of("prepare"))
        for values in ({"run": "another"}, {"client": 1}, {"domain": 2}):
            assert read_reply(site.handle(request_of("train", **values))).kind == "unprepared"

    def test_a_mismatching_download_is_rejected_without_its_names(self, site, request_of):
        site.handle(request_of("prepare"))
        message = read_request(request_of("train"))
        other = Message("train", message.values, {"elsewhere": torch.zeros(1)}).to_bytes()
        assert read_reply(site.handle(other)).values["reason"] == "raised UserError"

    def test_uploads_contain_noise_from_the_operating_system(self, site, request_of):
        def sent(noise, factor):
            site.handle(request_of("prepare", noise=noise))
            return read_reply(site.handle(request_of("train", 1, personal="", noise=noise, factor=factor))).tensors

        plain, one, other = sent(None, 1.0), sent(NOISE, 1.0), sent(NOISE, 1.0 + 1e-12)
        name = next(iter(plain))
        assert (one[name] - plain[name]).std() == pytest.approx(2.0, rel=0.3)
        assert (one[name] - other[name]).std() > 1

    def test_an_evaluation_without_tensors_does_not_use_the_trained_state(self, site, request_of):
        site.handle(request_of("prepare"))
        assert read_reply(site.handle(request_of("train", 1, personal=""))).kind == "trained"
        values = {**read_request(request_of("evaluate")).values, "baseline": False}
        assert read_reply(site.handle(Message("evaluate", values).to_bytes())).kind == "evaluated"
        trained = select(site.worker.module.state_dict(), ["pool.aggregators"])
        assert trained
        assert not any(value.any() for value in trained.values())

    def test_a_tensor_that_cannot_get_noise_does_not_leave(self, site, request_of):
        site.handle(request_of("prepare", noise=NOISE))
        reply = read_reply(site.handle(request_of("train", noise=NOISE)))
        assert reply.values["reason"].startswith("can't add the run's noise to 'pool.clients.text'")

    def test_tensors_of_add_ons_do_not_leave_if_noise_is_required(self, tmp_path, site, image_root):
        config = method_config("promptfl", rounds=1, add_ons={"class_path": "Scaffold"})
        recorded = record(tmp_path / "run", image_root, config)
        noise = {"clip_norm": 1e-3, "noise_multiplier": 5.0, "seed": None}
        for request in map(read_request, recorded.requests):
            if request.kind in ("prepare", "train") and request.values["client"] == 0:
                again = Message(request.kind, {**request.values, "noise": noise}, request.tensors)
                reply = read_reply(site.handle(again.to_bytes()))
        assert reply.values["reason"] == "can't add the run's noise to 'add_on/0/prompt', which an add-on sends"
        assert not reply.tensors


def test_files_of_old_rounds_are_deleted(tmp_path, monkeypatch, image_root):
    monkeypatch.setattr("fedvlp.sites.worker.MAX_FILES", 2)
    config = method_config("single_domain", rounds=4, steps=1, evaluate_every=4)
    deployment = Deployment(tmp_path, image_root)
    assert deployment.serve(config) == 0
    (clients,) = deployment.homes["node-0"].glob("runs/*/clients")
    assert sorted(path.name.split("-")[1] for path in clients.glob("*.safetensors")) == ["00002", "00003"]


def test_a_site_imports_neither_figures_nor_loggers():
    """Check all direct and indirect imports of a site's process."""
    house = House(Path(__file__).parents[2])
    needed = {"sites.worker", "sites.flower.node"}
    while added := set().union(*(house.imports[name] for name in needed)) - needed:
        needed |= added
    assert not [name for name in needed if name.split(".")[0] in ("federation", "callbacks", "results", "tools")]
    for name in needed:
        assert "import matplotlib" not in house.sources[name]
        assert "import wandb" not in house.sources[name]
