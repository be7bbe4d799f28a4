"""Images as they lie on disk or in memory: layouts of folders, decoding. Imports utils alone."""
