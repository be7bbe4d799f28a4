"""Real sites: clients that train where their images are, and a server that never sees the images.

The server runs the same training loop as a simulation, with an engine that trains and evaluates at the sites. A
``Transport`` carries the messages as bytes. Imports commands, core, data, methods, runs, training and utils; the server
also imports the federation.
"""
