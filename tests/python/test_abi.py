# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""The extension uses nothing that Python 3.9 does not have."""
import subprocess
import sysconfig

import pytest

from sluice import _sluice

# Not in the limited API of 3.9, but exported by 3.9 and later with the same signature.
EXTRA = {
    "PyBuffer_IsContiguous",
    "PyBuffer_Release",
    "PyBuffer_ToContiguous",
    "PyObject_GetBuffer",
    "PyUnicode_AsUTF8AndSize",
}
# Private by name, but in the stable ABI since 3.2: what macros and PY_SSIZE_T_CLEAN turn into.
UNDERSCORED = {
    "_PyArg_ParseTupleAndKeywords_SizeT",
    "_PyArg_ParseTuple_SizeT",
    "_PyObject_CallFunction_SizeT",
    "_PyObject_CallMethod_SizeT",
    "_PyObject_New",
    "_Py_BuildValue_SizeT",
    "_Py_Dealloc",
    "_Py_FalseStruct",
    "_Py_NoneStruct",
    "_Py_TrueStruct",
}
# What the limited API got after 3.9.
NEWER = {
    "PyModule_AddObjectRef",
    "PyModule_AddType",
    "PyObject_CallMethodNoArgs",
    "PyType_FromModuleAndSpec",
    "PyType_GetModuleState",
    "PyType_GetName",
    "PyType_GetQualName",
    "Py_NewRef",
    "Py_XNewRef",
    "Py_Is",
    "PyErr_GetRaisedException",
    "PyErr_SetRaisedException",
    "PyObject_Vectorcall",
    "PyVectorcall_Call",
    "PyObject_GetTypeData",
    "PyMemoryView_FromBuffer",
    "PyBuffer_FillInfo",
}


def undefined():
    try:
        out = subprocess.run(
            ["nm", "-D", "--undefined-only", _sluice.__file__],
            stdout=subprocess.PIPE,
            check=True,
            text=True,
        ).stdout
    except FileNotFoundError:
        pytest.skip("nm is not installed")
    return {line.split()[-1].split("@")[0] for line in out.splitlines()}


def test_no_newer_symbol():
    assert not undefined() & NEWER


def test_stable_abi_only():
    """Every Python symbol is in the stable ABI, or exported by 3.9 all the same."""
    symbols = {s for s in undefined() if s.startswith(("Py", "_Py"))}
    assert UNDERSCORED >= {s for s in symbols if s.startswith("_Py")}
    assert EXTRA >= {s for s in symbols if s.startswith("PyBuffer_")}


def test_name():
    assert _sluice.__file__.endswith(".abi3.so") and sysconfig.get_config_var("EXT_SUFFIX")
