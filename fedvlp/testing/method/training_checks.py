"""How a method trains: what moves, and what the result must not depend on."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Mapping
from pathlib import Path
from unittest.mock import patch

import lightning
import torch

from fedvlp.core.phases import check_phases
from fedvlp.core.state import matches_prefix
from fedvlp.testing.comparing import difference
from fedvlp.testing.failures import require
from fedvlp.testing.method.runs import MethodContract, federation_of, fit, tensors_of

KEEP = "Keep all that training changes in parameters or in buffers that are saved, and draw with PyTorch's generator."


def trains_its_tensors_and_nothing_of_clip(contract: MethodContract) -> None:
    """All that a phase trains moves; the frozen CLIP does not, and is not saved."""
    whole = contract.whole
    name = contract.name
    model = whole.run.model
    after = {tensor: value for tensor, value in whole.tensors.items() if not tensor.startswith("memory/")}
    model.clip._fingerprint = None
    require(model.clip.fingerprint() == whole.fingerprint, f"{name} changes CLIP, which must stay frozen.")
    saved = [tensor for tensor in model.state_dict() if tensor.startswith("clip")]
    require(not saved, f"{name} saves tensors of CLIP ({saved}); hand the CLIP to set_backbone and save only its own.")
    trained: set[str] = set()
    for phase in check_phases(model):
        trained.update(each for each in whole.before if matches_prefix(phase.train, each))
    kept = {tensor.split("/")[-1] for tensor in after}
    require(bool(trained) == bool(after), f"{name} trains {sorted(trained)}, and its run keeps {sorted(kept)}.")
    require(trained <= kept, f"{name} trains {sorted(trained - kept)}, which neither server nor client has afterwards.")
    for tensor, value in after.items():
        short = tensor.split("/")[-1]
        # others are made of these, or count something; a bias that shifts all scores of a softmax has no gradient
        if short in trained and not short.endswith(".bias"):
            moved = not torch.equal(value, whole.before[short])
            require(moved, f"{name} trains {short!r}, but it did not move: let the loss depend on it.")


def a_resumed_run_equals_an_unbroken_one(contract: MethodContract) -> None:
    """One round before and one after the break show it: all that a checkpoint holds is there after the first."""
    whole = contract.whole
    name = contract.name
    broken = contract.new_folder() / "broken"
    again = contract.build("--trainer.name=again")
    trains = bool(check_phases(again.model))
    first = shutil.copytree(whole.folder, broken) / "checkpoints" / "round-00001.safetensors"
    for later in (broken / "prompts.safetensors", *broken.glob("checkpoints/round-00002.*")):
        later.unlink()
    found = difference(fit(again, ckpt_path=str(first) if trains else "last"), whole.tensors)
    require(not found, f"{name}: a run that goes on after round 1 must end as an unbroken one, but {found}. {KEEP}")
    rounds = [row["round"] for row in federation_of(again).run_state.history]
    require(rounds == ([1, 2] if trains else []), f"{name}: a resumed run must have rounds 1 and 2; it has {rounds}.")
    folder = Path(federation_of(again).log_dir)
    require((folder == broken) == trains, f"{name}: a resumed run must go on in its folder, {broken}; it is {folder}.")
    prompts = [(where / "prompts.safetensors").read_bytes() for where in (folder, whole.folder)]
    require(
        prompts[0] == prompts[1], f"{name}: prompts.safetensors of a resumed run must equal those of an unbroken one."
    )


def order_of_clients_and_global_generator_do_not_matter(contract: MethodContract) -> None:
    """With clients in the other order and other random numbers before it, a run ends with the same bits."""
    other = contract.build("--trainer.runtime.default_callbacks=false")
    kind = type(other.datamodule)
    straight = kind.clients.fget
    torch.manual_seed(98765)
    with patch.object(kind, "clients", property(lambda data: straight(data)[::-1])):
        found = difference(fit(other), contract.whole.tensors)
    rule = f"{contract.name}: neither the order of clients nor what was drawn before a run may change it"
    require(not found, f"{rule}, but {found}. {KEEP}")


def takes_part_of_the_clients(contract: MethodContract) -> None:
    """With one client a round it trains, whoever is drawn."""
    given = ["--trainer.clients.cohort_size=1", "--trainer.rounds=3", "--trainer.evaluate_every=3"]
    run = contract.build(*given, "--trainer.runtime.default_callbacks=false")
    fit(run)
    sizes = list(map(_losses, federation_of(run).run_state.history))
    expected = [1, 1, 1] if check_phases(run.model) else []
    require(
        sizes == expected,
        f"{contract.name}: with one client a round, expected so many that log a loss in each: {expected}; got {sizes}. "
        "Let training_step call self.log('loss', loss).",
    )


def a_plain_trainer_trains_it(contract: MethodContract) -> None:
    """It is a LightningModule: lightning.Trainer trains it on the pooled images."""
    run = contract.build()
    trainer = lightning.Trainer(
        max_steps=2,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        limit_val_batches=1,
        default_root_dir=contract.new_folder(),
    )
    before = tensors_of(run)
    phases = check_phases(run.model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Lightning's own: deprecated calls, few workers
        if not phases:
            trainer.test(run.model, run.datamodule, verbose=False)
            accuracy = trainer.callback_metrics["test_accuracy"]
            require(bool(0 <= accuracy <= 1), f"{contract.name}: test_accuracy is in [0, 1]; got {accuracy}.")
            return
        trainer.fit(run.model, run.datamodule)
    require(trainer.global_step == 2, f"{contract.name}: lightning.Trainer made {trainer.global_step} of 2 steps.")
    first = phases[0]  # later phases combine what several clients sent
    own = {name: value for name, value in run.model.state_dict().items() if matches_prefix(first.train, name)}
    still = [name for name, value in own.items() if torch.equal(value, before[name])]
    require(
        bool(own) and not still,
        f"{contract.name}: lightning.Trainer must train all of {sorted(own)}; {still} did not move. "
        "Let configure_optimizers take all that trains.",
    )


def _losses(row: Mapping[str, object]) -> int:
    """Returns how many losses a round logged."""
    return sum(name.endswith("/loss") for name in row)
