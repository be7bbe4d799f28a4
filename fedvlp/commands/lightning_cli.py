"""LightningCLI with the federation as its trainer, and the commands ``fit``, ``validate``, ``test`` and ``predict``."""

import json
import logging
import re
import sys
from argparse import SUPPRESS, ArgumentError
from collections.abc import Iterable, Sequence
from inspect import Parameter, signature
from pathlib import Path
from pydoc import locate
from typing import Any, TypeVar, cast
from unittest.mock import patch

import torch
from jsonargparse import ActionConfigFile, Namespace, _typehints
from jsonargparse._typehints import discard_init_args_on_class_path_change as keep_common_options
from lightning.pytorch import callbacks, loggers
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI, SaveConfigCallback

import fedvlp
from fedvlp.commands.cli import RUN_COMMANDS
from fedvlp.commands.trained_config import ALLOW_HELP, trained_options
from fedvlp.core.module import FederatedModule
from fedvlp.data import FederatedDataModule
from fedvlp.federation import Federation
from fedvlp.training.options import REPLACEMENTS, link_method_options
from fedvlp.utils.config_files import config_title, find_config, read_yaml, sort_options
from fedvlp.utils.digests import constructor_arguments
from fedvlp.utils.errors import UsageError, UserError, did_you_mean, nearest_names, unwrapped_errors
from fedvlp.utils.files import write_text
from fedvlp.utils.plugins import import_plugins, registered_classes

DEFAULT_SEED = 0
DEVICE_OPTIONS = ("accelerator", "devices", "precision", "runtime.num_threads", "deterministic")
PREDICT_OPTIONS = ("help", "config", "ckpt_path", "images", "output", "class_names", "allow")
PREDICT_HELP_OPTIONS = (*PREDICT_OPTIONS, *(f"trainer.{name}" for name in DEVICE_OPTIONS))
"""Options in the help of ``predict``. It accepts all options of ``fit``, because the config of a run contains them."""
CLASS_HELP = """

Methods and data sets have their own options: --model.help PromptFL and --data.help DomainFolders list them.
The most used are

  --model.clip.name NAME  frozen CLIP: ViT-B-16, RN50 and others, or fedvlp-tiny, which needs no download
  --data.root FOLDER      images, as FOLDER/domain/class/image
  --data.held_out DOMAIN  domain that no client trains on; the method is tested on it
  --data.shots N          training images per class and source domain; default: all
"""
NO_METHOD = "No method was chosen. Pass a config, e.g. --config promptfl, or a class, e.g. --model PromptFL."
NO_DATA = (
    "No data set was chosen. Pass a config, e.g. --config data/icon_domains, or for your own images --config "
    "data/folders --data.root FOLDER. `fedvlp data list` lists the other data sets."
)
PREDICT_DESCRIPTION = (
    "Classify images with a trained method and write paths, classes and probabilities as CSV: fedvlp predict RUN "
    "--images FILE_OR_FOLDER. Accepts --config and --model like `fit`, to override the trained method."
)
LIGHTNING_OPTIONS = {
    "lr": "use --model.optimizer.lr",
    "learning_rate": "use --model.optimizer.lr",
    "optimizer": "use --model.optimizer, e.g. --model.optimizer AdamW --model.optimizer.lr 0.001",
    "lr_scheduler": "use --trainer.local.schedule, e.g. CosineDecay, to change the learning rate over rounds",
    "seed": "use --seed_everything",
    "batch_size": "use --data.batch_size",
    "epochs": "use --trainer.local.epochs for the epochs per round; --trainer.rounds sets the number of rounds",
}
"""Option names that Lightning users may try, and the options of fedvlp to use instead."""
UNKNOWN = re.compile(
    r"(?:Group '(?P<group>[^']+)' does not accept o|O|o)ption '(?P<key>[^']+)'(?:.+class_path='(?P<kind>[^']+))?"
    r"|unrecognized arguments: --(?P<word>[^= ]+)"
)
HEADINGS = ("Parser key", "Problem with", "Does not validate", "Subtypes:", "Errors:", "Given value", "Expected a None")
"""Beginnings of message lines that give no reason."""


class ConfigOption(ActionConfigFile):  # type: ignore[misc]
    """The option ``--config``: a file, the name of a bundled config, ``-`` for standard input, or JSON."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: Any = None) -> None:
        """Merge a config into the preceding options."""
        if values != "-" and not values.startswith("{"):
            values = find_config(values)
            if variable := re.search(r"\$\{[^}]*\}", json.dumps(read_yaml(Path(values)))):
                raise UserError(
                    f"{values} has {variable[0]}, but configs do not read environment variables. Pass the value as an "
                    "option, where the shell replaces the variable."
                )
        super().__call__(parser, namespace, values, option_string)


def discard_replaced_options(parser: Any, previous: Any, value: Any) -> None:
    """Discard the options of a replaced class. This is the only patch of jsonargparse.

    jsonargparse keeps the options that both classes accept, and no public setting prevents that. If a user replaces SGD
    by Adam, Adam would inherit SGD's weight decay, whether a config or the method's constructor had set it.

    Options without a default in the new class are kept, e.g. the number of clients of a partition. The options of
    methods and data sets are kept as well, because the class and its options may come from different configs.
    """
    if not previous or previous.get("init_args") is None or previous["class_path"] == value["class_path"]:
        return
    kind = _typehints.import_object(value["class_path"])
    if isinstance(kind, type) and issubclass(kind, (FederatedModule, FederatedDataModule)):
        keep_common_options(parser, previous, value)
        return
    options = previous["init_args"]
    parameters = signature(kind).parameters
    required = [name for name in parameters if parameters[name].default is Parameter.empty and name in options]
    previous["init_args"] = Namespace({name: options[name] for name in required})


class FederationParser(LightningArgumentParser):
    """LightningCLI's parser, with options in any order."""

    shown: Sequence[str] = ()  # names of the options that the help lists; all if empty
    after_usage = ""

    def format_help(self) -> str:
        """Format the help; if ``shown`` is not empty, list only its options."""
        command = self.prog.replace(" [options]", "")
        run = "[RUN] " if command.split()[-1] in RUN_COMMANDS else ""
        # The parser's default usage lists all options and fills a page.
        self.usage = f"{command} {run}[--config NAME ...] [options]{self.after_usage}"
        # Hide the options but keep parsing them: the config of a run, which predict reads, contains them.
        for group in self._action_groups if self.shown else ():
            hidden = [action for action in group._group_actions if action.dest not in self.shown]
            for action in hidden:
                action.help = SUPPRESS
            if len(hidden) == len(group._group_actions):
                group.title = None
                group.description = None
        return str(super().format_help())

    def parse_args(self, args: Any = None, *others: Any, **options: Any) -> Any:
        """Parse options in any order."""
        # jsonargparse passes ``null`` to the parser of nested options as ``None``.
        words = [re.sub("=None$", "=null", word) for word in sort_options(sys.argv[1:] if args is None else args)]
        with patch.object(_typehints, "discard_init_args_on_class_path_change", discard_replaced_options):
            return super().parse_args(words, *others, **options)


def shorten_message(message: str, options: Iterable[str]) -> str:
    """Shorten a parser's message to one line: the option, the mistake, and a replacement.

    ``options`` are all options that belong to no class, such as ``seed_everything`` and ``trainer.local.epochs``.
    """
    path = ".".join(re.findall(r'Parser key "(.+)":', message))
    kinds = re.findall(r"class_path '(.+)':", message)
    if unknown := UNKNOWN.search(message):
        name = ".".join(filter(None, [path, *unknown.group("group", "key", "word")]))
        kinds += filter(None, [unknown["kind"]])
        return f"--{name}: {_suggest_option(name, locate(kinds[-1]) if kinds else None, options)}"
    if words := re.search("unrecognized arguments: (.+)", message):
        return f"Expected options, got {words[1]!r}. Pass a config with --config, e.g. --config promptfl."
    if missing := re.search("Expected a dot import path string: (.+)", message):
        packages = (fedvlp, torch.optim, callbacks, loggers)
        names = [name for package in packages for name in dir(package) if name[0].isupper()]
        hint = did_you_mean(missing[1], [*names, *registered_classes()])
        return f"--{path}: no class {missing[1]!r} was found. {hint}".rstrip()
    lines = [re.sub("<class '(.+?)'>", r"\1", line.strip(" -")) for line in message.splitlines()]
    reasons = dict.fromkeys(line for line in lines if not line.startswith(HEADINGS))
    value = re.search("Given value: (?!Namespace|NestedArg)(.+)", message)
    option = f"--{path}: " if path else ""
    return f"{option}{'; '.join(reasons)}{f'; got {value[1]}' if value else ''}."


def _suggest_option(option: str, kind: Any, options: Iterable[str]) -> str:
    path, _, name = option.rpartition(".")
    if kind is None:
        valid = {option.rpartition(".")[2]: option for option in options}
        fallback = "`--help` lists all options"
    else:
        names = constructor_arguments(kind).keys() - {"params"}  # a method passes `params` to its optimizer
        valid = {argument: f"{path}.{argument}" for argument in sorted(names)}
        fallback = f"Choose from {', '.join(valid)}"
    hint = LIGHTNING_OPTIONS.get(name) or REPLACEMENTS.get(name)
    if hint is None and (near := nearest_names(name, valid)):
        return f"there is no such option. Did you mean --{valid[near[0]]}?"
    owner = "fedvlp" if kind is None else kind.__name__
    hint = hint or fallback
    return f"{owner} has no such option. {hint[0].upper()}{hint[1:]}."


def check_choices(config: Namespace) -> None:
    """Raise UserError if a config names no method or no data set."""
    for chosen, base, message in (
        (config.model, FederatedModule, NO_METHOD),
        (config.data, FederatedDataModule, NO_DATA),
    ):
        # A config that sets options but no class gets the base class.
        if chosen is None or chosen.class_path.rpartition(".")[-1] == base.__name__:
            raise UserError(message)


Command = TypeVar("Command", bound="FederationCLI")


class FederationCLI(LightningCLI):
    """LightningCLI for methods, data modules and the federation: keys ``model``, ``data`` and ``trainer``."""

    trainer: Federation  # type: ignore[assignment]

    def __init__(self, **options: Any) -> None:
        # Hide Lightning's info messages about devices and seeds.
        logging.getLogger("lightning.fabric").setLevel(logging.WARNING)
        logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
        # jsonargparse finds the short name of a class only if the class is imported.
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
    def make(cls: type[Command], words: Sequence[str], **parser_options: Any) -> Command:
        """Make method, data and federation from options; raise UserError if an option is wrong or a part fails."""
        with unwrapped_errors():
            return cls(run=False, args=words, save_config_callback=None, parser_kwargs=parser_options)

    @staticmethod
    def subcommands() -> dict[str, set[str]]:
        """List the commands, with the arguments that are taken from the config's keys."""
        return {name: {"model", "datamodule"} for name in ("fit", "validate", "test", "predict")}

    def init_parser(self, **options: Any) -> LightningArgumentParser:
        """Make a parser that accepts names of bundled configs for ``--config``."""
        parser = FederationParser(allow_abbrev=False, **options)
        help = (
            "A config file, - for standard input, or the name of a bundled config, such as promptfl. Later configs win."
        )
        parser.add_argument("-c", "--config", action=ConfigOption, help=help)
        return parser

    def add_core_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Add the three keys; Lightning's own version accepts only subclasses of its Trainer."""
        for key, base, about in (("model", FederatedModule, "method"), ("data", FederatedDataModule, "data set")):
            # Without sub_configs, because a file named like a class must not be read.
            action = parser.add_argument(f"--{key}", type=base, metavar="CLASS", help=f"The {about}'s class.")
            action.sub_add_kwargs = {"fail_untyped": False}
            action.extra_help = str  # the default is a list of all classes
        # LightningCLI creates the federation itself, so the parser only checks its arguments.
        parser.add_class_arguments(Federation, "trainer", fail_untyped=False, instantiate=False)
        # The default help lists all callbacks of Lightning, and a federation rejects most of them.
        callbacks = cast(Any, next(action for action in parser._actions if action.dest == "trainer.callbacks"))
        callbacks.extra_help = str

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Link a method's arguments to data and federation, and the federation's seed to ``seed_everything``."""
        # With `seed_everything: true` Lightning draws a random seed, which would change when the run resumes.
        link_method_options(parser)
        parser.link_arguments(
            "seed_everything", "trainer.seed", compute_fn=lambda seed: DEFAULT_SEED if isinstance(seed, bool) else seed
        )

    def _prepare_subcommand_parser(self, klass: Any, subcommand: str, **options: Any) -> LightningArgumentParser:
        """Add ``--allow`` to commands that load a trained file. Its value is read before the parser exists."""
        # Only the current command needs its options, because a complete parser is slow to build.
        if self._command not in (None, subcommand):
            self._subcommand_method_arguments[subcommand] = []
            return self.init_parser(**options)
        parser = cast(FederationParser, super()._prepare_subcommand_parser(klass, subcommand, **options))
        if subcommand == "fit":
            parser.after_usage = CLASS_HELP
        else:
            parser.add_argument("--allow", action="append", metavar="NAME", help=ALLOW_HELP)
        if subcommand == "predict":
            parser.shown = PREDICT_HELP_OPTIONS
            parser.description = PREDICT_DESCRIPTION
        return parser

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        """Parse the given arguments, or the arguments of the process, and turn errors into one line."""
        try:
            self.config = parser.parse_args(args)
        except ArgumentError as error:
            command_parser = self._subcommand_parsers[self._command] if self._command else parser
            raise UsageError(shorten_message(str(error), command_parser.get_defaults().keys())) from error
        check_choices(self.config if self._command is None else self.config[self._command])

    def _dump_config(self) -> None:
        """Store the config, from which methods and data record their options. JSON is faster than YAML."""
        if not hasattr(self, "config_dump"):
            text = self.parser.dump(
                self.config, skip_link_targets=False, skip_unset=False, skip_validation=True, format="json"
            )
            self.config_dump = json.loads(text)[self._command] if self._command else json.loads(text)

    def _parse_ckpt_path(self) -> None:
        """Leave checkpoints to the federation; they contain no hyperparameters to merge."""


class ParsingCLI(FederationCLI):
    """LightningCLI that only parses, without making method, data and federation."""

    def instantiate_classes(self) -> None:
        """Make nothing."""


class ConfigFile(SaveConfigCallback):
    """Callback that writes ``config.yaml`` into the run folder atomically, and sets the run's ``configs``."""

    def save_config(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Write the file, on one process."""
        files = [Path(path) for path in self.config.config or () if path]
        # Standard input and the config of an earlier run have no distinctive name.
        trainer.configs = [config_title(file) for file in files if file.name not in ("-", self.config_filename)]
        write_text(Path(trainer.log_dir) / self.config_filename, self.parser.dump(self.config, skip_unset=False))


def run_federation(arguments: Sequence[str]) -> int:
    """Run the command named by the first argument and return the exit code; raise UserError for bad input."""
    command, *words = arguments
    # All commands except fit start from a trained file. Its config comes first, so that the user's options override it.
    trained = [] if command == "fit" else trained_options(command, words)
    with unwrapped_errors():
        FederationCLI(
            save_config_callback=ConfigFile if command == "fit" else None,
            save_config_kwargs={"save_to_log_dir": False},
            parser_kwargs={"prog": "fedvlp", "description": "Federated prompt learning of vision-language models."},
            args=[command, *trained, *words],
        )
    return 0
