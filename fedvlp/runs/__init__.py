"""Files of a run, written and read: folders, checkpoints, client states, events and trusted classes.

Imports core and utils, and looks up fedvlp's public names.
"""
