"""StyledShapes: images drawn by code, with no download. Imports the data module and files."""
