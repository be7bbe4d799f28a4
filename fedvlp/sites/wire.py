"""What goes over the wire: requests and replies as safetensors, with JSON that is held to a schema; and who carries it.

Nothing is ever unpickled. A process that Flower starts for each message passes it on, so nothing here imports PyTorch
before a message with tensors is read or written.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NamedTuple, Protocol, runtime_checkable

from safetensors import serialize

from fedvlp.utils.errors import UserError
from fedvlp.utils.files import MAX_LENGTH, checked_values
from fedvlp.version import __version__

KEY = "fedvlp"
LENGTH_BYTES = 8  # before safetensors' header, of which they are the length
MAX_BYTES = 1 << 30
"""Of a whole message: far more than prompts need, and less than a machine has."""
MAX_HEADER_BYTES = 16 << 20
"""Of a header: names of classes and tensors, and options."""
MAX_STRING = 2000  # characters
MAX_ENTRIES = 100  # of one object of numbers; a method logs a few
MAX_NUMBER = 2**63 - 1
MAX_NAME = 255  # bytes of a file's name, on most disks; characters of a number's
NOISE_RANGE = (1e-9, 1e9)
"""Of ``clip_norm``, and of ``noise_multiplier`` unless that is 0, so that no product or square is 0 or infinite."""
LIBRARIES = ("torch", "torchvision", "open_clip_torch")


class WireError(Exception):
    """What is wrong with a message, to be read after the sender's name; reveals nothing of the message's content."""


class Field(NamedTuple):
    """What a value in a message must be: in words, and as a check that raises nothing, whatever JSON it receives."""

    expected: str
    accepts: Callable[[Any], bool]


def is_plain_name(value: Any) -> bool:
    """Whether a value is the name of a file, with no folder before it."""
    # It is joined to a folder at the other side, so it must not lead out of it on any system.
    return (
        isinstance(value, str)
        and 0 < len(value.encode("utf-8", "surrogatepass")) <= MAX_NAME
        and not value.startswith(".")
        and not set(value) & set("/\\:")
        and value.isprintable()
    )


def _is_count(value: Any) -> bool:
    # JSON's true is an instance of int, too.
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_NUMBER


def _is_number(value: Any) -> bool:
    # JSON has integers of any length, which no float can hold.
    is_integer = isinstance(value, int) and not isinstance(value, bool) and abs(value) <= MAX_NUMBER
    return is_integer or isinstance(value, float)


def _is_factor(value: Any) -> bool:
    return _is_number(value) and 0 <= value < float("inf")


def _is_string(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= MAX_STRING


def _is_line(value: Any) -> bool:
    # Names and reasons are shown on the other side's screen, where a line break would let the sender add lines.
    return _is_string(value) and value.isprintable()


def _are_distinct_strings(value: Any) -> bool:
    if not isinstance(value, list) or len(value) > MAX_LENGTH:
        return False
    return all(map(_is_string, value)) and len(set(value)) == len(value)


def _is_config(value: Any) -> bool:
    try:
        checked_values(value)
    except UserError:
        return False
    return isinstance(value, dict)


def _is_noise(value: Any) -> bool:
    if value is None:
        return True
    if not isinstance(value, dict) or value.keys() != {"clip_norm", "noise_multiplier", "seed"}:
        return False
    if not _is_number(value["clip_norm"]) or not _is_number(value["noise_multiplier"]):
        return False
    least, most = NOISE_RANGE
    sizes = [value["clip_norm"], value["noise_multiplier"] or least]
    return all(least <= size <= most for size in sizes) and (value["seed"] is None or _is_count(value["seed"]))


def _object_of(is_value: Callable[[Any], bool]) -> Callable[[Any], bool]:
    def accepts(value: Any) -> bool:
        if not isinstance(value, dict) or len(value) > MAX_ENTRIES:
            return False
        has_short_names = all(len(name) <= MAX_NAME and name.isprintable() for name in value)
        return has_short_names and all(map(is_value, value.values()))

    return accepts


def _are_counts_by_class(value: Any) -> bool:
    if not isinstance(value, list) or len(value) > MAX_LENGTH:
        return False
    return all(isinstance(each, list) and len(each) == 3 and all(map(_is_count, each)) for each in value)


COUNT = Field("an integer of at least 0", _is_count)
FACTOR = Field("a number of at least 0", _is_factor)
SHARE = Field("a number above 0 and up to 1", lambda value: _is_number(value) and 0 < value <= 1)
FLAG = Field("true or false", lambda value: isinstance(value, bool))
STRING = Field(f"a string of up to {MAX_STRING} printable characters", _is_line)
FILE = Field("the plain name of a file, or an empty string", lambda value: value == "" or is_plain_name(value))
STRINGS = Field(f"a list of up to {MAX_LENGTH:,} distinct strings", _are_distinct_strings)
NAMES = Field(
    f"a list of up to {MAX_LENGTH:,} distinct strings of printable characters",
    lambda value: _are_distinct_strings(value) and all(map(_is_line, value)),
)
OBJECT = Field("an object within the bounds of a config", _is_config)
COUNTS = Field("an object of integers of at least 0", _object_of(_is_count))
COUNTS_BY_CLASS = Field("an object of lists of three integers for each class", _object_of(_are_counts_by_class))
NUMBERS = Field(f"an object of up to {MAX_ENTRIES} numbers, with short names", _object_of(_is_number))
VERSIONS = Field("an object of strings", _object_of(_is_line))
WEIGHTING = Field("null, or examples or uniform for a secure sum", lambda value: value in (None, "examples", "uniform"))
NOISE = Field(
    f"null, or a client's noise: clip_norm from {NOISE_RANGE[0]:g} to {NOISE_RANGE[1]:g}, noise_multiplier in the same "
    "range or 0, and seed",
    _is_noise,
)

CLIENT = {"client": COUNT, "domain": COUNT}
FILES = {"personal": FILE, "optimizer": FILE}
"""Names of the files of a client's personal tensors at its site; the server passes them on and never reads one."""

DESCRIPTION: Mapping[str, Field] = {
    "data": OBJECT,
    "model": OBJECT,
    "training": OBJECT,
    "fingerprint": STRING,
    "rounds": COUNT,
    "noise": NOISE,
    "sites": NAMES,
    "signature": STRING,
}
"""What a run is, by which a site decides whether to take part; ``noise`` is what each client adds to what it sends."""

REQUESTS: Mapping[str, Mapping[str, Field]] = {
    "describe": {"run": STRING, **DESCRIPTION},
    "prepare": {"run": STRING, **DESCRIPTION, **CLIENT},
    "train": {
        "run": STRING,
        "round": COUNT,
        "phase": COUNT,
        "seed": COUNT,
        "factor": FACTOR,
        "share": SHARE,
        "noise": NOISE,
        "weighting": WEIGHTING,
        **CLIENT,
        **FILES,
    },
    "sum": {"run": STRING, "step": STRING, **CLIENT},
    "evaluate": {"run": STRING, "baseline": FLAG, **CLIENT, **FILES},
    "leave": {"run": STRING},
}
"""What the server asks. ``prepare`` brings the tensors that every site begins with, ``train`` a download, ``evaluate``
what is deployed, and ``sum`` bytes of other sites, as ``summed`` does."""

REPLIES: Mapping[str, Mapping[str, Field]] = {
    "described": {
        "name": STRING,
        "classes": STRINGS,
        "counts": COUNTS,
        "images": STRING,
        "split": STRING,
        "versions": VERSIONS,
    },
    "refused": {"name": STRING, "reason": STRING},
    "waiting": {"name": STRING, "reason": STRING},
    "prepared": {"images": STRING, "split": STRING},
    "trained": {
        "round": COUNT,
        "phase": COUNT,
        "num_examples": COUNT,
        "metrics": NUMBERS,
        "finite": FLAG,
        "retried": STRING,
        **FILES,
    },
    "summed": {},
    "evaluated": {"correct": COUNTS, "count": COUNTS, "by_class": COUNTS_BY_CLASS},
    "left": {},
    "unprepared": {},
    "failed": {"name": STRING, "reason": STRING},
}
"""What a site answers. ``trained`` brings the upload, or a site's keys where a secure sum is to follow. In place of a
description it may refuse a run, or wait until its keeper has approved it. ``by_class`` of ``evaluated`` has, for each
class of a split, its images, those that are classified correctly, and those predicted as it; it is empty unless the
site's policy allows these counts."""


@dataclass(frozen=True)
class Message:
    """A request of the server, or a site's reply.

    Attributes:
        kind: one of ``REQUESTS`` or ``REPLIES``.
        values: what JSON can hold, with the fields of the kind.
        tensors: what is downloaded or uploaded, by name.
    """

    kind: str
    values: Mapping[str, Any] = field(default_factory=dict)
    tensors: dict[str, Any] = field(default_factory=dict)

    def digest(self, without: Collection[str]) -> bytes:
        """SHA-256 of all that the message says, without some of its values."""
        values = {name: value for name, value in sorted(self.values.items()) if name not in without}
        return hashlib.sha256(Message(self.kind, values, self.tensors).to_bytes()).digest()

    def to_bytes(self) -> bytes:
        """Encodes the message."""
        metadata = {KEY: json.dumps({"kind": self.kind, **self.values})}
        # Without tensors PyTorch is not needed, and the process that passes a failure on has not imported it.
        if not self.tensors:
            return bytes(serialize({}, metadata))
        from safetensors.torch import save

        from fedvlp.core.state import detached

        # A copy each, since tensors may share memory, which safetensors refuses.
        tensors = {name: value.contiguous() for name, value in detached(self.tensors).items()}
        return bytes(save(tensors, metadata))


def failure(name: str, reason: str) -> bytes:
    """Encode the reply of a site that could not do what it was asked.

    The reason continues the sentence that the site's name begins, such as ``has no image``; it must reveal nothing of
    images or files.
    """
    return Message("failed", {"name": name, "reason": reason}).to_bytes()


def read_request(content: bytes) -> Message:
    """Decodes a request; a WireError says which field is wrong and nothing of its content."""
    return _read(content, REQUESTS)


def read_reply(content: bytes) -> Message:
    """Decodes a reply; a WireError as of :func:`read_request`."""
    return _read(content, REPLIES)


def _read(content: bytes, schemas: Mapping[str, Mapping[str, Field]]) -> Message:
    values = _values(content)
    kind = values.pop("kind", None)
    if not isinstance(kind, str) or kind not in schemas:
        raise WireError(f"sent a message of none of the kinds {', '.join(schemas)}")
    schema = schemas[kind]
    # A message names the field that is wrong and never its value, which may be what a site must not reveal.
    for name, each in schema.items():
        if name not in values:
            raise WireError(f"sent no {name}, which should be {each.expected}")
        if not each.accepts(values[name]):
            raise WireError(f"sent a {type(values[name]).__name__} as {name}, which should be {each.expected}")
    if unknown := values.keys() - schema.keys():
        # Their names come from the other side and could hold anything, so they are counted and not shown.
        raise WireError(f"sent {len(unknown)} unknown field(s) in a message of the kind {kind}")
    from safetensors.torch import load

    try:
        return Message(kind, values, load(content))
    except Exception as error:
        # The bytes may be anything, and make safetensors raise anything.
        raise WireError("sent tensors that can't be understood") from error


def _values(content: bytes) -> dict[str, Any]:
    """The JSON object in the header of a message; its tensors are not read."""
    if len(content) > MAX_BYTES:
        raise WireError(f"sent more than {MAX_BYTES:,} bytes")
    # The length is checked before anything is parsed: it comes from the other side as well.
    length = int.from_bytes(content[:LENGTH_BYTES], "little")
    if len(content) < LENGTH_BYTES or length > min(len(content) - LENGTH_BYTES, MAX_HEADER_BYTES):
        raise WireError("sent a message that is cut short, or none of fedvlp's")
    try:
        header = json.loads(content[LENGTH_BYTES : LENGTH_BYTES + length].decode())
        values = json.loads(header["__metadata__"][KEY])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise WireError("sent a message that can't be understood") from error
    if not isinstance(values, dict):
        raise WireError("sent a message that can't be understood")
    return values


def versions_here() -> dict[str, str]:
    """Versions of fedvlp and of the libraries it computes with, by their names on the package index."""
    versions = {"fedvlp": __version__}
    for name in LIBRARIES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return versions


class SiteProblem(Exception):  # noqa: N818 (it becomes a reply and is no error of the program)
    """Why a site refuses a request, to be read after the site's name; reveals nothing of images or files."""


class SiteError(Exception):
    """Why there is no reply of a site, to be read after the site's name, such as ``did not answer in 60 s``."""


class SiteRefusal(SiteError):  # noqa: N818 (the site's own answer)
    """Why a site that answers can't do what it was asked. Unlike a lost connection, somebody has to repair it."""


@runtime_checkable
class Transport(Protocol):
    """Carries messages between the server and its sites, as bytes."""

    def names(self) -> list[str]:
        """Names under which connected sites can be reached, in any order; they may change with time."""
        ...

    def exchange(self, requests: Mapping[str, bytes], timeout: float) -> Iterator[tuple[str, bytes | SiteError]]:
        """Sends each site its request, all at the same time, and yields the replies as they come.

        Args:
            requests: by the site's name, as ``names`` has it.
            timeout: seconds to wait for all replies together, above 0.

        Yields:
            For each request the site's name, and the reply or why there is none (it died, is too late or unknown).
        """
        ...
