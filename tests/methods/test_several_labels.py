"""Methods for several labels per image: a short run of each config, and its loss written out label by label."""

import math
from functools import partial

import pytest
import torch
from scipy.stats import entropy

import fedvlp
from fedvlp.commands.lightning_cli import FederationCLI
from fedvlp.methods.prompts import distillation_losses
from fedvlp.methods.zero_shot import ClassMeans
from fedvlp.testing import method as checks
from fedvlp.testing.runs import fit, train_reference
from fedvlp.utils.config_files import configs_folder, read_yaml
from fedvlp.utils.errors import UserError
from tests.helpers.configs import EQUIVALENT, METHODS, each_config, few_templates, method_classes

OPTIONS = {"fed_clip": ["--model.loss=cross_entropy"]}
NAN = math.nan
TARGETS = torch.tensor([[1, 0, NAN, 0, 1, 0], [NAN] * 6, [0, 0, 0, 0, 0, 0], [NAN, 1, NAN, NAN, 1, NAN]])
KINDS = {path: getattr(fedvlp, path) for path in method_classes()}
# A method that requires several labels has its own loss and tests.
CLASSES = [path for path, kind in KINDS.items() if kind.supports_several_labels and kind.supports_one_label]


def class_path(config):
    """Read the class of a method's config."""
    return read_yaml(configs_folder() / "methods" / f"{config}.yaml")["model"]["class_path"]


TRAINED = {config for config in METHODS if class_path(config) in CLASSES} - {"zero_shot", "zero_shot_ensemble"}
each_trained_config = pytest.mark.parametrize("config", each_config(TRAINED, TRAINED - EQUIVALENT | {"promptfl_kl"}))


def build(config, folder, *options):
    """Create a run on scenes of six classes with the tiny CLIP, not yet trained."""
    files = [f"--config={configs_folder() / name}.yaml" for name in (f"methods/{config}", "data/icon_scenes")]
    defaults = ["--data.num_classes=6", "--data.batch_size=4", f"--data.cache_dir={folder / 'cache'}"]
    defaults += ["--model.clip.name=fedvlp-tiny", *few_templates(config), *OPTIONS.get(config, [])]
    defaults += ["--trainer.rounds=1", "--trainer.local.epochs=1", "--trainer.local.steps=1", "--trainer.baselines=[]"]
    defaults += ["--trainer.enable_progress_bar=false", "--trainer.runtime.default_callbacks=false"]
    defaults += ["--trainer.accelerator=cpu", f"--trainer.default_root_dir={folder}"]
    return FederationCLI.make([*files, *defaults, *options])


def direct_loss(module, images, targets):
    """Compute the loss image by image and label by label."""
    logits = module(images).tolist()
    kl_weight = getattr(module, "kl_weight", 0)
    teacher = module.teacher(module.precomputed(images)["features"]).tolist() if kl_weight else logits
    losses = []
    for row, frozen, target in zip(logits, teacher, targets.tolist(), strict=True):
        loss = 0
        for label, y in enumerate(target):
            p, q = (1 / (1 + math.exp(z[-1] - z[label])) for z in (row, frozen))
            if not math.isnan(y):
                loss -= math.log(p if y == 1 else 1 - p) / sum(not math.isnan(each) for each in target)
            loss += kl_weight * entropy([q, 1 - q], [p, 1 - p]) / len(target)
        losses.append(loss)
    return sum(losses) / len(losses)


@pytest.mark.parametrize("config", each_config(TRAINED, {"fed_maple", "linear_probe", "promptfl_kl", "trip"}))
def test_a_run_changes_its_tensors_and_repeats(config, tmp_path):
    reference = train_reference(partial(build, config, tmp_path))
    assert reference.tensors
    assert all(value.isfinite().all() for value in reference.tensors.values())
    checks.check_trained_tensors(reference)
    checks.check_determinism(reference)


@each_trained_config
def test_the_loss_is_that_of_a_loop_over_labels(config, images, tmp_path):
    module = build(config, tmp_path).model.train()
    expected = direct_loss(module, images, TARGETS)
    if hasattr(module, "distance"):
        expected += module.distance_weight * module.distance(module.text(module.prompt)).item()
    assert module.training_step((images, TARGETS), 0).item() == pytest.approx(expected, rel=1e-4)


@each_trained_config
def test_unknown_labels_train_nothing(config, images, tmp_path):
    module = build(config, tmp_path).model.train()
    module.kl_weight = module.distance_weight = 0.0  # these terms do not depend on labels
    module.training_step((images, torch.full_like(TARGETS, NAN)), 0).backward()
    gradients = [parameter.grad for parameter in module.parameters() if parameter.grad is not None]
    assert gradients
    assert not any(gradient.any() for gradient in gradients)


@pytest.mark.parametrize("kind", CLASSES)
def test_the_mark_of_the_negative_class_is_not_read(kind, clip, images):
    logits = []
    for name in ("¬image", "image"):
        torch.manual_seed(0)
        logits.append(getattr(fedvlp, kind)(["cat", "dog", name], clip)(images))
    assert torch.equal(*logits)


def test_the_divergence_of_one_label_is_that_of_two_classes():
    logits, teacher = torch.randn(2, 5, 2, generator=torch.Generator().manual_seed(0)).unbind()
    labels = torch.tensor([0, 1, 1, 0, 1])
    of_classes = distillation_losses(logits, labels, teacher, 0.8)
    of_labels = distillation_losses(logits, (labels == 0).float()[:, None], teacher, 0.8)
    expected = entropy(teacher.double().softmax(1), logits.double().softmax(1), axis=1).mean()
    for losses in (of_classes, of_labels):
        assert losses["kl"].item() == pytest.approx(expected, rel=1e-5)
        assert losses["loss"].item() == pytest.approx(of_classes["loss"].item(), rel=1e-5)


@pytest.mark.parametrize(
    ("config", "option"),
    [("fed_clip", "loss=contrastive"), ("linear_probe", "start=class_means")],
)
def test_losses_and_starts_for_one_class_are_refused(config, option, tmp_path):
    run = build(config, tmp_path, f"--model.{option}")
    with pytest.raises(UserError, match=r"with these options\. These methods do: .*PromptFL, .*TRIP, "):
        fit(run)


def test_class_means_are_for_one_class():
    assert not ClassMeans.supports_several_labels


@pytest.mark.parametrize(("add_on", "classes"), [("FedDGGA", 30), ("QFedAvg", 6)])
def test_add_ons_that_evaluate_clients(add_on, classes, tmp_path):
    # With 30 classes, each domain has validation images, which FedDGGA needs.
    options = [f"--trainer.local.add_ons={add_on}", f"--data.num_classes={classes}", "--trainer.rounds=2"]
    run = build("promptfl", tmp_path, *options)
    tensors = fit(run)
    assert all(value.isfinite().all() for value in tensors.values())
    assert len(run.trainer.run_state.history) == 2
