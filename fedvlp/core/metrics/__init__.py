"""What is measured of predictions beside accuracy: by class, how sure they are, and how far images decide it."""
