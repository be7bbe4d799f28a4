"""What a data module serves to the method that it is bound to: its own batches, and those of other data sets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from fedvlp.data.files.images import Images
from fedvlp.data.loading.batch_source import BatchSource, EvaluationSplit
from fedvlp.data.loading.encoding import Prepare
from fedvlp.data.loading.module_binding import ModuleBinding
from fedvlp.data.splits import SplitPart
from fedvlp.data.transfer import Transfer


@dataclass(frozen=True)
class Served:
    """Batches for one bound method.

    Attributes:
        images: images by domain.
        parts: which of them play which role.
        class_names: names of all classes.
        num_trained: how many of these, the first ones, train.
        transfers: other data sets that are measured.
        binding: what the method asks of images of the classes that train.
        is_augmented: whether training images change from pass to pass.
        of_classes: what it asks of images of other classes, by their names.
    """

    images: Mapping[str, Images]
    parts: Sequence[SplitPart]
    class_names: Sequence[str]
    num_trained: int
    transfers: Sequence[Transfer]
    binding: ModuleBinding
    is_augmented: bool
    of_classes: dict[tuple[str, ...], ModuleBinding] = field(default_factory=dict)

    @property
    def other_classes(self) -> list[tuple[str, ...]]:
        """The names of the classes of splits that are of others than those that train, each list once."""
        lists = [self._names(part.classes) for part in self.parts if part.classes]
        lists += [transfer.class_names for transfer in self.transfers]
        own = tuple(self.class_names[: self.num_trained])
        return [names for names in dict.fromkeys(lists) if names != own]

    def bind_classes(self, class_names: Sequence[str], prepare: Prepare | None, key: str) -> None:
        """Takes what the method asks of images whose classes are these, before anything is computed.

        Args:
            class_names: the classes.
            prepare: as of ``bind``.
            key: as of ``bind``; where it is the same, what is computed of an image is shared.
        """
        features = self.binding.features if key == self.binding.key else {}
        binding = replace(self.binding, prepare=prepare, key=key, features=features, decoded={})
        self.of_classes[tuple(class_names)] = binding

    @cached_property
    def own(self) -> BatchSource:
        """Makes the loaders of the data set itself."""
        bindings: dict[tuple[int, ...], ModuleBinding] = {}
        for part in self.parts:
            names = self._names(part.classes)
            if names in self.of_classes:
                bindings[part.classes] = self.of_classes[names]
        return BatchSource(self.images, self.parts, self.binding, self.is_augmented, self.class_names, bindings)

    def encode(self) -> None:
        """Computes, or reads from the cache, all that is prepared of images; without it, keeps images decoded."""
        for source in (self.own, *self._of_transfers):
            source.encode()

    def evaluation_splits(self, batch_size: int) -> list[EvaluationSplit]:
        """Returns every split that is measured, those of other data sets at the end."""
        own_names = self.class_names[: self.num_trained]
        splits = []
        for split in self.own.evaluation_splits(batch_size):
            splits.append(split)
            if split.role == "personal":
                # The same images under the global model, beside the client's own.
                splits.append(replace(split, name=f"global/{split.domain}", role="global"))
        for transfer, source in zip(self.transfers, self._of_transfers, strict=True):
            splits.append(transfer.split(source, batch_size, own_names))
        return splits

    @cached_property
    def _of_transfers(self) -> list[BatchSource]:
        return [each.source(self.of_classes.get(each.class_names, self.binding)) for each in self.transfers]

    def _names(self, classes: Sequence[int]) -> tuple[str, ...]:
        return tuple(self.class_names[label] for label in classes)
