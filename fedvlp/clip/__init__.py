"""All code that uses open_clip: loading a frozen CLIP, prompted text and image encoders, zero-shot classification."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
