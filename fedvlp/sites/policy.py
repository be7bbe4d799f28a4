"""A site's policy: the rules in its ``site.yaml``, signatures of runs, and approvals by its operator.

This module does not import PyTorch at the top, so that `fedvlp site` starts quickly.
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

APPROVALS = "approvals"  # folder in a site's home: one file per run that the operator must decide on, named by digest
ADDITIONAL_EVALUATIONS = 2  # besides one in each round: the baseline's, and one after a resume
WAITS = "waits for its operator to approve the run with `fedvlp site approve`"
# YAML converts some forms of dates and times; others arrive as strings.
Moment = Annotated[datetime, BeforeValidator(lambda value: datetime.fromisoformat(str(value)))]
Uploads = Mapping[str, Mapping[str, tuple[Sequence[int], int]]]
"""Shape and bytes of each tensor that a phase sends, by the phase's name."""


class Policy(Schema):
    """Rules for the runs that a site joins and the data that may leave it.

    By default everything is allowed except ``class_counts``. In the first five options, ``*`` matches anything.

    Attributes:
        methods: Names of allowed methods, such as ``PromptFL``, or class paths of methods outside fedvlp.
        phases: Names of allowed phases.
        add_ons: Names of allowed add-ons.
        clips: Fingerprints of allowed CLIPs.
        tensors: Names of tensors that may leave.
        max_upload_bytes: Maximum size of one outgoing message.
        max_run_bytes: Maximum size of all outgoing messages of a run.
        class_counts: Whether evaluations also report images, correct images and predictions by class, never for several
            labels per image. If not, runs must select rounds by accuracy.
        max_rounds: Maximum number of rounds; a repeated round counts again. The site also answers at most
            ``max_rounds + ADDITIONAL_EVALUATIONS`` evaluations of a run.
        min_noise_multiplier: Train only if the site adds noise from its own randomness to every tensor that leaves,
            with a standard deviation of at least this multiple of ``clip_norm``. Counts and metrics carry no noise.
        not_before: Earliest time, such as ``2026-12-01T08:00+01:00``; in local time if no zone is given.
        not_after: Latest time.
        signers: Files of public keys, relative to the site's home. One of them must have signed the run's description.
        runs: Digests of descriptions that ``listed`` allows without a signature.
        approve: Runs to join if all other rules allow them: ``always`` every run, ``listed`` signed runs and those in
            ``runs``, ``ask`` runs that the site's operator has approved.
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
    def needs_uploads(self) -> bool:
        """Whether a decision depends on the uploads, so that the site must first instantiate the method."""
        rules = (self.phases, self.tensors, self.max_upload_bytes, self.max_run_bytes, self.min_noise_multiplier)
        return self.approve == "ask" or any(rule is not None for rule in rules)


@dataclass(frozen=True)
class Proposal:
    """A run that the server asks a site to join.

    Attributes:
        run: The run's id.
        description: The fields of ``wire.Description``.
        updates: Number of the phase's updates, including the requested one; 0 for other requests.
        evaluations: Number of the run's evaluations, including the requested one; 0 for other requests.
    """

    run: str
    description: Mapping[str, Any]
    updates: int = 0
    evaluations: int = 0

    @property
    def content(self) -> bytes:
        """The signed bytes: the description without its signature."""
        return json.dumps({**self.description, "signature": ""}, sort_keys=True).encode()

    @property
    def digest(self) -> str:
        """SHA-256 of ``content``."""
        return hashlib.sha256(self.content).hexdigest()

    @property
    def method(self) -> str:
        """The method's name, or its class path if it is outside fedvlp."""
        path = str(self.description["model"]["class_path"])
        return path.rpartition(".")[2] if path.startswith("fedvlp.") else path

    @property
    def add_ons(self) -> list[str]:
        """Names of the run's add-ons."""
        return [str(add_on["class"]) for add_on in self.description["training"]["local"]["add_ons"]]


def decide(policy: Policy, home: Path, run: Proposal, uploads: Callable[[], Uploads]) -> tuple[str, str]:
    """Check a run against all rules, and then against the operator's decision if the policy requires one.

    ``uploads`` describes the tensors of each phase. It is called only if a rule needs it and all other rules pass.

    Returns:
        The kind of the reply, ``refused`` or ``waiting``, and the reason; both are empty if the site takes part.
    """
    max_evaluations = None if policy.max_rounds is None else policy.max_rounds + ADDITIONAL_EVALUATIONS
    lacks_counts = not policy.class_counts and run.description["training"].get("select", "accuracy") != "accuracy"
    problems = [
        _unlisted("method", [run.method], policy.methods),
        _unlisted("add-ons", run.add_ons, policy.add_ons),
        _unlisted("CLIP with the fingerprint", [run.description["fingerprint"]], policy.clips),
        _above("rounds", max(run.description["rounds"], run.updates), policy.max_rounds),
        _above("evaluations in a run", run.evaluations, max_evaluations),
        "does not allow class_counts, which trainer.select needs unless it is accuracy" if lacks_counts else "",
        _noise_problem(policy, run),
        _time_problem(policy),
        _signature_problem(policy, run),
    ]
    if not any(problems) and policy.needs_uploads:
        phases = uploads()
        names = [name for tensors in phases.values() for name in tensors]
        count = max(map(_bytes, phases.values()), default=0)
        total = run.description["rounds"] * sum(map(_bytes, phases.values()))
        problems += [_unlisted("phases", phases, policy.phases), leaving_problem(policy, names, count, total)]
        if policy.min_noise_multiplier is not None and (noiseless := find_noiseless(names)):
            problems.append(f"does not allow the tensor {noiseless[0]!r}, which would leave without noise")
        if not any(problems) and policy.approve == "ask":
            return _approval(home, run, phases)
    reason = _join(problems)
    return ("refused", reason) if reason else ("", "")


def leaving_problem(policy: Policy, names: Iterable[str], count: int, total: int) -> str:
    """Explain why a message of ``count`` bytes, ``total`` in the run, must not leave; empty if it may."""
    run_problem = _above("bytes in a run", total, policy.max_run_bytes)
    message_problem = _above("bytes in a message", count, policy.max_upload_bytes)
    return _join([_unlisted("tensors", names, policy.tensors), message_problem, run_problem])


def find_noiseless(names: Iterable[str]) -> list[str]:
    """List the add-ons' tensors, which carry no noise because it is added only to the method's upload."""
    from fedvlp.core.state import ADD_ON

    return [name for name in names if name.startswith(f"{ADD_ON}/")]


def request_deviation(description: Mapping[str, Any], request: Mapping[str, Any]) -> str:
    """Describe how a request to train differs from the run's description, as a predicate of the site's name."""
    rounds = description["rounds"]
    if request["round"] >= rounds:
        return f"is asked for round {request['round'] + 1}, but the run's description allows {rounds} rounds"
    # Each phase has its own seed, so compare only whether there is one.
    expected, found = (
        noise and {**noise, "seed": noise["seed"] is not None} for noise in (description["noise"], request["noise"])
    )
    return "" if expected == found else "is asked to add noise that differs from the run's description"


def record_decision(home: Path, decision: Literal["approve", "refuse"], prefix: str) -> list[str]:
    """Record the operator's decision about the run whose digest starts with ``prefix``, and describe the run in lines.

    Without a prefix, describe all runs that wait.

    Raises:
        UserError: If ``prefix`` matches no run or several runs.
    """
    paths = [path for path in sorted((home / APPROVALS).glob("*.json")) if path.stem.startswith(prefix)]
    approvals = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
    if not prefix:
        waiting = [approval for approval in approvals if not approval["decision"]]
        lines = [line for approval in waiting for line in approval["words"]]
        return [*lines, f"runs that wait for approval: {len(waiting)}"]
    if len(paths) != 1:
        raise UserError(f"Expected a prefix of one run's digest, got {prefix!r}, which matches {len(paths)} runs.")
    write_json(paths[0], {**approvals[0], "decision": decision})
    return [*approvals[0]["words"], f"decided: {decision}"]


def sign(key: Path, content: bytes) -> str:
    """Sign bytes with a private key of ``ssh-keygen`` (ed25519 or ECDSA), and return the signature in hexadecimal.

    Raises:
        UserError: If the file contains no such key, or the key has a passphrase.
    """
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key

    try:
        private: Any = load_ssh_private_key(key.read_bytes(), password=None)
        signature: bytes = private.sign(content, *_scheme(private))
    except (OSError, ValueError, TypeError) as error:
        raise UserError(f"Expected an ed25519 or ECDSA private key without a passphrase in {key}: {error}") from error
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
    least, noise = policy.min_noise_multiplier, run.description["noise"]
    # Anyone who knows the seed could subtract the noise.
    if least is None or (noise and noise["seed"] is None and noise["noise_multiplier"] >= least):
        return ""
    return f"requires noise of at least {least:g} x clip_norm, drawn from its own randomness"


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
    signature = run.description["signature"]
    if signature and any(_is_signed(run.content, signature, Path(key)) for key in policy.signers):
        return ""
    found = "another signature" if signature else "no signature"
    return f"allows only runs signed by one of its signers; this run has {found} and the digest {run.digest}"


def _unlisted(kind: str, names: Iterable[str], allowed: Sequence[str] | None) -> str:
    wrong = list(names)
    for pattern in allowed or ():
        wrong = [name for name in wrong if not fnmatchcase(name, pattern)]
    if allowed is None or not wrong:
        return ""
    more = f" and {len(wrong) - 1} more" if len(wrong) > 1 else ""
    return f"does not allow the {kind} {wrong[0]}{more}; it allows {', '.join(allowed[:5]) or 'none'}"


def _above(quantity: str, count: int, maximum: int | None) -> str:
    if maximum is None or count <= maximum:
        return ""
    return f"does not allow more than {maximum:,} {quantity}; this would be {count:,}"


def _join(problems: Iterable[str]) -> str:
    return "; it ".join(filter(None, problems))


def _bytes(tensors: Mapping[str, tuple[Sequence[int], int]]) -> int:
    return sum(count for _, count in tensors.values())


def _approval(home: Path, run: Proposal, uploads: Uploads) -> tuple[str, str]:
    path = home / APPROVALS / f"{run.digest}.json"
    if not path.is_file():
        path.parent.mkdir(mode=0o700, exist_ok=True)
        write_json(path, {"decision": "", "words": _describe(run, uploads), "told": run.description})
    decision = json.loads(path.read_text(encoding="utf-8"))["decision"]
    if decision == "refuse":
        return "refused", "does not allow the run, which its operator has refused"
    return ("", "") if decision == "approve" else ("waiting", WAITS)


def _describe(run: Proposal, uploads: Uploads) -> list[str]:
    description, noise = run.description, run.description["noise"]
    clip = description["model"]["init_args"].get("clip")
    upload_lines: list[str] = []
    for phase, tensors in uploads.items():
        for name, (shape, count) in tensors.items():
            size = f"{' x '.join(map(str, shape))} values, {count:,} bytes"
            upload_lines.append(f"    {name}, {size}, after the phase {phase}")
    measured = "correct predictions, by class if class_counts allows it,"
    if description["data"].get("several_labels"):
        measured = "mean average precisions of splits"
    noise_text = "none"
    if noise is not None:
        source = "its own randomness" if noise["seed"] is None else "a seed of the server, which can subtract it"
        noise_text = f"{noise['noise_multiplier']:g} x clip_norm {noise['clip_norm']:g}, from {source}"
    return [
        f"run {run.run!r}, digest {run.digest}",
        f"  method: {run.method}, with add-ons {', '.join(run.add_ons) or 'none'}",
        f"  CLIP: {clip['name'] if isinstance(clip, dict) else clip}, fingerprint {description['fingerprint']}",
        f"  sent in each of {description['rounds']} rounds:",
        *upload_lines,
        f"    numbers of images and {measured} and means such as the loss",
        f"  in all: {description['rounds'] * sum(map(_bytes, uploads.values())):,} bytes of tensors",
        f"  recipient: the server, which combines the updates of {', '.join(map(repr, description['sites']))}",
        f"  noise that this site adds: {noise_text}",
        f"  signature: {'one' if description['signature'] else 'none'}",
        f"  all options: {APPROVALS}/{run.digest}.json",
    ]
