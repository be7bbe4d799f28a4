"""The bundled tiny CLIP: how it was trained, and what StyledShapes measures of it."""
