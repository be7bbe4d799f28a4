"""The bundled tiny CLIP: its training, and its evaluation on StyledShapes."""
