"""What is known of the published data sets: facts that need no image, and no library, to be read. Imports nothing."""
