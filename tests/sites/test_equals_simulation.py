"""A federation of sites equals a simulation on the same folders, bit for bit."""

import pytest
import torch
from safetensors.torch import load_file

from fedvlp.commands.cli import main
from fedvlp.core.balance import UNAVAILABLE
from fedvlp.results import load_record
from fedvlp.runs.checkpoint import load_checkpoint
from fedvlp.sites.server import serve
from tests.helpers.assertions import assert_equal
from tests.helpers.images import DOMAINS
from tests.helpers.sites import in_process, make_sites, method_config, metrics, run_of, simulate, sites_config


def checkpoints(run):
    return sorted((run / "checkpoints").glob("*.safetensors"))


def run_both(tmp_path, image_root, config, homes=None, policy=None, **data):
    """Run the simulation and the sites, and return the two run folders."""
    federation = simulate(tmp_path, config, image_root, **data)
    names = [name for name in DOMAINS if name != data.get("held_out")]
    own = {"root": str(image_root)} if data.get("held_out") else {}
    server = sites_config(tmp_path / "server.yaml", config, names, **data, **own)
    homes = make_sites(tmp_path / "sites", image_root, homes or names, policy=policy or {})
    assert serve(server, in_process(homes), tmp_path / "deployed") == 0
    return federation.folder, run_of(tmp_path / "deployed")


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
    """Run PromptFL in a simulation and at three sites that connect in another order; return run_both folders."""
    folder = tmp_path_factory.mktemp("promptfl")
    return run_both(folder, image_root, method_config("promptfl"), homes=["photo", "ink", "paint"])


def test_three_sites_train_like_a_simulation(promptfl):
    assert_equal_runs(*promptfl)
    first, last = (load_checkpoint(path)[0].server.shared["prompt"] for path in checkpoints(promptfl[1])[:2])
    assert not torch.equal(first, last), "nothing was trained"


def test_three_sites_compute_a_classifier_like_a_simulation(tmp_path, image_root):
    simulated, deployed = run_both(tmp_path, image_root, method_config("fed_cof", rounds=1))
    assert_equal_runs(simulated, deployed)
    assert "weight" in load_file(deployed / "prompts.safetensors")


def test_the_server_evaluates_on_a_domain_without_site(tmp_path, image_root, capsys):
    simulated, deployed = run_both(tmp_path, image_root, method_config("trip"), held_out="paint", test_fraction=0.3)
    assert_equal_runs(simulated, deployed)
    assert "held_out/paint" in metrics(deployed)[0]
    assert "test/ink" in metrics(deployed)[0]
    # Only the sites can repeat the whole evaluation.
    capsys.readouterr()
    assert main(["verify", str(deployed)]) == 1
    advice = capsys.readouterr().err.partition("fedvlp test ")[2].replace("IMAGES", str(image_root)).split()
    assert main(["test", *advice, "--data.held_out=paint", "--data.cache_dir=null"]) == 0
    assert f"held_out/paint: {load_record(deployed).last['held_out/paint']:.2f} %" in capsys.readouterr().out


def test_personal_prompts_are_evaluated_at_the_sites(tmp_path, image_root, capsys):
    config = method_config("single_domain", epochs=4)
    config["model"]["init_args"]["optimizer"] = {"class_path": "torch.optim.SGD", "init_args": {"lr": 0.05}}
    simulated, deployed = run_both(tmp_path, image_root, config)
    assert metrics(simulated) == metrics(deployed)
    assert metrics(deployed)[0]["validation"] != metrics(deployed)[1]["validation"], (
        "personal prompts were not evaluated"
    )
    assert not load_file(deployed / "prompts.safetensors")
    # The prompts are available only at the sites.
    data = ["--config=folders", f"--data.root={image_root}", "--data.cache_dir=null", "--model.clip.name=fedvlp-tiny"]
    arguments = ["--config=single_domain", *data, "--trainer.accelerator=cpu"]
    assert main(["validate", *arguments, "--ckpt_path", str(deployed)]) == 1
    assert "they are stored at the clients' sites" in capsys.readouterr().err


def test_the_server_evaluates_the_shared_part_of_a_method(tmp_path, image_root):
    config = method_config("fed_otp")
    simulated, deployed = run_both(tmp_path, image_root, config, held_out="paint", test_fraction=0.3)
    assert metrics(simulated) == metrics(deployed)
    assert {"held_out/paint", "test/ink"} <= metrics(deployed)[0].keys()


def test_seeded_client_noise_is_the_same_at_sites(tmp_path, image_root):
    aggregation = {"class_path": "fedvlp.DPFedAvg"}
    aggregation["init_args"] = {"clip_norm": 0.1, "noise_multiplier": 0.5, "noise_at": "client"}
    simulated, deployed = run_both(tmp_path, image_root, method_config("promptfl", aggregation=aggregation))
    assert_equal_runs(simulated, deployed)
    quiet = simulate(tmp_path / "quiet", method_config("promptfl"), image_root).run_state.server.shared["prompt"]
    moved = load_file(deployed / "prompts.safetensors")["prompt"] - quiet
    assert moved.norm() > 0.1, "no noise was added"


@pytest.mark.parametrize(
    "options",
    [
        {"cohort_size": 2, "dropout": 0.4, "rounds": 3, "add_ons": {"class_path": "Scaffold"}},
        {"stragglers": 0.7, "epochs": 1.5, "reset_optimizer": False, "add_ons": {"class_path": "FedProx"}},
        {
            "steps": 3,
            "schedule": {"class_path": "fedvlp.training.local_training.CosineDecay"},
            "evaluate_every": 2,
            "add_ons": {"class_path": "FedDGGA", "init_args": {"step": 0.5}},
        },
        {"aggregation": {"class_path": "fedvlp.FedAdam"}, "max_update_norm": 1.52},
    ],
    ids=lambda options: "-".join(options),
)
def test_options_of_local_training_and_of_rounds(options, tmp_path, image_root):
    config = method_config("plan", **options)
    config["model"]["init_args"]["templates"] = 1  # one text per class for each site's teacher
    simulated, deployed = run_both(tmp_path, image_root, config, augmentation="crop_flip", shots=3)
    assert_equal_runs(simulated, deployed)


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


def test_counts_by_class_leave_a_site_only_if_its_policy_allows_them(tmp_path, image_root, capsys):
    config = method_config("promptfl")
    simulated, deployed = run_both(tmp_path, image_root, config, held_out="paint", policy={"class_counts": True})
    simulated_balance = dict(load_record(simulated).balance)
    del simulated_balance["class means"]  # never computed at sites
    assert load_record(deployed).balance == simulated_balance
    assert load_record(deployed).balance["last round"].keys() >= {"validation/ink", "validation", "held_out"}
    capsys.readouterr()
    names = [name for name in DOMAINS if name != "paint"]
    homes = make_sites(tmp_path / "some", image_root, names[:1], policy={"class_counts": True})
    homes |= {f"other-{node}": home for node, home in make_sites(tmp_path / "others", image_root, names[1:]).items()}
    assert serve(tmp_path / "server.yaml", in_process(homes), tmp_path / "partly") == 0
    balance = load_record(run_of(tmp_path / "partly")).balance
    assert balance["last round"].keys() == {"held_out/paint", "held_out"}
    assert f"{UNAVAILABLE}: source validation\n" in capsys.readouterr().out
    assert main(["compare", str(run_of(tmp_path / "partly"))]) == 0
    assert UNAVAILABLE not in capsys.readouterr().out
