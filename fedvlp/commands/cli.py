"""The entry point ``fedvlp``, which imports neither torch nor any command before ``--help`` and ``--version``."""

import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from io import TextIOWrapper
from typing import NamedTuple

from fedvlp.utils.errors import UsageError, UserError, did_you_mean_or_choose, escape_control_chars, is_out_of_memory
from fedvlp.version import __version__

NO_MEMORY = (
    "Not enough memory. What helps, the first the most: a smaller --data.batch_size, and --data.eval_batch_size where "
    "runs are measured; --trainer.precision bf16-mixed; fewer classes; a smaller CLIP, or another device."
)
NO_SHARED_MEMORY = (
    "The processes that read images ran out of shared memory (/dev/shm). Pass --data.num_workers 0, or give them more, "
    "as with docker run --shm-size=2g."
)


class Command(NamedTuple):
    """One command of ``fedvlp``, with its line in the help.

    ``target`` is ``module:function`` below ``fedvlp``; the function takes the words after the name and returns the exit
    code.
    """

    name: str
    target: str
    help: str

    def __call__(self, arguments: Sequence[str]) -> int:
        """Run the command with all words after ``fedvlp``, and return the exit code."""
        words = list(arguments)
        # Lightning's users write --ckpt_path, so that is what parsers and configs have.
        if self.name in TAKES_RUN and len(words) > 1 and not words[1].startswith("-"):
            words[1] = f"--ckpt_path={words[1]}"
        if self.name in WAITS and sys.stderr.isatty() and not {"-h", "--help"} & set(words):
            sys.stderr.write(f"fedvlp {self.name}: {WAITS[self.name]}\n")
        module, name = self.target.split(":")
        function = getattr(import_module(f"fedvlp.{module}"), name)
        # LightningCLI parses its commands' names as subcommands.
        return int(function(words if self.target == FEDERATION else words[1:]))


FEDERATION = "commands.lightning_cli:run_federation"
WAITS = {
    "doctor": "tries all devices; up to a minute, two with a GPU",
    "explain": "loads the method and its images, then draws pictures; about half a minute",
    "export": "traces the method, then compares the file's logits with its own; up to a minute",
    "verify": "classifies the images of each entry again; seconds to minutes for each",
}
"""What takes long, and about how long; shown on a terminal before anything is imported."""
TAKES_RUN = ("validate", "test", "predict", "explain", "audit")
"""Commands in which a trained run stands first, or after ``--ckpt_path``; the parsers of others have RUN themselves."""
COMMANDS = (
    Command("fit", FEDERATION, "Train a method on all source clients and report every domain's accuracy."),
    Command("validate", FEDERATION, "Measure a trained method on the source validation splits."),
    Command("test", FEDERATION, "Measure a trained method on held-out domains and test splits."),
    Command("predict", FEDERATION, "Classify images with a trained method and write a CSV."),
    Command("explain", "tools.explain.command:run_explain", "Show where a trained method looks, and its experts."),
    Command("export", "tools.export.command:run_export", "Write a trained method as ONNX or torch.export."),
    Command("audit", "tools.audit.command:run_audit", "Measure what a client's upload reveals of its images."),
    Command("cost", "tools.cost.command:run_cost", "Print what methods send, without training."),
    Command("deploy", "sites.commands:run_deploy", "Write a Flower app for real sites, or check one end."),
    Command("status", "tools.status:run_status", "Show whether a run is running, finished or dead."),
    Command("doctor", "tools.doctor:run_doctor", "Show what this machine has, and test whether it trains."),
    Command("data", "tools.data:run_data", "List, download and check the field's data sets."),
    Command("compare", "tools.compare.command:run_compare", "Put runs into tables, beside the papers' numbers."),
    Command("verify", "tools.verify.command:run_verify", "Measure trained models again, and rank them on a page."),
    Command("sweep", "tools.sweep.command:run_sweep", "Run several methods, held-out domains and seeds."),
    Command("tune", "tools.tune.command:run_tune", "Choose options of methods on source validation, and run them."),
    Command("site", "sites.commands:run_site", "Start, stop or look at the process that answers for a site."),
    Command("push", "tools.hub.command:run_push", "Put what a run learned on the Hugging Face hub."),
    Command("report", "tools.report.command:run_report", "Write a page of finished runs: tables, figures, configs."),
)

_NAMES = ",".join(command.name for command in COMMANDS)
_LINES = "\n".join(f"  {command.name:<12}{command.help}" for command in COMMANDS)

USAGE = f"""\
usage: fedvlp [-h] [--version] {{{_NAMES}}} ...

Federated prompt learning of vision-language models.

commands:
{_LINES}

What trains or loads a method takes one or more --config (a file, or the name of a
config that is bundled, such as quickstart), and dotted overrides of any of its keys:

  fedvlp fit --config quickstart
  fedvlp fit --config methods/trip --config data/folders --data.root photos --data.held_out sketch
  fedvlp fit --config quickstart --print_config
  fedvlp predict RUN --images photos/new
  fedvlp cost --config trip --config promptfl --data.classes 65 --data.domains 3

RUN is the folder of a trained run, that of several, of which the newest, or a prompts.safetensors or checkpoint.
It follows the name of the command: test RUN, predict RUN, explain RUN, export RUN.

The others have options of their own, which --help explains:

  fedvlp sweep --config data/icon_domains --models trip,promptfl --seeds 0,1,2 --output runs/first
  fedvlp status runs
  fedvlp compare runs/first
  fedvlp report runs/first --output report.html

options:
  -h, --help  Show this message; `fedvlp fit --help` explains every argument.
  --version   Show the version.
"""


def user_hint(error: Exception) -> str | None:
    """Explain what a user can do about an error of the machine; None for a defect of the program."""
    # Libraries raise errors without `strerror` for other reasons than the disk.
    if isinstance(error, OSError) and error.strerror is not None:
        path = "Reading or writing" if error.filename is None else os.fsdecode(error.filename)
        return f"{path}: {error.strerror}. Check the rights and the disk; files that were whole before still are."
    # PyTorch's words, whether a reader of images could not allocate it or was killed.
    if isinstance(error, RuntimeError) and "shared memory" in str(error):
        return NO_SHARED_MEMORY
    if not is_out_of_memory(error):
        return None
    # Its first line says how much was asked for and is free, and who else uses the device.
    return " ".join([NO_MEMORY, *str(error).splitlines()[:1]])


class Terminated(KeyboardInterrupt):
    """SIGTERM came, as schedulers send it: the program ends as for Ctrl-C."""


@contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """Make SIGTERM end the block as Ctrl-C does, unless another handler is set."""
    # Signals reach only the main thread, and a program that calls fedvlp may handle them itself.
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, _terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _terminate(number: int, frame: object) -> None:
    raise Terminated


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code: 0 only on success, 1 for bad input, 2 for a bad command."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or words[0] in ("-h", "--help"):
        sys.stdout.write(USAGE)
        return 0 if words else 2
    if words[0] == "--version":
        sys.stdout.write(f"fedvlp {__version__}\n")
        return 0
    commands = {command.name: command for command in COMMANDS}
    if words[0] not in commands:
        hint = did_you_mean_or_choose(words[0], commands)
        return _fail(f"There is no command {words[0]!r}. {hint} `fedvlp --help` describes all.", 2)
    # A name of a file or a sign that the terminal's encoding lacks must not end a run.
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    try:
        with ended_by_sigterm():
            code = commands[words[0]](words)
        sys.stdout.flush()  # a reader that is gone shows here, and not at the interpreter's end
        return code
    except UserError as error:
        return _fail(str(error), 2 if isinstance(error, UsageError) else 1)
    except BrokenPipeError:  # what reads the output, such as head, has ended
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141  # as of a process that SIGPIPE ended
    except (OSError, MemoryError, RuntimeError) as error:
        message = user_hint(error)
        if message is None:
            raise
        return _fail(message)
    except KeyboardInterrupt as error:
        sys.stderr.write("fedvlp: stopped; resume with --ckpt_path last\n")
        return 128 + (signal.SIGTERM if isinstance(error, Terminated) else signal.SIGINT)


def _fail(message: str, code: int = 1) -> int:
    sys.stderr.write(f"fedvlp: error: {escape_control_chars(message)}\n")
    return code
