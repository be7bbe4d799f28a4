"""The card of a trained model: a Markdown page made of its run, which a hub shows and reads the beginning of."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import yaml

from fedvlp.data.catalog import DESCRIPTIONS
from fedvlp.pretrained.classifier import Classifier
from fedvlp.results.record import Record
from fedvlp.results.rounds import accuracy_columns, column_title
from fedvlp.utils.text_table import markdown_cell, markdown_table, markdown_text

TINY_CLIP = "The tiny CLIP comes with fedvlp and is under the Apache licence 2.0."
OPENAI_CLIP = "OpenAI published these weights with their code under the MIT licence (github.com/openai/CLIP)."
OPEN_CLIP = "The open_clip project published these weights under the MIT licence (github.com/mlfoundations/open_clip)."
OTHER_CLIP = "Their licence is that of whoever published them."
DRAWN = "StyledShapes is drawn by fedvlp's code, under the Apache licence 2.0."
CARD = """\
---
{metadata}---

# {title}

{about}

## Use

```bash
pip install fedvlp
```

```python
import fedvlp
from PIL import Image

model = fedvlp.from_pretrained("hf://{repository}")
probabilities = model.predict([Image.open("image.png")])  # [1, classes]
print(model.class_names[int(probabilities[0].argmax())])
```

## Accuracy

{accuracy}

\\* held out: no client has it, and it never chooses a round; + test split of a source domain. The tensors here are
those of the last round.

## Data and training

{facts}

## Licence

* What was learned: `{license}`.
* CLIP `{clip}`: {clip_licence}
* Images: {data_licence}
"""


def card_text(classifier: Classifier, record: Record, repository: str, license: str) -> str:
    """Makes the card of a run's model, the same text for the same run.

    Args:
        classifier: the model.
        record: its run.
        repository: where it will be, ``user/name``.
        license: identifier of the licence of what was learned, as hubs know them.
    """
    metadata = {
        "library_name": "fedvlp",
        "license": license,
        "pipeline_tag": "image-classification",
        "tags": ["fedvlp", "clip", "prompt-learning", "federated-learning", "domain-generalization"],
        "metrics": ["accuracy"],
    }
    return CARD.format(
        metadata=yaml.safe_dump(metadata, sort_keys=False),
        title=markdown_text(f"{record.method} on {_data_name(record)}"),
        about=_about(classifier, record),
        repository=repository,
        accuracy=_accuracy(record),
        facts=_facts(record),
        license=license,
        clip=record.clip,
        clip_licence=clip_licence(classifier.method.describe()["clip"]),
        data_licence=markdown_text(_data_licence(record)),
    )


def paper_of(method: type) -> str:
    """Returns the paper that the module of a method names in its docstring; empty where it names none.

    >>> from fedvlp import KgCoOp
    >>> paper_of(KgCoOp).startswith("Yao et al.")
    True
    """
    module = inspect.getmodule(method)
    for paragraph in (inspect.getdoc(module) or "").split("\n\n"):
        kind, _, text = paragraph.partition(":")
        if kind in ("Paper", "Papers"):
            return " ".join(text.split())
    return ""


def clip_licence(clip: Mapping[str, Any]) -> str:
    """Returns a sentence on the licence of a CLIP's weights.

    Args:
        clip: the fields of its :class:`.CLIPSpec`.

    >>> clip_licence({"name": "ViT-B-16", "pretrained": "auto"}) == OPENAI_CLIP
    True
    """
    name = str(clip.get("name", ""))
    pretrained = str(clip.get("pretrained", ""))
    if name == "fedvlp-tiny" and pretrained == "auto":
        return TINY_CLIP
    if name.startswith("hf-hub:"):
        return OTHER_CLIP
    if pretrained in ("auto", "openai"):
        return OPENAI_CLIP
    return OPEN_CLIP if pretrained.startswith(("laion", "datacomp")) else OTHER_CLIP


def _about(classifier: Classifier, record: Record) -> str:
    names = ", ".join(markdown_text(name) for name in classifier.class_names)
    how = "centralised" if record.is_centralised else "federated"
    about = (
        f"An image classifier of {len(classifier.class_names)} classes ({names}): the frozen CLIP `{record.clip}` and "
        f"the tensors that {record.method} learned around it, {how}. The repository holds what was learned and not the "
        "CLIP, which is loaded by its name."
    )
    paper = paper_of(type(classifier.method))
    return f"{about}\n\nMethod: {markdown_text(paper)}" if paper else about


def _accuracy(record: Record) -> str:
    rows = list(record.accuracy.items())
    columns = accuracy_columns(rows)
    body = []
    for title, row in rows:
        cells = [f"{row[name]:.2f}" if name in row else "-" for name in columns]
        body.append([markdown_cell(title), *cells])
    head = ["in %", *(markdown_cell(column_title(name)) for name in columns)]
    return markdown_table(head, ["---", *["---:"] * len(columns)], body)


def _facts(record: Record) -> str:
    data = record.data
    facts = {
        "data": _data_name(record),
        "protocol": record.protocol,
        "domains": ", ".join(data.get("domains", [])),
        "held out": ", ".join(record.held_out) or "none",
        "clients": data.get("partition", ""),
        "shots": data.get("shots"),
        "images, digest": data.get("images", ""),
        "split, digest": record.split,
        "rounds": record.rounds,
        "seed": record.seed,
        "options": ", ".join(f"{name} {value}" for name, value in sorted(record.options.items())),
        "CLIP, digest": record.clip_fingerprint,
        "versions": ", ".join(f"{name} {version}" for name, version in sorted(record.versions.items())),
    }
    if record.optimizer:
        facts["optimizer"] = f"{record.optimizer.get('class')}, learning rate {record.optimizer.get('lr')}"
    if record.communication:
        facts["sent by a client each round"] = f"{record.communication['upload_parameters']:,} parameters"
    body = [[name, markdown_cell(str(value))] for name, value in facts.items() if value not in (None, "")]
    return markdown_table(["", ""], ["---", "---"], body)


def _data_licence(record: Record) -> str:
    name = _data_name(record)
    if name == "StyledShapes":
        return DRAWN
    known = next((each for each in DESCRIPTIONS if each.name == name), None)
    if known is None:
        return "those of whoever trained it; none of them is here."
    licence = f" (licence, as far as known: {known.licence})" if known.licence else ""
    return f"{name} is published by {known.source}{licence}; its terms apply to the images, and none of them is here."


def _data_name(record: Record) -> str:
    return str(record.data.get("name") or "custom images")
