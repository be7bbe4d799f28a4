"""Drawings made by code: captioned ones for pretraining, and the images of the StyledShapes benchmark."""

from fedvlp.data.styled_shapes.drawings.benchmark import (
    PRETRAINING_STYLES,
    STYLED_SHAPES_VERSION,
    Caption,
    StyledShapesImages,
    describe,
    is_true,
    pretraining_drawing,
    scene_codes,
    styled_shape,
    styled_shapes,
)
from fedvlp.data.styled_shapes.drawings.canvas import Scene, sample_scene
from fedvlp.data.styled_shapes.drawings.styles import STYLES, draw

__all__ = [
    "PRETRAINING_STYLES",
    "STYLED_SHAPES_VERSION",
    "STYLES",
    "Caption",
    "Scene",
    "StyledShapesImages",
    "describe",
    "draw",
    "is_true",
    "pretraining_drawing",
    "sample_scene",
    "scene_codes",
    "styled_shape",
    "styled_shapes",
]
