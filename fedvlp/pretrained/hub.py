"""The Hugging Face hub: names on it, trained tensors from it, and what its refusals mean."""

from __future__ import annotations

import re
from pathlib import Path

from fedvlp.pretrained.classifier import PROMPTS_FILE
from fedvlp.utils.errors import UserError

HUB_PREFIX = "hf://"
REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+", re.ASCII)
SIGN_IN = "Make a token with the right to write at https://huggingface.co/settings/tokens, then run `hf auth login` or "
SIGN_IN += "set HF_TOKEN."


def download_prompts(source: str) -> Path:
    """Returns the trained tensors of a model on the hub, from the cache on this machine if they are there.

    Args:
        source: ``hf://user/name``, with ``@revision`` behind it for a branch, tag or commit other than the newest.

    Raises:
        UserError: if there are none, or the hub can't be reached and they are not on this machine.
    """
    repository, _, revision = source.removeprefix(HUB_PREFIX).partition("@")
    check_repository(repository)
    from huggingface_hub import HfApi

    try:
        return Path(HfApi().hf_hub_download(repository, PROMPTS_FILE, revision=revision or None))
    except Exception as error:  # the hub's client raises many kinds, those of other packages included
        raise UserError(f"{source} could not be loaded: {what_happened(error)}") from error


def check_repository(name: str) -> None:
    """Sees that a text can be the name of a repository.

    Raises:
        UserError: if not.
    """
    if not REPOSITORY.fullmatch(name):
        raise UserError(f"Expected a repository as user/name, with letters, digits, ., _ and -; got {name!r}.")


def what_happened(error: Exception) -> str:
    """Returns what the hub's refusal means, and what to do."""
    from huggingface_hub import errors

    status = _status(error)
    if isinstance(error, errors.RevisionNotFoundError):
        return "there is no such revision. Leave out what stands behind @ for the newest."
    if isinstance(error, errors.EntryNotFoundError) and status == 404:
        return f"there is no {PROMPTS_FILE} in it, so it is not of fedvlp. Check the name."
    if status == 401 or isinstance(error, errors.RepositoryNotFoundError):
        return f"there is no such repository, or the token may not see it (status {status}). {SIGN_IN}"
    if status == 403:
        return f"the token may not do that there (status 403). Check the user's name and the token's rights. {SIGN_IN}"
    if status is not None:
        return f"the hub answered with status {status}. Try again later."
    return f"the hub could not be reached ({type(error).__name__}). Check the network and try again."


def _status(error: BaseException | None) -> int | None:
    """Returns the status of the answer that an error, or what caused it, is about; None where there was no answer."""
    while error is not None:
        found = getattr(getattr(error, "response", None), "status_code", None)
        if isinstance(found, int):
            return found
        error = error.__cause__
    return None
