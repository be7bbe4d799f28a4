"""What a run leaves on disk, and how it is read back: folders, checkpoints, clients' files. Imports core and utils."""
