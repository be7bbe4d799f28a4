"""How much TRIP's routes depend on the image rather than on where its clustering starts."""
