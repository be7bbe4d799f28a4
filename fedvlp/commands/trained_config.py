"""The config of a trained file: which method it is of, and with which classes, domains and clients it was trained."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from fedvlp.utils.config_files import CONFIG_OPTION
from fedvlp.utils.errors import UserError
from fedvlp.utils.tensor_files import read_tensors

LINKED = ("class_names", "domains", "num_clients", "rounds")
"""Options of a method that the command line takes from data and federation."""


def trained_config(where: Path) -> dict[str, Any]:
    """Returns a config of the method that a trained file is of, with its classes for data.

    Raises:
        UserError: if the file is missing or not of a run.
    """
    # Imported late: the help of --data lists every data module that was imported, and this one is not for users.
    from fedvlp.data.without_images import PredictionData

    header = read_tensors(where)[1]
    model = header.get("model") or header.get("description", {}).get("model")
    if model is None:
        raise UserError(f"{where} was not written by fedvlp. Pass a run's prompts.safetensors or a checkpoint.")
    options = dict(model["init_args"])
    linked = {name: options.pop(name, None) for name in LINKED}
    known_of_data = {
        "class_names": linked["class_names"],
        "source_domains": linked["domains"],
        "num_clients": linked["num_clients"],
    }
    return {
        "model": {"class_path": model["class_path"], "init_args": options},
        "data": {
            "class_path": f"{PredictionData.__module__}.{PredictionData.__qualname__}",
            "init_args": known_of_data,
        },
        "trainer": {} if linked["rounds"] is None else {"rounds": linked["rounds"]},
    }


def config_option(config: Mapping[str, Any]) -> str:
    """Returns the argument ``--config`` with a config's content, which the parser takes in place of a file's path."""
    return CONFIG_OPTION + yaml.safe_dump(config)


def config_for_prediction(arguments: Sequence[str]) -> dict[str, Any] | None:
    """Returns the config with which ``predict`` goes without a ``--config``: that of the trained file it is given.

    Args:
        arguments: the words after ``predict``.

    Returns:
        The config; None if the arguments name a method themselves, or ask for help.

    Raises:
        UserError: if the file is missing or not of a run.
    """
    given = first_look(arguments)
    if given.ckpt_path is None or given.help or given.method:
        return None
    if given.ckpt_path == "last":
        raise UserError("predict takes no `last`. Pass the run's folder or its prompts.safetensors to --ckpt_path.")
    where = Path(given.ckpt_path)
    return trained_config(where / "prompts.safetensors" if where.is_dir() else where)


def first_look(arguments: Sequence[str]) -> argparse.Namespace:
    """Reads the few options that tell which config to begin with, before there is a parser of everything else.

    Returns:
        ``ckpt_path``, ``what``, ``images``, ``help``, and ``method``, which is None if no config or method is given.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--ckpt_path", nargs="?")
    parser.add_argument("--what", nargs="?")
    parser.add_argument("--images", nargs="*")
    parser.add_argument("-h", "--help", action="store_true")
    parser.add_argument("-c", "--config", "--model", dest="method", nargs="?", action="append")
    return parser.parse_known_args(arguments)[0]
