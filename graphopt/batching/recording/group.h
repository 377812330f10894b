/*
 * Group: calls that are alike, at one depth; graphopt/batching/calls.py says what of.
 */
#pragma once

#include "ints.h"

namespace {

struct Group {
  PyObject_HEAD
  PyObject *signature, *places, *pointers;
  long long depth, store, base, total, calls;
};

int GroupInit(PyObject* object, PyObject* args, PyObject*) {
  auto self = reinterpret_cast<Group*>(object);
  PyObject* signature;
  if (!PyArg_ParseTuple(args, "OLL", &signature, &self->depth, &self->store)) return -1;
  Py_INCREF(signature);
  self->signature = signature;
  self->base = self->store << StoreShift();
  self->total = self->calls = 0;
  Ref inputs(PyObject_GetAttrString(signature, "inputs"));
  if (!inputs) return -1;
  Py_ssize_t count = PyLong_AsSsize_t(inputs.get());
  if (count < 0) return -1;
  self->places = PyList_New(count);
  if (!self->places) return -1;
  for (Py_ssize_t i = 0; i < count; ++i) {
    PyObject* place = IntsNew(ints_type, nullptr, nullptr);
    if (!place) return -1;
    PyList_SET_ITEM(self->places, i, place);
  }
  self->pointers = IntsNew(ints_type, nullptr, nullptr);
  return self->pointers ? 0 : -1;
}

void GroupDealloc(PyObject* object) {
  auto self = reinterpret_cast<Group*>(object);
  Py_XDECREF(self->signature);
  Py_XDECREF(self->places);
  Py_XDECREF(self->pointers);
  Free(object);
}

PyMemberDef group_members[] = {
    {"signature", T_OBJECT_EX, offsetof(Group, signature), READONLY, nullptr},
    {"places", T_OBJECT_EX, offsetof(Group, places), READONLY, nullptr},
    {"pointers", T_OBJECT_EX, offsetof(Group, pointers), READONLY, nullptr},
    {"depth", T_LONGLONG, offsetof(Group, depth), READONLY, nullptr},
    {"store", T_LONGLONG, offsetof(Group, store), READONLY, nullptr},
    {"base", T_LONGLONG, offsetof(Group, base), READONLY, nullptr},
    {"total", T_LONGLONG, offsetof(Group, total), 0, nullptr},
    {"calls", T_LONGLONG, offsetof(Group, calls), 0, nullptr},
    {nullptr, 0, 0, 0, nullptr}};

PyType_Slot group_slots[] = {{Py_tp_init, reinterpret_cast<void*>(GroupInit)},
                             {Py_tp_dealloc, reinterpret_cast<void*>(GroupDealloc)},
                             {Py_tp_members, group_members},
                             {0, nullptr}};
PyType_Spec group_spec = {"graphopt_recording.Group", sizeof(Group), 0, Py_TPFLAGS_DEFAULT,
                          group_slots};
PyTypeObject* group_type;

}  // namespace
