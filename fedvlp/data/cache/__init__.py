"""What is computed once for each image and kept. Imports files, loading's data sets and utils."""
