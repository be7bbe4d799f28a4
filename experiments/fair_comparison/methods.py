"""The compared methods, and their common settings."""

from __future__ import annotations

from dataclasses import dataclass

from experiments.options import Choice
from fedvlp.tools.sweep.plan import TOGETHER

ROUNDS = 10
STEPS = 10
"""Local steps of a client per round, over all phases."""

RATES = (0.0003, 0.001, 0.003, 0.01)
"""AdamW's learning rates. Each method is trained with the rate that is best on its source validation images."""
SMALLER = (0.00003, 0.0001)
"""Additional rates for methods whose best rate on the icons is the smallest of ``RATES``."""
LARGER = (0.03, 0.1)
"""Additional rates for methods whose best rate on the icons is the largest of ``RATES``."""

SAME = (
    "--data.batch_size=32",
    "--trainer.clients.cohort_size=null",
    "--trainer.local.epochs=1",
    "--trainer.local.schedule=null",
    "--trainer.runtime.num_threads=1",
    "--trainer.enable_progress_bar=false",
)
"""Options that replace the choices of the methods' configs."""

WITHOUT_NOISE = ("--trainer.server.aggregation=null", "--model.local_noise_multiplier=0")
"""The options of DP-FPL that remain: its low-rank steps."""


@dataclass(frozen=True)
class Compared:
    """A row of the table.

    Attributes:
        title: Name of the method in the table.
        config: The method's config.
        overrides: Arguments of all runs.
        teacher: Source of learning in addition to labels: the number of CLIP's text templates; empty for labels only.
        steps: Local steps in each training phase of a round.
        more_rates: Rates to try in addition to ``RATES``.
        trains: Whether the method has training.
        centralised: Whether it has the images of all source domains, and takes as many steps as all clients together.
        test_time: Whether it sees the unlabelled test images, so that its row has a table of its own.
    """

    title: str
    config: str
    overrides: tuple[str, ...] = ()
    teacher: str = ""
    steps: int = STEPS
    more_rates: tuple[float, ...] = ()
    trains: bool = True
    centralised: bool = False
    test_time: bool = False

    def arguments(self, choice: Choice) -> list[str]:
        """List the arguments of all runs except the rate; they evaluate after half of the rounds and at the end."""
        held_out = choice.held_out[0]
        sources = len(choice.setting.domains()) - (len(held_out.split(TOGETHER)) if held_out else 0)
        return [
            *SAME,
            f"--trainer.evaluate_every={(choice.options.rounds + 1) // 2}",
            f"--trainer.local.steps={(sources if self.centralised else 1) * self.steps}",
            *(["--model.optimizer=AdamW"] if self.trains else []),
            *self.overrides,
        ]


METHODS = (
    Compared("zero-shot CLIP", "zero_shot", trains=False),
    Compared("zero-shot CLIP, 60 templates", "zero_shot_ensemble", trains=False),
    Compared("FedNCM", "fed_ncm", ("--trainer.rounds=1",), trains=False),
    Compared("Fed3R", "fed3r", ("--trainer.rounds=1",), trains=False),
    Compared("FedGDA", "fed_gda", ("--trainer.rounds=1",), trains=False),
    Compared("FedCOF", "fed_cof", ("--trainer.rounds=1",), trains=False),
    Compared("Tip-Adapter", "tip_adapter", ("--trainer.rounds=1",), trains=False),
    Compared("CentredMeans", "centred_means", ("--trainer.rounds=1",), trains=False, test_time=True),
    Compared("Latte", "latte", ("--trainer.rounds=1",), trains=False, test_time=True),
    Compared("linear probe from text", "linear_probe", more_rates=LARGER),
    Compared("linear probe from class means", "linear_probe", ("--model.start=class_means",), more_rates=LARGER),
    Compared("single-domain prompts", "single_domain"),
    Compared("PromptFL", "promptfl"),
    Compared("PromptFL, one prompt per class", "promptfl_class_specific"),
    Compared("PromptFL + KL", "promptfl_kl", teacher="60 templates"),
    Compared("PromptFL + FedProx", "promptfl", ("--trainer.local.add_ons=FedProx",)),
    Compared("PromptFL + SCAFFOLD", "promptfl", ("--trainer.local.add_ons=Scaffold",)),
    Compared("PromptFL + FedDyn", "promptfl", ("--trainer.local.add_ons=FedDyn",)),
    Compared("PromptFL + MOON", "promptfl", ("--trainer.local.add_ons=MOON",), more_rates=LARGER),
    Compared("PromptFL + FedDG-GA", "promptfl", ("--trainer.local.add_ons=FedDGGA",)),
    Compared("PromptFL + FedGMA", "promptfl", ("--trainer.server.aggregation=FedGMA",)),
    Compared("KgCoOp", "kgcoop", teacher="1 template", more_rates=SMALLER),
    Compared("ProGrad", "prograd", teacher="1 template"),
    Compared("ProDA", "proda"),
    Compared("PLOT", "plot", more_rates=SMALLER),
    Compared("LoCoOp", "locoop", more_rates=LARGER),
    Compared("CoCoOp", "cocoop", more_rates=LARGER),
    Compared("BPL", "bpl"),
    Compared("FedTPG", "fed_tpg"),
    Compared("FedAPT", "fed_apt"),
    Compared("FedPGP", "fed_pgp", teacher="1 template"),
    Compared("FedPHA", "fed_pha", more_rates=SMALLER),
    Compared("FedOTP", "fed_otp"),
    Compared("FaST-PT", "fast_pt", steps=STEPS // 3, more_rates=LARGER),
    Compared("PromptFolio", "prompt_folio"),
    Compared("FedPuReL", "fed_purel", teacher="1 template", steps=STEPS // 2),
    Compared("DP-FPL, no noise", "dp_fpl", WITHOUT_NOISE),
    Compared("FedDEAP", "fed_deap"),
    Compared("pFedMoAP", "pfed_moap", more_rates=LARGER),
    Compared("DiPrompT", "diprompt"),
    Compared("TRIP-Lite", "trip_lite", teacher="60 templates", more_rates=SMALLER),
    Compared("TRIP", "trip", teacher="60 templates"),
    Compared("TRIP, random pi", "trip_random", teacher="60 templates"),
    Compared("TRIP, no teacher", "trip", ("--model.kl_weight=0",)),
    Compared("FedCLIP", "fed_clip"),
    Compared("FedCLIP, cross-entropy", "fed_clip", ("--model.loss=cross_entropy",)),
    Compared("FedMedCLIP", "fed_med_clip", more_rates=LARGER),
    Compared("FedMaPLe", "fed_maple"),
    Compared("IVLP", "ivlp"),
    Compared("FedPromptSRC", "fed_prompt_src", ("--model.gaussian_mean=null",), teacher="60 templates"),
    Compared("FedLoRA", "fed_lora", more_rates=LARGER),
    Compared("FedLoRA, FL2oRA's scale", "fl2ora", ("--data.augmentation=none",), more_rates=LARGER),
    Compared("FedLoRA, personal A", "fed_lora_personal", more_rates=LARGER),
    Compared("FedLoRA, ranks 2, 4, 8", "fed_lora_ranks", more_rates=LARGER),
    Compared("FedPR", "fed_pr"),
    Compared("pFedPG", "pfed_pg", more_rates=LARGER),
    Compared("FedMGP", "fed_mgp", more_rates=LARGER),
    Compared("pFedMMA", "pfed_mma", more_rates=LARGER),
    Compared("FedMVP", "fed_mvp"),
    Compared("Fed-DPT", "fed_dpt", more_rates=SMALLER),
    Compared("ADAPT", "adapt", more_rates=SMALLER),
    Compared("PLAN", "plan", teacher="60 templates", steps=STEPS // 2),
    Compared("fine-tuning, FedAvg", "fine_tuning"),
    Compared("fine-tuning, FedProx", "fine_tuning_fedprox"),
    Compared("fine-tuning, linear head", "fine_tuning_head"),
    Compared("fine-tuning, both towers", "fine_tuning_whole"),
    Compared("FedSR", "fed_sr"),
    Compared("FedADG", "fed_adg"),
    Compared("CCST", "ccst"),
    Compared("ELCFS", "elcfs"),
    Compared("ELCFS + FedDG-GA", "elcfs", ("--trainer.local.add_ons=FedDGGA",)),
    Compared("StableFDG", "stable_fdg"),
    Compared("CoOp (centralised)", "coop", centralised=True, more_rates=LARGER),
    Compared("ERM (centralised)", "erm", centralised=True),
    Compared("SWAD (centralised)", "swad", centralised=True),
    Compared("DoPrompt (centralised)", "do_prompt", centralised=True),
    Compared("HCVP (centralised)", "hcvp", centralised=True),
)
