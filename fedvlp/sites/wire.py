"""Requests and replies as safetensors, with JSON that must match a schema, and the protocol of their transport.

Nothing is unpickled. PyTorch is imported only to read or write a message with tensors.
"""

import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Annotated, Any, Literal, Protocol, runtime_checkable

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from safetensors import serialize

from fedvlp.utils.files import MAX_LENGTH, checked_values
from fedvlp.version import __version__

KEY = "fedvlp"
LENGTH_BYTES = 8  # safetensors begins with the length of its header
JOINED = b"\xff" * LENGTH_BYTES  # begins joined messages; no header of safetensors is that long
MAX_BYTES = 1 << 30  # of a message: far more than prompts need, and less than a machine's memory
LARGE_BYTES = 1 << 20  # of a reply; the server keeps larger ones on its disk
MAX_HEADER_BYTES = 16 << 20  # of a header: names of classes and tensors, and options
MAX_STRING = 2000  # characters
MAX_ENTRIES = 100  # of one dictionary of numbers; a method logs a few
MAX_NAME = 255  # bytes of a file name (the limit of most disks); characters of a metric's name
# Range of clip_norm, and of noise_multiplier unless it is 0, so that no product or square is 0 or infinite.
NOISE_RANGE = (1e-9, 1e9)
LIBRARIES = ("torch", "torchvision", "open_clip_torch")


class SiteProblem(Exception):  # noqa: N818 (it becomes a reply and is no error of the program)
    """Raised at a site to refuse a request. The text follows the site's name and reveals nothing of images or files."""


class SiteError(Exception):
    """Reason for a site's missing reply. The text follows the site's name, such as ``did not answer in 60 s``."""

    # The reply to a second request, which a site that refuses the first may answer.
    then: "Message | None" = None


class SiteRefusal(SiteError):  # noqa: N818 (the site's own answer)
    """Reason why a connected site refused a request. Unlike a lost connection, it persists until someone repairs it."""


class WireError(SiteError):
    """Raised for an invalid message. The text follows the sender's name, and reveals nothing of the content."""


def is_plain_name(value: str) -> bool:
    """Whether a string is a file name that cannot point outside its folder on any system."""
    is_short = 0 < len(value.encode("utf-8", "surrogatepass")) <= MAX_NAME
    return is_short and not value.startswith(".") and not set(value) & set("/\\:") and value.isprintable()


def _check(accepts: Callable[[Any], bool], expected: str) -> AfterValidator:
    def check(value: Any) -> Any:
        if not accepts(value):
            raise ValueError(f"Input should be {expected}")
        return value

    return AfterValidator(check)


def _check_length(value: Any) -> Any:
    # Checked before the entries, because the report of each wrong entry takes memory.
    if isinstance(value, dict) and len(value) > MAX_ENTRIES:
        raise ValueError(f"Input should have at most {MAX_ENTRIES} entries")
    return value


_printable = _check(str.isprintable, "printable characters in one line")
_distinct = _check(lambda names: len(set(names)) == len(names), "a list of distinct strings")

Count = Annotated[int, Field(ge=0, le=2**63 - 1)]
Percent = Annotated[float, Field(ge=0, le=100, allow_inf_nan=False)]
Text = Annotated[str, Field(max_length=MAX_STRING)]
# The receiver prints names and reasons, where a line break would let the sender add lines.
Line = Annotated[Text, _printable]
FileName = Annotated[str, _check(is_plain_name, "the plain name of a file")]
MaybeFile = Annotated[str, _check(lambda name: not name or is_plain_name(name), "the plain name of a file, or empty")]
Options = Annotated[dict[str, Any], AfterValidator(checked_values)]
_Key = Annotated[str, Field(max_length=MAX_NAME), _printable]
Counts = Annotated[dict[_Key, Count], BeforeValidator(_check_length)]
# For each class: its images, its correct images, and the images predicted as the class.
_ClassCounts = Annotated[
    list[Annotated[list[Count], Field(min_length=3, max_length=3)]], Field(max_length=MAX_LENGTH, fail_fast=True)
]


class Schema(BaseModel):
    """Base of values from outside: fields must have exactly their types, and unknown fields are rejected."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class Noise(Schema):
    """The noise that a client adds to its update."""

    clip_norm: float = Field(ge=NOISE_RANGE[0], le=NOISE_RANGE[1])
    noise_multiplier: Annotated[
        float, _check(lambda size: size == 0 or NOISE_RANGE[0] <= size <= NOISE_RANGE[1], "0 or in the range of noise")
    ]
    seed: Count | None


class Description(Schema):
    """Description of a run, from which a site decides whether to take part."""

    data: Options
    model: Options
    training: Options
    fingerprint: Line
    rounds: Count
    noise: Noise | None
    sites: Annotated[list[Line], Field(max_length=MAX_LENGTH), _distinct]
    signature: Line


class Describe(Description):
    """Request for a site's decision to take part, and for its description."""

    run: Line


class Prepare(Describe):
    """Request to prepare a run, with the tensors that all sites start from."""

    run: FileName  # becomes a folder at the site
    client: Count
    domain: Count


class _ClientRequest(Schema):
    run: Line
    client: Count
    domain: Count


class Train(_ClientRequest):
    """Request to train, with a download and the names of files at the site, which the server can't read."""

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
    """Request for a step of a secure sum, with bytes of other sites; ``summed`` is the reply."""

    step: Line


class Evaluate(_ClientRequest):
    """Request to evaluate the deployed tensors."""

    baseline: bool
    personal: MaybeFile


class Leave(Schema):
    """Request to end a run."""

    run: Line


class Prepared(Schema):
    """Digests that identify a site's images.

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
        versions: Versions of the packages that can affect a result.
    """

    classes: Annotated[list[Text], Field(max_length=MAX_LENGTH), _distinct]
    counts: Counts
    versions: Annotated[dict[_Key, Line], BeforeValidator(_check_length)]


class Described(SiteFacts):
    """A site's description of itself, with its name."""

    name: Line


class Reason(Schema):
    """Reason why a site refuses a run, waits for its operator's approval, or has failed."""

    name: Line
    reason: Line


class Trained(Schema):
    """Reply with the upload, or with the site's keys if a secure sum follows."""

    round: Count
    phase: Count
    num_examples: Count
    metrics: Annotated[dict[_Key, float], BeforeValidator(_check_length)]
    finite: bool
    retried: Line
    personal: MaybeFile
    optimizer: MaybeFile


class Evaluated(Schema):
    """Reply with counts for each split; ``by_class`` is empty unless the site's policy allows it.

    For several labels per image, ``precision`` replaces ``correct``: mean average precision in percent.
    """

    correct: Counts
    count: Counts
    by_class: Annotated[dict[_Key, _ClassCounts], BeforeValidator(_check_length)]
    precision: Annotated[dict[_Key, Percent], BeforeValidator(_check_length)] = Field(default_factory=dict)


Schemas = Mapping[str, type[Schema]]


def _index_by_kind(*schemas: type[Schema]) -> Schemas:
    return {schema.__name__.lower(): schema for schema in schemas}


REQUESTS = _index_by_kind(Describe, Prepare, Train, Sum, Evaluate, Leave)
REPLIES: Schemas = {
    **_index_by_kind(Described, Prepared, Trained, Evaluated),
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
        then: A second message of the same exchange.
    """

    kind: str
    values: Mapping[str, Any] = field(default_factory=dict)
    tensors: dict[str, Any] = field(default_factory=dict)
    then: "Message | None" = None

    def digest(self, exclude: Collection[str]) -> bytes:
        """Compute the SHA-256 of the message without some of its values."""
        values = {name: value for name, value in sorted(self.values.items()) if name not in exclude}
        return hashlib.sha256(Message(self.kind, values, self.tensors).to_bytes()).digest()

    def to_bytes(self) -> bytes:
        """Encode the message, and its second message."""
        return self._encoded() if self.then is None else join([self._encoded(), self.then._encoded()])

    def _encoded(self) -> bytes:
        metadata = {KEY: json.dumps({"kind": self.kind, **self.values})}
        if not self.tensors:
            return bytes(serialize({}, metadata))
        from safetensors.torch import save

        from fedvlp.core.state import detached

        # Copies, because safetensors rejects tensors that share memory.
        tensors = {name: value.contiguous() for name, value in detached(self.tensors).items()}
        return bytes(save(tensors, metadata))


Reply = Message | SiteError
"""A site's reply, or the reason for its absence."""


def read_request(content: bytes) -> Message:
    """Decode a request, or raise a WireError that names the wrong field without its content."""
    return _read(content, REQUESTS)


def read_reply(content: bytes, folder: Path | None = None) -> Message:
    """Decode a reply as :func:`read_request` does; the tensors of a large one stay in a file in ``folder``."""
    return _read(content, REPLIES, folder)


def join(messages: Sequence[bytes]) -> bytes:
    """Join up to two encoded messages."""
    if len(messages) == 1:
        return messages[0]
    return b"".join([JOINED, len(messages[0]).to_bytes(LENGTH_BYTES, "little"), *messages])


def split(content: bytes) -> list[bytes]:
    """Split joined messages, which are not decoded yet."""
    if not content.startswith(JOINED):
        return [content]
    start = 2 * LENGTH_BYTES
    end = start + int.from_bytes(content[LENGTH_BYTES:start], "little")
    return [content[start:end], content[end:]]


def _read(content: bytes, schemas: Schemas, folder: Path | None = None) -> Message:
    first, *second = (_read_one(part, schemas, folder) for part in split(content))
    return replace(first, then=second[0]) if second else first


def _read_one(content: bytes, schemas: Schemas, folder: Path | None) -> Message:
    values = _values(content)
    kind = values.pop("kind", None)
    if not isinstance(kind, str) or kind not in schemas:
        raise WireError(f"sent a message of an unknown kind; expected {', '.join(schemas)}")
    try:
        schemas[kind].model_validate(values)
    except ValidationError as error:
        raise WireError(_wrong_field(kind, schemas[kind], values, error)) from None
    from safetensors.torch import load, load_file

    is_large = folder is not None and len(content) > LARGE_BYTES
    # Tensors are read from the file when they are used. It has no name any more, and ends with the last tensor.
    with NamedTemporaryFile(dir=folder) if is_large else nullcontext() as file:
        if file is not None:
            file.write(content)
            file.flush()
        try:
            return Message(kind, values, load(content) if file is None else load_file(file.name))
        except Exception as error:
            # Arbitrary bytes can make safetensors raise any exception.
            raise WireError("sent tensors that can't be decoded") from error


def _wrong_field(kind: str, schema: type[Schema], values: Mapping[str, Any], error: ValidationError) -> str:
    """Name the first wrong field, but never its value, which may be confidential."""
    for problem in error.errors(include_url=False, include_context=False, include_input=False):
        name = str(problem["loc"][0])
        if name not in values:
            return f"sent no {name}"
        if name in schema.model_fields:
            return f"sent a wrong {name}: {problem['msg'].removeprefix('Value error, ')}"
    # Unknown names could contain anything, so they are counted and not shown.
    return f"sent {len(values.keys() - schema.model_fields.keys())} unknown field(s) in a message of the kind {kind}"


def _values(content: bytes) -> dict[str, Any]:
    """Read the JSON object in the header of a message, but not its tensors."""
    if len(content) > MAX_BYTES:
        raise WireError(f"sent more than {MAX_BYTES:,} bytes")
    # The sender chose the length, so check it before parsing.
    length = int.from_bytes(content[:LENGTH_BYTES], "little")
    if len(content) < LENGTH_BYTES or length > min(len(content) - LENGTH_BYTES, MAX_HEADER_BYTES):
        raise WireError("sent a message that is truncated or not from fedvlp")
    try:
        header = json.loads(content[LENGTH_BYTES : LENGTH_BYTES + length].decode())
        values = json.loads(header["__metadata__"][KEY])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise WireError("sent a message that can't be decoded") from error
    if not isinstance(values, dict) or len(values) > MAX_ENTRIES:
        raise WireError("sent a message that can't be decoded")
    return values


def installed_versions() -> dict[str, str]:
    """Find the installed versions of fedvlp and of its numerical libraries, by the names of their distributions."""
    versions = {"fedvlp": __version__}
    for name in LIBRARIES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return versions


Requests = Iterable[tuple[str, bytes]]


@runtime_checkable
class Transport(Protocol):
    """Connection that carries messages between the server and its sites, as bytes."""

    def names(self) -> list[str]:
        """List the names of the connected sites' nodes, in any order."""

    def exchange(self, requests: Requests, timeout: float) -> Iterator[tuple[str, bytes | SiteError]]:
        """Send all requests concurrently, and yield each node's reply, or the reason for its absence, as it arrives.

        Args:
            requests: Each node, one of ``names``, with its encoded request. All together may exceed the memory.
            timeout: Seconds to wait for all replies together, above 0.
        """
