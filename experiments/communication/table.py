"""Count the communication of the methods with ViT-B/16, next to the papers' numbers.

``python -m experiments.communication.table`` writes the table to this folder's README, without weights, images or GPU.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import torch
from torchvision.models import resnet50, vit_b_16

from experiments.communication.claims import CLAIMS, Claim, printed_number, prints_as
from experiments.tables import write_block
from fedvlp.tools.cost.counting import costs
from fedvlp.utils.text_table import markdown_table

README = Path(__file__).with_name("README.md")
HEAD = ("method", "setting", "up", "down", "bytes up", "once", "paper", "source", "comparison")


def networks() -> dict[str, int]:
    """Count the parameters of whole networks that papers compare with, and of ViT-B/16 without its classifier."""
    with torch.device("meta"):
        vit = vit_b_16()
        resnet = resnet50()
    heads = {id(parameter) for parameter in vit.heads.parameters()}
    trunk = sum(parameter.numel() for parameter in vit.parameters() if id(parameter) not in heads)
    return {"ViT-B/16": trunk, "ResNet-50": sum(parameter.numel() for parameter in resnet.parameters())}


def counted(claim: Claim) -> dict[str, Any]:
    """Count our communication over all phases."""
    rows = costs([*claim.arguments(), "--model.clip.name=ViT-B-16"])
    return rows[-1]


def verdict(claim: Claim, row: dict[str, Any], network_sizes: dict[str, int]) -> str:
    """Compare our number with the paper's; if it differs, state by how much and why."""
    if not claim.printed:
        return "no number in the papers"
    directions = ("upload", "download") if claim.direction == "both" else (claim.direction,)
    ours = {row[f"{direction}_parameters"] for direction in directions}
    if all(prints_as(number, claim.printed) for number in ours):
        return "the same"
    theirs = printed_number(claim.printed, network_sizes)
    difference = max((float(Fraction(number) / theirs - 1) for number in ours), key=abs)
    return f"{claim.direction} {100 * difference:+.1f} %. {claim.reason}"


def cells(claim: Claim, row: dict[str, Any], network_sizes: dict[str, int]) -> list[str]:
    """Format a line of the table."""
    names = ("upload_parameters", "download_parameters", "upload_bytes", "once_parameters")
    paper = claim.printed
    if "x of" in paper:
        paper = f"{paper.replace('x of', ' times less than')}: {round(printed_number(paper, network_sizes)):,}"
    clients = f", {row['all_clients']} clients"
    numbers = [f"{row[name]:,}" for name in names]
    return [claim.title, claim.data[0] + clients, *numbers, paper, claim.source, verdict(claim, row, network_sizes)]


def table(claims: Sequence[Claim]) -> str:
    """Format the table as Markdown."""
    network_sizes = networks()
    alignment = ["---"] * 2 + ["---:"] * 4 + ["---"] * 3
    return markdown_table(HEAD, alignment, [cells(claim, counted(claim), network_sizes) for claim in claims])


def main() -> None:
    """Write the table into the README, and print it."""
    logging.getLogger("lightning").setLevel(logging.WARNING)
    new = table(CLAIMS)
    write_block(README, "communication", new)
    sys.stdout.write(new + "\n")


if __name__ == "__main__":
    main()
