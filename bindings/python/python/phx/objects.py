"""The former name of `tarn.objects`: it stays usable."""

from tarn.objects import Draft, ObjectInfo, Objects

__all__ = ["Draft", "ObjectInfo", "Objects"]
