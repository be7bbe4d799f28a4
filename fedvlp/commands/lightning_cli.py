"""LightningCLI with the federation as its trainer, and the commands ``fit``, ``validate``, ``test`` and ``predict``."""

import json
import logging
import re
import sys
from argparse import SUPPRESS, ArgumentError
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

from jsonargparse import ActionConfigFile, Namespace
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI, SaveConfigCallback

import fedvlp
from fedvlp.commands.answers import shorten
from fedvlp.commands.cli import TAKES_RUN
from fedvlp.commands.replaced_options import discarding_replaced_options
from fedvlp.commands.trained_config import ALLOW_HELP, config_of_command, config_option
from fedvlp.core.module import FederatedModule
from fedvlp.data import FederatedDataModule
from fedvlp.federation import Federation
from fedvlp.training.options import link_method_options
from fedvlp.utils.config_files import config_title, find_config, in_order, read_yaml
from fedvlp.utils.errors import UsageError, UserError, unwrapped_errors
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
NO_METHOD = "No method was chosen. Name its config, such as --config promptfl, or its class: --model PromptFL."
NO_DATA = (
    "No data set was chosen. Name its config, such as --config data/icon_domains, or for your own images --config "
    "data/folders --data.root FOLDER. `fedvlp data list` shows the others."
)
PREDICT = (
    "Classify images with a trained method and write a CSV of path, class and probabilities: fedvlp predict RUN "
    "--images FILE_OR_FOLDER. Accepts --config and --model like `fit`, to override the trained method."
)


class ConfigOption(ActionConfigFile):  # type: ignore[misc]
    """Option ``--config``: a file, the name of a bundled config, ``-`` for standard input, or JSON."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: Any = None) -> None:
        """Merge a config into the options before it."""
        if values != "-" and not values.startswith("{"):
            values = find_config(values)
            if variable := re.search(r"\$\{[^}]*\}", json.dumps(read_yaml(Path(values)))):
                raise UserError(
                    f"{values} has {variable[0]}, but configs do not read environment variables. Pass the value as an "
                    "option: the shell replaces the variable there."
                )
        super().__call__(parser, namespace, values, option_string)


class FederationParser(LightningArgumentParser):
    """LightningCLI's parser, in which options may have any order."""

    shown: Sequence[str] = ()  # names of the options in the help; all if empty
    after_usage = ""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **{"allow_abbrev": False, **options})

    def format_help(self) -> str:
        """Format the help, with only the options in ``shown`` if there are any."""
        command = self.prog.replace(" [options]", "")
        run = "[RUN] " if command.split()[-1] in TAKES_RUN else ""
        # The parser's own usage is a list of all options, a page long.
        self.usage = f"{command} {run}[--config NAME ...] [options]{self.after_usage}"
        # Options are hidden and not left out: a run's config, which predict takes, names them.
        for group in self._action_groups if self.shown else ():
            hidden = [action for action in group._group_actions if action.dest not in self.shown]
            for action in hidden:
                action.help = SUPPRESS
            if len(hidden) == len(group._group_actions):
                group.title = None
                group.description = None
        return str(super().format_help())

    def parse_args(self, args: Any = None, *others: Any, **options: Any) -> Any:
        """Parse options, which may have any order."""
        # A parser of nested options gets ``null`` as ``None``.
        words = [re.sub("=None$", "=null", word) for word in in_order(sys.argv[1:] if args is None else args)]
        with discarding_replaced_options():
            return super().parse_args(words, *others, **options)


def check_choices(config: Namespace) -> None:
    """Raise UserError if a config names no method or no data set."""
    for chosen, base, message in (
        (config.model, FederatedModule, NO_METHOD),
        (config.data, FederatedDataModule, NO_DATA),
    ):
        # Options without a class are of the base class.
        if chosen is None or chosen.class_path.rpartition(".")[-1] == base.__name__:
            raise UserError(message)


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
        options["parser_kwargs"] = {"exit_on_error": False, **options.get("parser_kwargs", {})}
        super().__init__(
            trainer_class=cast(Any, Federation),
            parser_class=FederationParser,
            seed_everything_default=DEFAULT_SEED,
            auto_configure_optimizers=False,
            **options,
        )

    @classmethod
    def make(cls: type[Command], words: Sequence[str], **of_parser: Any) -> Command:
        """Make method, data and federation of options; a UserError if an option is wrong or a part can't be made."""
        with unwrapped_errors():
            return cls(run=False, args=words, save_config_callback=None, parser_kwargs=of_parser)

    @staticmethod
    def subcommands() -> dict[str, set[str]]:
        """Name the commands, and the arguments that come from the config's own keys."""
        return {name: {"model", "datamodule"} for name in ("fit", "validate", "test", "predict")}

    def init_parser(self, **options: Any) -> LightningArgumentParser:
        """Make a parser whose ``--config`` accepts names."""
        parser = FederationParser(**options)
        help = (
            "A config: a file, - for standard input, or the name of a bundled config, such as promptfl. Later ones win."
        )
        parser.add_argument("-c", "--config", action=ConfigOption, help=help)
        return parser

    def add_core_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Add the three keys; Lightning's own version accepts only subclasses of its Trainer."""
        for key, base, about in (("model", FederatedModule, "method"), ("data", FederatedDataModule, "data set")):
            # No sub_configs: a file that is called like a class must not be read.
            action = parser.add_argument(f"--{key}", type=base, metavar="CLASS", help=f"The {about}'s class.")
            action.sub_add_kwargs = {"fail_untyped": False}
            action.extra_help = str  # otherwise a list of all classes
        # The federation is made by LightningCLI itself, so the parser only checks its arguments.
        parser.add_class_arguments(Federation, "trainer", fail_untyped=False, instantiate=False)
        # Its help would list all callbacks of Lightning, most of which a federation refuses.
        callbacks = cast(Any, next(action for action in parser._actions if action.dest == "trainer.callbacks"))
        callbacks.extra_help = str

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Link a method's arguments to data and federation, and the federation's seed to ``seed_everything``."""
        # With `seed_everything: true` Lightning draws a seed, which would not be the same when the run resumes.
        link_method_options(parser)
        parser.link_arguments(
            "seed_everything", "trainer.seed", compute_fn=lambda seed: DEFAULT_SEED if isinstance(seed, bool) else seed
        )

    def _prepare_subcommand_parser(self, klass: Any, subcommand: str, **options: Any) -> LightningArgumentParser:
        """Add ``--allow`` to commands that make a method from a file; it is read before there is a parser."""
        # Other commands need no options, and a whole parser takes long to make.
        if self._command not in (None, subcommand):
            self._subcommand_method_arguments[subcommand] = []
            return self.init_parser(**options)
        parser = cast(FederationParser, super()._prepare_subcommand_parser(klass, subcommand, **options))
        if subcommand == "fit":
            parser.after_usage = OF_CLASSES
        else:
            parser.add_argument("--allow", action="append", metavar="NAME", help=ALLOW_HELP)
        if subcommand == "predict":
            parser.shown = SHOWN_BY_PREDICT
            parser.description = PREDICT
        return parser

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        """Parse the arguments of the command, which may differ from the arguments of the process."""
        try:
            self.config = parser.parse_args(args)
        except ArgumentError as error:
            known = self._subcommand_parsers[self._command] if self._command else parser
            raise UsageError(shorten(str(error), known.get_defaults().keys())) from error
        check_choices(self.config if self._command is None else self.config[self._command])

    def _dump_config(self) -> None:
        """Keep the config that methods and data record as their options; JSON is faster than YAML."""
        if not hasattr(self, "config_dump"):
            text = self.parser.dump(
                self.config, skip_link_targets=False, skip_unset=False, skip_validation=True, format="json"
            )
            self.config_dump = json.loads(text)[self._command] if self._command else json.loads(text)

    def _parse_ckpt_path(self) -> None:
        """Leave checkpoints to the federation: they hold no pickled hyperparameters to merge."""


class ParsingCLI(FederationCLI):
    """Parses arguments without making method, data and federation."""

    def instantiate_classes(self) -> None:
        """Make nothing."""


class ConfigFile(SaveConfigCallback):
    """Writes ``config.yaml`` into the run's folder, whole or not at all, and tells the run its configs' names."""

    def save_config(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Write the file; called on one process."""
        files = [Path(path) for path in self.config.config or () if path]
        # Standard input and a run's own config have no name that tells runs apart.
        trainer.configs = [config_title(file) for file in files if file.name not in ("-", self.config_filename)]
        write_text(Path(trainer.log_dir) / self.config_filename, self.parser.dump(self.config, skip_unset=False))


def run_federation(arguments: Sequence[str]) -> int:
    """Run the command that is the first of the arguments; return the exit code, or raise UserError for bad input."""
    command, *words = arguments
    # Only fit has nothing to start from but its config.
    trained = None if command == "fit" else config_of_command(command, words)
    if trained is not None:
        words.insert(0, config_option(trained))  # first, so that what the user passes overrides it
    with unwrapped_errors():
        FederationCLI(
            save_config_callback=ConfigFile if command == "fit" else None,
            save_config_kwargs={"save_to_log_dir": False},
            parser_kwargs={"prog": "fedvlp", "description": "Federated prompt learning of vision-language models."},
            args=[command, *words],
        )
    return 0
