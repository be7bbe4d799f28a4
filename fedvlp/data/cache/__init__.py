"""What is computed once for each image and kept on disk. Imports files and utils."""
