"""What a site decides for itself: ``site.yaml`` in its home folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from fedvlp.utils.config_files import read_yaml
from fedvlp.utils.errors import UserError, did_you_mean_or_choose
from fedvlp.utils.ranges import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, check_range

FILE = "site.yaml"


@dataclass(frozen=True)
class SiteConfig:
    """A site's own options; the server knows none of them but the name.

    Attributes:
        name: under which the server lists the site, and which its domain has.
        root: folder with a folder of images for each class; relative to the site's home unless absolute.
        cache_dir: folder for features and decoded images; None keeps nothing on disk.
        accelerator: Lightning's name of the hardware.
        num_threads: CPU threads of PyTorch; its own choice if None.
        num_workers: processes that read images; 0 reads them in the main process.
        on_bad_image: what to do if images can't be read: ``error`` refuses to train, ``skip`` leaves them out.
        pretrained: the file of CLIP's weights, where the server's name for them means nothing here.
        min_noise_multiplier: train only where noise of the site's own randomness is added to what is sent, with a
            standard deviation of at least so many times the longest update; None trusts the server with updates.
        idle_minutes: after so many minutes without a request the warm process ends.
        allow: modules and classes that a server's config may name, besides fedvlp's own. To import one runs its code.
    """

    name: str
    root: str
    cache_dir: str | None = "cache"
    accelerator: str = "auto"
    num_threads: PositiveInt | None = None
    num_workers: NonNegativeInt = 0
    on_bad_image: Literal["error", "skip"] = "error"
    pretrained: str | None = None
    min_noise_multiplier: NonNegativeFloat | None = None
    idle_minutes: PositiveFloat = 30.0
    allow: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Refuses what is out of range, and a name that no site can have."""
        check_range("num_threads", self.num_threads, PositiveInt)
        check_range("num_workers", self.num_workers, NonNegativeInt)
        check_range("min_noise_multiplier", self.min_noise_multiplier, NonNegativeFloat)
        check_range("idle_minutes", self.idle_minutes, PositiveFloat)
        if self.on_bad_image not in ("error", "skip"):
            raise UserError(f"Expected on_bad_image to be error or skip, got {self.on_bad_image!r}.")
        # A split of the site is called <role>/<name>, in tables and on the wire.
        if not self.name.strip() or not self.name.isprintable() or "/" in self.name:
            raise UserError(f"Expected name of a site without slashes and control characters, got {self.name!r}.")


def read_site_config(home: Path) -> SiteConfig:
    """Reads the config of a site.

    Args:
        home: the site's folder.

    Raises:
        UserError: if there is none, or an option is unknown, missing or out of range.
    """
    path = home / FILE
    if not path.is_file():
        raise UserError(f"Expected {FILE} in {home}, which makes a folder a site's home. Write one with name and root.")
    content = read_yaml(path)
    if not isinstance(content, Mapping):
        raise UserError(f"Expected options such as name and root in {path}; found none.")
    options = [each.name for each in fields(SiteConfig)]
    for name in content:
        if name not in options:
            raise UserError(f"{path} has an unknown option {name!r}. {did_you_mean_or_choose(str(name), options)}")
    for name in ("name", "root"):
        if not isinstance(content.get(name), str):
            raise UserError(f"{path} needs {name} as a string. Add it.")
    # Relative paths are the home's, wherever the process was started.
    values: dict[str, Any] = {"cache_dir": "cache", **content}
    for name in ("root", "cache_dir"):
        if isinstance(values[name], str):
            values[name] = str(home.resolve() / Path(values[name]).expanduser())
    return SiteConfig(**values)
