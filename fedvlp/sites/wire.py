"""Requests and replies as safetensors, with JSON that must match a schema, and the protocol of their transport.

Nothing is ever unpickled. PyTorch is imported only when a message with tensors is read or written, because Flower
starts a process for each message.
"""

import hashlib
import json
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated, Any, Literal, Protocol, runtime_checkable

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from safetensors import serialize

from fedvlp.utils.files import MAX_LENGTH, checked_values
from fedvlp.version import __version__

KEY = "fedvlp"
LENGTH_BYTES = 8  # safetensors begins with the length of its header
MAX_BYTES = 1 << 30  # of a message: far more than prompts need, and less than a machine has
MAX_HEADER_BYTES = 16 << 20  # of a header: names of classes and tensors, and options
MAX_STRING = 2000  # characters
MAX_ENTRIES = 100  # of one object of numbers; a method logs a few
MAX_NAME = 255  # bytes of a file's name, on most disks; characters of a number's
# Of clip_norm, and of noise_multiplier unless that is 0, so that no product or square is 0 or infinite.
NOISE_RANGE = (1e-9, 1e9)
LIBRARIES = ("torch", "torchvision", "open_clip_torch")


class SiteProblem(Exception):  # noqa: N818 (it becomes a reply and is no error of the program)
    """Why a site refuses a request, to be read after its name; reveals nothing of images or files."""


class SiteError(Exception):
    """Why there is no reply of a site, to be read after the site's name, such as ``did not answer in 60 s``."""


class SiteRefusal(SiteError):  # noqa: N818 (the site's own answer)
    """Why a site that answers can't do what it was asked. Unlike a lost connection, somebody has to repair it."""


class WireError(SiteError):
    """What is wrong with a message, to be read after the sender's name; reveals nothing of the message's content."""


def is_plain_name(value: str) -> bool:
    """Whether a string is the name of a file, which does not lead out of its folder on any system."""
    is_short = 0 < len(value.encode("utf-8", "surrogatepass")) <= MAX_NAME
    return is_short and not value.startswith(".") and not set(value) & set("/\\:") and value.isprintable()


def _check(accepts: Callable[[Any], bool], expected: str) -> AfterValidator:
    def check(value: Any) -> Any:
        if not accepts(value):
            raise ValueError(f"Input should be {expected}")
        return value

    return AfterValidator(check)


def _check_length(value: Any) -> Any:
    # Before the entries, since the report of each wrong entry takes memory.
    if isinstance(value, dict) and len(value) > MAX_ENTRIES:
        raise ValueError(f"Input should have at most {MAX_ENTRIES} entries")
    return value


_printable = _check(str.isprintable, "printable characters in one line")
_distinct = _check(lambda names: len(set(names)) == len(names), "a list of distinct strings")

Count = Annotated[int, Field(ge=0, le=2**63 - 1)]
Text = Annotated[str, Field(max_length=MAX_STRING)]
# Names and reasons are shown on the other side's screen, where a line break would let the sender add lines.
Line = Annotated[Text, _printable]
FileName = Annotated[str, _check(is_plain_name, "the plain name of a file")]
MaybeFile = Annotated[str, _check(lambda name: not name or is_plain_name(name), "the plain name of a file, or empty")]
Options = Annotated[dict[str, Any], AfterValidator(checked_values)]
_Key = Annotated[str, Field(max_length=MAX_NAME), _printable]
Counts = Annotated[dict[_Key, Count], BeforeValidator(_check_length)]
# Images, those classified correctly and those predicted as the class, for each class.
_OfClasses = Annotated[
    list[Annotated[list[Count], Field(min_length=3, max_length=3)]], Field(max_length=MAX_LENGTH, fail_fast=True)
]


class Schema(BaseModel):
    """A value from outside: its fields have exactly their types, and there are no others."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class Noise(Schema):
    """The noise that a client adds to its update."""

    clip_norm: float = Field(ge=NOISE_RANGE[0], le=NOISE_RANGE[1])
    noise_multiplier: Annotated[
        float, _check(lambda size: size == 0 or NOISE_RANGE[0] <= size <= NOISE_RANGE[1], "0 or in the range of noise")
    ]
    seed: Count | None


class Description(Schema):
    """Describes a run, so that a site can decide whether to take part."""

    data: Options
    model: Options
    training: Options
    fingerprint: Line
    rounds: Count
    noise: Noise | None
    sites: Annotated[list[Line], Field(max_length=MAX_LENGTH), _distinct]
    signature: Line


class Describe(Description):
    """Asks a site whether it takes part, and for its description."""

    run: Line


class Prepare(Describe):
    """Brings the tensors that every site begins with."""

    run: FileName  # becomes a folder at the site
    client: Count
    domain: Count


class _ClientRequest(Schema):
    run: Line
    client: Count
    domain: Count


class Train(_ClientRequest):
    """Brings a download, and names files at the site, which the server can't read."""

    round: Count
    phase: Count
    seed: Count
    factor: float = Field(ge=0, allow_inf_nan=False)
    share: float = Field(gt=0, le=1)
    noise: Noise | None
    weighting: Literal["examples", "uniform"] | None  # None without a secure sum
    personal: MaybeFile
    optimizer: MaybeFile


class Sum(_ClientRequest):
    """Brings bytes of other sites, for a step of a secure sum; ``summed`` brings the answer."""

    step: Line


class Evaluate(_ClientRequest):
    """Brings the deployed tensors."""

    baseline: bool
    personal: MaybeFile


class Leave(Schema):
    """Ends a run."""

    run: Line


class Prepared(Schema):
    """Identifies a site's images.

    Attributes:
        images: Digest of the names and classes of the images.
        split: Digest of their names, classes and roles.
    """

    images: Line
    split: Line


class SiteFacts(Prepared):
    """A site's description of itself.

    Attributes:
        classes: Its class folders that have images, sorted.
        counts: Number of its images by role.
        versions: Versions of the packages that a number depends on.
    """

    classes: Annotated[list[Text], Field(max_length=MAX_LENGTH), _distinct]
    counts: Counts
    versions: Annotated[dict[_Key, Line], BeforeValidator(_check_length)]


class Described(SiteFacts):
    """A site's description of itself, with its name."""

    name: Line


class Reason(Schema):
    """Why a site refuses a run, waits until its keeper has approved it, or has failed."""

    name: Line
    reason: Line


class Trained(Schema):
    """Brings the upload, or the site's keys where a secure sum is to follow."""

    round: Count
    phase: Count
    num_examples: Count
    metrics: Annotated[dict[_Key, float], BeforeValidator(_check_length)]
    finite: bool
    retried: Line
    personal: MaybeFile
    optimizer: MaybeFile


class Evaluated(Schema):
    """Counts of each split; those by class are empty unless the site's policy allows them."""

    correct: Counts
    count: Counts
    by_class: Annotated[dict[_Key, _OfClasses], BeforeValidator(_check_length)]


Schemas = Mapping[str, type[Schema]]


def _by_name(*schemas: type[Schema]) -> Schemas:
    return {schema.__name__.lower(): schema for schema in schemas}


REQUESTS = _by_name(Describe, Prepare, Train, Sum, Evaluate, Leave)
REPLIES: Schemas = {
    **_by_name(Described, Prepared, Trained, Evaluated),
    **dict.fromkeys(("refused", "waiting", "failed"), Reason),
    **dict.fromkeys(("summed", "left", "unprepared"), Schema),
}


@dataclass(frozen=True)
class Message:
    """A request of the server, or a site's reply.

    Attributes:
        kind: One of ``REQUESTS`` or ``REPLIES``.
        values: The fields of the kind's schema, as JSON can hold them.
        tensors: The downloaded or uploaded tensors, by name.
    """

    kind: str
    values: Mapping[str, Any] = field(default_factory=dict)
    tensors: dict[str, Any] = field(default_factory=dict)

    def digest(self, without: Collection[str]) -> bytes:
        """Compute the SHA-256 of the message without some of its values."""
        values = {name: value for name, value in sorted(self.values.items()) if name not in without}
        return hashlib.sha256(Message(self.kind, values, self.tensors).to_bytes()).digest()

    def to_bytes(self) -> bytes:
        """Encode the message."""
        metadata = {KEY: json.dumps({"kind": self.kind, **self.values})}
        if not self.tensors:
            return bytes(serialize({}, metadata))
        from safetensors.torch import save

        from fedvlp.core.state import detached

        # A copy each, since tensors may share memory, which safetensors refuses.
        tensors = {name: value.contiguous() for name, value in detached(self.tensors).items()}
        return bytes(save(tensors, metadata))


def failure(name: str, reason: str) -> bytes:
    """Encode the reply of a site that failed; ``reason``, such as ``has no image``, must reveal nothing of files."""
    return Message("failed", {"name": name, "reason": reason}).to_bytes()


def read_request(content: bytes) -> Message:
    """Decode a request, or raise a WireError that names the wrong field and nothing of its content."""
    return _read(content, REQUESTS)


def read_reply(content: bytes) -> Message:
    """Decode a reply as :func:`read_request` does."""
    return _read(content, REPLIES)


def _read(content: bytes, schemas: Schemas) -> Message:
    values = _values(content)
    kind = values.pop("kind", None)
    if not isinstance(kind, str) or kind not in schemas:
        raise WireError(f"sent a message of none of the kinds {', '.join(schemas)}")
    try:
        schemas[kind].model_validate(values)
    except ValidationError as error:
        raise WireError(_wrong_field(kind, schemas[kind], values, error)) from None
    from safetensors.torch import load

    try:
        return Message(kind, values, load(content))
    except Exception as error:
        # The bytes may be anything, and make safetensors raise anything.
        raise WireError("sent tensors that can't be understood") from error


def _wrong_field(kind: str, schema: type[Schema], values: Mapping[str, Any], error: ValidationError) -> str:
    """Name the first wrong field, but never its value, which may be what a site must not reveal."""
    for problem in error.errors(include_url=False, include_context=False, include_input=False):
        name = str(problem["loc"][0])
        if name not in values:
            return f"sent no {name}"
        if name in schema.model_fields:
            return f"sent a wrong {name}: {problem['msg'].removeprefix('Value error, ')}"
    # Unknown names come from the other side and could hold anything, so they are counted and not shown.
    return f"sent {len(values.keys() - schema.model_fields.keys())} unknown field(s) in a message of the kind {kind}"


def _values(content: bytes) -> dict[str, Any]:
    """Read the JSON object in the header of a message, but not its tensors."""
    if len(content) > MAX_BYTES:
        raise WireError(f"sent more than {MAX_BYTES:,} bytes")
    # The length comes from the other side, so it is checked before anything is parsed.
    length = int.from_bytes(content[:LENGTH_BYTES], "little")
    if len(content) < LENGTH_BYTES or length > min(len(content) - LENGTH_BYTES, MAX_HEADER_BYTES):
        raise WireError("sent a message that is cut short, or none of fedvlp's")
    try:
        header = json.loads(content[LENGTH_BYTES : LENGTH_BYTES + length].decode())
        values = json.loads(header["__metadata__"][KEY])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise WireError("sent a message that can't be understood") from error
    if not isinstance(values, dict) or len(values) > MAX_ENTRIES:
        raise WireError("sent a message that can't be understood")
    return values


def versions_here() -> dict[str, str]:
    """Find the versions of fedvlp and of the libraries with which it computes, by their names on the package index."""
    versions = {"fedvlp": __version__}
    for name in LIBRARIES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return versions


@runtime_checkable
class Transport(Protocol):
    """Carries messages between the server and its sites, as bytes."""

    def names(self) -> list[str]:
        """List the names under which connected sites can be reached now, in any order."""

    def exchange(self, requests: Mapping[str, bytes], timeout: float) -> Iterator[tuple[str, bytes | SiteError]]:
        """Send all requests at the same time, and yield each site's reply, or why there is none, as it comes.

        Args:
            requests: By the site's name, one of ``names``.
            timeout: Seconds to wait for all replies together, above 0.
        """
