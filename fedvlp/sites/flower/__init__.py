"""Flower as the transport between fedvlp's server and its sites; needs the extra ``flower``.

Imports sites and utils. Flower loads the two apps by name. Within the package, only ``sites.commands`` imports this
folder, for ``fedvlp deploy check``.
"""
