"""IconDomains: real icons in six styles, included in the package. Imports the data module and files."""
