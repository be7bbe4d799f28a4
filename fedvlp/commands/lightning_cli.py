"""LightningCLI with the federation as its trainer, and the commands ``fit``, ``validate``, ``test`` and ``predict``."""

from __future__ import annotations

import json
import logging
import re
import sys
from argparse import SUPPRESS, ArgumentError
from collections.abc import Sequence
from copy import deepcopy
from inspect import Parameter, signature
from pathlib import Path
from typing import Any, NoReturn, TypeVar, cast

from jsonargparse import Namespace, _typehints
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI, SaveConfigCallback

import fedvlp
import fedvlp.methods
from fedvlp.commands.cli import TAKES_RUN
from fedvlp.commands.trained_config import ALLOW_HELP, config_of_command, config_option
from fedvlp.core.module import FederatedModule
from fedvlp.data import FederatedDataModule
from fedvlp.federation import Federation
from fedvlp.training.options import REPLACEMENTS, link_method_options
from fedvlp.utils.config_files import is_config_path, with_config_paths
from fedvlp.utils.errors import UserError, escape_control_chars, unwrapped_errors
from fedvlp.utils.files import write_text
from fedvlp.utils.plugins import import_plugins

DEFAULT_SEED = 0
OF_DEVICE = ("accelerator", "devices", "precision", "runtime.num_threads", "deterministic")
OF_PREDICT = ("help", "config", "ckpt_path", "images", "output", "class_names", "allow")
SHOWN_BY_PREDICT = (*OF_PREDICT, *(f"trainer.{name}" for name in OF_DEVICE))
"""The options that matter to ``predict``; it accepts all of ``fit``, as configs of runs have them."""
OF_CLASSES = """

Options of a method and of a data set are those of its class: --model.help PromptFL and --data.help DomainFolders list
them. Most used are

  --model.clip.name NAME  frozen CLIP: ViT-B-16, RN50 and others, or fedvlp-tiny, which needs no download
  --data.root FOLDER      images, as FOLDER/domain/class/image
  --data.held_out DOMAIN  domain that no client has, on which the method is tested
  --data.shots N          training images of each class and source domain; all if not given
"""
NO_DATA = (
    "No data set was chosen. Name its config, such as --config data/icon_domains, or for your own images --config "
    "data/folders --data.root FOLDER. `fedvlp data list` shows the others."
)
PREDICT = (
    "Classify images with a trained method and write a CSV of path, class and probabilities: fedvlp predict RUN "
    "--images FILE_OR_FOLDER. As fit does, it takes --config and --model, too, where the method is to be made in "
    "another way."
)


class FederationParser(LightningArgumentParser):
    """LightningCLI's parser.

    Attributes:
        shown: the names of the options that the help shows; empty for all.
        beside_usage: what the help shows between usage and options.
    """

    shown: Sequence[str] = ()
    beside_usage = ""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **{"allow_abbrev": False, **options})

    def format_help(self) -> str:
        """Formats the help, of the options in ``shown`` alone where there are any."""
        command = self.prog.replace(" [options]", "")
        run = "[RUN] " if command.split()[-1] in TAKES_RUN else ""
        # The parser's own usage is a list of all options, a page long.
        self.usage = f"{command} {run}[--config NAME ...] [options]{self.beside_usage}"
        # Hidden and not left out: a run's config, which predict takes, names them.
        for group in self._action_groups if self.shown else ():
            hidden = [action for action in group._group_actions if action.dest not in self.shown]
            for action in hidden:
                action.help = SUPPRESS
            if len(hidden) == len(group._group_actions):
                group.title = None
                group.description = None
        return str(super().format_help())

    def parse_args(self, args: Any = None, *others: Any, **options: Any) -> Any:
        """Parses arguments; an inner parser gets those of nested classes, where ``null`` has become ``None``."""
        if not self.exit_on_error:
            args = [re.sub("=None$", "=null", argument) for argument in args]
        return super().parse_args(args, *others, **options)

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Ends with the parser's message, without its usage, which would be a page long."""
        if not self.exit_on_error:  # a parser inside the parser: the outer one reports it
            super().error(message, ex)
        # The parser names an option that it does not know in one of these two ways.
        for name, replacement in REPLACEMENTS.items():
            if f"trainer.{name}" in message or f"option '{name}'" in message:
                message += f"\n{name}: {replacement}."
        command = (getattr(ex, "subcommand_parser", None) or self).prog.replace(" [options]", "")
        sys.stderr.write(f"{command}: error: {escape_control_chars(message)}\n")
        sys.stderr.write(f"`{command} --help` lists all options, --model.help NAME those of a class.\n")
        sys.exit(2)


def check_data_set(data: Namespace | None) -> None:
    """Raises UserError if ``data`` of a config names no data set, but at most options that all of them take."""
    if data is None or data.class_path.rpartition(".")[-1] == FederatedDataModule.__name__:
        raise UserError(NO_DATA)


def discard_options(parser: Any, previous: Any, value: Any) -> None:
    """Discards the options of a class that another one replaces, but for those of which that has no default of its own.

    jsonargparse itself keeps those that both classes take: for Adam the weight decay of the SGD that it replaces. It
    still does for methods and data sets, of which one config may name the class and another one options.

    Args:
        parser: of the new class's options, or the option itself.
        previous: the replaced class with its options, as ``class_path`` and ``init_args``; None without one.
        value: the new class, in the same form.
    """
    if not previous or previous.get("init_args") is None or previous["class_path"] == value["class_path"]:
        return
    kind = _typehints.import_object(value["class_path"])
    if isinstance(kind, type) and issubclass(kind, (FederatedModule, FederatedDataModule)):
        discard_what_is_not_taken(parser, previous, value)
        return
    options = previous["init_args"]
    parameters = signature(kind).parameters
    required = [name for name in parameters if parameters[name].default is Parameter.empty and name in options]
    previous["init_args"] = Namespace({name: options[name] for name in required})


def copy_arguments(value: Any) -> Any:
    """Copies what jsonargparse parses an item of a list with, but not the list itself, which is only read.

    It copies the list for each of its items: with 10,000 class names that took minutes.
    """
    if not isinstance(value, dict) or "orig_val" not in value:
        return deepcopy(value)
    return {name: inner if isinstance(inner, list) else deepcopy(inner) for name, inner in value.items()}


def parse_name_or_config(value: Any, enable_path: bool = True, **options: Any) -> Any:
    """Read a config from a file, but not from one that has the name of a class."""
    return parse_value_or_config(value, enable_path and isinstance(value, str) and is_config_path(value), **options)


def adapt_config_path(value: Any, typehint: Any, options: dict[str, Any]) -> Any:
    """Read an item of a list from a file, but not from one that has the name of a class."""
    is_path = isinstance(value, str) and is_config_path(value)
    return adapt_subconfig_path(value, typehint, options) if is_path else _typehints.not_a_subconfig_path


# Wherever a config, an option or an option of an option names a class, the parser calls this function.
discard_what_is_not_taken = _typehints.discard_init_args_on_class_path_change
_typehints.discard_init_args_on_class_path_change = discard_options
_typehints.deepcopy = copy_arguments
parse_value_or_config = _typehints.parse_value_or_config
_typehints.parse_value_or_config = parse_name_or_config
adapt_subconfig_path = _typehints.adapt_subconfig_path
_typehints.adapt_subconfig_path = adapt_config_path


def with_plain_numbers(value: Any) -> Any:
    """Makes plain ints and floats of a config's restricted ones.

    Their classes are the parser's own, which YAML's safe dumper does not know.
    """
    if isinstance(value, Namespace):
        return Namespace(**{name: with_plain_numbers(inner) for name, inner in vars(value).items()})
    if isinstance(value, dict):
        return {name: with_plain_numbers(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(with_plain_numbers(inner) for inner in value)
    # bool is a subclass of int, and no number here.
    if isinstance(value, int) and not isinstance(value, bool):
        return int(value)
    return float(value) if isinstance(value, float) else value


Command = TypeVar("Command", bound="FederationCLI")


class FederationCLI(LightningCLI):
    """LightningCLI for methods, data modules and the federation: keys ``model``, ``data`` and ``trainer``."""

    def __init__(self, **options: Any) -> None:
        # Of Lightning's messages about devices and seeds only the warnings matter.
        logging.getLogger("lightning.fabric").setLevel(logging.WARNING)
        logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
        # Only classes that are imported can be named by their short names.
        for name in fedvlp.__all__:
            getattr(fedvlp, name)
        import_plugins()
        arguments = options.get("args") or ()
        self._command = arguments[0] if arguments and arguments[0] in self.subcommands() else None
        super().__init__(
            trainer_class=cast(Any, Federation),
            parser_class=FederationParser,
            seed_everything_default=DEFAULT_SEED,
            auto_configure_optimizers=False,
            **options,
        )

    @classmethod
    def make(cls: type[Command], words: Sequence[str], reason: str = "", **of_parser: Any) -> Command:
        """Makes what options name, without a command: method, data and federation.

        Args:
            words: the options.
            reason: begins the message if an option is wrong; without it the program ends then, as of a command.
            of_parser: options of the parser, such as ``prog``.

        Raises:
            UserError: if an option is wrong and there is a reason, or a part can't be made.
        """
        with unwrapped_errors():
            try:
                parser_kwargs = {"exit_on_error": not reason, **of_parser}
                return cls(run=False, args=words, save_config_callback=None, parser_kwargs=parser_kwargs)
            except ArgumentError as error:
                raise UserError(f"{reason}: {' '.join(str(error).split())}") from error

    @staticmethod
    def subcommands() -> dict[str, set[str]]:
        """Returns the commands, and the arguments that come from the config's own keys."""
        return {name: {"model", "datamodule"} for name in ("fit", "validate", "test", "predict")}

    def add_core_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Adds the three keys; Lightning's own version takes subclasses of its Trainer only."""
        # The federation is made by LightningCLI itself, so the parser only checks its arguments.
        parser.add_lightning_class_args(FederatedModule, "model", subclass_mode=True)
        parser.add_lightning_class_args(FederatedDataModule, "data", subclass_mode=True)
        parser.add_class_arguments(Federation, "trainer", fail_untyped=False, instantiate=False, sub_configs=True)
        # Its help would list all callbacks of Lightning, most of which a federation refuses.
        callbacks = cast(Any, next(action for action in parser._actions if action.dest == "trainer.callbacks"))
        callbacks.extra_help = str
        # So that a missing one is told as one of which there are only options; see `check_data_set`.
        parser.set_defaults({"data": {"class_path": "fedvlp.FederatedDataModule"}})

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Links a method's arguments to data and federation, and the federation's seed to ``seed_everything``."""
        # With `seed_everything: true` Lightning draws a seed, which would not be the same when the run resumes.
        link_method_options(parser)
        parser.link_arguments(
            "seed_everything", "trainer.seed", compute_fn=lambda seed: DEFAULT_SEED if isinstance(seed, bool) else seed
        )

    def _prepare_subcommand_parser(self, klass: Any, subcommand: str, **options: Any) -> LightningArgumentParser:
        """Adds ``--allow`` to commands that make a method from a file; it is looked at before there is a parser."""
        # Of other commands than the one that is given, only the name is parsed: a whole parser takes long to make.
        if self._command not in (None, subcommand):
            self._subcommand_method_arguments[subcommand] = []
            return self.init_parser(**options)
        parser = super()._prepare_subcommand_parser(klass, subcommand, **options)
        if subcommand == "fit":
            cast(FederationParser, parser).beside_usage = OF_CLASSES
        else:
            parser.add_argument("--allow", action="append", metavar="NAME", help=ALLOW_HELP)
        if subcommand == "predict":
            cast(FederationParser, parser).shown = SHOWN_BY_PREDICT
            parser.description = PREDICT
        return parser

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        """Parses the arguments of the command, which may differ from those of the process."""
        self.config = with_plain_numbers(parser.parse_args(args))
        check_data_set((self.config if self._command is None else self.config[self._command]).data)

    def _dump_config(self) -> None:
        """Keeps the config that methods and data record as their options; by JSON, which is faster than YAML."""
        if not hasattr(self, "config_dump"):
            text = self.parser.dump(
                self.config, skip_link_targets=False, skip_unset=False, skip_validation=True, format="json"
            )
            command = self.config.get("subcommand")
            self.config_dump = json.loads(text)[command] if command else json.loads(text)

    def _parse_ckpt_path(self) -> None:
        """Leaves checkpoints to the federation: they hold no pickled hyperparameters to merge."""


class ParsingCLI(FederationCLI):
    """Parses arguments, and makes neither method nor data nor federation of them."""

    def instantiate_classes(self) -> None:
        """Makes nothing."""


class ConfigFile(SaveConfigCallback):
    """Writes ``config.yaml`` into the run's folder, whole or not at all; Lightning's own writes it piece by piece."""

    def save_config(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Writes the file; called on one process."""
        write_text(Path(trainer.log_dir) / self.config_filename, self.parser.dump(self.config, skip_unset=False))


def run_federation(arguments: Sequence[str]) -> int:
    """Parses the arguments and runs the command that is the first of them; bad arguments exit with code 2.

    Returns:
        The exit code.

    Raises:
        UserError: for bad input that only shows once the parts are made.
    """
    # Only fit has nothing to start from but its config.
    command = arguments[0]
    trained = None if command == "fit" else config_of_command(command, arguments[1:])
    words = [command, *with_config_paths(arguments[1:])]
    if trained is not None:
        words.insert(1, config_option(trained))  # first, so that what the user passes overrides it
    with unwrapped_errors():
        FederationCLI(
            save_config_callback=ConfigFile if command == "fit" else None,
            save_config_kwargs={"save_to_log_dir": False},
            parser_kwargs={"prog": "fedvlp", "description": "Federated prompt learning of vision-language models."},
            args=words,
        )
    return 0
