"""What there is in a federation in place of those options of Lightning's Trainer that it does not have."""

from __future__ import annotations

from dataclasses import fields

from fedvlp.training.local_training import LocalTraining
from fedvlp.training.options import Clients, Runtime, Server

ROUNDS = "--trainer.rounds sets how many rounds there are"
LENGTH = "--trainer.local.epochs or --trainer.local.steps sets how long a client trains in a round"
WHOLE = "accuracies are of whole splits; --trainer.evaluate_every measures less often, and fast_dev_run on one batch"
MOVED_TO_PYTHON = "set it in Python before fit:"
AVERAGED_WHOLE = "every process trains clients of its own, so nothing of a step is shared between them"

INSTEAD = {
    "max_epochs": ROUNDS,
    "min_epochs": f"{ROUNDS}, and all are run unless patience or a callback ends them",
    "max_steps": f"{ROUNDS}, and --trainer.local.steps the steps of a client in each",
    "min_steps": f"{ROUNDS}, and --trainer.local.steps the steps of a client in each",
    "max_time": (
        "--trainer.callbacks Timer with --trainer.callbacks.interval epoch and --trainer.callbacks.duration "
        "00:12:00:00 ends a run after a round; a run that is stopped goes on with --ckpt_path last"
    ),
    "limit_train_batches": LENGTH,
    "limit_val_batches": WHOLE,
    "limit_test_batches": WHOLE,
    "limit_predict_batches": "predict classifies the images that --images names",
    "overfit_batches": "--data.shots sets how many images of each class train",
    "val_check_interval": "--trainer.evaluate_every sets after how many rounds results are measured",
    "check_val_every_n_epoch": "--trainer.evaluate_every sets after how many rounds results are measured",
    "num_sanity_val_steps": "--trainer.fast_dev_run true tries everything once",
    "log_every_n_steps": "metrics are logged once a round, as means over each client's steps",
    "enable_checkpointing": "--trainer.runtime.default_callbacks false writes neither checkpoints nor anything else",
    "enable_model_summary": "`fedvlp cost` lists what a method trains and sends",
    "accumulate_grad_batches": ("--data.batch_size sets how many images a step sees"),
    "gradient_clip_val": "--trainer.local.gradient_clip_val clips each client's gradient",
    "gradient_clip_algorithm": "--trainer.local.gradient_clip_val clips the norm, and there is no other way",
    "benchmark": f"{MOVED_TO_PYTHON} torch.backends.cudnn.benchmark = True; results may then differ from run to run",
    "inference_mode": "nothing that is measured is recorded for gradients",
    "use_distributed_sampler": AVERAGED_WHOLE,
    "sync_batchnorm": AVERAGED_WHOLE,
    "profiler": (
        "metrics.csv has the seconds of each round's training and of all of it; profile with "
        "python -m cProfile -m fedvlp fit ..., or with torch.profiler around Federation.fit"
    ),
    "detect_anomaly": (
        "an update that is not finite is refused, with the client's name; "
        f"{MOVED_TO_PYTHON} torch.autograd.set_detect_anomaly(True)"
    ),
    "barebones": "--trainer.runtime.default_callbacks false and --trainer.enable_progress_bar false leave all else out",
    "plugins": "--trainer.precision and --trainer.strategy choose among what a federation is tested with",
    "reload_dataloaders_every_n_epochs": "each client's batches are dealt out anew in every round",
    "enable_autolog_hparams": "loggers get the run's description once, at the start",
    "model_registry": "a run's folder has its prompts and checkpoints",
}
"""What to use, by the option's name."""

RENAMED = {
    "local_epochs": "local.epochs",
    "local_steps": "local.steps",
    "local_rule": "local.add_ons",
    "proximal_weight": "local.add_ons",
    "on_client_failure": "clients.on_failure",
    "client_dropout": "clients.dropout",
}
"""Options that once had another name."""
GROUPS: dict[str, type] = {"local": LocalTraining, "server": Server, "clients": Clients, "runtime": Runtime}
GROUPED = {field.name: f"{name}.{field.name}" for name, group in GROUPS.items() for field in fields(group)}
REPLACEMENTS = INSTEAD | {old: f"it is --trainer.{new}" for old, new in (GROUPED | RENAMED).items()}
"""What to use in place of an option that the trainer does not have, or not without its group."""
