"""How prompts call the classes: CLIP-friendly renames, or the folders' names as most papers use them.

No name has `_` or `-`, since text encoders read them as spaces: a result names what the prompts said.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

ClassNameStyle = Literal["clip", "plain"]
CLIP_NAMES = {
    "OfficeHome": {
        "Desk_Lamp": "desk lamp",
        "File_Cabinet": "filing cabinet",
        "Flipflops": "flip flops",
        "Postit_Notes": "post it notes",
        "TV": "television",
        "ToothBrush": "toothbrush",
    },
    "DomainNet": {
        "see_saw": "seesaw",
        "streetlight": "street light",
        "teddy-bear": "teddy bear",
    },
    "TerraIncognita": {"empty": "empty scene"},
}
CLIP_NAMES |= dict.fromkeys(("DomainNet10", "DomainNet126"), CLIP_NAMES["DomainNet"])


def prompt_names(data_set: str, class_names: Sequence[str], style: ClassNameStyle) -> list[str]:
    """Returns what prompts call the classes of a data set.

    Args:
        data_set: name of the data set.
        class_names: names of its class folders.
        style: "plain" makes spaces of ``_`` and ``-``; "clip" also takes the words that CLIP has read more often.

    >>> prompt_names("OfficeHome", ["Alarm_Clock", "TV"], "clip")
    ['Alarm Clock', 'television']
    >>> prompt_names("OfficeHome", ["Alarm_Clock", "TV"], "plain")
    ['Alarm Clock', 'TV']
    """
    renamed = CLIP_NAMES.get(data_set, {}) if style == "clip" else {}
    return [renamed.get(name, name.replace("_", " ").replace("-", " ")) for name in class_names]
