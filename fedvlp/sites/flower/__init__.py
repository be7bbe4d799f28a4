"""Flower carries the messages between fedvlp's server and its sites; needs the extra ``flower``.

Imports sites and utils. Flower loads the two apps by name; of the package itself only the commands import this folder,
and of it what writes an app's files, which needs no Flower, and ``fedvlp deploy check``.
"""
