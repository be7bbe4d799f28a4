"""The contract of methods: how they train, what they send, and how their deployed files score."""

import json
import shutil
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from unittest.mock import patch

import lightning
import torch
from torch import Tensor

from fedvlp.core.module import FederatedModule, check_phases
from fedvlp.core.state import State, matches_prefix, num_bytes, numel
from fedvlp.runs.descriptions import load_trained
from fedvlp.runs.run_folder import read_model
from fedvlp.testing.contract import ContractError, difference, require
from fedvlp.testing.runs import ReferenceRun, fit, small_run, train_reference, write_images
from fedvlp.training.communication import COUNTS
from fedvlp.training.evaluation import evaluate
from fedvlp.utils.config_files import CONFIG_OPTION, find_config
from fedvlp.utils.digests import constructor_arguments
from fedvlp.utils.errors import UsageError, UserError

KEEP = "Store everything that training changes in parameters or saved buffers, and draw with PyTorch's generator."


def check_method(kind: type[FederatedModule], config: str | Path | None = None, arguments: Sequence[str] = ()) -> None:
    """Train a method a few times on synthetic images and the tiny CLIP, and check the contract of methods.

    For example, a resumed run must equal an uninterrupted one, the order of clients must not matter, and clients must
    send only the phase's uploads. The check takes some seconds, and writes into a temporary folder.

    Args:
        kind: The method's class.
        config: Path or name of a config of the method; None uses the defaults of its options.
        arguments: More arguments of the command line, such as ``--model.prompt_length=4``.

    Raises:
        ContractError: If the method breaks rules; lists all of them.
        UserError: If the method can't be trained at all. Errors of the method itself are passed on.
    """
    require(isinstance(kind, type) and issubclass(kind, FederatedModule), f"Expected a FederatedModule, got {kind!r}.")
    chosen = f"--model={kind.__module__}.{kind.__qualname__}"
    method = [chosen if config is None else CONFIG_OPTION + find_config(str(config))]
    problems = []
    with TemporaryDirectory(prefix="fedvlp-contract-") as name:
        folder = Path(name)
        images = write_images(folder / "images") if kind.supports_one_label else None
        try:
            reference = train_reference(partial(small_run, images, folder, [*method, *arguments]))
        except UsageError as error:
            raise ContractError(f"`fedvlp fit` can't create {kind.__name__}: {error}") from error
        made = type(reference.run.model)
        require(made is kind, f"Expected a config of {kind.__name__}, got one of {made.__module__}.{made.__name__}.")
        for check in METHOD_CHECKS:
            try:
                check(reference)
            except ContractError as error:
                problems.append(f"{kind.__name__}: {error}")
    require(not problems, "\n".join(problems))


def check_trained_tensors(reference: ReferenceRun) -> None:
    """Check that all tensors that a phase trains change, and that the frozen CLIP is neither changed nor saved."""
    model = reference.run.model
    # Cleared, because a cached fingerprint would hide a change.
    model.clip._fingerprint = None
    require(model.clip.fingerprint() == reference.fingerprint, "it changes CLIP, which must stay frozen.")
    saved = [name for name in model.state_dict() if name.startswith("clip")]
    require(not saved, f"it saves tensors of CLIP ({saved}). Pass the CLIP to set_backbone, so that it is not saved.")
    trained: set[str] = set()
    for phase in check_phases(model):
        changed = (phase.deploy or ()) if phase.one_pass else phase.train
        trained.update(name for name in reference.before if matches_prefix(changed, name))
    after = {name: value for name, value in reference.tensors.items() if not name.startswith("memory/")}
    names = {name.split("/")[-1] for name in after}
    require(bool(trained) == bool(after), f"it trains {sorted(trained)}, but its run stores {sorted(names)}.")
    lost = sorted(trained - names)
    require(not lost, f"it trains {lost}, but neither server nor client stores them afterwards.")
    for path, value in after.items():
        name = path.split("/")[-1]
        # All other tensors are derived values or counters; a bias that shifts all scores of a softmax has no gradient.
        if name in trained and not name.endswith(".bias"):
            is_same = torch.equal(value, reference.before[name])
            require(not is_same, f"it trains {name!r}, but the tensor did not change. Let the loss depend on it.")


def check_resumed_run(reference: ReferenceRun) -> None:
    """Check that a run that resumes after round 1 equals an uninterrupted run."""
    again = reference.build("--trainer.name=again")
    trains = bool(check_phases(again.model))
    broken = shutil.copytree(reference.folder, Path(mkdtemp(dir=reference.folder.parent)) / "broken")
    # Make the copied run folder look as if the run was interrupted after round 1.
    for later in (broken / "prompts.safetensors", *broken.glob("checkpoints/round-00002.*")):
        later.unlink()
    first = broken / "checkpoints" / "round-00001.safetensors"
    change = difference(fit(again, ckpt_path=str(first) if trains else "last"), reference.tensors)
    require(not change, f"a run that resumes after round 1 must equal an uninterrupted run, but {change}. {KEEP}")
    rounds = [row["round"] for row in again.trainer.run_state.history]
    require(rounds == ([1, 2] if trains else []), f"a resumed run must have rounds 1 and 2; it has {rounds}.")
    folders = (again.trainer.log_dir, reference.folder)
    resumed, expected = (Path(folder, "prompts.safetensors").read_bytes() for folder in folders)
    require(resumed == expected, "a resumed run's prompts.safetensors must equal the file of an uninterrupted run.")


def check_determinism(reference: ReferenceRun) -> None:
    """Check that reversed clients and earlier random numbers do not change a run's bits."""
    other = reference.build("--trainer.runtime.default_callbacks=false")
    kind = type(other.datamodule)
    # Replace the class's property, because the loop reads the data module itself.
    get_clients = kind.clients.fget
    torch.manual_seed(98765)
    with patch.object(kind, "clients", property(lambda data: get_clients(data)[::-1])):
        change = difference(fit(other), reference.tensors)
    rule = "neither the order of clients nor earlier random numbers may change a run"
    require(not change, f"{rule}, but {change}. {KEEP}")


def check_partial_participation(reference: ReferenceRun) -> None:
    """Check that the method trains with one client per round."""
    rounds = ["--trainer.clients.cohort_size=1", "--trainer.rounds=3", "--trainer.evaluate_every=3"]
    steps = ["--trainer.local.epochs=1", "--trainer.local.steps=1"]
    run = reference.build(*rounds, *steps, "--trainer.runtime.default_callbacks=false")
    fit(run)
    history = run.trainer.run_state.history
    losses = []
    for row in history:
        losses.append(sum(name.endswith("/loss") for name in row))
    phases = check_phases(run.model)
    # Phases without gradients have no loss.
    expected = [int(any(phase.train for phase in phases))] * (3 if phases else 0)
    require(
        losses == expected,
        f"with one client per round, expected {expected} logged losses in the rounds, got {losses}. Let training_step "
        "call self.log('loss', loss).",
    )


def check_lightning_trainer(reference: ReferenceRun) -> None:
    """Check that lightning.Trainer can train the method on the pooled images."""
    run = reference.build()
    phases = check_phases(run.model)
    one_pass = any(phase.one_pass for phase in phases)
    trainer = lightning.Trainer(
        max_steps=-1 if one_pass else 2,
        max_epochs=1 if one_pass else None,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        limit_val_batches=1,
        default_root_dir=mkdtemp(dir=reference.folder.parent),
    )
    before = {name: value.clone() for name, value in run.model.state_dict().items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Lightning warns of deprecated calls and few workers
        if not phases:
            trainer.test(run.model, run.datamodule, verbose=False)
            accuracy = trainer.callback_metrics["test_accuracy"]
            require(bool(0 <= accuracy <= 1), f"test_accuracy must be in [0, 1], got {accuracy}.")
            return
        trainer.fit(run.model, run.datamodule)
    steps = 0 if one_pass else 2
    require(trainer.global_step == steps, f"lightning.Trainer made {trainer.global_step} of {steps} steps.")
    # Only the first phase: later phases need the updates of several clients.
    changed = (phases[0].deploy or ()) if one_pass else phases[0].train
    trained = [name for name in run.model.state_dict() if matches_prefix(changed, name)]
    still = [name for name in trained if torch.equal(run.model.state_dict()[name], before[name])]
    parameters = dict(run.model.named_parameters())
    still = [name for name in still if not _has_no_gradient(name, parameters)]
    require(
        bool(trained) and not still,
        f"lightning.Trainer must train all of {sorted(trained)}, but {still} did not change. Let configure_optimizers "
        "include all of them.",
    )


def _has_no_gradient(name: str, parameters: Mapping[str, Tensor]) -> bool:
    """Whether a tensor is a bias without gradient up to rounding, such as a shift of all scores of a softmax."""
    bias = parameters.get(name)
    weight = parameters.get(f"{name.removesuffix('bias')}weight")
    if not name.endswith(".bias") or bias is None or bias.grad is None or weight is None or weight.grad is None:
        return False
    return bool(bias.grad.norm() <= 1e-4 * weight.grad.norm())


def check_uploads(reference: ReferenceRun) -> None:
    """Check that clients send the tensors in the phase's ``upload``, and no personal tensors."""
    model = reference.run.model
    private = (*model.personal, *model.train_only_personal)
    uploads = {phase.name: phase.upload for phase in check_phases(model)}
    count = len(reference.uploads)
    require(bool(count) == bool(uploads), f"it has the phases {list(uploads)}, but clients sent {count} uploads.")
    for (_, _, phase), state in reference.uploads.items():
        subject = f"clients in phase {phase!r}"
        require(bool(state) == bool(uploads[phase]), f"{subject} must send {uploads[phase]}, but send {list(state)}.")
        others = [name for name in state if not matches_prefix(uploads[phase], name)]
        require(not others, f"{subject} send {others}, which the phase's upload {uploads[phase]} does not contain.")
        private_names = [name for name in state if matches_prefix(private, name)]
        require(not private_names, f"{subject} send the personal {private_names}. Remove them from the phase's upload.")


def check_communication(reference: ReferenceRun) -> None:
    """Check that predicted and logged communication equal the largest client's traffic in every round."""
    clients = reference.run.datamodule.clients
    cost = reference.cost.rows(rounds=2)[-1]
    history = reference.run.trainer.run_state.history
    for row in history:
        # A pool of all images sends nothing, although the loop treats its result like an upload.
        by_client: dict[int, list[State]] = {}
        for (number, client, _), state in reference.uploads.items():
            if number == row["round"] - 1:
                by_client.setdefault(client, []).append({} if clients[0].is_pool else state)
        sent = {
            "upload_parameters": max(sum(map(numel, states)) for states in by_client.values()),
            "upload_bytes": max(sum(map(num_bytes, states)) for states in by_client.values()),
        }
        for count in COUNTS:
            claim = f"`fedvlp cost` predicts {count} {cost[count]} per round, but round {row['round']} "
            require(row[count] == cost[count], f"{claim}logs {row[count]}. Upload the same tensors in every round.")
            if count in sent:
                require(row[count] == sent[count], f"{claim}sent {sent[count]}.")
    counted = sum(row["total_bytes"] for row in history) + cost["once_bytes"] * len(clients)
    expected = cost["total_bytes"]
    require(expected == counted, f"`fedvlp cost` predicts {expected} bytes in all, but {counted} were sent.")


def check_precompute(reference: ReferenceRun) -> None:
    """Check that the results of ``precompute`` can replace the images."""
    model = reference.run.model
    size = model.clip.image_size
    images = torch.rand(5, 3, size, size, generator=torch.Generator().manual_seed(0))
    model.eval()
    constants = model.precompute(images)
    logits = []
    for inputs in (images, constants):
        model.see_test_images([inputs])
        logits.append(model(inputs))
    require(
        torch.equal(*logits),
        "forward must return the same bits for images and for their precomputed constants. Read them with "
        "self.precomputed(inputs), and do not use trained tensors in precompute.",
    )
    for name, value in constants.items():
        require(len(value) == 5, f"{name!r} of precompute has {len(value)} rows for 5 images.")
        require(not value.requires_grad, f"{name!r} of precompute has a gradient. Use torch.no_grad().")
    with suppress(UserError):  # some methods cannot classify other classes
        others = model.for_classes(["some", "others"]).precompute(images)
        require(
            all(torch.equal(value, others[name]) for name, value in constants.items()),
            "precompute depends on the class names, but all classes share its results. Compute the dependent part in "
            "forward.",
        )


def check_deployed_file(reference: ReferenceRun) -> None:
    """Check that prompts.safetensors, loaded into a new method with another seed, has the run's accuracy."""
    prompts = reference.folder / "prompts.safetensors"
    # Another seed draws different constants, so all relevant ones must be in the file or follow from the options.
    fresh = reference.build("--seed_everything=7")
    federation = fresh.trainer
    federation._attach(fresh.model, fresh.datamodule)
    deployed, personal = load_trained(prompts, fresh.model)
    scores = evaluate(fresh.model, fresh.datamodule, federation.fabric, deployed, personal)
    path = read_model(prompts)["class_path"]
    require(path.endswith(type(fresh.model).__name__), f"prompts.safetensors names the wrong class {path}.")
    table = json.loads((reference.folder / "summary.json").read_text(encoding="utf-8"))["accuracy"]
    expected = table["last round (2)" if check_phases(fresh.model) else "zero-shot CLIP"]
    require(
        expected == scores,
        f"loaded from prompts.safetensors it must be as accurate as after training, {expected}, but got {scores}. "
        "Save everything that forward depends on, or derive it from the options, including a seed for constants.",
    )


def check_description(reference: ReferenceRun) -> None:
    """Check that the description, which identifies comparable runs, contains the classes and the CLIP."""
    model = reference.run.model
    try:
        described = json.loads(json.dumps(model.describe()))
    except (TypeError, ValueError) as error:
        raise ContractError(f"describe() must return JSON values; {error}.") from error
    takes_classes = "class_names" in constructor_arguments(type(model))
    names = reference.run.datamodule.method_names
    has_classes = not takes_classes or described.get("class_names") == names
    require(has_classes, "its description lacks class_names. Call super().__init__(...), which records the options.")
    clip = described.get("clip")
    is_named = isinstance(clip, dict) and clip.get("name") == model.clip.spec.name
    require(is_named, f"its description has the CLIP {clip}. Pass the CLIP to set_backbone, which records it.")


METHOD_CHECKS: tuple[Callable[[ReferenceRun], None], ...] = (
    check_trained_tensors,
    check_resumed_run,
    check_determinism,
    check_partial_participation,
    check_lightning_trainer,
    check_uploads,
    check_communication,
    check_precompute,
    check_deployed_file,
    check_description,
)
