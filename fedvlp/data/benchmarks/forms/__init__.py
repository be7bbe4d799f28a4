"""Readers of the forms that a data set may have besides folders domain/class/image. Imports the catalog and files."""
