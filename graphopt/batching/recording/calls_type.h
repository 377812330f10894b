/*
 * The Python class Calls.
 */
#pragma once

#include "blocks.h"
#include "entries.h"

namespace {

PyObject* CallsReset(PyObject* self, PyObject*) {
  As(self)->recent->Clear();
  Py_RETURN_NONE;
}

PyMethodDef calls_methods[] = {
    {"join", Fast<CallsJoin>(), METH_FASTCALL, nullptr},
    {"unary", Fast<CallsUnary>(), METH_FASTCALL, nullptr},
    {"view", Fast<CallsView>(), METH_FASTCALL, nullptr},
    {"reduce", Fast<CallsReduce>(), METH_FASTCALL, nullptr},
    {"made", Fast<CallsMade>(), METH_FASTCALL, nullptr},
    {"call", Fast<CallsCall>(), METH_FASTCALL, nullptr},
    {"reset", CallsReset, METH_NOARGS, nullptr},
    {nullptr, nullptr, 0, nullptr}};

PyMemberDef calls_members[] = {
    {"groups", T_OBJECT_EX, offsetof(Calls, groups), 0, nullptr},
    {"entries", T_OBJECT_EX, offsetof(Calls, entries), 0, nullptr},
    {"units", T_OBJECT_EX, offsetof(Calls, units), 0, nullptr},
    {"reals", T_OBJECT_EX, offsetof(Calls, reals), 0, nullptr},
    {"views", T_OBJECT_EX, offsetof(Calls, views), 0, nullptr},
    {"constants", T_OBJECT_EX, offsetof(Calls, constants), 0, nullptr},
    {"sums", T_OBJECT_EX, offsetof(Calls, sums), 0, nullptr},
    {"state", T_LONGLONG, offsetof(Calls, state), 0, nullptr},
    {"outside", T_LONGLONG, offsetof(Calls, outside), 0, nullptr},
    {"base", T_LONGLONG, offsetof(Calls, base), 0, nullptr},
    {"calls", T_LONGLONG, offsetof(Calls, calls), 0, nullptr},
    {nullptr, 0, 0, 0, nullptr}};

PyType_Slot calls_slots[] = {{Py_tp_new, reinterpret_cast<void*>(CallsNew)},
                             {Py_tp_dealloc, reinterpret_cast<void*>(CallsDealloc)},
                             {Py_tp_traverse, reinterpret_cast<void*>(CallsTraverse)},
                             {Py_tp_clear, reinterpret_cast<void*>(CallsClear)},
                             {Py_tp_methods, calls_methods},
                             {Py_tp_members, calls_members},
                             {0, nullptr}};
PyType_Spec calls_spec = {"graphopt_recording.Calls", sizeof(Calls), 0,
                          Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
                          calls_slots};

}  // namespace
