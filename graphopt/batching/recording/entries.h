/*
 * Calls of operators of MXNet: what was found for arguments of the same kinds.
 */
#pragma once

#include "calls.h"

namespace {

/* What stands for an argument in keys; a new reference. */
PyObject* Tag(PyObject* self, PyObject* argument) {
  if (IsOwn(self, argument)) {
    PyObject* kind = Slot(argument, lazy.kind);
    Py_INCREF(kind);
    return kind;
  }
  Ref real(PyObject_CallMethodObjArgs(self, name_real, argument, nullptr));
  return real ? PyObject_GetAttr(real.get(), name_tag) : nullptr;
}

/* The entry for an operator, a new reference; null without an exception if Python is to find it. */
PyObject* FindEntry(PyObject* self, PyObject* operator_, PyObject* args, PyObject* keys,
                    PyObject* vals) {
  for (PyObject* list : {args, keys, vals})
    if (!PyList_CheckExact(list) && !PyTuple_CheckExact(list)) return nullptr;
  Py_ssize_t n = PySequence_Fast_GET_SIZE(args), k = PySequence_Fast_GET_SIZE(keys);
  if (PySequence_Fast_GET_SIZE(vals) != k) return nullptr;
  Ref key(PyTuple_New(2 + n + 2 * k));
  if (!key) return nullptr;
  Py_ssize_t at = 0;
  auto put = [&](PyObject* item) { PyTuple_SET_ITEM(key.get(), at++, item); };
  put(PyLong_FromLongLong(As(self)->state));
  Py_INCREF(operator_);
  put(operator_);
  for (Py_ssize_t i = 0; i < n; ++i) {
    PyObject* tag = Tag(self, PySequence_Fast_GET_ITEM(args, i));
    if (!tag) return nullptr;
    put(tag);
  }
  for (PyObject* list : {keys, vals})
    for (Py_ssize_t i = 0; i < k; ++i) {
      PyObject* item = PySequence_Fast_GET_ITEM(list, i);
      // 0 and -0.0 are equal keys, but not equal numbers: Python knows what to do.
      if (list == vals && (PyFloat_CheckExact(item) || PyLong_CheckExact(item)) &&
          PyObject_RichCompareBool(item, zero, Py_EQ) != 0)
        return nullptr;
      Py_INCREF(item);
      put(item);
    }
  PyObject* found = PyDict_GetItemWithError(As(self)->entries, key.get());
  if (!found) PyErr_Clear();  // a list among the attributes
  Py_XINCREF(found);
  return found;
}

PyObject* CallsCall(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  if (count != 4) return Refuse("call(operator, args, keys, vals)"), nullptr;
  PyObject* found = FindEntry(self, args[0], args[1], args[2], args[3]);
  if (!found) {
    if (PyErr_Occurred()) return nullptr;
    found = PyObject_CallMethodObjArgs(self, name_enter, args[0], args[1], args[2], args[3],
                                       nullptr);
  }
  Ref entry(found);
  if (!entry) return nullptr;
  ++As(self)->calls;
  PyObject* given[] = {self, args[1]};
  return PyObject_Vectorcall(entry.get(), given, 2, nullptr);
}

}  // namespace
