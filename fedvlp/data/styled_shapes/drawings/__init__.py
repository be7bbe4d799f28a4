"""Drawings made by code: captioned ones for pretraining, and the images of the StyledShapes benchmark."""

from fedvlp.data.styled_shapes.drawings.benchmark import (
    STYLED_SHAPES_VERSION,
    StyledShapesImages,
    styled_shape,
    styled_shapes,
)
from fedvlp.data.styled_shapes.drawings.captions import Caption, describe, is_true, scene_codes
from fedvlp.data.styled_shapes.drawings.pretraining import PRETRAINING_STYLES, pretraining_drawing
from fedvlp.data.styled_shapes.drawings.scene import Scene, sample_scene
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
