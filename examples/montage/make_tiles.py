#!/usr/bin/python3
"""Make overlapping FITS tiles of one synthetic sky: stars, a nebula, noise, and a tilted background in each tile.

The same arguments give the same bytes. Needs Debian's python3-numpy and python3-astropy.
"""

import argparse
import os
import sys

import numpy as np
from astropy.io import fits

PIXEL_DEGREES = 1.0 / 3600.0
OVERLAP = 0.2  # of a tile's side, shared with each neighbour
STARS_PER_TILE = 250
PSF_SIGMA = 1.6  # pixels
CENTRE = (210.8, 54.35)  # right ascension and declination in degrees: M 101
MAX_TILES = 10_000


def blur(image, sigma):
    """Convolve with a Gaussian along both axes."""
    reach = int(4 * sigma)
    kernel = np.exp(-0.5 * (np.arange(-reach, reach + 1) / sigma) ** 2)
    kernel /= kernel.sum()
    for axis in (0, 1):
        image = np.apply_along_axis(np.convolve, axis, image, kernel, "same")
    return image


def make_sky(side, stars, rng):
    """A square sky: stars of power-law brightness over two spiral arms."""
    sky = np.zeros((side, side))
    rows, columns = rng.integers(8, side - 8, (2, stars))
    np.add.at(sky, (rows, columns), 80.0 * (1.0 + rng.pareto(1.6, stars)).clip(max=400.0))
    sky = blur(sky, PSF_SIGMA)
    y, x = np.mgrid[0:side, 0:side] / (side - 1) - 0.5
    radius = np.hypot(x, y) + 1e-3
    arms = np.cos(2.0 * (np.arctan2(y, x) + 3.5 * np.log(radius)))
    return sky + 60.0 * np.exp(-(radius / 0.22) ** 2) * (1.2 + arms) + 250.0 * np.exp(-(radius / 0.02) ** 2)


def header(column, row, step, side):
    """The tile's place on the sky."""
    h = fits.Header()
    h["CTYPE1"], h["CTYPE2"] = "RA---TAN", "DEC--TAN"
    h["CRVAL1"], h["CRVAL2"] = CENTRE
    h["CRPIX1"], h["CRPIX2"] = (side + 1) / 2 - column * step, (side + 1) / 2 - row * step
    h["CDELT1"], h["CDELT2"] = -PIXEL_DEGREES, PIXEL_DEGREES
    h["CROTA2"] = 0.0
    h["EQUINOX"] = 2000.0
    return h


def make_tiles(folder, grid, size, seed):
    """Write grid x grid tiles of size x size pixels."""
    step = int(size * (1.0 - OVERLAP))
    side = step * (grid - 1) + size
    sky = make_sky(side, STARS_PER_TILE * grid * grid, np.random.default_rng([seed, 0]))
    y, x = np.mgrid[0:size, 0:size] / size
    os.makedirs(folder, exist_ok=True)
    for row in range(grid):
        for column in range(grid):
            rng = np.random.default_rng([seed, 1, row, column])
            level, tilt_x, tilt_y = rng.uniform(0.0, 40.0), *rng.uniform(-15.0, 15.0, 2)
            tile = sky[row * step : row * step + size, column * step : column * step + size]
            tile = tile + level + tilt_x * x + tilt_y * y + rng.normal(0.0, 2.0, (size, size))
            path = os.path.join(folder, f"tile-{row:02}-{column:02}.fits")
            image = fits.PrimaryHDU(tile.astype(np.float32), header(column, row, step, side))
            image.writeto(path + ".part", overwrite=True)
            os.replace(path + ".part", path)


def main():
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", help="where the tiles go; made if missing")
    parser.add_argument("--grid", type=int, default=4, help="tiles along each side (default 4)")
    parser.add_argument("--size", type=int, default=600, help="pixels along each side of a tile (default 600)")
    parser.add_argument("--seed", type=int, default=1, help="another seed, another sky (default 1)")
    a = parser.parse_args()
    if not 2 <= a.grid or a.grid**2 > MAX_TILES:
        parser.error(f"--grid {a.grid}: give at least 2 and at most {MAX_TILES} tiles in all")
    if not 64 <= a.size <= 8192:
        parser.error(f"--size {a.size}: give 64 to 8192 pixels")
    if a.seed < 0:
        parser.error(f"--seed {a.seed}: give 0 or more")
    try:
        make_tiles(a.folder, a.grid, a.size, a.seed)
    except OSError as e:
        sys.exit(f"make_tiles.py: cannot write the tiles: {e}")


if __name__ == "__main__":
    main()
