"""Baseline rows: class means against a slow computation and FedNCM, and runs without such rows."""

import json
from pathlib import Path

import pytest
import torch
from PIL import Image

from fedvlp import Federation, FedNCM, PromptFL, ZeroShotCLIP
from fedvlp.commands.cli import main
from fedvlp.results import load_record
from fedvlp.testing.runs import CLASSES, DOMAINS, draw
from fedvlp.tools.compare.printing import table_text
from fedvlp.tools.compare.tables import tables
from fedvlp.utils.errors import UserError
from tests.helpers.protocol_data import SixClasses
from tests.helpers.runs import make_run, short_fit

pytestmark = pytest.mark.usefixtures("home")


@pytest.fixture(scope="module")
def hard(tmp_path_factory):
    """Write images, a third of them like the next class, so that no classifier is always correct."""
    root = tmp_path_factory.mktemp("hard")
    for domain, domain_name in enumerate(DOMAINS):
        for label, class_name in enumerate(CLASSES):
            folder = root / domain_name / class_name
            folder.mkdir(parents=True)
            for index in range(9 + domain):
                draw(domain, (label + (index % 3 == 0)) % 3, index).save(folder / f"{index}.png")
    return root


SHORT = ("--trainer.rounds=1", "--trainer.local.steps=1")


def accuracies(run):
    """Read the accuracies of a run's table by row title."""
    run.trainer.fit(run.model, run.datamodule)
    return load_record(run.trainer.folder).accuracy


def nearest_mean_accuracies(clip, root, run):
    """Compute the accuracy of the nearest class mean by role and domain, one image at a time."""

    def feature(name):
        with Image.open(root / name) as image, torch.no_grad():
            vector = clip.encode_image(clip.preprocess(image.convert("RGB"))[None])[0].double()
        return vector / vector.norm()

    entries = json.loads((run / "splits.json").read_text())["splits"]
    class_features = {name: [] for name in CLASSES}
    for entry in entries:
        for name in entry["images"] if entry["role"] == "train" else ():
            class_features[Path(name).parent.name].append(feature(name))
    means = {name: sum(features) / len(features) for name, features in class_features.items()}
    measured = {}
    for entry in entries:
        if entry["role"] != "train":
            right = 0
            for name in entry["images"]:
                image = feature(name)
                cosine = {label: (image @ mean / mean.norm()).item() for label, mean in means.items()}
                right += max(cosine, key=cosine.get) == Path(name).parent.name
            measured[f"{entry['role']}/{entry['domain']}"] = 100 * right / len(entry["images"])
    return measured


def test_a_table_has_the_class_means_of_the_same_images(hard, clip, tmp_path, capsys):
    assert main(["fit", "--config=promptfl", *short_fit(hard, tmp_path)]) == 0
    printed = capsys.readouterr().out
    (run,) = tmp_path.glob("runs/*/*/")
    record = load_record(run)
    means = dict(record.accuracy["class means"])
    titles = [line[:25].strip() for line in printed.splitlines()]
    index = titles.index("zero-shot CLIP")
    assert titles[index : index + 3] == ["zero-shot CLIP", "class means", "last round (2)"]
    expected = nearest_mean_accuracies(clip, hard, run)
    assert {name: means[name] for name in expected} == pytest.approx(expected)
    assert 40 < means["held_out"] < 100
    assert record.metrics["class means"]["held_out"]["accuracy"] == means["held_out"]
    assert record.balance["class means"]["held_out"]["balanced_accuracy"] > 0
    ncm = make_run(hard, tmp_path / "ncm", "fed_ncm", "--model.text_weight=0", "--trainer.rounds=1")
    rows = accuracies(ncm)
    assert rows["last round (1)"] == rows["class means"] == means
    # It selects no round, even if it is higher.
    assert means["validation"] > max(record.last["validation"], record.best["validation"])
    best = max(record.history, key=lambda row: row["validation"])
    assert record.best == record.accuracy[f"best on source validation ({best['round']:.0f})"]
    (table,) = tables([record])
    assert [(row["method"], row["up"]) for _, row in table_text(table).frame.iterrows()][:2] == [
        ("zero-shot CLIP", "-"),
        ("class means", "-"),
    ]


def test_rows_can_be_turned_off_and_change_no_training(hard, tmp_path):
    files = {}
    for names in ("[class_means]", "[]"):
        arguments = (f"--trainer.baselines={names}", f"--trainer.name={len(names)}", *SHORT)
        run = make_run(hard, tmp_path, "promptfl", *arguments)
        titles = list(accuracies(run))
        assert ["zero-shot CLIP" in titles, "class means" in titles] == ["zero" in names, "means" in names]
        assert titles[-1].startswith("best on source validation")
        files[names] = (run.trainer.folder / "prompts.safetensors").read_bytes()
    assert len(set(files.values())) == 1
    # Zero-shot CLIP has only its own row.
    run = make_run(hard, tmp_path, "zero_shot", "--trainer.baselines=[]")
    assert list(accuracies(run)) == ["zero-shot CLIP"]
    found = load_record(run.trainer.folder)
    assert found.last == found.best == found.baseline


def test_class_means_do_not_classify_new_classes(clip, tmp_path, capsys):
    data = SixClasses(cache_dir=None, protocol="base_to_new", test_fraction=0.3)
    federation = Federation(rounds=1, accelerator="cpu", default_root_dir=str(tmp_path))
    federation.fit(PromptFL(data.class_names, clip=clip), data)
    rows = load_record(federation.folder).accuracy
    assert {"test", "test_new", "test_harmonic"} <= rows["zero-shot CLIP"].keys()
    assert {name.split("/")[0] for name in rows["class means"]} == {"validation", "test"}
    assert "not available" not in capsys.readouterr().out


def test_a_class_without_images_keeps_its_text_feature(clip):
    zero_shot = ZeroShotCLIP(["dog", "owl", "house"], clip)
    features = torch.randn(7, 128, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([0, 2, 2, 0, 2, 0, 2])
    batches = [({"features": features[:4]}, labels[:4]), ({"features": features[4:]}, labels[4:])]
    means = zero_shot.class_means_baseline(batches)
    ncm = FedNCM(["dog", "owl", "house"], clip, text_weight=0)
    for batch in batches:
        ncm.training_step(batch, 0)
    ncm.on_train_epoch_end()
    inputs = {"features": torch.randn(5, 128, generator=torch.Generator().manual_seed(1))}
    torch.testing.assert_close(means(inputs), ncm(inputs))
    torch.testing.assert_close(means(inputs)[:, 1], zero_shot(inputs)[:, 1])
    with pytest.raises(UserError, match="can't classify other classes"):
        means.for_classes(["car", "cat", "cow"])
    assert zero_shot.class_means_baseline([(torch.zeros(1, 3, 32, 32), torch.zeros(1, dtype=torch.long))]) is None
