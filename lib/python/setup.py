# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""One extension, sluice._sluice: the module and the library, compiled together.

The limited API makes one wheel for Python 3.9 and newer.
"""
import glob
import os
import re

from setuptools import Extension, setup

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


setup(
    version=version(),
    ext_modules=[
        Extension(
            "sluice._sluice",
            sources=sorted(glob.glob("src/*.c")) + sorted(glob.glob(LIB + "/*.c")),
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
