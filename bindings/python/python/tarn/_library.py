"""The native library of this package, or why it is not there."""

from __future__ import annotations

try:
    from . import _native
except ImportError as error:
    raise ImportError(
        f"tarn.checkpoint and tarn.objects need the native library of this package ({error}): "
        "`pip install bindings/python`, in tarn's repository, builds it"
    ) from error

__all__ = ["_native"]
