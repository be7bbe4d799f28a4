"""From a finished run to a repository on the Hugging Face hub."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from fedvlp.pretrained.hub import SIGN_IN, check_repository, what_happened
from fedvlp.tools.hub.folder import write_folder
from fedvlp.utils.errors import UserError


def push_to_hub(
    run: str | Path, repository: str, *, private: bool = False, license: str = "unknown", allow: Sequence[str] = ()
) -> str:
    """Puts a finished run's model on the hub, with a card made of the run, and returns its address.

    Given are what was learned, the card, the run's config and its summary, in one commit; neither CLIP nor images.
    :func:`fedvlp.from_pretrained` loads it by ``hf://user/name``.

    Args:
        run: the run's folder, or the folder of several, of which the newest.
        repository: ``user/name``; made if it is not there.
        private: whether only its owner sees it.
        license: identifier of the licence under which it is given, as the hub knows them, such as ``apache-2.0``.
        allow: modules and paths of classes that the run may name, besides fedvlp's own.

    Raises:
        UserError: if it is no finished run, its method has no one model for everybody, or the hub can't be reached,
            has no token or refuses.
    """
    check_repository(repository)
    import huggingface_hub

    if huggingface_hub.get_token() is None:
        raise UserError(f"The hub lets nobody write without a token, and there is none on this machine. {SIGN_IN}")
    with TemporaryDirectory() as temporary:
        folder = Path(temporary) / "model"
        write_folder(run, folder, repository, license, allow)
        try:
            return _upload(huggingface_hub.HfApi(), folder, repository, private)
        except UserError:
            raise
        except Exception as error:  # of many kinds, those of other packages included
            raise UserError(f"{repository} was not pushed: {what_happened(error)}") from error


def _upload(api: Any, folder: Path, repository: str, private: bool) -> str:
    """Uploads a folder in one commit, and returns the repository's address."""
    address = str(api.create_repo(repository, private=private, exist_ok=True))
    if private and not api.model_info(repository).private:
        raise UserError(
            f"{repository} is there already and public, so nothing was pushed. Make it private on its page, or push to "
            "another."
        )
    api.upload_folder(repo_id=repository, folder_path=folder, commit_message="Trained model and card")
    return address
