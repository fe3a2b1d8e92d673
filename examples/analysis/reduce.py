#!/usr/bin/python3
"""The values of one member that the ensemble's statistics need: dask works through its chunks, never all of it in memory.

    reduce.py STORE OUT

Energy and enstrophy by time, mean and variance of the vorticity at each point, and the spectrum of the energy by time.
"""

import sys

import numpy as np
import xarray


def spectrum(u, v):
    """Energy by whole wavenumber, of each time of a block."""
    points = u.shape[-1]
    energy = sum(np.abs(np.fft.fft2(field)) ** 2 for field in (u, v)) / (2 * points**4)
    wave = np.fft.fftfreq(points, 1 / points)
    shell = np.rint(np.hypot(*np.meshgrid(wave, wave))).astype(int).ravel()
    return np.stack([np.bincount(shell, weights=frame.ravel())[: points // 2] for frame in energy])


def main(store, out):
    fields = xarray.open_zarr(store)
    energy = ((fields.u**2 + fields.v**2) / 2).mean(("y", "x"))
    enstrophy = (fields.vorticity**2 / 2).mean(("y", "x"))
    by_wave = xarray.apply_ufunc(
        spectrum,
        fields.u,
        fields.v,
        input_core_dims=[("y", "x"), ("y", "x")],
        output_core_dims=[("wavenumber",)],
        dask="parallelized",
        dask_gufunc_kwargs={"output_sizes": {"wavenumber": fields.sizes["x"] // 2}},
        output_dtypes=[float],
    )
    reduced = xarray.Dataset({"energy": energy, "enstrophy": enstrophy, "mean": fields.vorticity.mean("time"), "variance": fields.vorticity.var("time"), "spectrum": by_wave})
    # Threads, so that all share what was read; one call, so that it is read once.
    reduced.compute(scheduler="threads").assign_attrs(fields.attrs).to_zarr(out, mode="w", consolidated=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
