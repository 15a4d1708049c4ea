# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""One extension, sluice._sluice: the module and the library, compiled together.

The limited API makes one wheel for Python 3.9 and newer.
"""
import glob
import os
import re
import subprocess

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import PlatformError

os.chdir(os.path.dirname(os.path.abspath(__file__)))
LIB = ".."
# What building leaves behind goes where everything else goes.
OUT = os.path.join(LIB, "..", "build", "pip")
os.makedirs(OUT, exist_ok=True)


def version():
    with open(os.path.join(LIB, "include", "sluice.h")) as f:
        text = f.read()
    return ".".join(
        re.search(r"#define SLUICE_VERSION_%s\s+(\d+)" % part, text).group(1)
        for part in ("MAJOR", "MINOR", "PATCH")
    )


def uring():
    """The archive where there is one: the wheel then needs no liburing on the target."""
    for d in ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib"):
        if os.path.exists(os.path.join(d, "liburing.a")):
            return ["-l:liburing.a"]
    return ["-luring"]


NEEDS = (
    (None, "a C compiler", "gcc libc6-dev", "gcc glibc-devel"),
    ("stdio.h", "the headers of the C library", "libc6-dev", "glibc-devel"),
    ("Python.h", "the headers of this Python", "python3-dev", "python3-devel"),
    ("liburing.h", "the headers of liburing", "liburing-dev", "liburing-devel"),
)


class Build(build_ext):
    """Says what is missing before a compiler does."""

    def build_extensions(self):
        dirs = ["-I" + d for d in self.compiler.include_dirs + self.extensions[0].include_dirs]
        for header, what, debian, fedora in NEEDS:
            include = ["-include", header] if header else []
            command = [self.compiler.compiler[0], "-E", *dirs, *include, "-x", "c", os.devnull]
            try:
                ok = not subprocess.run(command, capture_output=True).returncode
            except OSError:
                ok = False
            if not ok:
                raise PlatformError(
                    "building sluice needs %s: apt-get install %s (Fedora: dnf install %s)"
                    % (what, debian, fedora)
                )
        super().build_extensions()


setup(
    cmdclass={"build_ext": Build},
    version=version(),
    ext_modules=[
        Extension(
            "sluice._sluice",
            sources=sorted(glob.glob("src/*.c")) + sorted(glob.glob(LIB + "/*.c")),
            depends=[h for d in ("src", LIB, LIB + "/include") for h in glob.glob(d + "/*.h")],
            include_dirs=[LIB + "/include", LIB, LIB + "/../kmod/uapi"],
            define_macros=[("_GNU_SOURCE", None)],
            extra_compile_args=["-std=gnu11", "-O2", "-fvisibility=hidden"],
            extra_link_args=["-pthread", "-ldl"] + uring(),
            py_limited_api=True,
        )
    ],
    options={
        "bdist_wheel": {"py_limited_api": "cp39"},
        "build": {"build_base": OUT},
        "egg_info": {"egg_base": OUT},
    },
)
