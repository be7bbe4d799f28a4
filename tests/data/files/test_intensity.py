"""Greyscale images of more than 8 bits and DICOM files: three intensities, in runs and in predictions."""

import numpy as np
import pydicom
import pytest
from PIL import Image
from pydicom.uid import ExplicitVRLittleEndian, SecondaryCaptureImageStorage

from fedvlp.clip import CLIPSpec, load_clip
from fedvlp.data import ClassFolders, FolderImages
from fedvlp.data.files.images import image_batches, read_rgb, with_intensity

GRAY = np.random.default_rng(0).integers(0, 256, (32, 32)).astype(np.uint8)


def write_dicom(path, values, bits=16, **options):
    data = pydicom.Dataset()
    data.file_meta = pydicom.dataset.FileMetaDataset()
    data.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    data.file_meta.MediaStorageSOPClassUID = data.SOPClassUID = SecondaryCaptureImageStorage
    data.file_meta.MediaStorageSOPInstanceUID = data.SOPInstanceUID = pydicom.uid.generate_uid()
    data.Rows, data.Columns = values.shape[-2:]
    data.SamplesPerPixel, data.PhotometricInterpretation, data.PixelRepresentation = 1, "MONOCHROME2", 0
    data.BitsAllocated, data.BitsStored, data.HighBit = 16, bits, bits - 1
    for name, value in options.items():
        setattr(data, name, value)
    kind = np.int16 if data.PixelRepresentation else {8: np.uint8, 16: np.uint16}[data.BitsAllocated]
    data.PixelData = values.astype(kind).tobytes()
    data.save_as(path, enforce_file_format=True)
    return path


def gray_of(path, intensity="full"):
    image = read_rgb(path, intensity)
    assert image.mode == "RGB"
    return np.asarray(image)[..., 0]


def test_formats_of_the_same_values_are_equal_in_their_full_range(tmp_path):
    Image.fromarray(GRAY).save(tmp_path / "8.png")
    Image.fromarray(GRAY.astype(np.uint16) * 257).save(tmp_path / "16.png")
    Image.fromarray(GRAY.astype(np.uint16) * 257).save(tmp_path / "16.tif")
    files = [tmp_path / name for name in ("8.png", "16.png", "16.tif")]
    files.append(write_dicom(tmp_path / "16.dcm", GRAY.astype(np.uint16) * 257))
    files.append(write_dicom(tmp_path / "12.dcm", GRAY.astype(np.uint16) * 16, bits=12))
    signed = GRAY.astype(np.int32) * 256 - 2**15
    files.append(write_dicom(tmp_path / "signed.dcm", signed, PixelRepresentation=1))
    files.append(write_dicom(tmp_path / "ct.dcm", GRAY.astype(np.uint16) * 256, RescaleSlope=2, RescaleIntercept=-1024))
    inverted = 65535 - GRAY.astype(np.uint16) * 257
    files.append(write_dicom(tmp_path / "inverted.dcm", inverted, PhotometricInterpretation="MONOCHROME1"))
    for file in files:
        assert np.array_equal(gray_of(file), GRAY), file.name


def test_colours_are_rgb_and_palettes_are_refused(tmp_path):
    pixels = np.random.default_rng(1).integers(0, 256, (8, 8, 3)).astype(np.uint8)
    options = {"SamplesPerPixel": 3, "PhotometricInterpretation": "RGB", "PlanarConfiguration": 0}
    options |= {"BitsAllocated": 8, "Rows": 8, "Columns": 8, "HighBit": 7}
    path = write_dicom(tmp_path / "colour.dcm", pixels, bits=8, **options)
    assert np.array_equal(np.asarray(read_rgb(path)), pixels)
    path = write_dicom(tmp_path / "palette.dcm", GRAY, PhotometricInterpretation="PALETTE COLOR")
    with pytest.raises(ValueError, match="it has PALETTE COLOR colours"):
        read_rgb(path)


def test_a_window_and_percentiles_use_the_whole_range_of_a_dark_image(tmp_path):
    values = np.linspace(1000, 1200, 32 * 32).reshape(32, 32)
    options = {"WindowCenter": 100, "WindowWidth": [201, 4], "RescaleIntercept": -1000}
    path = write_dicom(tmp_path / "scan.dcm", values, bits=12, **options)
    assert gray_of(path).max() < 80
    for intensity in ("window", "percentile"):
        gray = gray_of(path, intensity)
        assert gray.min() == 0
        assert gray.max() == 255
        assert (np.diff(gray.ravel().astype(int)) >= 0).all()
    Image.fromarray(values.astype(np.uint16)).save(tmp_path / "scan.png")
    assert np.array_equal(gray_of(tmp_path / "scan.png", "percentile"), gray_of(path, "percentile"))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: write_dicom(path, np.zeros((3, 8, 8)), NumberOfFrames=3), "it has 3 frames"),
        (lambda path: write_dicom(path, np.zeros((8, 8))), "it has no window; choose percentile or full"),
        (lambda path: Image.fromarray(np.zeros((8, 8), np.uint16)).save(path, "png"), "it has no window"),
    ],
)
def test_images_that_do_not_fit_are_refused(tmp_path, make, message):
    path = tmp_path / ("image.png" if "png" in make.__code__.co_consts else "image.dcm")
    make(path)
    with pytest.raises(ValueError, match=message):
        read_rgb(path, "window")


def test_the_clip_has_the_intensity_of_training_and_prediction(tmp_path, clip):
    path = tmp_path / "scan.png"
    Image.fromarray(GRAY.astype(np.uint16)).save(path)
    bright = load_clip(CLIPSpec("fedvlp-tiny", intensity="percentile"))
    pixels = [next(image_batches([path], each.preprocess))[1] for each in (clip, bright)]
    assert 5 * pixels[0].std() < pixels[1].std()
    images = FolderImages([path], ["scan.png"], [0])
    copies = [with_intensity(images, transform) for transform in (clip.preprocess, bright.preprocess)]
    assert copies[0] is images
    assert copies[0].fingerprint([0]) != copies[1].fingerprint([0])
    assert np.array_equal(np.asarray(copies[1][0])[..., 0], gray_of(path, "percentile"))


def test_dicom_files_in_class_folders_are_a_data_set(tmp_path):
    for index in range(8):
        folder = tmp_path / ("benign", "malignant")[index % 2]
        folder.mkdir(exist_ok=True)
        write_dicom(folder / f"{index}.dcm", np.roll(GRAY, index).astype(np.uint16) * 257)
    data = ClassFolders(str(tmp_path), cache_dir=None)
    data.prepare_data()
    assert sum(len(images) for images in data.images.values()) == 8
