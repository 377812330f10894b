/*
 * Sums: add_n of rows, most of what trees call.
 */
#pragma once

#include <algorithm>

#include "calls.h"

namespace {

/* Sums(reductions by kind, entry): the entry of add_n; asks `entry` where it is no plain sum of rows. */
struct Sums {
  PyObject_HEAD
  PyObject *reductions, *entry;
};

int SumsInit(PyObject* object, PyObject* args, PyObject*) {
  auto self = reinterpret_cast<Sums*>(object);
  if (!PyArg_ParseTuple(args, "O!O", &PyDict_Type, &self->reductions, &self->entry)) return -1;
  Py_INCREF(self->reductions);
  Py_INCREF(self->entry);
  return 0;
}

void SumsDealloc(PyObject* object) {
  Py_XDECREF(reinterpret_cast<Sums*>(object)->reductions);
  Py_XDECREF(reinterpret_cast<Sums*>(object)->entry);
  Free(object);
}

/* Whether values are like rows of this recorder, one each; how deep they are. */
bool AreRows(PyObject* calls, PyObject* const* items, Py_ssize_t n, long long* depth) {
  *depth = As(calls)->base;
  for (Py_ssize_t i = 0; i < n; ++i) {
    if (!IsOwn(calls, items[i]) || Slot(items[i], lazy.kind) != Slot(items[0], lazy.kind) ||
        Number(items[i], lazy.rows) != 1)
      return false;
    *depth = std::max(*depth, Number(items[i], lazy.depth));
  }
  return n > 0;
}

/* The sum of one row each of like values; null without an exception if it is something else.
 * `reductions` has the signature of the sum by kind. */
PyObject* SumRows(PyObject* calls, PyObject* reductions, PyObject* const* items, Py_ssize_t n) {
  long long depth;
  if (!AreRows(calls, items, n, &depth)) return nullptr;
  const bool is_outside = As(calls)->state == As(calls)->outside;
  if (n == 1) {
    // What stands for an array of the user's may be written: Python makes a value of its own.
    if (!is_outside || Slot(items[0], lazy.array) != Py_None) return nullptr;
    Py_INCREF(items[0]);
    return items[0];
  }
  PyObject* kind = Slot(items[0], lazy.kind);
  PyObject* reduction = PyDict_GetItemWithError(reductions, kind);
  if (!reduction) return nullptr;
  if (is_outside && reductions != As(calls)->sums &&
      PyDict_SetItem(As(calls)->sums, kind, reduction) < 0)
    return nullptr;
  Group* group = FindGroup(calls, reduction, depth + 1);
  if (!group) return nullptr;
  auto place = reinterpret_cast<Ints*>(PyList_GET_ITEM(group->places, 0));
  for (Py_ssize_t i = 0; i < n; ++i)
    if (!Append(place, Slot(items[i], lazy.run))) return nullptr;
  reinterpret_cast<Ints*>(group->pointers)->values->push_back(n);
  ++group->calls;
  Ref one(PyLong_FromLong(1));
  return Made(calls, group, depth + 1, one.get());
}

PyObject* SumsCall(PyObject* object, PyObject* args, PyObject*) {
  auto self = reinterpret_cast<Sums*>(object);
  PyObject *calls, *values;
  if (!PyArg_ParseTuple(args, "OO", &calls, &values)) return nullptr;
  if (PyList_CheckExact(values) || PyTuple_CheckExact(values)) {
    PyObject* found = SumRows(calls, self->reductions, PySequence_Fast_ITEMS(values),
                              PySequence_Fast_GET_SIZE(values));
    if (found || PyErr_Occurred()) return found;
  }
  return PyObject_Call(self->entry, args, nullptr);
}

PyType_Slot sums_slots[] = {{Py_tp_init, reinterpret_cast<void*>(SumsInit)},
                            {Py_tp_dealloc, reinterpret_cast<void*>(SumsDealloc)},
                            {Py_tp_call, reinterpret_cast<void*>(SumsCall)},
                            {0, nullptr}};
PyType_Spec sums_spec = {"graphopt_recording.Sums", sizeof(Sums), 0, Py_TPFLAGS_DEFAULT, sums_slots};
PyTypeObject* sums_type;

}  // namespace
