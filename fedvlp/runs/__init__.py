"""What a run leaves on disk, and how it is read back: folders, checkpoints, clients' files, classes that may be named.

Imports core and utils, and looks up fedvlp's public names.
"""
