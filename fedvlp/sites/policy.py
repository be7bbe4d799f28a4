"""A site's policy: the rules in its ``site.yaml``, signatures of runs, and approvals by its keeper.

Nothing here imports PyTorch at the top, because the process that passes messages on reads ``site.yaml``.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, NonNegativeFloat, PositiveInt

from fedvlp.sites.wire import Schema
from fedvlp.utils.errors import UserError
from fedvlp.utils.files import write_json

APPROVALS = "approvals"  # folder of a site's home: a file for each run that its keeper is asked about, named by digest
ADDITIONAL_EVALUATIONS = 2  # besides one in each round: the baseline's, and one after a resume
WAITS = "waits for its keeper, who can approve the run: `fedvlp site approve`"
# YAML has already read a date that is whole.
Moment = Annotated[datetime, BeforeValidator(lambda value: datetime.fromisoformat(str(value)))]
Uploads = Mapping[str, Mapping[str, tuple[Sequence[int], int]]]
"""Shape and bytes of each tensor that a phase sends, by the phase's name."""


class Policy(Schema):
    """The runs in which a site takes part, and what may leave it; every option except ``class_counts`` defaults to all.

    In the first five, ``*`` matches anything.

    Attributes:
        methods: Names of methods, such as ``PromptFL``, or paths of classes that are not fedvlp's own.
        phases: Names of methods' phases.
        add_ons: Names of add-ons of local training.
        clips: Fingerprints of CLIPs.
        tensors: Names of tensors that may leave.
        max_upload_bytes: Largest message that may leave.
        max_run_bytes: Bytes of all messages of a run that may leave.
        class_counts: Whether an evaluation also reports counts by class: images, correct and predicted images.
        max_rounds: Rounds of a run; a repeated round counts again. The site also answers at most
            ``max_rounds + ADDITIONAL_EVALUATIONS`` evaluations of a run.
        min_noise_multiplier: Train only if the site adds noise from its own randomness to every tensor that leaves,
            with a standard deviation of at least this multiple of ``clip_norm``. Counts and metrics carry no noise.
        not_before: Earliest time, such as ``2026-12-01T08:00+01:00``; in local time if no zone is given.
        not_after: Latest time.
        signers: Files of public keys below the site's home, one of which must have signed the run's description.
        runs: Digests of descriptions that ``listed`` allows unsigned.
        approve: ``always`` allows what the other rules allow, ``listed`` what is signed or among ``runs``, ``ask`` what
            the site's keeper has approved.
    """

    methods: list[str] | None = None
    phases: list[str] | None = None
    add_ons: list[str] | None = None
    clips: list[str] | None = None
    tensors: list[str] | None = None
    max_upload_bytes: PositiveInt | None = None
    max_run_bytes: PositiveInt | None = None
    class_counts: bool = False
    max_rounds: PositiveInt | None = None
    min_noise_multiplier: NonNegativeFloat | None = None
    not_before: Moment | None = None
    not_after: Moment | None = None
    signers: list[str] = Field(default_factory=list)
    runs: list[str] = Field(default_factory=list)
    approve: Literal["always", "listed", "ask"] = "always"

    @property
    def looks_at_uploads(self) -> bool:
        """Whether a decision depends on the method's uploads, so that the site must make the method first."""
        rules = (self.phases, self.tensors, self.max_upload_bytes, self.max_run_bytes, self.min_noise_multiplier)
        return self.approve == "ask" or any(rule is not None for rule in rules)


@dataclass(frozen=True)
class Proposal:
    """A run, as a site is asked to take part in it.

    Attributes:
        run: The run's id.
        told: The run's description, the fields of ``wire.Description``.
        updates: Number of the phase's updates, including the requested one; 0 for other requests.
        evaluations: Number of the run's evaluations, including the requested one; 0 for other requests.
    """

    run: str
    told: Mapping[str, Any]
    updates: int = 0
    evaluations: int = 0

    @property
    def content(self) -> bytes:
        """The signed bytes: the description without its signature."""
        return json.dumps({**self.told, "signature": ""}, sort_keys=True).encode()

    @property
    def digest(self) -> str:
        """SHA-256 of the content."""
        return hashlib.sha256(self.content).hexdigest()

    @property
    def method(self) -> str:
        """The method's name, or its path if it is not fedvlp's own."""
        path = str(self.told["model"]["class_path"])
        return path.rpartition(".")[2] if path.startswith("fedvlp.") else path

    @property
    def add_ons(self) -> list[str]:
        """Names of the add-ons of local training."""
        return [str(add_on["class"]) for add_on in self.told["training"]["local"]["add_ons"]]


def decide(policy: Policy, home: Path, run: Proposal, uploads: Callable[[], Uploads]) -> tuple[str, str]:
    """Decide about a run by all rules, and then by the site's keeper if they must be asked.

    ``uploads`` finds what each phase sends; it is called only if a rule needs it and the other rules allow the run.

    Returns:
        The kind of the reply, ``refused`` or ``waiting``, and the reason; both are empty if the site takes part.
    """
    most_evaluations = None if policy.max_rounds is None else policy.max_rounds + ADDITIONAL_EVALUATIONS
    problems = [
        _unlisted("method", [run.method], policy.methods),
        _unlisted("add-ons", run.add_ons, policy.add_ons),
        _unlisted("CLIP with the fingerprint", [run.told["fingerprint"]], policy.clips),
        _above("rounds", max(run.told["rounds"], run.updates), policy.max_rounds),
        _above("evaluations in a run", run.evaluations, most_evaluations),
        _noise_problem(policy, run),
        _time_problem(policy),
        _signature_problem(policy, run),
    ]
    if not any(problems) and policy.looks_at_uploads:
        sent = uploads()
        names = [name for tensors in sent.values() for name in tensors]
        count = max(map(_bytes, sent.values()), default=0)
        total = run.told["rounds"] * sum(map(_bytes, sent.values()))
        problems += [_unlisted("phases", sent, policy.phases), leaving_problem(policy, names, count, total)]
        if policy.min_noise_multiplier is not None and (clear := without_noise(names)):
            problems.append(f"does not allow the tensor {clear[0]!r}, which would leave without noise")
        if not any(problems) and policy.approve == "ask":
            return _approval(home, run, sent)
    reason = _joined(problems)
    return ("refused", reason) if reason else ("", "")


def leaving_problem(policy: Policy, names: Iterable[str], count: int, total: int) -> str:
    """Explain why tensors must not leave in a message of ``count`` bytes, ``total`` in the run; empty if they may."""
    of_run = _above("bytes in a run", total, policy.max_run_bytes)
    of_message = _above("bytes in a message", count, policy.max_upload_bytes)
    return _joined([_unlisted("tensors", names, policy.tensors), of_message, of_run])


def without_noise(names: Iterable[str]) -> list[str]:
    """Find the tensors of add-ons: noise is added to the method's upload only."""
    from fedvlp.core.state import ADD_ON

    return [name for name in names if name.startswith(f"{ADD_ON}/")]


def departure(told: Mapping[str, Any], order: Mapping[str, Any]) -> str:
    """Describe how a request to train differs from the run's description, to be read after the site's name."""
    if order["round"] >= told["rounds"]:
        return f"was told of {told['rounds']} rounds, and is asked for round {order['round'] + 1}"
    # Each phase has its own seed: only whether there is one must be equal.
    expected, found = (
        noise and {**noise, "seed": noise["seed"] is not None} for noise in (told["noise"], order["noise"])
    )
    return "" if expected == found else "was told of other noise than it is asked to add"


def answer_keeper(home: Path, decision: Literal["approve", "refuse"], beginning: str) -> list[str]:
    """Record the keeper's decision about the run whose digest begins so, and describe the run in lines.

    Without a beginning, describe all runs that wait.

    Raises:
        UserError: If the digest of no run, or of several, begins so.
    """
    paths = [path for path in sorted((home / APPROVALS).glob("*.json")) if path.stem.startswith(beginning)]
    asked = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
    if not beginning:
        waiting = [each for each in asked if not each["decision"]]
        return [*(line for each in waiting for line in each["words"]), f"{len(waiting)} runs wait for approval"]
    if len(paths) != 1:
        raise UserError(f"Expected the beginning of the digest of one run, got {beginning!r}: {len(paths)} begin so.")
    write_json(paths[0], {**asked[0], "decision": decision})
    return [*asked[0]["words"], f"decided: {decision}"]


def sign(key: Path, content: bytes) -> str:
    """Sign bytes by a private key of ``ssh-keygen``, ed25519 or ECDSA; return the signature's hexadecimal digits.

    Raises:
        UserError: If the file holds no such key, or it has a passphrase.
    """
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key

    try:
        private: Any = load_ssh_private_key(key.read_bytes(), password=None)
        signature: bytes = private.sign(content, *_scheme(private))
    except (OSError, ValueError, TypeError) as error:
        raise UserError(f"Expected a private key, ed25519 or ECDSA, without a passphrase in {key}: {error}") from error
    return signature.hex()


def _is_signed(content: bytes, signature: str, key: Path) -> bool:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.serialization import load_ssh_public_key

    public: Any = load_ssh_public_key(key.read_bytes())
    try:
        public.verify(bytes.fromhex(signature), content, *_scheme(public))
    except InvalidSignature:
        return False
    return True


def _scheme(key: Any) -> tuple[Any, ...]:
    from cryptography.hazmat.primitives.asymmetric.ec import ECDSA
    from cryptography.hazmat.primitives.hashes import SHA256

    return () if "Ed25519" in type(key).__name__ else (ECDSA(SHA256()),)


def _noise_problem(policy: Policy, run: Proposal) -> str:
    least, noise = policy.min_noise_multiplier, run.told["noise"]
    # Whoever knows the seed could subtract the noise.
    if least is None or (noise and noise["seed"] is None and noise["noise_multiplier"] >= least):
        return ""
    return f"does not allow updates without noise of its own, from its system, of at least {least:g} x clip_norm"


def _time_problem(policy: Policy) -> str:
    now = datetime.now(timezone.utc)
    if policy.not_before is not None and now < policy.not_before.astimezone():
        return f"does not allow runs before {policy.not_before}"
    if policy.not_after is not None and now > policy.not_after.astimezone():
        return f"does not allow runs after {policy.not_after}"
    return ""


def _signature_problem(policy: Policy, run: Proposal) -> str:
    is_listed = policy.approve == "listed" and run.digest in policy.runs
    if is_listed or not (policy.signers or policy.approve == "listed"):
        return ""
    signature = run.told["signature"]
    if signature and any(_is_signed(run.content, signature, Path(key)) for key in policy.signers):
        return ""
    found = "another signature" if signature else "no signature"
    return f"does not allow runs that none of its signers has signed; this one has {found}, and the digest {run.digest}"


def _unlisted(what: str, names: Iterable[str], allowed: Sequence[str] | None) -> str:
    wrong = list(names)
    for pattern in allowed or ():
        wrong = [name for name in wrong if not fnmatchcase(name, pattern)]
    if allowed is None or not wrong:
        return ""
    more = f" and {len(wrong) - 1} more" if len(wrong) > 1 else ""
    return f"does not allow the {what} {wrong[0]}{more}; it allows {', '.join(allowed[:5]) or 'none'}"


def _above(what: str, count: int, most: int | None) -> str:
    if most is None or count <= most:
        return ""
    return f"does not allow more than {most:,} {what}; this would be {count:,}"


def _joined(problems: Iterable[str]) -> str:
    return "; it ".join(filter(None, problems))


def _bytes(tensors: Mapping[str, tuple[Sequence[int], int]]) -> int:
    return sum(count for _, count in tensors.values())


def _approval(home: Path, run: Proposal, uploads: Uploads) -> tuple[str, str]:
    path = home / APPROVALS / f"{run.digest}.json"
    if not path.is_file():
        path.parent.mkdir(mode=0o700, exist_ok=True)
        write_json(path, {"decision": "", "words": _words(run, uploads), "told": run.told})
    decision = json.loads(path.read_text(encoding="utf-8"))["decision"]
    if decision == "refuse":
        return "refused", "does not allow the run, which its keeper has refused"
    return ("", "") if decision == "approve" else ("waiting", WAITS)


def _words(run: Proposal, uploads: Uploads) -> list[str]:
    told, noise = run.told, run.told["noise"]
    clip = told["model"]["init_args"].get("clip")
    sent: list[str] = []
    for phase, tensors in uploads.items():
        for name, (shape, count) in tensors.items():
            sent.append(f"    {name}, {' x '.join(map(str, shape))} numbers, {count:,} bytes, after the phase {phase}")
    of_noise = "none"
    if noise is not None:
        source = "its own randomness" if noise["seed"] is None else "a seed of the server, which can subtract it"
        of_noise = f"{noise['noise_multiplier']:g} x clip_norm {noise['clip_norm']:g}, from {source}"
    return [
        f"run {run.run!r}, digest {run.digest}",
        f"  method: {run.method}, with add-ons {', '.join(run.add_ons) or 'none'}",
        f"  CLIP: {clip['name'] if isinstance(clip, dict) else clip}, fingerprint {told['fingerprint']}",
        f"  what leaves in each of {told['rounds']} rounds:",
        *sent,
        "    numbers of images and of right answers, by class if class_counts allows it, and means such as the loss",
        f"  in all: {told['rounds'] * sum(map(_bytes, uploads.values())):,} bytes of tensors",
        f"  to whom: the server, which makes one model of what {', '.join(map(repr, told['sites']))} send",
        f"  noise that this site adds: {of_noise}",
        f"  signature: {'one' if told['signature'] else 'none'}",
        f"  all options: {APPROVALS}/{run.digest}.json",
    ]
