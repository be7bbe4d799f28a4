"""The parsed methods of a sweep, their held-out domains, and the available GPUs."""

import os
from argparse import ArgumentError
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from jsonargparse import Namespace

from fedvlp.commands.lightning_cli import FederationParser, ParsingCLI, check_choices, shorten_message
from fedvlp.core.roles import PROTOCOLS
from fedvlp.data import FederatedDataModule
from fedvlp.data.protocols import choose_held_out
from fedvlp.tools.sweep.plan import TOGETHER, Sweep
from fedvlp.utils.errors import UserError, unwrapped_errors


def parse_methods(plan: Sweep) -> dict[str, Namespace]:
    """Parse the configuration of each method, by label; raise UserError if ``fedvlp fit`` would reject it."""
    # Parsing must not seed the generators of this process.
    start = ["--seed_everything=false"]
    command = ParsingCLI.make([*start, "--model=ZeroShotCLIP", "--data=IconDomains"])
    configs = {}
    for method in plan.methods:
        try:
            config = command.parser.parse_args([*start, *plan.choices(method)])
        except ArgumentError as error:
            message = shorten_message(str(error), command.parser.get_defaults().keys())
            raise UserError(f"Model {method.label!r} of the sweep: {message}") from error
        if config.trainer.fast_dev_run:
            raise UserError("A sweep needs results, but fast_dev_run saves none. Use it with fedvlp fit.")
        configs[method.label] = config
    return configs


def visible_devices(configs: Iterable[Namespace]) -> list[str]:
    """List GPUs for CUDA_VISIBLE_DEVICES; none if runs use no GPU. Raise UserError if a run needs several."""
    for config in configs:
        if config.trainer.devices not in ("auto", 1, "1"):
            raise UserError("A sweep gives each run one device. Remove trainer.devices.")
        if config.trainer.accelerator not in ("auto", "gpu", "cuda"):
            return []
    # CUDA numbers the visible GPUs from 0; the variable lists their names on the machine.
    numbers = [str(number) for number in range(torch.cuda.device_count())]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return visible.split(",")[: len(numbers)] if visible else numbers


def held_out_domains(plan: Sweep, configs: Mapping[str, Namespace]) -> dict[str, list[str | None]]:
    """List, per method, the domains that its runs hold out in turn; only None if all train. Opens no image."""
    domains_by_data: dict[str, list[str]] = {}
    return {label: _domains_of_method(plan, config, domains_by_data) for label, config in configs.items()}


def _domains_of_method(plan: Sweep, config: Namespace, domains_by_data: dict[str, list[str]]) -> list[str | None]:
    check_choices(config)
    data: dict[str, Any] = config.data.as_dict()
    options = data.get("init_args", {})
    protocol = options.get("protocol")
    holds_out = protocol is None or PROTOCOLS[protocol].holds_domains_out
    if not holds_out and plan.held_out not in ("all", "none"):
        raise UserError(f"The protocol {protocol} trains on all domains. Remove --held_out.")
    # Finding domains reads a whole folder, so methods share the result if these options are their only difference.
    irrelevant = ("held_out", "batch_size", "partition")
    data["init_args"] = {name: value for name, value in options.items() if name not in irrelevant}
    key = repr(data)
    if key not in domains_by_data:
        parser = FederationParser()
        parser.add_lightning_class_args(FederatedDataModule, "data", subclass_mode=True)
        with unwrapped_errors():
            domains_by_data[key] = parser.instantiate_classes(parser.parse_object({"data": data})).data.domains
    domains = domains_by_data[key]
    # A single domain cannot be held out.
    if plan.held_out == "none" or not holds_out or (plan.held_out == "all" and len(domains) == 1):
        return [None]
    if together := [name for name in domains if TOGETHER in name]:
        raise UserError(f"{TOGETHER} joins domains that are held out together. Rename the domain {together[0]!r}.")
    choices = domains if plan.held_out == "all" else plan.held_out
    return [TOGETHER.join(choose_held_out(names.split(TOGETHER), domains)) for names in choices]
