"""What every method must keep to: how it trains, what it sends, and what its deployed file gives."""

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
from fedvlp.testing.runs import WholeRun, federation_of, fit, small_run, whole_run, write_images
from fedvlp.training.communication import COUNTS
from fedvlp.training.evaluation import evaluate
from fedvlp.utils.config_files import CONFIG_OPTION, find_config
from fedvlp.utils.digests import constructor_arguments
from fedvlp.utils.errors import UsageError, UserError

KEEP = "Keep all that training changes in parameters or in buffers that are saved, and draw with PyTorch's generator."


def check_method(kind: type[FederatedModule], config: str | Path | None = None, arguments: Sequence[str] = ()) -> None:
    """Train a method a few times on made-up images and the tiny CLIP, and checks what every method must keep to.

    A resumed run equals an unbroken one; the order of clients does not matter; only what a phase uploads is sent; and
    more. It takes some seconds, and writes into a temporary folder.

    Args:
        kind: The method.
        config: A config of it, by its path or by its name; its options are the defaults if not given.
        arguments: More arguments of the command line, such as ``--model.prompt_length=4``.

    Raises:
        ContractError: if it does not keep to something; with all that it does not keep to.
        UserError: if it can't be trained at all; or what the method raises itself.
    """
    require(isinstance(kind, type) and issubclass(kind, FederatedModule), f"Expected a FederatedModule, got {kind!r}.")
    chosen = f"--model={kind.__module__}.{kind.__qualname__}"
    method = [chosen if config is None else CONFIG_OPTION + find_config(str(config))]
    problems = []
    with TemporaryDirectory(prefix="fedvlp-contract-") as name:
        folder = Path(name)
        images = write_images(folder / "images")
        try:
            whole = whole_run(partial(small_run, images, folder, [*method, *arguments]))
        except UsageError as error:
            raise ContractError(f"{kind.__name__} can't be made as `fedvlp fit` makes it: {error}") from error
        made = type(whole.run.model)
        require(made is kind, f"Expected a config of {kind.__name__}; it is of {made.__module__}.{made.__name__}.")
        for check in METHOD_CHECKS:
            try:
                check(whole)
            except ContractError as error:
                problems.append(f"{kind.__name__}: {error}")
    require(not problems, "\n".join(problems))


def trains_its_tensors_and_nothing_of_clip(whole: WholeRun) -> None:
    """All that a phase trains moves; the frozen CLIP does not, and is not saved."""
    model = whole.run.model
    # It is kept once computed, and would hide a change.
    model.clip._fingerprint = None
    require(model.clip.fingerprint() == whole.fingerprint, "it changes CLIP, which must stay frozen.")
    saved = [name for name in model.state_dict() if name.startswith("clip")]
    require(not saved, f"it saves tensors of CLIP ({saved}); hand the CLIP to set_backbone and save only its own.")
    trained: set[str] = set()
    for phase in check_phases(model):
        changed = (phase.deploy or ()) if phase.one_pass else phase.train
        trained.update(name for name in whole.before if matches_prefix(changed, name))
    after = {name: value for name, value in whole.tensors.items() if not name.startswith("memory/")}
    names = {name.split("/")[-1] for name in after}
    require(bool(trained) == bool(after), f"it trains {sorted(trained)}, and its run keeps {sorted(names)}.")
    lost = sorted(trained - names)
    require(not lost, f"it trains {lost}, which neither server nor client has afterwards.")
    for place, value in after.items():
        name = place.split("/")[-1]
        # Other tensors are made of these, or count; a bias that moves all scores of a softmax has no gradient.
        if name in trained and not name.endswith(".bias"):
            is_same = torch.equal(value, whole.before[name])
            require(not is_same, f"it trains {name!r}, but it did not move: let the loss depend on it.")


def a_resumed_run_equals_an_unbroken_one(whole: WholeRun) -> None:
    """One round before and one after the break show it: all that a checkpoint holds is there after the first."""
    again = whole.build("--trainer.name=again")
    trains = bool(check_phases(again.model))
    broken = shutil.copytree(whole.folder, Path(mkdtemp(dir=whole.folder.parent)) / "broken")
    # The copy of the run folder is as after a break behind round 1.
    for later in (broken / "prompts.safetensors", *broken.glob("checkpoints/round-00002.*")):
        later.unlink()
    first = broken / "checkpoints" / "round-00001.safetensors"
    change = difference(fit(again, ckpt_path=str(first) if trains else "last"), whole.tensors)
    require(not change, f"a run that resumes after round 1 must end as an unbroken one, but {change}. {KEEP}")
    rounds = [row["round"] for row in federation_of(again).run_state.history]
    require(rounds == ([1, 2] if trains else []), f"a resumed run must have rounds 1 and 2; it has {rounds}.")
    prompts = [Path(each, "prompts.safetensors").read_bytes() for each in (federation_of(again).log_dir, whole.folder)]
    same = prompts[0] == prompts[1]
    require(same, "prompts.safetensors of a resumed run must equal those of an unbroken one.")


def order_of_clients_and_global_generator_do_not_matter(whole: WholeRun) -> None:
    """With clients in the other order and other random numbers before it, a run ends with the same bits."""
    other = whole.build("--trainer.runtime.default_callbacks=false")
    kind = type(other.datamodule)
    # The property of the class is replaced, for the loop asks the data module itself.
    straight = kind.clients.fget
    torch.manual_seed(98765)
    with patch.object(kind, "clients", property(lambda data: straight(data)[::-1])):
        change = difference(fit(other), whole.tensors)
    rule = "neither the order of clients nor what was drawn before a run may change it"
    require(not change, f"{rule}, but {change}. {KEEP}")


def takes_part_of_the_clients(whole: WholeRun) -> None:
    """With one client a round it trains, whichever is drawn; a step of each shows it."""
    of_rounds = ["--trainer.clients.cohort_size=1", "--trainer.rounds=3", "--trainer.evaluate_every=3"]
    of_clients = ["--trainer.local.epochs=1", "--trainer.local.steps=1"]
    run = whole.build(*of_rounds, *of_clients, "--trainer.runtime.default_callbacks=false")
    fit(run)
    history = federation_of(run).run_state.history
    losses = []
    for row in history:
        losses.append(sum(name.endswith("/loss") for name in row))
    phases = check_phases(run.model)
    # What is computed without gradients has no loss.
    expected = [int(any(phase.train for phase in phases))] * (3 if phases else 0)
    require(
        losses == expected,
        f"with one client a round, expected so many that log a loss in each: {expected}; got {losses}. Let "
        "training_step call self.log('loss', loss).",
    )


def a_plain_trainer_trains_it(whole: WholeRun) -> None:
    """It is a LightningModule: lightning.Trainer trains it on the pooled images."""
    run = whole.build()
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
        default_root_dir=mkdtemp(dir=whole.folder.parent),
    )
    before = {name: value.clone() for name, value in run.model.state_dict().items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Lightning's own: deprecated calls, few workers
        if not phases:
            trainer.test(run.model, run.datamodule, verbose=False)
            accuracy = trainer.callback_metrics["test_accuracy"]
            require(bool(0 <= accuracy <= 1), f"test_accuracy is in [0, 1]; got {accuracy}.")
            return
        trainer.fit(run.model, run.datamodule)
    steps = 0 if one_pass else 2
    require(trainer.global_step == steps, f"lightning.Trainer made {trainer.global_step} of {steps} steps.")
    # Later phases combine what several clients sent.
    changed = (phases[0].deploy or ()) if one_pass else phases[0].train
    trained = [name for name in run.model.state_dict() if matches_prefix(changed, name)]
    still = [name for name in trained if torch.equal(run.model.state_dict()[name], before[name])]
    parameters = dict(run.model.named_parameters())
    still = [name for name in still if not _moves_all_alike(name, parameters)]
    require(
        bool(trained) and not still,
        f"lightning.Trainer must train all of {sorted(trained)}; {still} did not move. Let configure_optimizers take "
        "all that trains.",
    )


def _moves_all_alike(name: str, parameters: Mapping[str, Tensor]) -> bool:
    """Whether it is a bias without a gradient but for rounding, as one that moves all scores of a softmax alike."""
    bias = parameters.get(name)
    weight = parameters.get(f"{name.removesuffix('bias')}weight")
    if not name.endswith(".bias") or bias is None or bias.grad is None or weight is None or weight.grad is None:
        return False
    return bool(bias.grad.norm() <= 1e-4 * weight.grad.norm())


def only_what_a_phase_uploads_is_sent(whole: WholeRun) -> None:
    """Clients send what the phase names under upload, and nothing that the method calls personal."""
    model = whole.run.model
    private = (*model.personal, *model.train_only_personal)
    uploads = {phase.name: phase.upload for phase in check_phases(model)}
    require(bool(whole.sent) == bool(uploads), f"it has the phases {list(uploads)}; {len(whole.sent)} uploads came.")
    for (_, _, phase), state in whole.sent.items():
        where = f"in phase {phase!r}"
        require(bool(state) == bool(uploads[phase]), f"{where} {uploads[phase]} is to be sent; {list(state)} was.")
        others = [name for name in state if not matches_prefix(uploads[phase], name)]
        require(not others, f"{where} {others} is sent, which its upload {uploads[phase]} does not name.")
        secret = [name for name in state if matches_prefix(private, name)]
        require(not secret, f"{where} {secret} is sent, though it is personal. Leave it out of the phase's upload.")


def communication_is_what_was_sent_and_what_cost_says(whole: WholeRun) -> None:
    """Of the client that sends most, over all phases; known before a run, and the same in every round."""
    clients = whole.run.datamodule.clients
    cost = whole.cost.rows(rounds=2)[-1]
    history = federation_of(whole.run).run_state.history
    for row in history:
        # A pool of all images sends nothing, though the loop takes what it trained as it takes an upload.
        by_client: dict[int, list[State]] = {}
        for (number, client, _), state in whole.sent.items():
            if number == row["round"] - 1:
                by_client.setdefault(client, []).append({} if clients[0].is_pool else state)
        sent = {
            "upload_parameters": max(sum(map(numel, states)) for states in by_client.values()),
            "upload_bytes": max(sum(map(num_bytes, states)) for states in by_client.values()),
        }
        for count in COUNTS:
            claim = f"`fedvlp cost` says {count} {cost[count]} a round, and round {row['round']} had "
            require(row[count] == cost[count], f"{claim}{row[count]}. Upload the same tensors in every round.")
            if count in sent:
                require(row[count] == sent[count], f"{claim}{sent[count]} in what was sent.")
    counted = sum(row["total_bytes"] for row in history) + cost["once_bytes"] * len(clients)
    expected = cost["total_bytes"]
    require(expected == counted, f"`fedvlp cost` says {expected} bytes in all; {counted} were sent.")


def precomputed_tensors_give_the_same_as_images(whole: WholeRun) -> None:
    """What `precompute` computes once can replace the images themselves."""
    model = whole.run.model
    size = model.clip.image_size
    images = torch.rand(5, 3, size, size, generator=torch.Generator().manual_seed(0))
    model.eval()
    constants = model.precompute(images)
    require(
        torch.equal(model(images), model(constants)),
        "forward must give the same bits for images and for what precompute makes of them. Ask "
        "self.precomputed(inputs) for them, and let precompute depend on nothing that is trained.",
    )
    for name, value in constants.items():
        require(len(value) == 5, f"{name!r} of precompute is of {len(value)} images for 5.")
        require(not value.requires_grad, f"{name!r} of precompute has a gradient; use torch.no_grad().")
    with suppress(UserError):  # some methods cannot classify other classes
        others = model.for_classes(["some", "others"]).precompute(images)
        require(
            all(torch.equal(value, others[name]) for name, value in constants.items()),
            "precompute depends on the class names, but its results are shared by all classes. Compute the part that "
            "depends on them in forward.",
        )


def a_deployed_file_scores_the_same(whole: WholeRun) -> None:
    """A fresh method of another seed, with the run's prompts.safetensors, is as accurate as the run says."""
    prompts = whole.folder / "prompts.safetensors"
    # Another seed draws other constants: what matters must be in the file or follow from the options.
    fresh = whole.build("--seed_everything=7")
    federation = federation_of(fresh)
    federation._attach(fresh.model, fresh.datamodule)
    deployed, personal = load_trained(prompts, fresh.model)
    scores = evaluate(fresh.model, fresh.datamodule, federation.fabric, deployed, personal)
    path = read_model(prompts)["class_path"]
    require(path.endswith(type(fresh.model).__name__), f"prompts.safetensors says that it is of {path}.")
    table = json.loads((whole.folder / "summary.json").read_text(encoding="utf-8"))["accuracy"]
    expected = table["last round (2)" if check_phases(fresh.model) else "zero-shot CLIP"]
    require(
        expected == scores,
        f"loaded from prompts.safetensors it must be as accurate as after training, {expected}, but it is {scores}. "
        "Save all that forward depends on, or make it of the options; draw constants by a seed among them.",
    )


def it_describes_itself_in_json(whole: WholeRun) -> None:
    """The description, by which runs are compared, holds the classes and the CLIP."""
    model = whole.run.model
    try:
        described = json.loads(json.dumps(model.describe()))
    except (TypeError, ValueError) as error:
        raise ContractError(f"describe() must give what JSON can hold; {error}.") from error
    takes_classes = "class_names" in constructor_arguments(type(model))
    names = whole.run.datamodule.class_names
    has_classes = not takes_classes or described.get("class_names") == names
    require(has_classes, "call super().__init__(...), which records its options. class_names is not among them.")
    clip = described.get("clip")
    is_named = isinstance(clip, dict) and clip.get("name") == model.clip.spec.name
    require(is_named, f"record its CLIP: give it to set_backbone. describe() has clip: {clip}.")


METHOD_CHECKS: tuple[Callable[[WholeRun], None], ...] = (
    trains_its_tensors_and_nothing_of_clip,
    a_resumed_run_equals_an_unbroken_one,
    order_of_clients_and_global_generator_do_not_matter,
    takes_part_of_the_clients,
    a_plain_trainer_trains_it,
    only_what_a_phase_uploads_is_sent,
    communication_is_what_was_sent_and_what_cost_says,
    precomputed_tensors_give_the_same_as_images,
    a_deployed_file_scores_the_same,
    it_describes_itself_in_json,
)
