"""One site: its images, its method and what stays on it; from the bytes of a request to those of the reply."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fedvlp.sites.envelope import WireError, failure
from fedvlp.sites.fields import is_plain_name
from fedvlp.sites.resident import Resident
from fedvlp.sites.site_config import read_site_config
from fedvlp.sites.site_data import SiteFolder
from fedvlp.sites.site_errors import SiteProblem
from fedvlp.sites.versions import versions_here
from fedvlp.sites.wire import Message, read_request
from fedvlp.utils.errors import UserError

DATA_OPTIONS = frozenset({"classes", "class_names_map", "validation_fraction", "test_fraction", "shots", "split_seed"})
LOADER_OPTIONS = frozenset({"batch_size", "eval_batch_size", "augmentation", "cache_images"})
"""What a server may say of a site's data; where they are is the site's own affair."""
log = logging.getLogger(__name__)


class Site:
    """Answers the server's requests one after another; what a run needs is made once and kept.

    Args:
        home: the site's folder, with ``site.yaml``.

    Raises:
        UserError: if the folder is no site's.
    """

    def __init__(self, home: Path) -> None:
        self.home = home
        self.config = read_site_config(home)
        self.resident: Resident | None = None
        self.run = ""
        self.last: tuple[str, bytes] = ("", b"")
        self.handlers: dict[str, Callable[[Message], Message]] = {
            "describe": self._describe,
            "prepare": self._prepare,
            "train": self._train,
            "evaluate": self._evaluate,
            "leave": self._leave,
        }

    def handle(self, request: bytes) -> bytes:
        """Returns the reply to a request; whatever is wrong becomes a reply that says so."""
        digest = hashlib.sha256(request).hexdigest()
        if digest == self.last[0]:  # who asked died before it could pass the reply on
            return self.last[1]
        try:
            message = read_request(request)
            answer = self.handlers[message.kind](message)
            reply = answer.to_bytes()
        except (SiteProblem, WireError) as error:
            log.warning("A request failed: this site %s", error, exc_info=error.__cause__)
            return failure(str(error))
        except Exception as error:  # what an error says may quote names of files, so it stays here
            log.exception("A request failed.")
            return failure(f"raised {type(error).__name__}; its log says more")
        if answer.kind == "trained":
            self.last = (digest, reply)
        return reply

    def _describe(self, request: Message) -> Message:
        data = self._data(request.values["data"])
        values = {
            "name": self.config.name,
            "classes": data.found_classes,
            "counts": _counts(data),
            **_digests(data),
            "versions": versions_here(),
        }
        return Message("described", values)

    def _prepare(self, request: Message) -> Message:
        run = request.values["run"]
        if not is_plain_name(run):
            raise SiteProblem("was sent a run's name that is no name of a folder")
        self.resident = None  # two methods at a time may not fit into the memory
        data = self._data(request.values["data"], (request.values["client"], request.values["domain"]))
        self.resident = Resident(self.config, data, request, self.home / "runs" / run)
        self.run = run
        return Message("prepared", _digests(data))

    def _train(self, request: Message) -> Message:
        resident = self._resident(request.values)
        return Message("unprepared") if resident is None else resident.train(request)

    def _evaluate(self, request: Message) -> Message:
        resident = self._resident(request.values)
        return Message("unprepared") if resident is None else resident.evaluate(request)

    def _leave(self, request: Message) -> Message:
        if request.values["run"] == self.run:
            self.resident = None
        return Message("left")

    def _resident(self, values: Mapping[str, Any]) -> Resident | None:
        """Returns the run that a request is of; None if it is not prepared here, or for another client's place."""
        if self.resident is None or self.run != values["run"]:
            return None
        place = (values["client"], values["domain"])
        return self.resident if self.resident.data.place == place else None

    def _data(self, options: Mapping[str, Any], place: tuple[int, int] = (0, 0)) -> SiteFolder:
        if unknown := sorted(options.keys() - DATA_OPTIONS - LOADER_OPTIONS):
            raise SiteProblem(f"knows no data options {', '.join(unknown)[:200]}; its version of fedvlp may be another")
        config = self.config
        try:
            data = SiteFolder(
                root=config.root,
                domain=config.name,
                place=place,
                on_bad_image=config.on_bad_image,
                num_workers=config.num_workers,
                cache_dir=config.cache_dir,
                **options,
            )
            data.prepare_data()
        except UserError as error:
            raise SiteProblem("has images that can't be used as the server asks; its log says why") from error
        return data


def _digests(data: SiteFolder) -> dict[str, str]:
    """Returns what changes with any name or class of an image, and with its role too."""
    return {"images": data.describe()["images"], "split": data.split_hash}


def _counts(data: SiteFolder) -> dict[str, int]:
    return {part.role: len(part) for part in data.split_parts}
