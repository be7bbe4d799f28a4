"""Parts that several methods use. Imports clip, core, ops and utils."""
