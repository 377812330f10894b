/*
 * What this module reads of Python's objects: slots of its classes, by their offsets.
 */
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

#include <cstdint>

namespace {

/* Bits of a packed run, as graphopt/batching/runs.py has them. */
int count_bits, start_bits;
constexpr int kDepthBits = 24;

int StoreShift() { return count_bits + start_bits; }

/* A reference that is given back. */
class Ref {
 public:
  explicit Ref(PyObject* object = nullptr) : object_(object) {}
  Ref(const Ref&) = delete;
  Ref& operator=(const Ref&) = delete;
  ~Ref() { Py_XDECREF(object_); }
  PyObject* get() const { return object_; }
  PyObject* release() {
    PyObject* object = object_;
    object_ = nullptr;
    return object;
  }
  explicit operator bool() const { return object_ != nullptr; }

 private:
  PyObject* object_;
};

/* Where the slots of a Python class lie in its instances. */
struct LazySlots {
  Py_ssize_t recorder, run, rows, kind, depth, runs, array;
};
struct SignatureSlots {
  Py_ssize_t serial, outs;
};

PyTypeObject *lazy_type, *unit_type;
LazySlots lazy;
SignatureSlots signature_slots;
PyObject *name_open, *name_real, *name_enter, *name_tag, *name_value, *name_signature,
    *name_results, *name_flat, *name_forward_hooks, *name_pre_hooks, *name_check, *name_tail, *name_handle, *zero;

/* Of a METH_FASTCALL method. */
template <PyObject* (*function)(PyObject*, PyObject* const*, Py_ssize_t)>
PyCFunction Fast() {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function));
}

PyObject*& Slot(PyObject* object, Py_ssize_t offset) {
  return *reinterpret_cast<PyObject**>(reinterpret_cast<char*>(object) + offset);
}

/* In place of what Python makes of a class with __del__: thousands of Lazy values die in every batch, and
 * have nothing to free but what they refer to. */
void LazyDealloc(PyObject* object) {
  PyTypeObject* type = Py_TYPE(object);
  PyObject_GC_UnTrack(object);
  const Py_ssize_t begin = sizeof(PyObject), end = lazy_type->tp_basicsize;
  for (Py_ssize_t slot = begin; slot < end; slot += sizeof(PyObject*)) Py_CLEAR(Slot(object, slot));
  type->tp_free(object);
  Py_DECREF(type);
}

}  // namespace
