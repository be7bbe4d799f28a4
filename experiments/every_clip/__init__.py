"""Which methods train with which of open_clip's architectures, found by training a step with each."""
