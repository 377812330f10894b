/*
 * Calls of child Blocks that were called before with values of the same kinds.
 */
#pragma once

#include "calls.h"

namespace {

/* An argument as rows, borrowed; null without an exception if Python has to look at it. */
PyObject* RowsOf(PyObject* self, PyObject* argument) {
  if (IsOwn(self, argument)) return argument;
  Ref id(PyLong_FromVoidPtr(argument));
  PyObject* real = id ? PyDict_GetItemWithError(As(self)->reals, id.get()) : nullptr;
  Ref rows(real ? PyObject_GetAttr(real, name_value) : nullptr);
  return rows && IsOwn(self, rows.get()) ? rows.get() : nullptr;  // `real` keeps it
}

/* A Block's Unit under the key that blocks.py makes; borrowed. */
PyObject* UnitOf(PyObject* self, PyObject* block, PyObject* const* values, Py_ssize_t n) {
  Ref key(PyTuple_New(2 + n));
  if (!key) return nullptr;
  PyTuple_SET_ITEM(key.get(), 0, PyLong_FromLongLong(As(self)->state));
  Py_INCREF(block);
  PyTuple_SET_ITEM(key.get(), 1, block);
  for (Py_ssize_t i = 0; i < n; ++i) {
    PyObject* kind = Slot(values[i], lazy.kind);
    Py_INCREF(kind);
    PyTuple_SET_ITEM(key.get(), 2 + i, kind);
  }
  return PyDict_GetItemWithError(As(self)->units, key.get());
}

/* What is known of a Block; null, perhaps without an exception, if Python has to look at the call. */
const KnownBlock* FindBlock(PyObject* self, PyObject* block, PyObject* const* values, Py_ssize_t n) {
  auto hash = reinterpret_cast<uintptr_t>(block) >> 4;
  for (Py_ssize_t i = 0; i < n; ++i)
    hash = 31 * hash + (reinterpret_cast<uintptr_t>(Slot(values[i], lazy.kind)) >> 4);
  KnownBlock& known = As(self)->recent->blocks[hash % Recent::kBlocks];
  if (known.Is(block, values, n, As(self)->state)) return &known;
  PyObject* unit = UnitOf(self, block, values, n);
  if (!unit || Py_TYPE(unit) != unit_type) return nullptr;
  Ref signature(PyObject_GetAttr(unit, name_signature)), flat(PyObject_GetAttr(unit, name_flat));
  Ref results(PyObject_GetAttr(unit, name_results)), hooks(PyObject_GetAttr(block, name_forward_hooks));
  Ref pre_hooks(PyObject_GetAttr(block, name_pre_hooks));
  if (!signature || !flat || !results || !hooks || !pre_hooks) return nullptr;
  if (flat.get() == Py_None && !PyLong_CheckExact(results.get())) return nullptr;
  if (!PyDict_Check(hooks.get()) || !PyDict_Check(pre_hooks.get())) return nullptr;
  known.Clear();
  Py_INCREF(block);
  known.block = block;
  known.count = n;
  known.state = As(self)->state;
  for (Py_ssize_t i = 0; i < n; ++i) known.kinds[i] = Slot(values[i], lazy.kind);
  known.signature = signature.release();
  known.flat = flat.release();
  known.hooks = hooks.release();
  known.pre_hooks = pre_hooks.release();
  return &known;
}

/* Records a call of a child Block; null without an exception if Python has to look at it. */
PyObject* RecordBlock(PyObject* self, PyObject* block, PyObject* const* args, Py_ssize_t n) {
  if (n == 0 || n > kMostArgs) return nullptr;
  PyObject* values[kMostArgs];  // borrowed: what they are of keeps them
  for (Py_ssize_t i = 0; i < n; ++i)
    if (!(values[i] = RowsOf(self, args[i]))) return nullptr;
  const KnownBlock* known = FindBlock(self, block, values, n);
  if (!known || PyDict_Size(known->hooks) || PyDict_Size(known->pre_hooks)) return nullptr;
  PyObject* rows = Slot(values[0], lazy.rows);
  const long long wanted = PyLong_AsLongLong(rows);
  for (Py_ssize_t i = 1; i < n; ++i)
    if (Number(values[i], lazy.rows) != wanted) return nullptr;
  Ref flat(known->flat);
  Py_INCREF(flat.get());
  Ref found(Join(self, known->signature, values, n, rows));
  if (!found) return nullptr;
  ++As(self)->calls;
  if (flat.get() == Py_None) return found.release();
  if (flat.get() == reinterpret_cast<PyObject*>(&PyTuple_Type)) return PyList_AsTuple(found.get());
  return PyObject_CallOneArg(flat.get(), found.get());
}

}  // namespace
