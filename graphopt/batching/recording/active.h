/*
 * Active: the recorder of each thread, None where nothing is recorded.
 */
#pragma once

#include "slots.h"

namespace {

thread_local PyObject* recorder_of_thread = nullptr;  // null: None

PyObject* ActiveGet(PyObject*, void*) {
  PyObject* found = recorder_of_thread ? recorder_of_thread : Py_None;
  Py_INCREF(found);
  return found;
}

int ActiveSet(PyObject*, PyObject* recorder, void*) {
  PyObject* before = recorder_of_thread;
  recorder_of_thread = recorder == Py_None ? nullptr : recorder;
  Py_XINCREF(recorder_of_thread);
  Py_XDECREF(before);
  return 0;
}

PyGetSetDef active_values[] = {{"recorder", ActiveGet, ActiveSet, nullptr, nullptr},
                               {nullptr, nullptr, nullptr, nullptr, nullptr}};
PyType_Slot active_slots[] = {{Py_tp_getset, active_values}, {0, nullptr}};
PyType_Spec active_spec = {"graphopt_recording.Active", sizeof(PyObject), 0, Py_TPFLAGS_DEFAULT,
                           active_slots};
PyTypeObject* active_type;

}  // namespace
