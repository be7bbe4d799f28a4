"""Images as files: folders, layouts, decoding. Imports core and utils."""
