"""Which methods train with which of open_clip's architectures, tested with one step each."""
