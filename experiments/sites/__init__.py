"""Three sites and a server on 127.0.0.1, with TLS and registered keys, compared with the simulation."""
