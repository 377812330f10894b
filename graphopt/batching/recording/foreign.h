/*
 * What stands in classes of others: indexing of Lazy, calls of Blocks, and functions of mx.nd.
 */
#pragma once

#include "active.h"
#include "blocks.h"
#include "entries.h"
#include "sums.h"

namespace {

PyObject *slow_getitem, *slow_block, *plain_block, *plain_add_n, *add_n_handle, *nothing;

/* The parts of a value of one row, as rows, if they were looked at before; borrowed. */
PyObject* PartsOf(PyObject* calls, PyObject* x) {
  Recent& recent = *As(calls)->recent;
  if (recent.whole == x) return recent.parts;
  if (Number(x, lazy.rows) != 1 || Slot(x, lazy.runs) != Py_None) return nullptr;
  Ref tail(PyObject_GetAttr(Slot(x, lazy.kind), name_tail));
  if (!tail) return nullptr;
  Ref known(PyTuple_Pack(2, Slot(x, lazy.run), tail.get()));
  PyObject* parts = known ? PyDict_GetItemWithError(As(calls)->views, known.get()) : nullptr;
  if (!parts || Py_TYPE(parts) != lazy_type || Slot(parts, lazy.runs) != Py_None) return nullptr;
  Py_INCREF(x);
  Py_XSETREF(recent.whole, x);
  Py_INCREF(parts);
  Py_XSETREF(recent.parts, parts);
  return parts;
}

bool IsAll(PyObject* key) {
  if (!PySlice_Check(key)) return false;
  auto slice = reinterpret_cast<PySliceObject*>(key);
  return slice->start == Py_None && slice->stop == Py_None && slice->step == Py_None;
}

/* x[:, at] of one row whose parts were looked at before; null without an exception otherwise. */
PyObject* Picked(PyObject* x, PyObject* key) {
  if (Py_TYPE(x) != lazy_type || !PyTuple_CheckExact(key) || PyTuple_GET_SIZE(key) != 2)
    return nullptr;
  PyObject* place = PyTuple_GET_ITEM(key, 1);
  if (!IsAll(PyTuple_GET_ITEM(key, 0)) || !PyLong_CheckExact(place)) return nullptr;
  PyObject* calls = Slot(x, lazy.recorder);
  if (calls != recorder_of_thread || As(calls)->state != As(calls)->outside) return nullptr;
  PyObject* parts = PartsOf(calls, x);
  if (!parts) return nullptr;
  int too_large;
  long long at = PyLong_AsLongLongAndOverflow(place, &too_large), count = Number(parts, lazy.rows);
  if (at < 0) at += count;
  if (too_large || at < 0 || at >= count) return nullptr;  // Python says what is wrong
  int64_t mask = (int64_t{1} << count_bits) - 1;
  int64_t run = (Number(parts, lazy.run) & ~mask) + (at << count_bits) + 1;
  Ref one(PyLong_FromLong(1));
  return NewLazy(calls, run, one.get(), Slot(parts, lazy.kind), Slot(parts, lazy.depth));
}

PyObject* LazyGetItem(PyObject* x, PyObject* const* args, Py_ssize_t count) {
  if (count != 1) return Refuse("x[key]"), nullptr;
  PyObject* found = Picked(x, args[0]);
  if (found || PyErr_Occurred()) return found;
  return PyObject_CallFunctionObjArgs(slow_getitem, x, args[0], nullptr);
}

PyObject* TupleOf(PyObject* const* items, Py_ssize_t count) {
  PyObject* made = PyTuple_New(count);
  for (Py_ssize_t i = 0; made && i < count; ++i) {
    Py_INCREF(items[i]);
    PyTuple_SET_ITEM(made, i, items[i]);
  }
  return made;
}

PyObject* BlockCall(PyObject* block, PyObject* const* args, Py_ssize_t count) {
  PyObject* calls = recorder_of_thread;  // it stays alive while it records
  if (!calls) {
    std::vector<PyObject*> all(args, args + count);
    all.insert(all.begin(), block);
    return PyObject_Vectorcall(plain_block, all.data(), all.size(), nullptr);
  }
  PyObject* found = RecordBlock(calls, block, args, count);
  if (found || PyErr_Occurred()) return found;
  Ref given(TupleOf(args, count));
  if (!given) return nullptr;
  return PyObject_CallFunctionObjArgs(slow_block, calls, block, given.get(), nullptr);
}

/* mx.nd.add_n, most of what trees call, without what MXNet's own looks at before. */
PyObject* AddN(PyObject*, PyObject* const* args, Py_ssize_t count, PyObject* keys) {
  PyObject* calls = recorder_of_thread;
  bool is_ours = calls && count && (!keys || !PyTuple_GET_SIZE(keys));
  for (Py_ssize_t i = 0; is_ours && i < count; ++i) is_ours = Py_TYPE(args[i]) == lazy_type;
  if (!is_ours) return PyObject_Vectorcall(plain_add_n, args, count, keys);
  if (As(calls)->state == As(calls)->outside) {
    PyObject* found = SumRows(calls, As(calls)->sums, args, count);
    if (found) ++As(calls)->calls;
    if (found || PyErr_Occurred()) return found;
  }
  Ref given(TupleOf(args, count));
  if (!given) return nullptr;
  PyObject* all[] = {add_n_handle, given.get(), nothing, nothing};
  return CallsCall(calls, all, 4);
}

/* mx.nd.zeros or ones of a shape alone, if they were asked for before: `self` has what stands there
 * otherwise, MXNet's function, and its default device by thread. */
PyObject* ConstantOf(PyObject* self, PyObject* const* args, Py_ssize_t count, PyObject* keys) {
  PyObject *slow = PyTuple_GET_ITEM(self, 0), *calls = recorder_of_thread;
  if (!calls || count != 1 || (keys && PyTuple_GET_SIZE(keys)) || !PyTuple_CheckExact(args[0]))
    return PyObject_Vectorcall(slow, args, count, keys);
  Ref device(PyObject_GetAttr(PyTuple_GET_ITEM(self, 2), name_value));
  if (!device) PyErr_Clear();  // this thread has none yet
  Ref id(PyLong_FromVoidPtr(device ? device.get() : Py_None));
  Ref state(PyLong_FromLongLong(As(calls)->state));
  if (!id || !state) return nullptr;
  // As hooks.py makes it.
  Ref key(PyTuple_Pack(5, PyTuple_GET_ITEM(self, 1), args[0], Py_None, id.get(), state.get()));
  if (!key) return nullptr;
  PyObject* found = PyDict_GetItemWithError(As(calls)->constants, key.get());
  if (found) {
    ++As(calls)->calls;
    Py_INCREF(found);
    return found;
  }
  PyErr_Clear();  // a shape that cannot be a key: MXNet says what is wrong
  return PyObject_Vectorcall(slow, args, count, keys);
}

template <PyObject* (*function)(PyObject*, PyObject* const*, Py_ssize_t, PyObject*)>
PyCFunction WithKeys() {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function));
}

PyMethodDef foreign_methods[] = {
    {"__getitem__", Fast<LazyGetItem>(), METH_FASTCALL, nullptr},
    {"__call__", Fast<BlockCall>(), METH_FASTCALL, nullptr},
    {"add_n", WithKeys<AddN>(), METH_FASTCALL | METH_KEYWORDS, nullptr},
    {"constant", WithKeys<ConstantOf>(), METH_FASTCALL | METH_KEYWORDS, nullptr}};

/* foreign(Lazy, get, HybridBlock, call_block, Block.__call__, add_n, its handle): methods for Lazy and
 * HybridBlock, and what stands for mx.nd.add_n. */
PyObject* Foreign(PyObject*, PyObject* args) {
  PyObject *lazies, *blocks;
  if (!PyArg_ParseTuple(args, "OOOOOOO", &lazies, &slow_getitem, &blocks, &slow_block, &plain_block,
                        &plain_add_n, &add_n_handle))
    return nullptr;
  for (PyObject* kept : {slow_getitem, slow_block, plain_block, plain_add_n, add_n_handle})
    Py_INCREF(kept);
  nothing = PyTuple_New(0);
  return Py_BuildValue(
      "NNN", PyDescr_NewMethod(reinterpret_cast<PyTypeObject*>(lazies), &foreign_methods[0]),
      PyDescr_NewMethod(reinterpret_cast<PyTypeObject*>(blocks), &foreign_methods[1]),
      PyCFunction_New(&foreign_methods[2], nullptr));
}

/* constant(function, of MXNet, default device): what stands for mx.nd.zeros or ones; see hooks.py. */
PyObject* MakeConstant(PyObject*, PyObject* args) {
  if (PyTuple_GET_SIZE(args) != 3) return Refuse("constant(function, of MXNet, device)"), nullptr;
  return PyCFunction_New(&foreign_methods[3], args);
}

}  // namespace
