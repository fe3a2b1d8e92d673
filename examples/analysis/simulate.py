#!/usr/bin/python3
"""Decaying two-dimensional turbulence in a periodic box, one member of an ensemble, as a Zarr store.

    simulate.py MEMBER STORE     $GRID points along each edge (a power of two), $FRAMES times that are written

The vorticity equation with hyperviscosity, pseudo-spectral (products on the grid, two thirds of the wavenumbers kept), by Adams
and Bashforth's second-order step. The member is the seed of the first field, so each is another one and always the same.
"""

import os
import sys

import numpy as np
import xarray

STEPS = 16  # time steps between two frames
STEP = 0.004
TIMES = 4  # frames that make a chunk
DAMPING = 40.0  # of the largest wavenumber that is kept, in a unit of time


class Box:
    """Wavenumbers of a periodic box of 2 pi along each edge, and the fields that follow from a vorticity."""

    def __init__(self, points):
        self.points = points
        self.x = np.fft.rfftfreq(points, 1 / points)[None, :]
        self.y = np.fft.fftfreq(points, 1 / points)[:, None]
        self.square = self.x**2 + self.y**2
        self.inverse = np.divide(1, self.square, out=np.zeros_like(self.square), where=self.square > 0)
        self.kept = self.square < (points / 3) ** 2

    def grid(self, field):
        """A field on the grid."""
        return np.fft.irfft2(field, s=(self.points, self.points))

    def velocity(self, vorticity):
        """Both components, on the grid."""
        stream = vorticity * self.inverse
        return self.grid(1j * self.y * stream), self.grid(-1j * self.x * stream)

    def advection(self, vorticity):
        """The change of the vorticity by the flow in a unit of time."""
        u, v = self.velocity(vorticity)
        along = u * self.grid(1j * self.x * vorticity) + v * self.grid(1j * self.y * vorticity)
        return -np.fft.rfft2(along) * self.kept

    def first(self, seed):
        """A random field with most of its energy at wavenumbers about 6."""
        noise = np.fft.rfft2(np.random.default_rng(seed).standard_normal((self.points, self.points)))
        field = noise * self.kept * self.square * np.exp(-self.square / 36)
        return field * 4 / np.sqrt(np.mean(self.grid(field) ** 2))


def frames(box, member, count):
    """Vorticity and velocity on the grid, at each time that is written."""
    vorticity, before = box.first(member), None
    damp = 1 / (1 + STEP * DAMPING * (box.square * 9 / box.points**2) ** 4)
    for frame in range(count * STEPS):
        if frame % STEPS == 0:
            yield (box.grid(vorticity), *box.velocity(vorticity))
        now = box.advection(vorticity)
        change = now if before is None else 1.5 * now - 0.5 * before
        vorticity, before = (vorticity + STEP * change) * damp, now


def main(member, store):
    box, count = Box(int(os.environ["GRID"])), int(os.environ["FRAMES"])
    names = ("vorticity", "u", "v")
    at = np.arange(box.points) * 2 * np.pi / box.points
    # As much at a time as a chunk holds: a simulation does not keep its past in memory.
    held = []
    for number, fields in enumerate(frames(box, member, count), start=1):
        held.append(fields)
        if len(held) == TIMES or number == count:
            time = np.arange(number - len(held), number) * STEPS * STEP
            data = {name: (("time", "y", "x"), np.stack([f[i] for f in held])) for i, name in enumerate(names)}
            piece = xarray.Dataset(data, coords={"time": time, "y": at, "x": at}, attrs={"member": member})
            if number <= TIMES:
                # Turbulence does not compress: it is written as it is.
                encoding = {name: {"chunks": (TIMES, box.points, box.points), "compressor": None} for name in names}
                piece.to_zarr(store, mode="w", encoding={**encoding, "time": {"chunks": (count,)}}, consolidated=True)
            else:
                piece.to_zarr(store, append_dim="time", consolidated=True)
            held.clear()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
