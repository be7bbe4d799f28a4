"""A trained model to take along: a plain classifier, and how it is loaded from a file or a hub."""
