"""What no training run needs: commands reach it by name, and the library imports nothing of it."""
