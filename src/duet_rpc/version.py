"""The version: read by the build, by ``duet-rpc --version`` and by ``initialize``."""

__all__ = ["__version__"]

__version__ = "0.1.0"
