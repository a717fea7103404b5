"""Recognises files that are not what their name says, and names the remedy."""

from __future__ import annotations

import re
from pathlib import Path

_UPLOAD = "take an upload in safetensors format: the 4-bit or 8-bit one of mlx-community, or the vendor's"
_WEB_PAGE = re.compile(rb"(?:\xef\xbb\xbf)?\s{0,100}(?:<!doctype\s+html|<html|<\?xml|<head|<body)", re.IGNORECASE)
_LFS_POINTER = re.compile(rb"version https?://[\w.-]+/spec/v1\s")

_BY_START = (
    (b"GGUF", f"is a GGUF file, the format of llama.cpp; {_UPLOAD}"),
    (b"\x93NUMPY", f"is a NumPy file; {_UPLOAD}"),
    (b"PK\x03\x04", f"is a zip archive, as PyTorch and NumPy write them; {_UPLOAD}"),
    (b"\x80\x02", f"is a Python pickle, as PyTorch writes them; {_UPLOAD}"),
    (b"\x1f\x8b", "is compressed with gzip; unpack it"),
    (b"(\xb5/\xfd", "is compressed with zstd; unpack it"),
    (b"\x00\x05\x16\x07", "is an AppleDouble file, which contains macOS attributes and no data; delete it"),
)  # fmt: skip

_BY_SUFFIX = {
    ".gguf": f"is a GGUF file, the format of llama.cpp; {_UPLOAD}",
    ".ggml": f"is a GGML file, an old format of llama.cpp; {_UPLOAD}",
    ".npz": f"is a NumPy archive, an old format of MLX; {_UPLOAD}",
    ".npy": f"is a NumPy file; {_UPLOAD}",
    ".bin": f"contains PyTorch weights, a Python pickle; {_UPLOAD}",
    ".pth": f"contains PyTorch weights, a Python pickle; {_UPLOAD}",
    ".pt": f"contains PyTorch weights, a Python pickle; {_UPLOAD}",
    ".ckpt": f"contains PyTorch weights, a Python pickle; {_UPLOAD}",
    ".pkl": f"is a Python pickle; {_UPLOAD}",
    ".onnx": f"is an ONNX model; {_UPLOAD}",
    ".h5": f"contains TensorFlow weights; {_UPLOAD}",
    ".msgpack": f"contains Flax weights; {_UPLOAD}",
    ".mlmodel": f"is a Core ML model; {_UPLOAD}",
    ".mlpackage": f"is a Core ML model; {_UPLOAD}",
    ".tflite": f"is a TensorFlow Lite model; {_UPLOAD}",
    ".zip": "is an archive; unpack it and give the checkpoint's directory",
    ".tar": "is an archive; unpack it and give the checkpoint's directory",
    ".gz": "is compressed; unpack it and give the checkpoint's directory",
    ".incomplete": "is an incomplete download; download it again",
    ".part": "is an incomplete download; download it again",
    ".crdownload": "is an incomplete download; download it again",
}


def foreign_content(start: bytes) -> str | None:
    """What a file is, judged by its first bytes, and the remedy, as the end of an error; None if unremarkable."""
    head = start[:1024]
    if _LFS_POINTER.match(head):
        return "this is a Git LFS pointer, not the file itself: run git lfs pull in the folder of the clone"
    if _WEB_PAGE.match(head):
        return "is a web page: the download saved an error page or a login page; download the file again"
    for magic, meaning in _BY_START:
        if head.startswith(magic):
            return meaning
    if len(head) >= 16 and not any(head):
        return "contains only zero bytes: the download or the copy is incomplete; download the file again"
    return None


def foreign_name(name: str) -> str | None:
    """What a file is, judged by its name, and the remedy; None if unremarkable."""
    if is_apple_double(name):
        return "is an AppleDouble file, which contains macOS attributes and no data; give the file without the ._"
    return _BY_SUFFIX.get(Path(name).suffix.lower())


def is_apple_double(name: str) -> bool:
    """Whether this is an AppleDouble file, which macOS writes beside another file."""
    return name.startswith("._")
