"""Rows of images from a parquet file of the hub, a few at a time, under the data set's own names."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedvlp.data.catalog import Description
from fedvlp.data.catalog.description import HubSource
from fedvlp.utils.errors import UserError

if TYPE_CHECKING:
    from pyarrow.parquet import ParquetFile

ROWS = 64
"""How many rows are in memory at once."""
BUFFER = 2**20


@dataclass(frozen=True)
class ImageRow:
    """One row.

    Attributes:
        domain: the data set's own name of its domain.
        class_name: the data set's own name of its class.
        content: the image file, as it is stored.
        stored_name: the name that the file had before; empty if that is not kept.
    """

    domain: str
    class_name: str
    content: bytes
    stored_name: str


class ImageTable:
    """A parquet file of images.

    Args:
        path: the file.
        name: what messages call it.
        source: which columns it has.
        description: which names the data set has.
        card: what the repository's card says of the columns, for a file that says nothing.
    """

    def __init__(
        self, path: Path, name: str, source: HubSource, description: Description, card: Mapping[str, Any]
    ) -> None:
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile

        self.name = name
        self.source = source
        self.description = description
        try:
            # A file read ahead would be in memory as a whole.
            self._file: ParquetFile = ParquetFile(path, buffer_size=BUFFER, pre_buffer=False)
        except (ArrowException, OSError) as error:
            raise UserError(f"{name} is no parquet file ({error}). Get the data set from its publisher.") from error
        self._features = _features_of_card(card) | _features_of_file(self._file)
        self._check_columns()

    def __len__(self) -> int:
        return int(self._file.metadata.num_rows)

    def rows(self) -> Iterator[ImageRow]:
        """Yields the rows in order.

        Raises:
            UserError: if a row has no image, or a domain or label that is not the data set's, or has no name.
        """
        from pyarrow import ArrowException

        try:
            for image, domain, label in self._values():
                content, stored_name = _content(image)
                if not content:
                    raise UserError(f"{self.name} has a row without an image. Get the data set from its publisher.")
                yield ImageRow(self._domain(domain), self._class_name(label), content, stored_name)
        except (ArrowException, OSError) as error:
            raise UserError(f"{self.name} is damaged ({error}). Get the data set from its publisher.") from error

    def _values(self) -> Iterator[tuple[Any, Any, Any]]:
        """Yields image, domain and label of each row, as they are stored."""
        columns = [self.source.image_column, self.source.domain_column, self.source.label_column]
        for batch in self._file.iter_batches(batch_size=ROWS, columns=columns):
            images, domains, labels = (batch.column(column).to_pylist() for column in columns)
            yield from zip(images, domains, labels, strict=True)

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def _check_columns(self) -> None:
        """Raises if a column is lacking."""
        found = self._file.schema_arrow.names
        wanted = [self.source.image_column, self.source.domain_column, self.source.label_column]
        if lacking := [column for column in wanted if column not in found]:
            raise UserError(
                f"Expected the columns {', '.join(wanted)} in {self.name}; found {', '.join(found)}, so "
                f"{', '.join(lacking)} is missing. The copy was changed: get the data set from its publisher."
            )

    def _domain(self, value: Any) -> str:
        name = self._name_of(self.source.domain_column, value)
        domain = self.description.domain_of(name)
        if domain is None:
            raise UserError(self._unknown(self.source.domain_column, name, self.description.domains))
        return domain

    def _class_name(self, value: Any) -> str:
        name = self._name_of(self.source.label_column, value)
        class_name = self.description.class_of(name)
        if class_name is None:
            raise UserError(self._unknown(self.source.label_column, name, self.description.class_names))
        return class_name

    def _name_of(self, column: str, value: Any) -> str:
        """Returns the name that a value stands for; a number without a name stays what it is."""
        names = self._features.get(column)
        if isinstance(value, int) and names and 0 <= value < len(names):
            return names[value]
        return str(value)

    def _unknown(self, column: str, name: str, known: Sequence[str]) -> str:
        """Returns what to say of a name that is not the data set's."""
        if name.isdecimal() and not self._features.get(column):
            return (
                f"The column {column} of {self.name} has numbers, such as {name}, and neither the file nor the card of "
                f"its repository says which is which of {', '.join(known[:6])}. Their order is not guessed: get "
                f"{self.description.name} from its publisher."
            )
        return (
            f"The column {column} of {self.name} has {name!r}, which is not of {self.description.name} "
            f"({', '.join(known[:6])}{' ...' if len(known) > 6 else ''}). Get the data set from its publisher."
        )


def _content(image: Any) -> tuple[bytes, str]:
    """Returns an image's bytes, and the name that its file had."""
    if isinstance(image, dict):
        return image.get("bytes") or b"", Path(image.get("path") or "").name
    return image or b"", ""


def _features_of_file(file: ParquetFile) -> dict[str, list[str]]:
    """Returns the names that the numbers of a column stand for, by column, as the file's own metadata say."""
    metadata = file.schema_arrow.metadata or {}
    try:
        features = json.loads(metadata[b"huggingface"])["info"]["features"]
        labelled = [column for column, feature in features.items() if "names" in feature]
        return {column: list(map(str, features[column]["names"])) for column in labelled}
    except (KeyError, TypeError, ValueError):
        return {}


def _features_of_card(card: Mapping[str, Any]) -> dict[str, list[str]]:
    """Returns the same as a repository's card says it, if it describes one configuration."""
    try:
        labelled = {}
        for feature in card["dataset_info"]["features"]:
            if isinstance(feature["dtype"], dict):
                names = feature["dtype"]["class_label"]["names"]
                labelled[feature["name"]] = [str(names[str(number)]) for number in range(len(names))]
        return labelled
    except (KeyError, TypeError):
        return {}
