/*
 * What MXNet says of real arrays.
 */
#pragma once

#include "slots.h"

namespace {

/* Functions of MXNet's library; each returns 0 if it went well. */
int (*shape_of)(void*, int*, const int**);
int (*dtype_of)(void*, int*);
int (*device_of)(void*, int*, int*);
PyObject *kinds_by_codes, *slow_typed;

/* (shape, kind) of a real array of at least one axis, as kinds.py finds them. */
PyObject* Typed(PyObject*, PyObject* array) {
  Ref handle(PyObject_GetAttr(array, name_handle));
  Ref number(handle ? PyObject_GetAttr(handle.get(), name_value) : nullptr);
  if (!number) return nullptr;
  void* address = PyLong_AsVoidPtr(number.get());
  if (!address && PyErr_Occurred()) return nullptr;
  int rank, dtype, device, which;
  const int* extents;
  if (shape_of(address, &rank, &extents) || dtype_of(address, &dtype) ||
      device_of(address, &device, &which) || rank < 1)
    return PyObject_CallOneArg(slow_typed, array);  // which says what is wrong
  Ref shape(PyTuple_New(rank)), tail(PyTuple_New(rank - 1));
  for (int axis = 0; shape && tail && axis < rank; ++axis) {
    PyTuple_SET_ITEM(shape.get(), axis, PyLong_FromLong(extents[axis]));
    if (axis) PyTuple_SET_ITEM(tail.get(), axis - 1, PyLong_FromLong(extents[axis]));
  }
  Ref key(Py_BuildValue("(Oiii)", tail.get(), dtype, device, which));
  PyObject* kind = key ? PyDict_GetItemWithError(kinds_by_codes, key.get()) : nullptr;
  if (!kind) return PyErr_Occurred() ? nullptr : PyObject_CallOneArg(slow_typed, array);
  return PyTuple_Pack(2, shape.get(), kind);
}

/* ask(addresses of MXNDArrayGetShapeEx, ...GetDType, ...GetContext, kinds by codes, kinds.typed) */
PyObject* Ask(PyObject*, PyObject* args) {
  unsigned long long shape, dtype, device;
  if (!PyArg_ParseTuple(args, "KKKOO", &shape, &dtype, &device, &kinds_by_codes, &slow_typed))
    return nullptr;
  Py_INCREF(kinds_by_codes);
  Py_INCREF(slow_typed);
  shape_of = reinterpret_cast<decltype(shape_of)>(shape);
  dtype_of = reinterpret_cast<decltype(dtype_of)>(dtype);
  device_of = reinterpret_cast<decltype(device_of)>(device);
  Py_RETURN_NONE;
}

}  // namespace
