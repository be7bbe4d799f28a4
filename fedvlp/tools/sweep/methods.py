"""The methods of a sweep as ``fedvlp fit`` parses them, the domains that they hold out, and the GPUs for them."""

import os
from argparse import ArgumentError
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from jsonargparse import Namespace

from fedvlp.commands.answers import shorten
from fedvlp.commands.lightning_cli import FederationParser, ParsingCLI, check_choices
from fedvlp.core.roles import PROTOCOLS
from fedvlp.data import FederatedDataModule
from fedvlp.data.module import choose_held_out
from fedvlp.tools.sweep.plan import TOGETHER, Sweep
from fedvlp.utils.errors import UserError, unwrapped_errors


def parse_methods(plan: Sweep) -> dict[str, Namespace]:
    """Parse each method's configuration, by its label; raise UserError if ``fedvlp fit`` would refuse it."""
    # Parsing must not seed this process's generators.
    start = ["--seed_everything=false"]
    command = ParsingCLI.make([*start, "--model=ZeroShotCLIP", "--data=IconDomains"])
    configs = {}
    for method in plan.methods:
        try:
            config = command.parser.parse_args([*start, *plan.choices(method)])
        except ArgumentError as error:
            answer = shorten(str(error), command.parser.get_defaults().keys())
            raise UserError(f"Model {method.label!r} of the sweep: {answer}") from error
        if config.trainer.fast_dev_run:
            raise UserError("A sweep keeps results, and fast_dev_run none. Try a method with fedvlp fit.")
        configs[method.label] = config
    return configs


def visible_devices(configs: Iterable[Namespace]) -> list[str]:
    """List the GPUs for CUDA_VISIBLE_DEVICES; none if runs use no GPU. Raise UserError if one needs several."""
    for config in configs:
        if config.trainer.devices not in ("auto", 1, "1"):
            raise UserError("A sweep gives each run one device, and several runs share the machine. Leave out devices.")
        if config.trainer.accelerator not in ("auto", "gpu", "cuda"):
            return []
    # CUDA numbers what is visible from 0, and the variable names it as the machine does.
    every = [str(number) for number in range(torch.cuda.device_count())]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return visible.split(",")[: len(every)] if visible else every


def domains_in_turn(plan: Sweep, configs: Mapping[str, Namespace]) -> dict[str, list[str]]:
    """By method, the domains that its runs hold out in turn; none if every domain has clients. No image is opened."""
    domains_by_data: dict[str, list[str]] = {}
    return {label: _domains_of_method(plan, config, domains_by_data) for label, config in configs.items()}


def _domains_of_method(plan: Sweep, config: Namespace, domains_by_data: dict[str, list[str]]) -> list[str]:
    check_choices(config)
    data: dict[str, Any] = config.data.as_dict()
    options = data.get("init_args", {})
    protocol = options.get("protocol")
    holds_out = protocol is None or PROTOCOLS[protocol].holds_domains_out
    if not holds_out and plan.held_out not in ("all", "none"):
        raise UserError(f"The protocol {protocol} trains on every domain. Leave out --held_out.")
    # Methods that differ only in options that change no domain share one lookup, which reads a whole folder.
    of_clients = ("held_out", "batch_size", "partition")
    data["init_args"] = {name: value for name, value in options.items() if name not in of_clients}
    key = repr(data)
    if key not in domains_by_data:
        parser = FederationParser()
        parser.add_lightning_class_args(FederatedDataModule, "data", subclass_mode=True)
        with unwrapped_errors():
            domains_by_data[key] = parser.instantiate_classes(parser.parse_object({"data": data})).data.domains
    domains = domains_by_data[key]
    # Of a single domain none would be left to train.
    if plan.held_out == "none" or not holds_out or (plan.held_out == "all" and len(domains) == 1):
        return []
    if together := [name for name in domains if TOGETHER in name]:
        raise UserError(f"A sweep takes {TOGETHER} for domains held out together. Rename the domain {together[0]!r}.")
    in_turn = domains if plan.held_out == "all" else plan.held_out
    return [TOGETHER.join(choose_held_out(names.split(TOGETHER), domains)) for names in in_turn]
