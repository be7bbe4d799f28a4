"""All methods under equal conditions, each with the learning rate that source validation chose."""
