"""Greyscale images with more than 8 bits as 8-bit images, and DICOM files."""

import os
from io import BytesIO
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fedvlp.utils.ranges import Intensity

DICOM_EXTENSIONS = frozenset({".dcm", ".dicom"})


def is_dicom(file: str | os.PathLike[str] | BytesIO) -> bool:
    """Whether a file, or its bytes, is a DICOM file."""
    if isinstance(file, BytesIO):
        return bytes(file.getbuffer()[128:132]) == b"DICM"
    return os.path.splitext(file)[1].lower() in DICOM_EXTENSIONS


def read_dicom(file: str | os.PathLike[str] | BytesIO, intensity: Intensity) -> Image.Image:
    """Read a DICOM file of one frame as 8-bit RGB: values after the modality's rescaling, with white as the maximum.

    Raises ValueError if the file has several frames, or no window although ``intensity`` is "window"; ImportError if
    pydicom, or a decoder of the file's compression, is missing.
    """
    try:
        import pydicom
    except ImportError as error:
        raise ImportError('DICOM needs pydicom. Run: pip install "fedvlp[dicom]"') from error
    data = pydicom.dcmread(file)
    frames = int(data.get("NumberOfFrames", 1) or 1)
    if frames > 1:
        raise ValueError(f"it has {frames} frames; save them as separate files")
    pixels = data.pixel_array
    if not data.PhotometricInterpretation.startswith("MONOCHROME"):
        if pixels.dtype != np.uint8 or pixels.ndim != 3:
            raise ValueError(f"it has {data.PhotometricInterpretation} colours that can't be read; save it as PNG")
        return Image.fromarray(pixels)  # pydicom converts colours to RGB
    slope, intercept = float(data.get("RescaleSlope", 1)), float(data.get("RescaleIntercept", 0))
    values = pixels * slope + intercept
    gray = scale_to_bytes(values, *_value_range(data, values, slope, intercept, intensity))
    if data.PhotometricInterpretation == "MONOCHROME1":  # black is the maximum
        gray = 255 - gray
    return Image.fromarray(gray).convert("RGB")


def _value_range(
    data: Any, values: NDArray[np.float64], slope: float, intercept: float, intensity: Intensity
) -> tuple[float, float]:
    if intensity == "percentile":
        return percentile_range(values)
    if intensity == "window":
        if "WindowCenter" not in data or "WindowWidth" not in data:
            raise ValueError("it has no window; choose percentile or full")
        # Files may list several windows, and the first is the default.
        center, width = (float(np.ravel(data[name].value)[0]) for name in ("WindowCenter", "WindowWidth"))
        # DICOM PS3.3, C.11.2.1.2.1.
        return center - 0.5 - (width - 1) / 2, center - 0.5 + (width - 1) / 2
    bits = int(data.BitsStored)
    low = -(2 ** (bits - 1)) if int(data.get("PixelRepresentation", 0)) else 0
    ends = [low * slope + intercept, (low + 2**bits) * slope + intercept]
    return min(ends), max(ends)


def percentile_range(values: NDArray[Any]) -> tuple[float, float]:
    """Compute the 0.5th and the 99.5th percentile of an image's values."""
    low, high = np.percentile(values, [0.5, 99.5])
    return float(low), float(high)


def scale_to_bytes(values: NDArray[Any], low: float, high: float) -> NDArray[np.uint8]:
    """Map values from ``low`` to ``high`` to 0 to 255; values outside are clipped.

    >>> scale_to_bytes(np.array([-5, 0, 16, 4095]), 0, 4096).tolist()
    [0, 0, 1, 255]
    """
    steps = np.floor((values.astype(np.float64) - low) * (256 / max(high - low, 1e-12)))
    return np.asarray(steps.clip(0, 255), np.uint8)
