"""The measures of an audit, and what each finds, as plain values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any, NamedTuple

from fedvlp.core.module import FederatedModule
from fedvlp.core.state import detached
from fedvlp.results.figures import Picture
from fedvlp.tools.audit.attack import Inversion, Recovered, invert_gradients
from fedvlp.tools.audit.membership import measure_membership
from fedvlp.tools.audit.method import AuditedMethod, AuditRequest
from fedvlp.tools.audit.picture import inversion_picture
from fedvlp.tools.audit.similarity import MEASURES
from fedvlp.tools.audit.targets import Target
from fedvlp.tools.audit.words import server_words
from fedvlp.utils.errors import UserError
from fedvlp.utils.seeding import restored_generators, seed_generators

FORMAT = 1
"""Of ``audit.json``; it changes when a reader would have to."""
Facts = dict[str, Any]


class Found(NamedTuple):
    """What one measure found.

    Attributes:
        facts: values that JSON can hold.
        picture: of them, where there is one.
    """

    facts: Facts
    picture: Picture | None = None


@dataclass(frozen=True)
class Audit:
    """What was measured.

    Attributes:
        facts: as ``audit.json`` has them.
        picture: of the inversion; None without one.
        left_out: what can't be measured of the method, with the reason.
    """

    facts: Facts
    picture: Picture | None
    left_out: list[str]


def audit(method: AuditedMethod, request: AuditRequest) -> Audit:
    """Returns what a method's uploads and its deployed prompts tell; the same for the same seed.

    Raises:
        UserError: if something that was asked for by name can't be measured of this method, or nothing can.
    """
    kinds = AUDITS if request.kinds is None else request.kinds
    found: dict[str, Found] = {}
    left_out: list[str] = []
    for kind in kinds:
        try:
            with restored_generators(), _unchanged(method.module):
                seed_generators(request.seed)
                method.module.load_state(method.deployed)
                found[kind] = AUDITS[kind](method, request)
        except UserError as error:
            if request.kinds is not None:
                raise
            left_out.append(f"{kind} left out: {error}")
    if not found:
        raise UserError(f"There is nothing to audit of {method.name}. " + " ".join(left_out))
    facts = about(method, request) | {kind: found[kind].facts if kind in found else None for kind in AUDITS}
    picture = next((each.picture for each in found.values() if each.picture is not None), None)
    return Audit(facts, picture, left_out)


@contextmanager
def _unchanged(module: FederatedModule) -> Iterator[None]:
    """Puts the method's tensors back after the block, in which those of clients are loaded."""
    before = detached(module.communicable_state())
    try:
        yield
    finally:
        module.context = None
        module.load_state(before)


def about(method: AuditedMethod, request: AuditRequest) -> Facts:
    """Returns what the numbers depend on."""
    return {
        "format": FORMAT,
        "method": method.name,
        "is_trained": method.is_trained,
        "clip": method.clip.spec.name,
        "clip_fingerprint": method.clip.fingerprint(),
        "seed": request.seed,
    }


def audit_inversion(method: AuditedMethod, request: AuditRequest) -> Found:
    """Returns how like recovered images are to the true ones."""
    images = method.require_images()
    finished = int(method.is_trained)  # it matters whether a round was the first, and not which one it is
    inversion = invert_gradients(method.module, images, request.inversion, finished, request.seed)
    rows = []
    for target, recovered in zip(inversion.targets, inversion.recovered, strict=True):
        for each in recovered:
            rows += _rows_of(target, each, method.class_names)
    facts = {
        "options": asdict(request.inversion),
        "phase": inversion.phase,
        "sent": {name: list(shape) for name, shape in inversion.sent.items()},
        "mean": _means(inversion),
        "images": rows,
    }
    picture = inversion_picture(method.clip, inversion, method.class_names, method.name)
    facts["picture"] = {"title": picture.title, "caption": picture.caption, "alt": picture.alt}
    return Found(facts, picture)


def audit_membership(method: AuditedMethod, request: AuditRequest) -> Found:
    """Returns how well losses tell training images from others."""
    images = method.require_images()
    method.module.eval()
    results = measure_membership(method.module, images, method.state_of, request.membership, request.seed)
    facts = {
        "options": asdict(request.membership),
        "others": images.role,
        "model": "each client's own" if method.module.personal else "the server's",
        "clients": [asdict(result) for result in results[:-1]],
        "all": asdict(results[-1]),
    }
    return Found(facts)


def audit_words(method: AuditedMethod, request: AuditRequest) -> Found:
    """Returns the words nearest to the prompts that a server has.

    Raises:
        UserError: if the method learns nothing among words.
    """
    found = server_words(method.module, method.deployed)
    if found is None:
        raise UserError(f"{method.name} learns no vectors that stand among words.")
    prompts: dict[str, list[list[Facts]]] = {}
    for name, vectors in found.words.items():
        prompts[name] = []
        for near in vectors:
            prompts[name].append([asdict(word) for word in near])
    return Found({"typical_distance": found.typical_distance, "hidden": found.hidden, "prompts": prompts})


AUDITS: Mapping[str, Callable[[AuditedMethod, AuditRequest], Found]] = {
    "inversion": audit_inversion,
    "membership": audit_membership,
    "words": audit_words,
}


def _rows_of(target: Target, recovered: Recovered, class_names: list[str]) -> list[Facts]:
    """Returns a row for each image of a target."""
    rows = []
    for index, name in enumerate(target.names):
        row: Facts = {
            "image": name,
            "client": target.client.name,
            "class": class_names[int(target.labels[index])],
            "source": recovered.source,
            "guessed_class": None if recovered.labels is None else class_names[recovered.labels[index]],
            "gradient_distance": recovered.distance,
        }
        rows.append(row | recovered.scores[index])
    return rows


def _means(inversion: Inversion) -> dict[str, dict[str, float]]:
    """Returns the mean over images of each measure, by source."""
    scores: dict[str, list[dict[str, float]]] = {}
    for recovered in inversion.recovered:
        for each in recovered:
            scores.setdefault(each.source, []).extend(each.scores)
    means: dict[str, dict[str, float]] = {}
    for source, rows in scores.items():
        means[source] = {}
        for measure in MEASURES:
            means[source][measure] = fmean(row[measure] for row in rows)
    return means
