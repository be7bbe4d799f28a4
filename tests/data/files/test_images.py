import logging
import os
from itertools import chain

import numpy as np
import pytest
import torch
from PIL import Image

from fedvlp.data import ArrayImages, FolderImages, Images, image_paths
from fedvlp.data.files.images import bad_images_message, decode_all, image_batches, read_rgb, to_rgb
from fedvlp.utils.errors import UserError
from tests.helpers.shapes import unchecked

RED = (255, 0, 0)
WHITE = (255, 255, 255)


def test_transparency_shows_white_in_every_mode_that_has_it(tmp_path):
    clear = Image.new("RGBA", (4, 4), (255, 0, 0, 0))
    clear.putpixel((0, 0), (255, 0, 0, 255))
    palette = clear.convert("RGB").quantize(4)
    palette.info["transparency"] = bytes([0] * 256)
    palette.save(tmp_path / "palette.png")
    clear.save(tmp_path / "rgba.png")
    Image.new("LA", (4, 4), (0, 0)).save(tmp_path / "la.png")
    keyed = Image.new("RGB", (4, 4), RED)
    keyed.save(tmp_path / "keyed.png", transparency=RED)
    grey = Image.new("L", (4, 4), 7)
    grey.save(tmp_path / "grey.png", transparency=7)
    for name in ("palette", "rgba", "la", "keyed", "grey"):
        image = read_rgb(tmp_path / f"{name}.png")
        assert image.mode == "RGB"
        assert image.getpixel((3, 3)) == WHITE, name
    assert read_rgb(tmp_path / "rgba.png").getpixel((0, 0)) == RED


def test_modes_become_rgb_and_transparency_is_mixed_with_white():
    for mode in ("1", "L", "P", "CMYK", "YCbCr", "HSV"):
        assert to_rgb(Image.new("RGB", (2, 2), WHITE).convert(mode)).getpixel((0, 0)) == WHITE
    assert to_rgb(Image.new("RGBA", (1, 1), (0, 0, 0, 128))).getpixel((0, 0)) == (127, 127, 127)


@pytest.mark.parametrize(
    ("values", "dtype", "expected"),
    [
        ([0, 255, 256, 32768, 65280, 65535], np.uint16, [0, 0, 1, 128, 255, 255]),
        ([0, 65535], np.int32, [0, 255]),
        ([0, 200], np.int32, [0, 200]),
        ([0.0, 1.0], np.float32, [0, 255]),
        ([-3.0, 300.0], np.float32, [0, 255]),
    ],
)
def test_wide_integers_and_floats_are_brought_to_bytes(values, dtype, expected):
    image = Image.fromarray(np.array([values], dtype=dtype))
    assert np.asarray(to_rgb(image))[0, :, 0].tolist() == expected


def test_exif_orientation_is_applied_if_it_can_be_read(tmp_path):
    image = Image.new("RGB", (4, 2), RED)
    exif = Image.Exif()
    exif[0x0112] = 6  # rotated by 90 degrees
    image.save(tmp_path / "turned.jpg", exif=exif)
    assert read_rgb(tmp_path / "turned.jpg").size == (2, 4)
    Image.new("RGB", (4, 2), RED).save(tmp_path / "odd.jpg", exif=b"Exif\0\0nonsense")
    assert read_rgb(tmp_path / "odd.jpg").size == (4, 2)


def test_first_frame_of_an_animation(tmp_path):
    frames = [Image.new("RGB", (4, 4), color) for color in (RED, (0, 255, 0))]
    frames[0].save(tmp_path / "moving.gif", save_all=True, append_images=frames[1:])
    assert read_rgb(tmp_path / "moving.gif").getpixel((0, 0)) == RED


def test_images_that_can_not_be_decoded_are_named_with_the_reason(tmp_path, save):
    good = save(tmp_path / "good.png", size=64)
    (tmp_path / "empty.png").touch()
    (tmp_path / "text.png").write_text("not an image")
    (tmp_path / "half.png").write_bytes(good.read_bytes()[:-200])
    (tmp_path / "gone.png").symlink_to(tmp_path / "nowhere.png")
    for name, value in (("nan", np.nan), ("inf", -np.inf)):
        Image.fromarray(np.array([[0.5, value]], np.float32)).save(tmp_path / f"{name}.tif")
    names = ["good.png", "empty.png", "text.png", "half.png", "gone.png", "nan.tif", "inf.tif"]
    reasons, digests = decode_all([tmp_path / name for name in names], "checking")
    assert [bool(digest) for digest in digests] == [True, False, True, True, False, True, True]
    assert list(reasons) == [1, 2, 3, 4, 5, 6]
    assert reasons[1] == "the file is empty"
    assert reasons[2] == "it is not an image that Pillow can read"
    assert "truncated" in reasons[3]
    assert reasons[4] == f"it is a link to {tmp_path / 'nowhere.png'}, which does not exist"
    assert reasons[5] == reasons[6] == "it contains NaN or infinity"


def test_nearly_black_images_are_readable_with_one_warning(tmp_path, caplog):
    paths = [tmp_path / f"{most}.png" for most in (4096, 4095, 300)]
    for path in paths:
        Image.fromarray(np.array([[0, int(path.stem)]], np.uint16)).save(path)
    with caplog.at_level(logging.WARNING):
        assert decode_all(paths, "checking")[0] == {}
    (message,) = caplog.messages
    assert message.startswith(
        f"2 of 3 images are nearly black, such as {paths[1]}. Try --model.clip.intensity percentile."
    )


def test_bad_images_beyond_the_cap_are_counted():
    message = bad_images_message([(f"{i}.png", "empty") for i in range(60)], total=100)
    assert message.startswith("60 of 100 images can't be read:")
    assert "... and 10 more" in message


def test_folder_images(tmp_path, save):
    paths = [save(tmp_path / f"{i}.png", seed=i) for i in range(3)]
    images = FolderImages(paths, ["x/0", "x/1", "x/2"], [0, 1, 1])
    assert isinstance(images, Images)
    assert images[1].mode == "RGB"
    assert images.labels.dtype == np.int64
    # A fingerprint depends only on those files.
    before = images.fingerprint([0, 1])
    os.utime(paths[2], ns=(1, 1))
    assert images.fingerprint([0, 1]) == before
    assert images.fingerprint([1, 0]) != before
    os.utime(paths[1], ns=(1, 1))
    assert images.fingerprint([0, 1]) != before


def test_array_images():
    arrays = np.zeros((3, 4, 4, 3), dtype=np.uint8)
    images = ArrayImages(arrays, [0, 1, 2])
    assert isinstance(images, Images)
    assert (len(images), images[0].size, images.names[2]) == (3, (4, 4), "000002")
    before = images.fingerprint([0, 1])
    arrays[2] = 1
    assert images.fingerprint([0, 1]) == before
    arrays[1] = 1
    assert images.fingerprint([0, 1]) != before


def test_images_that_do_not_fit_together_are_refused():
    arrays = np.zeros((2, 4, 4, 3), dtype=np.uint8)
    with pytest.raises(ValueError, match="a name and a label per image"):
        ArrayImages(arrays, [0])
    with pytest.raises(ValueError, match="unique names"):
        ArrayImages(arrays, [0, 1], ["a", "a"])
    with pytest.raises(ValueError, match="uint8"), unchecked():
        ArrayImages(arrays.astype(np.float32), [0, 1])


def test_image_paths_expands_folders(tmp_path, save):
    save(tmp_path / "b" / "deep er" / "é.JPG")
    save(tmp_path / "b" / "1.png")
    save(tmp_path / "b" / ".hidden" / "2.png")
    (tmp_path / "b" / "notes.txt").touch()
    lone = save(tmp_path / "lone.webp")
    found = image_paths([str(lone), str(tmp_path / "b"), str(lone)])
    assert found == [lone, tmp_path / "b" / "1.png", tmp_path / "b" / "deep er" / "é.JPG"]


def test_image_paths_refuses(tmp_path):
    (tmp_path / "empty").mkdir()
    for paths, message in (([], "got none"), (["nowhere"], "does not exist"), (["empty"], "found none")):
        with pytest.raises(UserError, match=message):
            image_paths([str(tmp_path / path) for path in paths])


def test_image_files_are_batched_in_order_and_damaged_ones_are_named_first(tmp_path, save, transform):
    paths = [save(tmp_path / f"{i}.png", seed=i) for i in range(5)]
    batches = list(image_batches(paths, transform, batch_size=2))
    assert len(batches) == 3
    assert list(chain.from_iterable(found for found, _ in batches)) == paths
    assert batches[0][1].shape == (2, 3, 8, 8)
    assert torch.equal(batches[2][1][0], transform(read_rgb(paths[4])))
    (tmp_path / "bad.png").write_text("no")
    with pytest.raises(UserError, match=r"(?s)1 of 2 images can't be read.*bad\.png: it is not an image"):
        next(image_batches([paths[0], tmp_path / "bad.png"], transform))
