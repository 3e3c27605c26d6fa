"""Read the features of image regions from one file per image, as bottom-up attention exports them.

- NUMBER.npz with the array ``x`` or ``features``, as MCAN's authors distribute them;
- NUMBER.npy with one array.

The array is (regions, width) or (width, regions); other arrays, such as the boxes, are not read.
NUMBER is the image's number in COCO, which a name may end with: COCO_val2014_000000000042.jpg.npz.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from steps.errors import PrepError

ARRAYS = ("x", "features")
_NUMBER = re.compile(r"(\d+)(?:\.(?:jpg|png))?$")


@dataclass(frozen=True)
class RegionFiles:
    """The files of all images in a folder, and in folders within it."""

    folder: Path
    paths: dict[int, Path]  # number of the image → file
    width: int
    most: int  # regions that are kept of an image, the first ones

    @classmethod
    def find(cls, folder: Path, width: int, most: int) -> RegionFiles:
        """Find the files; raises if there are none, or two for one image."""
        paths: dict[int, Path] = {}
        for path in sorted(folder.rglob("*.np[yz]")):
            match = _NUMBER.search(path.stem)
            if match is None:
                continue
            number = int(match[1])
            if number in paths:
                raise PrepError(f"{path} and {paths[number]} are features of the same image")
            paths[number] = path
        if not paths:
            raise PrepError(f"{folder} has no files NUMBER.npz or NUMBER.npy")
        return cls(folder, paths, width, most)

    def require(self, images: set[int]) -> None:
        """Raise unless all images have a file."""
        missing = sorted(images - self.paths.keys())
        if missing:
            raise PrepError(
                f"{self.folder} lacks the features of {len(missing)} of {len(images)} images, "
                f"such as {missing[0]}"
            )

    def description(self) -> dict[str, int]:
        """Number and size of the files, by which the manifest notices that they have changed."""
        return {
            "files": len(self.paths),
            "bytes": sum(path.stat().st_size for path in self.paths.values()),
        }

    def __call__(self, image: int) -> np.ndarray:
        """Return the features of an image, (regions, width)."""
        path = self.paths[image]
        x = _read(path)
        if x.ndim == 2 and x.shape[1] != self.width and x.shape[0] == self.width:
            x = x.T
        if x.ndim != 2 or x.shape[1] != self.width or not len(x) or x.dtype.kind != "f":
            raise PrepError(
                f"{path} has an array {x.dtype} {x.shape} instead of numbers (regions, "
                f"{self.width}); give its width as --width"
            )
        return x[: self.most]


def _read(path: Path) -> np.ndarray:
    try:
        content = np.load(path, allow_pickle=False)
        if isinstance(content, np.ndarray):
            return content
        with content:
            name = next((name for name in ARRAYS if name in content.files), None)
            if name is not None:
                return content[name]
    except Exception as error:  # a damaged archive raises errors of any kind
        raise PrepError(f"{path} is damaged, or holds objects: {type(error).__name__}") from None
    raise PrepError(f"{path} has none of the arrays {', '.join(ARRAYS)}")
