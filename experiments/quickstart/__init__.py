"""Every method on StyledShapes, each style held out in turn."""
