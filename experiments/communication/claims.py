"""The papers' communication numbers, and the settings of the comparison."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

PACS = ("PACS, one domain held out", {"classes": 7, "domains": 3})
OFFICE_HOME = ("OfficeHome, one domain held out", {"classes": 65, "domains": 3})
DOMAIN_NET = ("DomainNet, all domains", {"classes": 345, "domains": 6})
UNITS = {"": 1, "K": 10**3, "k": 10**3, "M": 10**6}


@dataclass(frozen=True)
class Claim:
    """A number of a paper, or none, and its setting.

    Attributes:
        title: Name of the method in the table.
        config: Name of the bundled config.
        data: Name of the data set, and options of its placeholder.
        printed: The paper's number, such as ``0.065M``, or ``625x of ResNet-50`` for "625 times less"; "" if there is
            none.
        source: Location of the number in the paper.
        direction: Our number to compare with.
        reason: Reason for a difference; required if there is one.
        options: Further arguments of ``fedvlp cost``.
    """

    title: str
    config: str
    data: tuple[str, dict[str, int]]
    printed: str = ""
    source: str = ""
    direction: Literal["upload", "download", "both"] = "upload"
    reason: str = ""
    options: tuple[str, ...] = ()

    def arguments(self) -> list[str]:
        """List the arguments of ``fedvlp cost``."""
        outline = [f"--data.{name}={value}" for name, value in self.data[1].items()]
        return [f"--config={self.config}", *outline, *self.options]


CLAIMS = (
    Claim("zero-shot CLIP", "zero_shot", PACS),
    Claim("single-domain tuning", "single_domain", PACS),
    Claim("PromptFL", "promptfl", PACS, "0.008M", "TRIP, Tables I to IV", "both"),
    Claim("TRIP", "trip", PACS, "0.065M", "TRIP, Tables I to IV", "both"),
    Claim("TRIP-Lite", "trip_lite", PACS, "0.001M", "TRIP, Tables I to IV", "both"),
    Claim(
        *("PLAN", "plan", OFFICE_HOME, "15.29x of ViT-B/16", "PLAN, Section V-G", "download"),
        "The bottleneck's reduction ratio is illegible in the paper. The download comes nearest with a ratio of 8. "
        "The paper does not state the direction; both directions together are 10.9 M.",
    ),
    Claim(
        *("PLAN", "plan", OFFICE_HOME, "4.55x of ResNet-50", "PLAN, Section V-G", "download"),
        "See the row above; the paper's two claims agree to 0.1 %.",
    ),
    Claim(
        *("PLAN, released aggregators", "plan_released", OFFICE_HOME, "15.29x of ViT-B/16", "PLAN, Section V-G"),
        reason="The released code replaces the paper's bottlenecks by transformers over the clients. With both towers "
        "they have 81.9 M parameters, nearly as many as the whole network in the paper's comparison.",
        options=("--model.aggregate_text=true",),
    ),
    Claim(
        *("Fed-DPT", "fed_dpt", DOMAIN_NET, "16.9k", "Fed-DPT, Table 3"),
        reason="16.9k = (16 + 6) x 768: a text prompt and six visual tokens, all 768 wide. However, text tokens of "
        "ViT-B/16 are 512 wide, which the paper also states.",
    ),
    Claim(
        *("ADAPT", "adapt", DOMAIN_NET, "16.9k", "ADAPT, Table 6"),
        reason="See Fed-DPT.",
    ),
    Claim(
        *("ADAPT", "adapt", DOMAIN_NET, "0.08M", "ADAPT, abstract", "download"),
        "0.08M = (6 x 16 + 6) x 768 = 78,336: all text prompts and visual tokens, again with text tokens 768 wide.",
    ),
    Claim(
        *("DiPrompT", "diprompt", PACS, "625x of ResNet-50", "DiPrompT, Section 4.3.5 (against FedGMA)"),
        reason="40,960 = (1 + 3 + 1) x 16 x 512 is 1/625 of 25.6 M, the rounded size of ResNet-50. So the paper counts "
        "the query prompt, although its text names only global and domain prompts as uploads.",
        options=("--data.num_clients=20",),
    ),
    Claim(
        *("DiPrompT, query prompt not sent", "diprompt", PACS, "625x of ResNet-50"),
        source="DiPrompT, Section 4.3.5 (against FedGMA)",
        reason="The uploads in the paper's text, (1 + 3) x 16 x 512, are 780 times less than ResNet-50. The paper's "
        "number would need prompts of 20 tokens.",
        options=("--data.num_clients=20", "--model.upload_query=false"),
    ),
)


def printed_number(printed: str, networks: dict[str, int]) -> Fraction:
    """Convert a paper's number to parameters, with its precision.

    >>> printed_number("0.065M", {}), printed_number("4x of A", {"A": 10})
    (Fraction(65000, 1), Fraction(5, 2))
    """
    if match := re.fullmatch(r"([\d.]+)x of (.+)", printed):
        return networks[match.group(2)] / Fraction(match.group(1))
    match = re.fullmatch(r"([\d.]+)([KkM]?)", printed)
    if match is None:
        raise ValueError(f"Expected a number such as 0.065M or 625x of ResNet-50; got {printed!r}.")
    return Fraction(match.group(1)) * UNITS[match.group(2)]


def prints_as(number: int, printed: str) -> bool:
    """Check whether a number, truncated or rounded to the same digits, equals a printed number.

    >>> prints_as(65_536, "0.065M"), prints_as(65_536, "0.066M"), prints_as(65_536, "0.064M")
    (True, True, False)
    """
    match = re.fullmatch(r"\d+(?:\.(\d+))?([KkM]?)", printed)
    if match is None:
        return False
    step = Fraction(UNITS[match.group(2)], 10 ** len(match.group(1) or ""))
    value = printed_number(printed, {})
    return -step / 2 <= number - value < step
