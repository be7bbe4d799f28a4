"""The protocols and methods of the study, and the runs of each pair."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from experiments.options import Choice
from experiments.runs import SeededRuns, adamw, every_run

METHODS = {
    "PromptFL": "promptfl",
    "FedTPG": "fed_tpg",
    "FedMaPLe": "fed_maple",
    "FedPGP": "fed_pgp",
    "pFedMoAP": "pfed_moap",
    "TRIP": "trip",
    "fine-tuning": "fine_tuning",
}
"""Names of methods in tables, with their configs: one shared prompt; a prompt made from class names; deep prompts in
both towers; a personal part next to the shared one; a personal prompt next to others'; a mixture per image; the image
tower itself."""

ROUNDS = 5
STEPS = 10
RATE = 0.003
SAME = (
    "--data.batch_size=16",
    "--trainer.clients.cohort_size=null",
    "--trainer.local.epochs=1",
    f"--trainer.local.steps={STEPS}",
    "--trainer.local.schedule=null",
    *adamw(RATE),
)
"""Options that replace the choices of the methods' configs; arguments after ``--`` override them."""

CROSS_DATASET = (
    "--data.protocol=cross_dataset",
    "--data.held_out=null",
    "--data.test_fraction=0.2",
    "--data.targets=[{class_path: experiments.tiny_clip.shapes.StyledShapes}]",
)


@dataclass(frozen=True)
class Measured:
    """A protocol in the study.

    Attributes:
        title: Name in the study.
        arguments: Arguments of ``fedvlp`` that select the protocol.
        columns: Metrics by column title.
        holds_out: Whether each domain is held out in turn; the table shows the mean over these runs.
    """

    title: str
    arguments: tuple[str, ...] = ()
    columns: Mapping[str, str] = field(default_factory=dict)
    holds_out: bool = False

    def runs(self, config: str, choice: Choice) -> SeededRuns:
        """List the runs of a method: one per seed, or one per seed and held-out domain."""
        held_out = choice.held_out if self.holds_out else (None,)
        setting = replace(choice.setting, more=(*SAME, *choice.setting.more))
        return every_run(config, self.arguments, setting, held_out, choice.seeds)


BASE_TO_NEW = {"base classes": "test", "new classes": "test_new", "harmonic mean": "test_harmonic"}
PERSONAL = {
    "own models": "personal",
    "worst own model": "personal_worst",
    "spread of own models": "personal_spread",
    "global model": "global",
    "its worst client": "global_worst",
}
FEW_CLASSES = (
    "--data.partition=FewClasses",
    "--data.partition.num_clients=3",
    "--data.partition.classes_per_client=19",  # of 55 base classes
)
DIRICHLET = ("--data.partition=Dirichlet", "--data.partition.num_clients=6", "--data.partition.alpha=0.3")
SKEWED = ("--data.partition=QuantitySkew", "--data.partition.num_clients=6", "--data.partition.law=exponential")

PROTOCOLS = (
    Measured("leave_domains_out", (), {"held-out domains": "held_out"}, holds_out=True),
    Measured("all_seen", ("--config=protocols/all_seen",), {"seen domains": "test"}),
    Measured("base_to_new", ("--config=protocols/base_to_new",), BASE_TO_NEW),
    Measured(
        "base_to_new, clients with classes of their own",
        ("--config=protocols/base_to_new", "--data.class_split=client", *FEW_CLASSES),
        {"own classes": "local", **BASE_TO_NEW},
    ),
    Measured(
        "new_classes_and_domains",
        ("--config=protocols/new_classes_and_domains",),
        {"base classes, held-out domains": "held_out", "new classes, held-out domains": "held_out_new"},
        holds_out=True,
    ),
    Measured("cross_dataset", CROSS_DATASET, {"its own test images": "test", "the other data set": "transfer"}),
    Measured("personal, each client with a style of its own", ("--config=protocols/personal",), PERSONAL),
    Measured(
        "personal, label skew",
        ("--config=protocols/personal", *DIRICHLET, "--data.partition.min_examples=20"),
        PERSONAL,
    ),
    Measured(
        "personal, quantity skew",
        ("--config=protocols/personal", *SKEWED, "--data.partition.min_examples=20"),
        PERSONAL,
    ),
)
