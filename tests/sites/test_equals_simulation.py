"""A federation of sites equals a simulation on the same folders, bit for bit."""

import pytest
from safetensors.torch import load_file

from fedvlp.commands.cli import main
from fedvlp.core.balance import UNAVAILABLE
from fedvlp.results import load_record
from fedvlp.runs.checkpoint import load_checkpoint
from tests.helpers.assertions import assert_equal
from tests.helpers.images import DOMAINS
from tests.helpers.sites import Deployment, in_process, make_site, method_config, metrics, plan_config, simulate

UNSEEN = {"held_out": "paint", "test_fraction": 0.3}
"""Options of data with a domain that has no site."""
SITES = [name for name in DOMAINS if name != "paint"]


def checkpoints(run):
    return sorted((run / "checkpoints").glob("*.safetensors"))


def run_both(folder, image_root, config, names=DOMAINS, policy=None, **data):
    """Run the simulation and the sites, and return the simulation's run folder and the deployment."""
    simulated = simulate(folder, config, image_root, **data).folder
    deployment = Deployment(folder, image_root, names, policy)
    deployment.homes = dict(reversed(deployment.homes.items()))  # sites connect in another order
    own = {"root": str(image_root)} if "held_out" in data else {}
    assert deployment.serve(config, **data, **own) == 0
    return simulated, deployment


def assert_equal_runs(simulated, deployed):
    assert_equal(load_file(simulated / "prompts.safetensors"), load_file(deployed / "prompts.safetensors"))
    assert metrics(simulated) == metrics(deployed)
    assert [path.name for path in checkpoints(simulated)] == [path.name for path in checkpoints(deployed)]
    for one, other in zip(checkpoints(simulated), checkpoints(deployed), strict=True):
        server = load_checkpoint(one)[0].server
        at_sites = load_checkpoint(other)[0].server
        assert_equal(server.shared, at_sites.shared)
        assert_equal(server.deployed, at_sites.deployed)
        assert_equal(server.memory, at_sites.memory)


@pytest.fixture(scope="module")
def promptfl(tmp_path_factory, image_root):
    """Run PromptFL with noise of the clients, and return the folders of the simulation and of the sites' run."""
    aggregation = {"class_path": "fedvlp.DPFedAvg"}
    aggregation["init_args"] = {"clip_norm": 0.1, "noise_multiplier": 0.5, "noise_at": "client"}
    config = method_config("promptfl", aggregation=aggregation)
    simulated, deployment = run_both(tmp_path_factory.mktemp("promptfl"), image_root, config)
    return simulated, deployment.run()


def test_three_sites_train_with_noise_like_a_simulation(promptfl):
    assert_equal_runs(*promptfl)
    first, last = (load_checkpoint(path)[0].server.shared["prompt"] for path in checkpoints(promptfl[1])[:2])
    assert (last - first).norm() > 0.5, "no noise was added, so the update's norm is at most clip_norm"


def test_sites_with_tables_compute_a_classifier_like_a_simulation(tmp_path, image_root):
    config = method_config("fed_cof", rounds=1)
    simulated = simulate(tmp_path, config, image_root).folder
    deployment = Deployment(tmp_path, image_root)
    for node, home in list(deployment.homes.items())[1:]:  # the first site reads class folders
        domain = home.name
        rows = [f"{path.relative_to(image_root)},{path.parent.name}" for path in (image_root / domain).rglob("*.*")]
        table = tmp_path / f"{domain}.csv"
        table.write_text("\n".join(["path,label", *reversed(rows)]))
        deployment.homes[node] = make_site(home, domain, image_root, table=str(table))
    assert deployment.serve(config) == 0
    assert_equal_runs(simulated, deployment.run())
    assert "weight" in deployment.prompts()


@pytest.fixture(scope="module")
def unseen(tmp_path_factory, image_root):
    """Run TRIP at two sites that report counts by class; return the simulation's run folder and the deployment."""
    folder = tmp_path_factory.mktemp("unseen")
    return run_both(folder, image_root, method_config("trip"), SITES, {"class_counts": True}, **UNSEEN)


def test_the_server_evaluates_on_a_domain_without_site(unseen, image_root, capsys):
    deployed = unseen[1].run()
    assert_equal_runs(unseen[0], deployed)
    assert {"held_out/paint", "test/ink"} <= metrics(deployed)[0].keys()
    # Only the sites can repeat the whole evaluation.
    capsys.readouterr()
    assert main(["verify", str(deployed)]) == 1
    advice = capsys.readouterr().err.partition("fedvlp test ")[2].replace("IMAGES", str(image_root)).split()
    assert main(["test", *advice, "--data.held_out=paint", "--data.cache_dir=null"]) == 0
    assert f"held_out/paint: {load_record(deployed).last['held_out/paint']:.2f} %" in capsys.readouterr().out


def test_counts_by_class_leave_a_site_only_if_its_policy_allows_them(unseen, image_root, capsys):
    simulated, deployment = unseen
    simulated_balance = dict(load_record(simulated).balance)
    del simulated_balance["class means"]  # never computed at sites
    assert load_record(deployment.run()).balance == simulated_balance
    assert load_record(deployment.run()).balance["last round"].keys() >= {"validation/ink", "validation", "held_out"}
    capsys.readouterr()
    silent = make_site(deployment.folder / "silent", "photo", image_root / "photo")
    transport = in_process({**deployment.homes, "node-1": silent})
    config = method_config("promptfl", rounds=1)
    assert deployment.serve(config, transport, "partly", held_out="paint", root=str(image_root)) == 0
    partly = deployment.run("partly")
    assert load_record(partly).balance["last round"].keys() == {"held_out/paint", "held_out"}
    assert f"{UNAVAILABLE}: source validation\n" in capsys.readouterr().out
    assert main(["compare", str(partly)]) == 0
    assert UNAVAILABLE not in capsys.readouterr().out


def test_personal_prompts_are_evaluated_at_the_sites(tmp_path, image_root, capsys):
    config = method_config("single_domain", epochs=4)
    config["model"]["init_args"]["optimizer"] = {"class_path": "torch.optim.SGD", "init_args": {"lr": 0.05}}
    simulated, deployment = run_both(tmp_path, image_root, config)
    rows = metrics(deployment.run())
    assert rows == metrics(simulated)
    assert rows[0]["validation"] != rows[1]["validation"], "personal prompts were not evaluated"
    assert not deployment.prompts()
    # The prompts are available only at the sites.
    data = ["--config=folders", f"--data.root={image_root}", "--data.cache_dir=null", "--model.clip.name=fedvlp-tiny"]
    arguments = ["--config=single_domain", *data, "--trainer.accelerator=cpu"]
    assert main(["validate", *arguments, "--ckpt_path", str(deployment.run())]) == 1
    assert "they are stored at the clients' sites" in capsys.readouterr().err


def test_the_server_evaluates_the_shared_part_of_a_method(tmp_path, image_root):
    simulated, deployment = run_both(tmp_path, image_root, method_config("fed_otp", rounds=1), SITES, **UNSEEN)
    rows = metrics(deployment.run())
    assert rows == metrics(simulated)
    assert {"held_out/paint", "test/ink"} <= rows[0].keys()


@pytest.mark.parametrize(
    "options",
    [
        {
            "cohort_size": 2,
            "dropout": 0.4,
            "rounds": 3,
            "steps": 3,
            "schedule": {"class_path": "fedvlp.training.local_training.CosineDecay"},
            "evaluate_every": 2,
            "add_ons": {"class_path": "Scaffold"},
        },
        {
            "stragglers": 0.7,
            "epochs": 1.5,
            "reset_optimizer": False,
            "aggregation": {"class_path": "fedvlp.FedAdam"},
            "max_update_norm": 1.52,
            "add_ons": [{"class_path": "FedProx"}, {"class_path": "FedDGGA", "init_args": {"step": 0.5}}],
        },
    ],
    ids=["rounds", "clients"],
)
def test_options_of_local_training_and_of_rounds(options, tmp_path, image_root):
    config = plan_config(**options)
    simulated, deployment = run_both(tmp_path, image_root, config, augmentation="crop_flip", shots=3)
    assert_equal_runs(simulated, deployment.run())


def test_all_commands_accept_a_run_of_sites(promptfl, tmp_path, image_root, capsys):
    simulated, deployed = promptfl
    one = load_record(simulated)
    other = load_record(deployed)
    assert (one.last, one.best, one.baseline) == (other.last, other.best, other.baseline)
    assert one.accuracy.keys() - other.accuracy.keys() == {"class means"}, "sites send no class means"
    assert one.training == other.training
    names = {path.name for path in simulated.iterdir()}
    assert {path.name for path in deployed.iterdir()} == names | {"config.yaml", "sites.json"}
    assert main(["status", str(deployed)]) == 0
    assert main(["compare", str(deployed)]) == 0
    assert "PromptFL" in capsys.readouterr().out
    assert main(["report", str(deployed), "--output", str(tmp_path / "report.html")]) == 0
    words = ["--images", str(image_root / "ink"), "--output", str(tmp_path / "out.csv"), "--trainer.accelerator", "cpu"]
    assert main(["predict", "--ckpt_path", str(deployed), *words]) == 0
    assert len((tmp_path / "out.csv").read_text().splitlines()) == 13
