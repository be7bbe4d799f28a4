"""Tools that training does not need. Commands load them by name, and the library does not import them."""
