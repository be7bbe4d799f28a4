"""A trained model to take along: a plain classifier, its folder, card and place on a hub, and what is converted to it.

Imports catalog, clip, core, results, runs and utils, and looks up fedvlp's public names.
"""
