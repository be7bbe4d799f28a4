"""Real sites: clients that train where their images are, and a server that never sees them.

The loop is the federation's own; only its engine is another, which trains and measures at the sites. What carries the
messages is a ``Transport``, of which this folder knows no more than that it carries bytes. Imports commands, core,
data, methods, runs, training and utils; the server also the federation.
"""
