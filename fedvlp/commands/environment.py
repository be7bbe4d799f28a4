"""Options from environment variables, as LightningCLI has them: ``PL_FIT__TRAINER__ROUNDS`` is ``--trainer.rounds``.

They are read where ``JSONARGPARSE_DEFAULT_ENV`` is ``true``, by the parser itself; nothing that a shell has left over
changes a result otherwise.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Mapping

from fedvlp.utils.config_files import find_config
from fedvlp.utils.errors import UserError

SWITCH = "JSONARGPARSE_DEFAULT_ENV"


def prepare_environment(command: str) -> None:
    """Lets a command's config be named in its variable as on the command line; says of variables that are not read.

    Args:
        command: such as ``fit``, whose variables begin with ``PL_FIT__``.

    Raises:
        UserError: if the config that is named does not exist.
    """
    names = _variables_of(command)
    if not names:
        return
    if os.environ.get(SWITCH, "").lower() != "true":
        sys.stderr.write(f"fedvlp: {', '.join(names)} is not read; set {SWITCH}=true to read it\n")
        return
    config = f"PL_{command.upper()}__CONFIG"
    if config in os.environ:
        os.environ[config] = find_config(os.environ[config])


def check_environment(command: str, options: Collection[str], instead: Mapping[str, str]) -> None:
    """Sees that every variable of a command is one of its options; the parser does not look at others.

    Args:
        command: such as ``fit``.
        options: dotted names of its options.
        instead: what to use in place of options that only Lightning's trainer has.

    Raises:
        UserError: for the first that is not.
    """
    known = {f"PL_{command}__{option.replace('.', '__')}".upper() for option in options}
    for name in _variables_of(command):
        if name in known:
            continue
        last = name.rpartition("__")[2].lower()
        hint = (
            "`fedvlp fit --help` lists all. What a class takes is given as a whole, as YAML, in the class's variable."
        )
        raise UserError(f"{name} is no option's variable. {instead.get(last, hint)}")


def _variables_of(command: str) -> list[str]:
    return sorted(name for name in os.environ if name.startswith(f"PL_{command.upper()}__"))
