/*
 * Ints: adjacent 64-bit integers.
 */
#pragma once

#include <vector>

#include "slots.h"

namespace {

struct Ints {
  PyObject_HEAD
  std::vector<int64_t>* values;
};

PyObject* IntsNew(PyTypeObject* type, PyObject*, PyObject*) {
  auto self = reinterpret_cast<Ints*>(type->tp_alloc(type, 0));
  if (self) self->values = new std::vector<int64_t>();
  return reinterpret_cast<PyObject*>(self);
}

/* Of instances of types that are made at run time. */
void Free(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  type->tp_free(self);
  Py_DECREF(type);
}

void IntsDealloc(PyObject* self) {
  delete reinterpret_cast<Ints*>(self)->values;
  Free(self);
}

bool Append(Ints* self, PyObject* number) {
  int64_t value = PyLong_AsLongLong(number);
  if (value == -1 && PyErr_Occurred()) return false;
  self->values->push_back(value);
  return true;
}

bool Extend(Ints* self, PyObject* numbers) {
  Ref fast(PySequence_Fast(numbers, "runs are a sequence"));
  if (!fast) return false;
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(fast.get()); ++i)
    if (!Append(self, PySequence_Fast_GET_ITEM(fast.get(), i))) return false;
  return true;
}

PyObject* IntsAppend(PyObject* self, PyObject* number) {
  if (!Append(reinterpret_cast<Ints*>(self), number)) return nullptr;
  Py_RETURN_NONE;
}

PyObject* IntsExtend(PyObject* self, PyObject* numbers) {
  if (!Extend(reinterpret_cast<Ints*>(self), numbers)) return nullptr;
  Py_RETURN_NONE;
}

PyObject* IntsToBytes(PyObject* self, PyObject*) {
  const auto& values = *reinterpret_cast<Ints*>(self)->values;
  return PyBytes_FromStringAndSize(reinterpret_cast<const char*>(values.data()),
                                   values.size() * sizeof(int64_t));
}

Py_ssize_t IntsLength(PyObject* self) { return reinterpret_cast<Ints*>(self)->values->size(); }

PyObject* IntsItem(PyObject* self, Py_ssize_t at) {
  const auto& values = *reinterpret_cast<Ints*>(self)->values;
  if (at < 0 || at >= static_cast<Py_ssize_t>(values.size())) {
    PyErr_SetString(PyExc_IndexError, "there are fewer numbers");
    return nullptr;
  }
  return PyLong_FromLongLong(values[at]);
}

/* The numbers themselves: numpy keeps the object, and looks when no more is added. */
int IntsBuffer(PyObject* self, Py_buffer* view, int flags) {
  auto& values = *reinterpret_cast<Ints*>(self)->values;
  return PyBuffer_FillInfo(view, self, values.data(), values.size() * sizeof(int64_t), 1, flags);
}

PyMethodDef ints_methods[] = {
    {"append", IntsAppend, METH_O, "Add a number."},
    {"extend", IntsExtend, METH_O, "Add the numbers of a sequence."},
    {"tobytes", IntsToBytes, METH_NOARGS, "The numbers as they lie in memory."},
    {nullptr, nullptr, 0, nullptr}};

PyType_Slot ints_slots[] = {{Py_tp_new, reinterpret_cast<void*>(IntsNew)},
                            {Py_tp_dealloc, reinterpret_cast<void*>(IntsDealloc)},
                            {Py_tp_methods, ints_methods},
                            {Py_sq_length, reinterpret_cast<void*>(IntsLength)},
                            {Py_sq_item, reinterpret_cast<void*>(IntsItem)},
                            {Py_bf_getbuffer, reinterpret_cast<void*>(IntsBuffer)},
                            {0, nullptr}};
PyType_Spec ints_spec = {"graphopt_recording.Ints", sizeof(Ints), 0, Py_TPFLAGS_DEFAULT,
                         ints_slots};
PyTypeObject* ints_type;

}  // namespace
