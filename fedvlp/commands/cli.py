"""The entry point ``fedvlp``. ``--help`` and ``--version`` import neither torch nor any command."""

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
    "Not enough memory. Try, in this order: a smaller --data.batch_size (--data.eval_batch_size in evaluation), "
    "--trainer.precision bf16-mixed, fewer classes, a smaller CLIP, or another device."
)
NO_SHARED_MEMORY = (
    "The data loader's workers ran out of shared memory (/dev/shm). Pass --data.num_workers 0, or provide more, e.g. "
    "with docker run --shm-size=2g."
)


class Command(NamedTuple):
    """A command of ``fedvlp``, with its line in the help.

    ``target`` is ``module:function`` relative to the package ``fedvlp``. The function receives the words after the
    command's name and returns the exit code.
    """

    name: str
    target: str
    help: str

    def __call__(self, arguments: Sequence[str]) -> int:
        """Run the command with all words after ``fedvlp``, and return the exit code."""
        words = list(arguments)
        # Parsers and configs use Lightning's name for a trained run, --ckpt_path.
        if self.name in RUN_COMMANDS and len(words) > 1 and not words[1].startswith("-"):
            words[1] = f"--ckpt_path={words[1]}"
        if self.name in SLOW_COMMANDS and sys.stderr.isatty() and not {"-h", "--help"} & set(words):
            sys.stderr.write(f"fedvlp {self.name}: {SLOW_COMMANDS[self.name]}\n")
        module, name = self.target.split(":")
        function = getattr(import_module(f"fedvlp.{module}"), name)
        # LightningCLI parses the name of its command itself, as a subcommand.
        return int(function(words if self.target == FEDERATION else words[1:]))


FEDERATION = "commands.lightning_cli:run_federation"
SLOW_COMMANDS = {
    "doctor": "tests all devices; up to a minute, two with a GPU",
    "explain": "loads the method and its images, then draws figures; about half a minute",
    "export": "traces the method, then compares the exported logits with the original; up to a minute",
    "verify": "evaluates each entry again; seconds to minutes per entry",
}
"""Steps and approximate duration of slow commands; shown on a terminal before anything is imported."""
RUN_COMMANDS = ("validate", "test", "predict", "calibrate", "explain", "audit")
"""Commands whose first argument RUN is translated to ``--ckpt_path``; other parsers define RUN themselves."""
COMMANDS = (
    Command("fit", FEDERATION, "Train a method on all source clients and report the accuracy of every domain."),
    Command("validate", FEDERATION, "Evaluate a trained method on the source validation splits."),
    Command("test", FEDERATION, "Evaluate a trained method on held-out domains and test splits."),
    Command("predict", FEDERATION, "Classify images with a trained method and write a CSV file."),
    Command("calibrate", "tools.calibrate:run_calibrate", "Fit a trained method's probabilities to its accuracy."),
    Command("explain", "tools.explain.command:run_explain", "Show which image regions and experts a method uses."),
    Command("export", "tools.export.command:run_export", "Export a trained method as ONNX or torch.export."),
    Command("audit", "tools.audit.command:run_audit", "Measure how much a client's upload reveals about its images."),
    Command("cost", "tools.cost.command:run_cost", "Count what methods train and send, without training."),
    Command("deploy", "sites.commands:run_deploy", "Write a Flower app for real sites, or check a server or site."),
    Command("status", "tools.status:run_status", "Show whether a run is running, finished or dead."),
    Command("doctor", "tools.doctor:run_doctor", "Show hardware and packages, and test training on each device."),
    Command("data", "tools.data:run_data", "List, download and check the data sets of the field."),
    Command("compare", "tools.compare.command:run_compare", "Compare runs in tables, next to published numbers."),
    Command("verify", "tools.verify.command:run_verify", "Evaluate submitted models again, and rank them on a page."),
    Command("sweep", "tools.sweep.command:run_sweep", "Run several methods, held-out domains and seeds."),
    Command("tune", "tools.tune.command:run_tune", "Tune options of methods on source validation, then run them."),
    Command("site", "sites.commands:run_site", "Connect a site to a server, or inspect and stop it."),
    Command("push", "tools.hub.command:run_push", "Upload a trained method to the Hugging Face Hub."),
    Command("report", "tools.report.command:run_report", "Write an HTML page of runs: tables, figures, configs."),
)

_NAMES = ",".join(command.name for command in COMMANDS)
_LINES = "\n".join(f"  {command.name:<12}{command.help}" for command in COMMANDS)

USAGE = f"""\
usage: fedvlp [-h] [--version] {{{_NAMES}}} ...

Federated prompt learning of vision-language models.

commands:
{_LINES}

Commands that train or load a method accept one or more --config (a file or the name
of a bundled config, such as quickstart) and dotted options that override its keys:

  fedvlp fit --config quickstart
  fedvlp fit --config methods/trip --config data/folders --data.root photos --data.held_out sketch
  fedvlp fit --config quickstart --print_config
  fedvlp predict RUN --images photos/new
  fedvlp cost --config trip --config promptfl --data.classes 65 --data.domains 3

RUN is a run folder, a folder of several runs (the newest is used), a
prompts.safetensors, or a checkpoint. It comes first: predict RUN, test RUN, export RUN.

Each other command has its own options, explained by its --help:

  fedvlp sweep --config data/icon_domains --models trip,promptfl --seeds 0,1,2 --output runs/first
  fedvlp status runs
  fedvlp compare runs/first
  fedvlp report runs/first --output report.html

options:
  -h, --help  Show this message. `fedvlp fit --help` explains every option of a run.
  --version   Show the version.
"""


def user_hint(error: Exception) -> str | None:
    """Explain how a user can fix an error of the machine; None if the error is a bug in fedvlp."""
    # An OSError without `strerror` comes from a library and is not about the disk.
    if isinstance(error, OSError) and error.strerror is not None:
        path = "Reading or writing" if error.filename is None else os.fsdecode(error.filename)
        return f"{path}: {error.strerror}. Check permissions and free disk space; files written earlier are intact."
    # PyTorch mentions it both when a worker cannot allocate memory and when a worker is killed.
    if isinstance(error, RuntimeError) and "shared memory" in str(error):
        return NO_SHARED_MEMORY
    if not is_out_of_memory(error):
        return None
    # The first line of the error reports the requested and free memory, and other processes on the device.
    return " ".join([NO_MEMORY, *str(error).splitlines()[:1]])


class Terminated(KeyboardInterrupt):
    """Raised on SIGTERM, which schedulers send; the program ends as after Ctrl-C."""


@contextmanager
def interrupt_on_sigterm() -> Iterator[None]:
    """Let SIGTERM interrupt the block like Ctrl-C, unless another handler is set."""
    # Only the main thread receives signals, and a program that calls fedvlp may handle them itself.
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
        return _fail(f"There is no command {words[0]!r}. {hint} `fedvlp --help` describes all commands.", 2)
    # A character that the terminal cannot encode, e.g. in a file name, must not end a run.
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    try:
        with interrupt_on_sigterm():
            code = commands[words[0]](words)
        sys.stdout.flush()  # raises BrokenPipeError here rather than when the interpreter exits
        return code
    except UserError as error:
        return _fail(str(error), 2 if isinstance(error, UsageError) else 1)
    except BrokenPipeError:  # the reader of the output, e.g. head, has exited
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141  # the exit code of a process killed by SIGPIPE
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
