#!/usr/bin/env python3
"""Extracts C++ headers and licences from Python wheels without downloading the libraries in them.

    wheel_headers.py PIP DIRECTORY PACKAGE...

PIP is the pip program that finds the wheels. Headers go to DIRECTORY/include, licences to
DIRECTORY/licences/PACKAGE.
"""

import io
import json
import pathlib
import shutil
import subprocess
import sys
import urllib.request
import zipfile

PIECE = 1 << 18  # bytes per request: a zip's directory takes one or two


class RemoteFile(io.RawIOBase):
    """A file on a web server that supports range requests."""

    def __init__(self, url):
        super().__init__()
        self.url, self.position = url, 0
        with urllib.request.urlopen(urllib.request.Request(url, method="HEAD")) as answer:
            self.size = int(answer.headers["Content-Length"])

    def readable(self):
        return True

    def seekable(self):
        return True

    def tell(self):
        return self.position

    def seek(self, offset, whence=io.SEEK_SET):
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self.position, io.SEEK_END: self.size}[whence]
        self.position = start + offset
        return self.position

    def readinto(self, buffer):
        end = min(self.position + len(buffer), self.size)
        if end <= self.position:
            return 0
        wanted = {"Range": f"bytes={self.position}-{end - 1}"}
        with urllib.request.urlopen(urllib.request.Request(self.url, headers=wanted)) as answer:
            if answer.status != 206:
                raise OSError(f"{self.url}: the server gives no pieces of it")
            data = answer.read()
        buffer[:len(data)] = data
        self.position += len(data)
        return len(data)


def open_wheel(url):
    if url.startswith("file:"):
        return urllib.request.urlopen(url)
    return io.BufferedReader(RemoteFile(url), PIECE)


def wheels(pip, packages):
    """The name and address of each package's wheel."""
    report = subprocess.run(
        [pip, "install", "--dry-run", "--no-deps", "--ignore-installed", "--quiet", "--quiet",
         "--disable-pip-version-check", "--report", "-", *packages],
        check=True, stdout=subprocess.PIPE).stdout
    for found in json.loads(report)["install"]:
        yield found["metadata"]["name"], found["download_info"]["url"]


def extract(wheel, name, directory):
    for member in wheel.namelist():
        _, include, header = f"/{member}".partition("/include/")
        if include and not member.endswith("/"):
            target = directory / "include" / header
        elif ".dist-info/" in member and "license" in pathlib.PurePath(member).name.lower():
            target = directory / "licences" / name
        else:
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        with wheel.open(member) as source, open(target, "wb") as to:
            shutil.copyfileobj(source, to)


def main():
    pip, directory, *packages = sys.argv[1:]
    for name, url in wheels(pip, packages):
        with open_wheel(url) as file, zipfile.ZipFile(file) as wheel:
            extract(wheel, name, pathlib.Path(directory))


if __name__ == "__main__":
    main()
