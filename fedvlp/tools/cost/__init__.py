"""What methods send, counted without training. Imports clip, commands, data, training and utils."""
