"""The final table of a run with imbalanced classes."""

import json

import pytest

from fedvlp.commands.cli import main
from fedvlp.results import load_record
from fedvlp.testing.runs import CLASSES, DOMAINS, draw
from tests.helpers.runs import short_fit

pytestmark = pytest.mark.usefixtures("home")


@pytest.fixture
def imbalanced(tmp_path):
    """Write three domains with 9 images of one class and 3 of another."""
    for domain, domain_name in enumerate(DOMAINS):
        for label, count in enumerate((9, 3)):
            folder = tmp_path / "images" / domain_name / CLASSES[label]
            folder.mkdir(parents=True)
            for index in range(count):
                draw(domain, label, index).save(folder / f"{index}.png")
    return tmp_path / "images"


def balance_of(folder):
    (run,) = folder.glob("runs/*/*/")
    return run, json.loads((run / "summary.json").read_text())["balance"]


def test_accuracy_has_balanced_scores_also_in_a_resumed_run(imbalanced, tmp_path, capsys):
    arguments = ["fit", "--config=promptfl", *short_fit(imbalanced, tmp_path / "one"), "--model.optimizer.lr=30"]
    assert main(arguments) == 0
    printed = capsys.readouterr().out
    assert "held-out mean*  balanced*  largest class*" in printed
    assert "largest class: accuracy of always predicting that class" in printed
    run, balance = balance_of(tmp_path / "one")
    assert list(balance) == ["zero-shot CLIP", "class means", "last round", "best on source validation"]
    assert balance["last round"]["held_out/photo"]["largest_class"] == 75.0
    assert balance["last round"].keys() >= {"validation/ink", "validation", "held_out"}
    assert balance["last round"] != balance["zero-shot CLIP"]
    metrics = load_record(run).metrics["last round"]["held_out"]
    assert balance["last round"]["held_out"]["balanced_accuracy"] == pytest.approx(metrics["balanced_accuracy"])
    # Neither the best round nor the last round of a finished run is evaluated again.
    assert main([*arguments, "--ckpt_path=last"]) == 0
    assert balance_of(tmp_path / "one") == (run, balance)
