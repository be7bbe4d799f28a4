"""Find a published data set below a root and read its layout, without opening any image file."""

import csv
import json
import os
import re
import shlex
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from fedvlp.catalog.description import PART_ROLES, Description, Folders, ImageLists, Layout, TorchvisionFolder
from fedvlp.core.roles import ImageRole
from fedvlp.core.several_labels import SEPARATOR
from fedvlp.data.files.images import compose_name, folders_in, list_images
from fedvlp.data.rows import UNKNOWN, ImageFile, rename_labels, split_labels
from fedvlp.utils.errors import UserError, shorten

DEPTH = 3
"""Depth of the folders below the root that are searched for a data set."""
MOST_FOLDERS = 2_000


def _walk_folders(root: Path) -> Iterator[Path]:
    """Iterate over the root and its subfolders, level by level, each level in the order of names."""
    level = [root]
    # The limit matters for a whole home folder, which would take minutes.
    left = MOST_FOLDERS
    for _ in range(DEPTH + 1):
        yield from level
        below: list[Path] = []
        for folder in level:
            below += [folder / name for name in folders_in(folder)]
        level = below[:left]
        left -= len(level)


def find_layout(root: Path, description: Description) -> tuple[Path, Layout] | None:
    """Find the folder nearest to the root that has a layout of a data set, and the first such layout."""
    for folder in _walk_folders(root):
        for layout in description.layouts:
            if all(_exists(folder, part, description) for part in layout.parts):
                return folder, layout
    return None


def _exists(folder: Path, part: Folders | ImageLists | TorchvisionFolder, description: Description) -> bool:
    if isinstance(part, ImageLists):
        return all(any(folder.glob(pattern)) for pattern in (*part.files, *part.lists))
    if isinstance(part, TorchvisionFolder):
        return all((folder / name).exists() for name in part.holds)
    if not part.folder:
        return len(_domains_in(folder, description)) == len(description.domains)
    return part.is_optional or _has_classes(folder / part.folder, description)


def _domains_in(folder: Path, description: Description) -> dict[str, str]:
    """Map each domain to the name of its subfolder; raise UserError if two subfolders are the same domain."""
    names: dict[str, str] = {}
    for name in folders_in(folder):
        domain = description.match_domain(name)
        if domain in names:
            raise UserError(f"Both {names[domain]} and {name} in {folder} look like the domain {domain}. Keep one.")
        if domain is not None:
            names[domain] = name
    return names


def describe_missing(root: Path, description: Description) -> str:
    """Explain that no layout of a data set is below a root: the expected folders, the present ones, the remedy."""
    hint = "Check data.root"
    if description.download_source is not None:
        command = f"fedvlp data download {description.short_name} --root {shlex.quote(str(root))}"
        hint = f"Check data.root, or download the data set with {command} or --data.download true"
    if not root.is_dir():
        return f"Expected {description.name} in the folder {root}; there is no such folder. {hint}."
    location = f"in {root}, or up to {DEPTH} folders below it,"
    present = shorten(folders_in(root)) or "no folder"
    if not any(layout.is_tree for layout in description.layouts):
        layouts = "; ".join(f"{layout.pattern} ({layout.of})" for layout in description.layouts)
        return f"Expected {description.name} {location} as one of: {layouts}. Found {present} there. {hint}."
    folder = max(_walk_folders(root), key=lambda folder: len(_domains_in(folder, description)))
    names = _domains_in(folder, description)
    found = f"{', '.join(names.values())} in {folder}" if names else f"{present} there"
    missing = [domain for domain in description.domains if domain not in names]
    return (
        f"Expected a folder for each domain of {description.name} ({', '.join(description.domains)}) {location} with "
        f"images as domain/class/image; found {found}, so {', '.join(missing)} {'is' if len(missing) == 1 else 'are'} "
        f"missing. Add them. {hint}."
    )


def read_layout(folder: Path, layout: Layout, description: Description) -> list[ImageFile]:
    """List the images of a layout in a folder, sorted, and named ``domain/class/image`` if they have one class.

    Raises UserError if a part is missing, damaged or inconsistent.
    """
    files: list[ImageFile] = []
    for part in layout.parts:
        if isinstance(part, Folders):
            files += _class_folders(folder, part, layout, description)
        elif isinstance(part, TorchvisionFolder):
            files += _torchvision(folder, part, description)
        elif part.image:
            files += _image_list(folder, part, description)
        else:
            files += _label_sets(folder, part, description)
    # Names are the same in all layouts, so they contain a folder only if needed to be unique.
    counts = Counter(file.name for file in files)
    paths: dict[str, list[str]] = {name: [] for name, count in counts.items() if count > 1}
    for file in files:
        if file.name in paths:
            paths[file.name].append(os.path.dirname(file.path))
    # The first folder that differs, such as cars_train.
    levels = {name: len(Path(os.path.commonpath(same)).parts) for name, same in paths.items()}
    for index, file in enumerate(files):
        if file.name in levels:
            class_folder, name = os.path.split(file.name)
            different = compose_name(Path(file.path).parts[levels[file.name]])
            files[index] = replace(file, name=f"{class_folder}/{different}/{name}")
    return sorted(files)


def _image_file(domain: str, class_name: str, path: str, role: ImageRole | None) -> ImageFile:
    # Names of car models may contain a slash.
    name = compose_name(f"{domain}/{class_name.replace('/', ' ')}/{os.path.basename(path)}")
    return ImageFile(domain, class_name, name, path, role)


def find_name(kind: Literal["domain", "class"], name: str, description: Description, source: str) -> str:
    """Find the domain or class that a file names; raise UserError if the data set does not have it."""
    is_domain = kind == "domain"
    match = description.match_domain(name) if is_domain else description.match_class(name)
    if match is None:
        names = shorten(description.domains if is_domain else description.class_names, most=6)
        raise UserError(
            f"Expected a {kind} of {description.name} ({names}) in {source}; found {name[:80]!r}. Use the file of "
            f"{description.name}, or read these images as DomainFolders."
        )
    return match


def _check_exist(files: list[ImageFile], folder: Path, source: str) -> list[ImageFile]:
    missing = [os.path.relpath(file.path, folder) for file in files if not os.path.isfile(file.path)]
    if missing:
        raise UserError(
            f"{source} lists {len(missing):,} images that do not exist: {shorten(sorted(missing))}. Add them below "
            f"{folder}, or remove the lists if they belong to other images."
        )
    return files


def _has_classes(folder: Path, description: Description) -> bool:
    return any(description.match_class(compose_name(name)) for name in folders_in(folder))


def _class_folders(folder: Path, part: Folders, layout: Layout, description: Description) -> list[ImageFile]:
    domain = part.domain or description.domains[0]
    folders = {domain: part.folder} if part.folder else _domains_in(folder, description)
    # An optional part is missing if its folder has no class.
    if part.is_optional and not _has_classes(folder / part.folder, description):
        return []
    # Classes are looked up once per folder, since ImageNet has over a million images.
    match_class = cache(lambda name: name if name in part.ignored else description.match_class(name))
    files = []
    unknown: set[str] = set()
    for domain, domain_folder in folders.items():
        has_train = "train" in map(str.casefold, folders_in(folder / domain_folder))
        for parts, path in list_images(folder / domain_folder):
            names = list(map(compose_name, parts))
            role: ImageRole | None = part.role
            split_folder = names[0].casefold()
            if len(names) > 1 and split_folder in layout.split_folders:
                # "full" is "train" and "crossval" together.
                if split_folder == "full" and has_train:
                    continue
                role = layout.split_folders[split_folder]
                del names[0]
            if len(names) > 1 and (class_name := match_class(names[0])):
                files.append(_image_file(domain, class_name, path, role))
            elif not part.folder:
                unknown.add(f"{domain_folder}/{names[0]}")
            elif len(names) > 1:  # otherwise a stray image outside the class folders
                unknown.add(names[0])
    # A subset may be stored with the other classes of the larger data set.
    if unknown and not description.is_subset:
        raise UserError(
            f"Expected the class folders of {description.name} ({shorten(description.class_names, most=7)}) in "
            f"{folder / part.folder}; found {shorten(sorted(unknown))} as well. Remove them, or read these images as "
            "DomainFolders."
        )
    return files


def _image_list(folder: Path, part: ImageLists, description: Description) -> list[ImageFile]:
    files: list[ImageFile] = []
    classes: dict[str, str] = {}  # looked up once, since lists have up to half a million lines
    for path, file_role in [(folder / file, role) for file, role in part.files.items()]:
        listed = []
        for place, entry in _read_entries(path, part, description):
            if entry["class"] not in classes:
                classes[entry["class"]] = find_name("class", entry["class"], description, f"{place} of {path}")
            class_name = classes[entry["class"]]
            domain = description.domains[0]
            if "domain" in entry:
                domain = find_name("domain", entry["domain"], description, str(path))
            # Paths may have Windows separators.
            image = part.image.format(**entry, class_name=class_name).replace("\\", "/").lstrip("/")
            role = part.parts.get(entry.get("part", ""), file_role)
            listed.append(_image_file(domain, class_name, os.path.join(folder, *PurePosixPath(image).parts), role))
        files += _check_exist(listed, folder, str(path))
    return files


def _label_sets(folder: Path, part: ImageLists, description: Description) -> list[ImageFile]:
    (domain,) = description.domains
    role_of: dict[str, ImageRole] = {}
    for list_file, list_role in part.lists.items():
        role_of |= dict.fromkeys((folder / list_file).read_text(encoding="utf-8").split(), list_role)
    paths: dict[str, str] = {}
    for parts, path in list_images(folder):
        paths[parts[-1]] = paths["/".join(parts)] = path
    match_label = cache(lambda label: find_name("class", label, description, f"the labels in {folder}"))
    files = []
    for pattern, file_role in part.files.items():
        labels_of: dict[str, str] = defaultdict(str)
        groups: dict[str, str] = {}
        # VOC has a file for each label, and COCO an entry for each object.
        for label_file in sorted(folder.glob(pattern)):
            for _, entry in _read_entries(label_file, part, description):
                labels_of[entry["image"]] += SEPARATOR + entry["class"]
                groups[entry["image"]] = entry.get("group", "")
        for name, labels in labels_of.items():
            class_name = rename_labels(labels, {label: match_label(label) for label in split_labels(labels)})
            path = paths.get(name, os.path.join(folder, name))
            role = role_of.get(name, file_role)
            full_name = compose_name(f"{domain}/{name}")
            files.append(ImageFile(domain, class_name, full_name, path, role, group=groups[name]))
    return _check_exist(files, folder, f"The labels of {description.name}")


def _read_entries(path: Path, part: ImageLists, description: Description) -> Iterator[tuple[str, dict[str, str]]]:
    """Iterate over the entries of a file as ``read_lines`` does; they name an image, a class or labels, and more."""
    if part.line:
        remedy = "Download the file from its publisher again."
        yield from read_lines(path, part.line, f"an image of {description.name}", remedy, part.header)
        return
    try:
        for number, entry in enumerate(FORMATS[part.format](path), 1):
            yield f"entry {number}", entry
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        publisher = "CoOp's DATASETS.md" if part.format == "CoOp" else "its publisher"
        raise UserError(
            f"Expected the images and labels of {part.format} in {path}, but they can't be read "
            f"({type(error).__name__}: {error}). Download the file again from {publisher}, or remove it."
        ) from error


def read_coop(path: Path) -> Iterator[dict[str, str]]:
    """Read CoOp's lists train, val and test of [path, label, class name]; classes are numbered by the description."""
    content = json.loads(path.read_text(encoding="utf-8"))
    for split in PART_ROLES:
        for image, _, name in content[split]:
            yield {"image": str(image), "class": str(name), "part": split}


def read_voc(path: Path) -> Iterator[dict[str, str]]:
    """Read Pascal VOC's list of one label: 1, -1, or 0 if the image shows only objects marked difficult."""
    label = path.stem.rpartition("_")[0]
    labels_of = {"1": label, "0": UNKNOWN + label, "-1": ""}
    for line in path.read_text(encoding="utf-8").splitlines():
        image, value = line.split()
        yield {"image": f"{image}.jpg", "class": labels_of[value]}


def read_coco(path: Path) -> Iterator[dict[str, str]]:
    """Read COCO's annotated objects, one by one; images without objects are not named."""
    content = json.loads(path.read_text(encoding="utf-8"), object_hook=_drop_outline)
    names = {category["id"]: category["name"] for category in content["categories"]}
    files = {image["id"]: image["file_name"] for image in content["images"]}
    for annotation in content["annotations"]:
        yield {"image": files[annotation["image_id"]], "class": names[annotation["category_id"]]}


def _drop_outline(entry: dict[str, Any]) -> dict[str, Any]:
    # Outlines are most of the file, and would need gigabytes of memory.
    entry.pop("segmentation", None)
    return entry


def read_chest_xray14(path: Path) -> Iterator[dict[str, str]]:
    """Read NIH's table of findings; "No Finding" is no label."""
    for row in csv.DictReader(path.read_text(encoding="utf-8").splitlines()):
        findings = row["Finding Labels"].replace("No Finding", "")
        yield {"image": row["Image Index"], "class": findings, "group": row["Patient ID"]}


def read_chexpert(path: Path) -> Iterator[dict[str, str]]:
    """Read CheXpert's table: 1, 0, -1 for uncertain observations, or nothing if the report does not mention one."""
    mark_of = {"1.0": "", "-1.0": UNKNOWN}
    for row in csv.DictReader(path.read_text(encoding="utf-8").splitlines()):
        # Paths start with the name of the folder, which depends on the size of the images.
        name = row["Path"].partition("/")[2]
        observations = list(row.items())[5:]
        labels = [mark_of[value] + label for label, value in observations if value not in ("", "0.0")]
        yield {"image": name, "class": SEPARATOR.join(labels), "group": name.split("/")[1]}


FORMATS: Mapping[str, Callable[[Path], Iterator[dict[str, str]]]] = {
    "CoOp": read_coop, "VOC": read_voc, "COCO": read_coco, "ChestX-ray14": read_chest_xray14, "CheXpert": read_chexpert,
}  # fmt: skip
"""Readers of files other than lines of text: the image of each entry, its class or set of labels, part and group."""


def read_lines(
    path: Path, pattern: str, expected: str, remedy: str, header: str = ""
) -> Iterator[tuple[str, dict[str, str]]]:
    """Iterate over the lines of a list: the place, such as "line 1", and the groups of a regular expression.

    Raises UserError if the expression does not match a whole line other than the header and empty lines.
    """
    text = path.read_text(encoding="utf-8", errors="surrogateescape")
    for number, line in enumerate(map(str.strip, text.splitlines()), 1):
        if not line or line == header:
            continue
        match = re.fullmatch(pattern, line)
        if match is None:
            raise UserError(f"Expected {expected} in line {number} of {path}; found {line[:80]!r}. {remedy}")
        yield f"line {number}", match.groupdict()


def _torchvision(folder: Path, part: TorchvisionFolder, description: Description) -> list[ImageFile]:
    (domain,) = description.domains
    source = f"torchvision's {part.class_name} in {folder}"
    files: list[ImageFile] = []
    for split in part.splits or ("",):
        images = _open_with_torchvision(folder, part, split)
        classes = [find_name("class", str(name), description, source) for name in images.classes]
        role = PART_ROLES.get(split)
        if part.has_pixels:
            names = [name for name, _ in (images.train_list if split == "train" else images.test_list)]
            count = len(images) // len(names)
            for row, (pixels, label) in enumerate(zip(images.data, images.targets, strict=True)):
                image = _image_file(domain, classes[label], f"{names[row // count]}_{row % count:05d}", role)
                files.append(replace(image, pixels=pixels))
        else:
            for path, label in (images[index] for index in range(len(images))):
                files.append(_image_file(domain, classes[int(label)], path, role))
    return files if part.has_pixels else _check_exist(files, folder, source)


def _open_with_torchvision(folder: Path, part: TorchvisionFolder, split: str) -> Any:
    import torchvision.datasets

    if part.has_pixels:
        # CIFAR's files are pickles, which may run any code, so torchvision reads only files with the published MD5.
        options: dict[str, Any] = {"train": split == "train"}
    else:
        # The loader returns the path of an image, so that no image is opened.
        options = {"loader": os.fspath} | ({"split": split} if split else {})
    # torchvision appends the folder's path to the root.
    root = Path(os.path.abspath(folder)).parents[len(PurePosixPath(part.folder).parts) - 1]
    try:
        return getattr(torchvision.datasets, part.class_name)(str(root), **options)
    except Exception as error:  # torchvision and scipy raise many types for damaged lists
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UserError(
            f"torchvision's {part.class_name} can't read {root / part.folder} ({reason}). Its files are missing or "
            "damaged, so download them again."
        ) from error
