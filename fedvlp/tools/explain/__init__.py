"""What a trained method does, in pictures and words. Its ``methods.py`` alone knows methods."""
