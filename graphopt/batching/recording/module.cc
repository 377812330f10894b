/*
 * The methods of graphopt.batching.calls.Calls, which every recorded operator calls, in C++.
 *
 * A batch records tens of thousands of calls; in Python each of them takes longer than the kernel needs
 * for its rows. What is rare stays in Python: these files do the frequent case and asks Python otherwise.
 * The Python class is what these functions must do.
 */
#include <utility>

#include "active.h"
#include "calls_type.h"
#include "foreign.h"
#include "typed.h"

namespace {

/* The offset of a slot of a Python class; -1 if it has none. */
Py_ssize_t OffsetOf(PyObject* type, const char* name) {
  Ref descriptor(PyObject_GetAttrString(type, name));
  if (!descriptor || Py_TYPE(descriptor.get()) != &PyMemberDescr_Type) {
    PyErr_Format(PyExc_TypeError, "%R has no slot %s", type, name);
    return -1;
  }
  return reinterpret_cast<PyMemberDescrObject*>(descriptor.get())->d_member->offset;
}

/* Whether all that instances of a Python class have are slots, its own and those of Python classes that it
 * is derived from; a class made in C (MXNet's of arrays, if it was built with Cython) has what it likes. */
bool HasOnlySlots(PyTypeObject* type) {
  if (type->tp_dictoffset || type->tp_weaklistoffset || type->tp_itemsize) return false;
  for (PyTypeObject* base = type; base != &PyBaseObject_Type; base = base->tp_base)
    if (base->tp_dealloc != type->tp_dealloc) return false;
  return true;
}

/* configure(Lazy, Signature, Unit, count_bits, start_bits): the classes this module makes and reads. */
PyObject* Configure(PyObject*, PyObject* args) {
  PyObject *lazies, *signatures, *units;
  if (!PyArg_ParseTuple(args, "OOOii", &lazies, &signatures, &units, &count_bits, &start_bits))
    return nullptr;
  lazy = {OffsetOf(lazies, "recorder"), OffsetOf(lazies, "run"),   OffsetOf(lazies, "rows"),
          OffsetOf(lazies, "kind"),     OffsetOf(lazies, "depth"), OffsetOf(lazies, "runs"),
          OffsetOf(lazies, "array")};
  signature_slots = {OffsetOf(signatures, "serial"), OffsetOf(signatures, "outs")};
  if (PyErr_Occurred()) return nullptr;
  Py_INCREF(lazies);
  Py_INCREF(units);
  lazy_type = reinterpret_cast<PyTypeObject*>(lazies);
  if (HasOnlySlots(lazy_type)) lazy_type->tp_dealloc = LazyDealloc;
  unit_type = reinterpret_cast<PyTypeObject*>(units);
  Py_RETURN_NONE;
}

PyMethodDef module_methods[] = {{"configure", Configure, METH_VARARGS, nullptr},
                                {"foreign", Foreign, METH_VARARGS, nullptr},
                                {"constant", MakeConstant, METH_VARARGS, nullptr},
                                {"ask", Ask, METH_VARARGS, nullptr},
                                {"typed", Typed, METH_O, nullptr},
                                {nullptr, nullptr, 0, nullptr}};
PyModuleDef module_definition = {PyModuleDef_HEAD_INIT, "graphopt_recording", nullptr, -1, module_methods,
                                 nullptr, nullptr, nullptr, nullptr};

bool AddType(PyObject* module, const char* name, PyType_Spec* spec, PyTypeObject** type) {
  *type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(spec));
  return *type && PyModule_AddObjectRef(module, name, reinterpret_cast<PyObject*>(*type)) == 0;
}

}  // namespace

PyMODINIT_FUNC PyInit_graphopt_recording() {
  Ref module(PyModule_Create(&module_definition));
  PyTypeObject* calls_type;
  if (!module || !AddType(module.get(), "Active", &active_spec, &active_type) ||
      !AddType(module.get(), "Ints", &ints_spec, &ints_type) ||
      !AddType(module.get(), "Group", &group_spec, &group_type) ||
      !AddType(module.get(), "Calls", &calls_spec, &calls_type) ||
      !AddType(module.get(), "Sums", &sums_spec, &sums_type))
    return nullptr;
  const std::pair<PyObject**, const char*> names[] = {
      {&name_open, "open"},        {&name_real, "real"},
      {&name_enter, "enter"},
      {&name_tag, "tag"},          {&name_value, "value"},
      {&name_signature, "signature"}, {&name_results, "results"},
      {&name_flat, "flat"},        {&name_forward_hooks, "_forward_hooks"},
      {&name_pre_hooks, "_forward_pre_hooks"}, {&name_check, "check_size"},
      {&name_tail, "tail"},        {&name_handle, "handle"}};
  for (auto [place, name] : names)
    if (!(*place = PyUnicode_InternFromString(name))) return nullptr;
  zero = PyLong_FromLong(0);
  return module.release();
}
