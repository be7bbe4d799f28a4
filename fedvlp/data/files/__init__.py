"""Images on disk or in memory: folder layouts and decoding. Imports only utils."""
