"""Image features with learned tokens, and tokens in the joint space. Imports the backbone and its towers."""
