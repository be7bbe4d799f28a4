"""What the command line runs: LightningCLI with the federation as its trainer."""

from __future__ import annotations

import json
import logging
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import yaml
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI, SaveConfigCallback

import fedvlp.methods  # noqa: F401  (makes short class names known)
from fedvlp.commands.parser import FederationParser
from fedvlp.core.module import FederatedModule
from fedvlp.data import FederatedDataModule
from fedvlp.federation import Federation
from fedvlp.utils.config_files import with_config_paths
from fedvlp.utils.errors import UserError
from fedvlp.utils.tensor_files import read_tensors

DEFAULT_SEED = 0


class FederationCLI(LightningCLI):
    """LightningCLI for methods, data modules and the federation: keys ``model``, ``data`` and ``trainer``."""

    def __init__(self, **options: Any) -> None:
        super().__init__(
            trainer_class=cast(Any, Federation),
            parser_class=FederationParser,
            seed_everything_default=DEFAULT_SEED,
            auto_configure_optimizers=False,
            **options,
        )

    @staticmethod
    def subcommands() -> dict[str, set[str]]:
        """Returns the commands, and the arguments that come from the config's own keys."""
        return {name: {"model", "datamodule"} for name in ("fit", "validate", "test", "predict", "diagnose")}

    def add_core_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Adds the three keys; Lightning's own version takes subclasses of its Trainer only."""
        parser.add_class_arguments(Federation, "trainer", fail_untyped=False, instantiate=False, sub_configs=True)
        parser.add_lightning_class_args(FederatedModule, "model", subclass_mode=True)
        parser.add_lightning_class_args(FederatedDataModule, "data", subclass_mode=True)

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Links a method's arguments to data and federation, and the federation's seed to ``seed_everything``."""
        parser.link_arguments("data.class_names", "model.init_args.class_names", apply_on="instantiate")
        parser.link_arguments("data.source_domains", "model.init_args.domains", apply_on="instantiate")
        parser.link_arguments("data.num_clients", "model.init_args.num_clients", apply_on="instantiate")
        parser.link_arguments("trainer.rounds", "model.init_args.rounds")
        parser.link_arguments("seed_everything", "trainer.seed", compute_fn=_seed)

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        """Parses the arguments that :func:`run` was given, which may differ from those of the process."""
        self.config = parser.parse_args(args)

    def _parse_ckpt_path(self) -> None:
        """Leaves checkpoints to the federation: they hold no pickled hyperparameters to merge."""


def run(arguments: Sequence[str]) -> None:
    """Parses the arguments and runs the command; bad arguments exit with code 2.

    Raises:
        UserError: for bad input that only shows once the parts are made.
    """
    logging.getLogger("lightning.fabric").setLevel(logging.WARNING)
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    with tempfile.TemporaryDirectory() as scratch:
        given = with_config_paths(_with_trained_config(list(arguments), Path(scratch)))
        with unwrapped_errors():
            if given[0] == "cost":
                from fedvlp.commands.cost import print_costs

                print_costs(given[1:])
                return
            if given[0] == "explain":
                from fedvlp.commands.explain import print_explanations

                print_explanations(given[1:])
                return
            FederationCLI(
                save_config_callback=SaveConfigCallback if given[0] == "fit" else None,
                save_config_kwargs={"overwrite": True},
                parser_kwargs={"prog": "fedvlp", "description": "Federated prompt learning of vision-language models."},
                args=given,
            )


@contextmanager
def unwrapped_errors() -> Iterator[None]:
    """Lets a mistake of the user come out as it was raised, not as the parser wraps it."""
    try:
        yield
    except ValueError as error:
        cause: BaseException | None = error
        while cause is not None:
            if isinstance(cause, UserError):
                raise cause from None
            cause = cause.__cause__
        raise


def _with_trained_config(arguments: list[str], scratch: Path) -> list[str]:
    """Lets ``predict`` go without a config: a trained file says itself which method and classes it is for."""
    options = dict(pairwise(arguments)) | dict(argument.split("=", 1) for argument in arguments if "=" in argument)
    path = options.get("--ckpt_path")
    asks = {"--config", "-c", "--model", "--help", "-h"} & options.keys() or {"--help", "-h"} & set(arguments)
    if arguments[0] != "predict" or path is None or asks:
        return arguments
    if path == "last":
        raise UserError("predict takes no `last`. Pass the run's folder or its prompts.safetensors to --ckpt_path.")
    where = Path(path)
    file = scratch / "trained.yaml"
    write_config(file, trained_config(where / "prompts.safetensors" if where.is_dir() else where))
    return [arguments[0], "--config", str(file), *arguments[1:]]


def trained_config(where: Path) -> dict[str, Any]:
    """Returns a config of the method that a trained file is of, with its classes for data.

    Raises:
        UserError: if the file is missing or not of a run.
    """
    header = read_tensors(where)[1]
    model = header.get("model") or header.get("description", {}).get("model")
    if model is None:
        raise UserError(f"{where} was not written by fedvlp. Pass a run's prompts.safetensors or a checkpoint.")
    options_of_model = dict(model["init_args"])
    linked = {name: options_of_model.pop(name, None) for name in ("class_names", "domains", "num_clients", "rounds")}
    known = {"class_names": linked["class_names"], "source_domains": linked["domains"]}
    return {
        "model": {"class_path": model["class_path"], "init_args": options_of_model},
        "data": {
            "class_path": "fedvlp.data.class_list.ClassNames",
            "init_args": known | {"num_clients": linked["num_clients"]},
        },
        "trainer": {} if linked["rounds"] is None else {"rounds": linked["rounds"]},
    }


def write_config(file: Path, config: Mapping[str, Any]) -> None:
    """Writes a config that the parser reads."""
    file.write_text(yaml.safe_dump(json.loads(json.dumps(config))), encoding="utf-8")


def _seed(seed: bool | int) -> int:
    """Returns the federation's seed."""
    return DEFAULT_SEED if isinstance(seed, bool) else seed
