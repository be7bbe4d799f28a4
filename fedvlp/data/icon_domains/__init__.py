"""IconDomains: real icons in six styles, part of the package. Imports the data module and files."""
