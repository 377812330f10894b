/*
 * The methods of graphopt.batching.calls.Calls, which every recorded operator calls, in C++.
 *
 * A batch records tens of thousands of calls; in Python each of them takes longer than the kernel needs
 * for its rows. What is rare stays in Python: this file does the frequent case and asks Python otherwise.
 * The Python class is what these functions must do.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

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
    *name_results, *name_flat, *name_forward_hooks, *name_pre_hooks, *name_check, *name_recorder, *name_tail, *zero;

PyObject*& Slot(PyObject* object, Py_ssize_t offset) {
  return *reinterpret_cast<PyObject**>(reinterpret_cast<char*>(object) + offset);
}

/* ---- Ints: adjacent 64-bit integers ---- */

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

/* ---- Group ---- */

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

/* ---- Calls ---- */

struct Calls {
  PyObject_HEAD
  PyObject *groups, *entries, *units, *reals, *views;
  long long state, outside, base, calls;
};

Calls* As(PyObject* self) { return reinterpret_cast<Calls*>(self); }

PyObject* CallsNew(PyTypeObject* type, PyObject*, PyObject*) {
  PyObject* self = type->tp_alloc(type, 0);
  if (!self) return nullptr;
  As(self)->groups = PyDict_New();
  As(self)->reals = PyDict_New();
  As(self)->entries = PyDict_New();
  As(self)->units = PyDict_New();
  As(self)->views = PyDict_New();
  return self;
}

int CallsTraverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(As(self)->groups);
  Py_VISIT(As(self)->entries);
  Py_VISIT(As(self)->units);
  Py_VISIT(As(self)->reals);
  Py_VISIT(As(self)->views);
  return 0;
}

int CallsClear(PyObject* self) {
  Py_CLEAR(As(self)->groups);
  Py_CLEAR(As(self)->entries);
  Py_CLEAR(As(self)->units);
  Py_CLEAR(As(self)->reals);
  Py_CLEAR(As(self)->views);
  return 0;
}

void CallsDealloc(PyObject* self) {
  PyObject_GC_UnTrack(self);
  CallsClear(self);
  Free(self);
}

bool IsOwn(PyObject* self, PyObject* value) {
  return Py_TYPE(value) == lazy_type && Slot(value, lazy.recorder) == self;
}

long long Number(PyObject* value, Py_ssize_t slot) {
  return PyLong_AsLongLong(Slot(value, slot));
}

PyObject* NewLazy(PyObject* self, int64_t run, PyObject* rows, PyObject* kind, PyObject* depth) {
  Ref made(lazy_type->tp_alloc(lazy_type, 0));
  if (!made) return nullptr;
  PyObject* number = PyLong_FromLongLong(run);
  if (!number) return nullptr;
  auto put = [&](Py_ssize_t slot, PyObject* value) {
    Py_INCREF(value);
    Slot(made.get(), slot) = value;
  };
  Slot(made.get(), lazy.run) = number;
  put(lazy.recorder, self);
  put(lazy.rows, rows);
  put(lazy.kind, kind);
  put(lazy.depth, depth);
  put(lazy.runs, Py_None);
  put(lazy.array, Py_None);
  return made.release();
}

/* The group of a signature at a depth; borrowed. */
Group* FindGroup(PyObject* self, PyObject* signature, long long depth) {
  long long serial = PyLong_AsLongLong(Slot(signature, signature_slots.serial));
  Ref key(PyLong_FromLongLong(serial << kDepthBits | depth));
  if (!key) return nullptr;
  PyObject* found = PyDict_GetItemWithError(As(self)->groups, key.get());
  if (!found && !PyErr_Occurred()) {
    Ref number(PyLong_FromLongLong(depth));
    // The dictionary keeps it.
    Ref opened(PyObject_CallMethodObjArgs(self, name_open, signature, number.get(), nullptr));
    found = opened.get();
    if (found && Py_TYPE(found) != group_type) {
      PyErr_SetString(PyExc_TypeError, "open() returned no Group");
      return nullptr;
    }
  }
  return reinterpret_cast<Group*>(found);
}

/* The outputs of the call that was added last. */
PyObject* Made(PyObject* self, Group* group, long long depth, PyObject* rows) {
  long long count = PyLong_AsLongLong(rows), total = group->total;
  group->total = total + count;
  if (group->total >> start_bits || count >> count_bits) {
    Ref refused(PyObject_CallMethodObjArgs(self, name_check, reinterpret_cast<PyObject*>(group),
                                           rows, nullptr));
    if (!refused) return nullptr;
  }
  PyObject* outs = Slot(group->signature, signature_slots.outs);
  Ref number(PyLong_FromLongLong(depth));
  int64_t run = group->base + (total << count_bits) + count;
  Py_ssize_t n = PyTuple_GET_SIZE(outs);
  if (n == 1) return NewLazy(self, run, rows, PyTuple_GET_ITEM(outs, 0), number.get());
  Ref list(PyList_New(n));
  for (Py_ssize_t i = 0; list && i < n; ++i) {
    PyObject* made = NewLazy(self, run + (static_cast<int64_t>(i) << StoreShift()), rows,
                             PyTuple_GET_ITEM(outs, i), number.get());
    if (!made) return nullptr;
    PyList_SET_ITEM(list.get(), i, made);
  }
  return list.release();
}

bool AddRuns(Ints* place, PyObject* value) {
  PyObject* runs = Slot(value, lazy.runs);
  return runs == Py_None ? Append(place, Slot(value, lazy.run)) : Extend(place, runs);
}

PyObject* Join(PyObject* self, PyObject* signature, PyObject* const* args, Py_ssize_t count,
               PyObject* rows) {
  long long depth = As(self)->base, wanted = PyLong_AsLongLong(rows);
  for (Py_ssize_t i = 0; i < count; ++i) depth = std::max(depth, Number(args[i], lazy.depth));
  ++depth;
  Group* group = FindGroup(self, signature, depth);
  if (!group) return nullptr;
  Py_ssize_t places = std::min(count, PyList_GET_SIZE(group->places));
  for (Py_ssize_t i = 0; i < places; ++i) {
    auto place = reinterpret_cast<Ints*>(PyList_GET_ITEM(group->places, i));
    if (Number(args[i], lazy.rows) == wanted) {
      if (!AddRuns(place, args[i])) return nullptr;
    } else {
      place->values->insert(place->values->end(), wanted, Number(args[i], lazy.run));
    }
  }
  ++group->calls;
  return Made(self, group, depth, rows);
}

bool Refuse(const char* what) {
  PyErr_SetString(PyExc_TypeError, what);
  return false;
}

bool CheckLazies(PyObject* const* args, Py_ssize_t count) {
  for (Py_ssize_t i = 0; i < count; ++i)
    if (!PyObject_TypeCheck(args[i], lazy_type)) return Refuse("an argument is no Lazy value");
  return true;
}

PyObject* CallsJoin(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  if (count != 3) return Refuse("join(signature, args, rows)"), nullptr;
  Ref fast(PySequence_Fast(args[1], "args are a sequence"));
  if (!fast) return nullptr;
  PyObject** items = PySequence_Fast_ITEMS(fast.get());
  Py_ssize_t size = PySequence_Fast_GET_SIZE(fast.get());
  if (!CheckLazies(items, size)) return nullptr;
  return Join(self, args[0], items, size, args[2]);
}

PyObject* CallsUnary(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  if (count != 2) return Refuse("unary(signature, x)"), nullptr;
  if (!CheckLazies(args + 1, 1)) return nullptr;
  return Join(self, args[0], args + 1, 1, Slot(args[1], lazy.rows));
}

PyObject* CallsView(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  if (count != 3) return Refuse("view(signature, x, rows)"), nullptr;
  if (!CheckLazies(args + 1, 1)) return nullptr;
  long long depth = std::max(As(self)->base, Number(args[1], lazy.depth)) + 1;
  Group* group = FindGroup(self, args[0], depth);
  if (!group) return nullptr;
  if (!AddRuns(reinterpret_cast<Ints*>(PyList_GET_ITEM(group->places, 0)), args[1])) return nullptr;
  ++group->calls;
  return Made(self, group, depth, args[2]);
}

PyObject* CallsReduce(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  if (count != 4) return Refuse("reduce(signature, runs, rows, depth)"), nullptr;
  long long depth = PyLong_AsLongLong(args[3]) + 1;
  Group* group = FindGroup(self, args[0], depth);
  if (!group) return nullptr;
  if (!Extend(reinterpret_cast<Ints*>(PyList_GET_ITEM(group->places, 0)), args[1])) return nullptr;
  if (!Append(reinterpret_cast<Ints*>(group->pointers), args[2])) return nullptr;
  ++group->calls;
  Ref one(PyLong_FromLong(1));
  return Made(self, group, depth, one.get());
}

PyObject* CallsMade(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  if (count != 3 || Py_TYPE(args[0]) != group_type) return Refuse("made(group, depth, rows)"), nullptr;
  return Made(self, reinterpret_cast<Group*>(args[0]), PyLong_AsLongLong(args[1]), args[2]);
}

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

bool IsEmpty(PyObject* object, PyObject* name, bool* failed) {
  Ref found(PyObject_GetAttr(object, name));
  Py_ssize_t size = found ? PyObject_Size(found.get()) : -1;
  *failed |= size < 0;
  return size == 0;
}

/* A call of a child Block; NotImplemented if Python has to look at it. */
PyObject* CallsBlock(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  if (count != 2 || !PyTuple_CheckExact(args[1])) return Refuse("block(block, args)"), nullptr;
  PyObject *block = args[0], *given = args[1];
  Py_ssize_t n = PyTuple_GET_SIZE(given);
  if (n == 0) Py_RETURN_NOTIMPLEMENTED;
  std::vector<PyObject*> values(n);  // borrowed: what they are of keeps them
  Ref key(PyTuple_New(2 + n));
  if (!key) return nullptr;
  PyTuple_SET_ITEM(key.get(), 0, PyLong_FromLongLong(As(self)->state));
  Py_INCREF(block);
  PyTuple_SET_ITEM(key.get(), 1, block);
  for (Py_ssize_t i = 0; i < n; ++i) {
    PyObject* value = PyTuple_GET_ITEM(given, i);
    if (!IsOwn(self, value)) {
      Ref id(PyLong_FromVoidPtr(value));
      PyObject* real = PyDict_GetItemWithError(As(self)->reals, id.get());
      if (!real) {
        if (PyErr_Occurred()) return nullptr;
        Py_RETURN_NOTIMPLEMENTED;
      }
      Ref rows(PyObject_GetAttr(real, name_value));
      if (!rows) return nullptr;
      value = rows.get();  // `real` keeps it
      if (!IsOwn(self, value)) Py_RETURN_NOTIMPLEMENTED;
    }
    values[i] = value;
    PyObject* kind = Slot(value, lazy.kind);
    Py_INCREF(kind);
    PyTuple_SET_ITEM(key.get(), 2 + i, kind);
  }
  PyObject* unit = PyDict_GetItemWithError(As(self)->units, key.get());
  if (!unit || Py_TYPE(unit) != unit_type) {
    if (PyErr_Occurred()) return nullptr;
    Py_RETURN_NOTIMPLEMENTED;
  }
  PyObject* rows = Slot(values[0], lazy.rows);
  long long wanted = PyLong_AsLongLong(rows);
  for (PyObject* value : values)
    if (Number(value, lazy.rows) != wanted) Py_RETURN_NOTIMPLEMENTED;
  bool failed = false;
  bool plain = IsEmpty(block, name_pre_hooks, &failed) && IsEmpty(block, name_forward_hooks, &failed);
  Ref signature(PyObject_GetAttr(unit, name_signature)), flat(PyObject_GetAttr(unit, name_flat));
  Ref results(PyObject_GetAttr(unit, name_results));
  if (failed || !signature || !flat || !results) return nullptr;
  bool is_one = PyLong_CheckExact(results.get());
  if (!plain || (flat.get() == Py_None && !is_one)) Py_RETURN_NOTIMPLEMENTED;
  Ref found(Join(self, signature.get(), values.data(), n, rows));
  if (!found) return nullptr;
  ++As(self)->calls;
  if (flat.get() == Py_None) return found.release();
  if (flat.get() == reinterpret_cast<PyObject*>(&PyTuple_Type)) return PyList_AsTuple(found.get());
  return PyObject_CallOneArg(flat.get(), found.get());
}

template <PyObject* (*function)(PyObject*, PyObject* const*, Py_ssize_t)>
PyCFunction Fast() {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function));
}

PyMethodDef calls_methods[] = {
    {"join", Fast<CallsJoin>(), METH_FASTCALL, nullptr},
    {"unary", Fast<CallsUnary>(), METH_FASTCALL, nullptr},
    {"view", Fast<CallsView>(), METH_FASTCALL, nullptr},
    {"reduce", Fast<CallsReduce>(), METH_FASTCALL, nullptr},
    {"made", Fast<CallsMade>(), METH_FASTCALL, nullptr},
    {"call", Fast<CallsCall>(), METH_FASTCALL, nullptr},
    {"block", Fast<CallsBlock>(), METH_FASTCALL, nullptr},
    {nullptr, nullptr, 0, nullptr}};

PyMemberDef calls_members[] = {
    {"groups", T_OBJECT_EX, offsetof(Calls, groups), 0, nullptr},
    {"entries", T_OBJECT_EX, offsetof(Calls, entries), 0, nullptr},
    {"units", T_OBJECT_EX, offsetof(Calls, units), 0, nullptr},
    {"reals", T_OBJECT_EX, offsetof(Calls, reals), 0, nullptr},
    {"views", T_OBJECT_EX, offsetof(Calls, views), 0, nullptr},
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

/* ---- add_n ---- */

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

/* The sum of one row each of like values; null without an exception if it is something else. */
PyObject* SumRows(Sums* sums, PyObject* calls, PyObject* values) {
  if (!PyList_CheckExact(values) && !PyTuple_CheckExact(values)) return nullptr;
  Py_ssize_t n = PySequence_Fast_GET_SIZE(values);
  PyObject** items = PySequence_Fast_ITEMS(values);
  long long depth = As(calls)->base;
  if (n == 0) return nullptr;
  for (Py_ssize_t i = 0; i < n; ++i) {
    if (!IsOwn(calls, items[i]) || Slot(items[i], lazy.kind) != Slot(items[0], lazy.kind) ||
        Number(items[i], lazy.rows) != 1)
      return nullptr;
    depth = std::max(depth, Number(items[i], lazy.depth));
  }
  if (n == 1) {
    if (As(calls)->state != As(calls)->outside) return nullptr;
    Py_INCREF(items[0]);
    return items[0];
  }
  PyObject* reduction = PyDict_GetItemWithError(sums->reductions, Slot(items[0], lazy.kind));
  if (!reduction) return nullptr;
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
  PyObject* found = SumRows(self, calls, values);
  if (found || PyErr_Occurred()) return found;
  return PyObject_Call(self->entry, args, nullptr);
}

PyType_Slot sums_slots[] = {{Py_tp_init, reinterpret_cast<void*>(SumsInit)},
                            {Py_tp_dealloc, reinterpret_cast<void*>(SumsDealloc)},
                            {Py_tp_call, reinterpret_cast<void*>(SumsCall)},
                            {0, nullptr}};
PyType_Spec sums_spec = {"graphopt_recording.Sums", sizeof(Sums), 0, Py_TPFLAGS_DEFAULT, sums_slots};
PyTypeObject* sums_type;

/* ---- What stands in classes of others ---- */

PyObject *active, *slow_getitem, *slow_block, *plain_block;

/* The recorder of this thread if it is one of ours, else null. */
PyObject* Recorder() {
  Ref found(PyObject_GetAttr(active, name_recorder));
  // A thread's recorder stays alive while it records.
  return found && found.get() != Py_None ? found.get() : nullptr;
}

/* x[:, at] of one row whose parts were looked at before; null without an exception otherwise. */
PyObject* Picked(PyObject* x, PyObject* key) {
  if (Py_TYPE(x) != lazy_type || !PyTuple_CheckExact(key) || PyTuple_GET_SIZE(key) != 2)
    return nullptr;
  PyObject *all = PyTuple_GET_ITEM(key, 0), *place = PyTuple_GET_ITEM(key, 1);
  if (!PySlice_Check(all) || !PyLong_CheckExact(place)) return nullptr;
  auto slice = reinterpret_cast<PySliceObject*>(all);
  if (slice->start != Py_None || slice->stop != Py_None || slice->step != Py_None) return nullptr;
  PyObject* calls = Slot(x, lazy.recorder);
  if (calls != Recorder() || As(calls)->state != As(calls)->outside) return nullptr;
  if (Number(x, lazy.rows) != 1 || Slot(x, lazy.runs) != Py_None) return nullptr;
  Ref tail(PyObject_GetAttr(Slot(x, lazy.kind), name_tail));
  if (!tail) return nullptr;
  Ref known(PyTuple_Pack(2, Slot(x, lazy.run), tail.get()));
  PyObject* parts = known ? PyDict_GetItemWithError(As(calls)->views, known.get()) : nullptr;
  if (!parts || Py_TYPE(parts) != lazy_type || Slot(parts, lazy.runs) != Py_None) return nullptr;
  long long at = PyLong_AsLongLong(place), count = Number(parts, lazy.rows);
  if (at < 0) at += count;
  if (at < 0 || at >= count) {
    PyErr_Clear();  // Python says what is wrong
    return nullptr;
  }
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

PyObject* BlockCall(PyObject* block, PyObject* const* args, Py_ssize_t count) {
  PyObject* calls = Recorder();
  if (!calls && PyErr_Occurred()) return nullptr;
  Ref given(PyTuple_New(count));
  if (!given) return nullptr;
  for (Py_ssize_t i = 0; i < count; ++i) {
    Py_INCREF(args[i]);
    PyTuple_SET_ITEM(given.get(), i, args[i]);
  }
  if (calls) {
    PyObject* both[] = {block, given.get()};
    PyObject* found = CallsBlock(calls, both, 2);
    if (found != Py_NotImplemented) return found;
    Py_DECREF(found);
    return PyObject_CallFunctionObjArgs(slow_block, calls, block, given.get(), nullptr);
  }
  std::vector<PyObject*> all(args, args + count);
  all.insert(all.begin(), block);
  return PyObject_Vectorcall(plain_block, all.data(), all.size(), nullptr);
}

PyMethodDef foreign_methods[] = {{"__getitem__", Fast<LazyGetItem>(), METH_FASTCALL, nullptr},
                                 {"__call__", Fast<BlockCall>(), METH_FASTCALL, nullptr}};

/* foreign(ACTIVE, Lazy, get, HybridBlock, call_block, Block.__call__): methods for Lazy and HybridBlock. */
PyObject* Foreign(PyObject*, PyObject* args) {
  PyObject *lazies, *blocks;
  if (!PyArg_ParseTuple(args, "OOOOOO", &active, &lazies, &slow_getitem, &blocks, &slow_block,
                        &plain_block))
    return nullptr;
  for (PyObject* kept : {active, slow_getitem, slow_block, plain_block}) Py_INCREF(kept);
  return Py_BuildValue(
      "NN", PyDescr_NewMethod(reinterpret_cast<PyTypeObject*>(lazies), &foreign_methods[0]),
      PyDescr_NewMethod(reinterpret_cast<PyTypeObject*>(blocks), &foreign_methods[1]));
}

/* The offset of a slot of a Python class; -1 if it has none. */
Py_ssize_t OffsetOf(PyObject* type, const char* name) {
  Ref descriptor(PyObject_GetAttrString(type, name));
  if (!descriptor || Py_TYPE(descriptor.get()) != &PyMemberDescr_Type) {
    PyErr_Format(PyExc_TypeError, "%R has no slot %s", type, name);
    return -1;
  }
  return reinterpret_cast<PyMemberDescrObject*>(descriptor.get())->d_member->offset;
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
  unit_type = reinterpret_cast<PyTypeObject*>(units);
  Py_RETURN_NONE;
}

PyMethodDef module_methods[] = {{"configure", Configure, METH_VARARGS, nullptr},
                                {"foreign", Foreign, METH_VARARGS, nullptr},
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
  if (!module || !AddType(module.get(), "Ints", &ints_spec, &ints_type) ||
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
      {&name_recorder, "recorder"}, {&name_tail, "tail"}};
  for (auto [place, name] : names)
    if (!(*place = PyUnicode_InternFromString(name))) return nullptr;
  zero = PyLong_FromLong(0);
  return module.release();
}
