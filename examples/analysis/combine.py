#!/usr/bin/python3
"""The statistics of the ensemble.

    combine.py REDUCED OUT      OUT/ensemble is a Zarr store, OUT/statistics.txt a table for people
"""

import glob
import os
import sys

import numpy as np
import xarray


def main(folder, out):
    members = sorted((xarray.open_zarr(path) for path in glob.glob(os.path.join(folder, "*"))), key=lambda m: m.attrs["member"])
    both = xarray.concat(members, dim=xarray.IndexVariable("member", [m.attrs["member"] for m in members]), combine_attrs="drop").compute()
    ensemble = xarray.Dataset(
        {
            "energy": both.energy.mean("member"),
            "energy_spread": both.energy.std("member"),
            "enstrophy": both.enstrophy.mean("member"),
            "spectrum": both.spectrum.mean("member"),
            "vorticity_mean": both["mean"].mean("member"),
            # Of all members and times together: the variance within members, and that of their means.
            "vorticity_variance": both.variance.mean("member") + both["mean"].var("member"),
        }
    )
    # Zarr 3 consolidates metadata in another order each time, and the same input is to give the same bytes.
    ensemble.to_zarr(os.path.join(out, "ensemble"), mode="w", consolidated=False)
    last = ensemble.isel(time=-1)
    waves = np.arange(4, ensemble.sizes["wavenumber"] // 2)
    slope = np.polyfit(np.log(waves), np.log(last.spectrum.values[waves]), 1)[0]
    first = ensemble.isel(time=0)
    with open(os.path.join(out, "statistics.txt"), "w", encoding="ascii") as file:
        for name, value in (
            ("members", len(members)),
            ("times", ensemble.sizes["time"]),
            ("energy kept", f"{float(last.energy / first.energy):.6f}"),
            ("enstrophy kept", f"{float(last.enstrophy / first.enstrophy):.6f}"),
            ("spread of the energy", f"{float(last.energy_spread / last.energy):.6f}"),
            ("slope of the spectrum", f"{slope:.4f}"),
        ):
            file.write(f"{name:<24}{value}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
