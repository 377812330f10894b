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
    *name_results, *name_flat, *name_forward_hooks, *name_pre_hooks, *name_check, *name_tail, *name_handle, *zero;

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

/* ---- Active: the recorder of each thread, None where nothing is recorded ---- */

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

constexpr Py_ssize_t kMostArgs = 8;

/* A child Block that was called before with values of the same kinds, and what its Unit says. */
struct KnownBlock {
  PyObject* kinds[kMostArgs] = {};  // kinds are never given back
  Py_ssize_t count = 0;
  long long state = 0;
  // These are kept here.
  PyObject *block = nullptr, *signature = nullptr, *flat = nullptr, *pre_hooks = nullptr,
           *hooks = nullptr;

  bool Is(PyObject* wanted, PyObject* const* values, Py_ssize_t n, long long now) const {
    if (block != wanted || count != n || state != now) return false;
    for (Py_ssize_t i = 0; i < n; ++i)
      if (Slot(values[i], lazy.kind) != kinds[i]) return false;
    return true;
  }
  void Clear() {
    for (PyObject** kept : {&block, &signature, &flat, &pre_hooks, &hooks}) Py_CLEAR(*kept);
  }
};

/* What is likely to be asked for again: found here, it need not be looked up. */
struct Recent {
  struct AtDepth {
    long long key = -1;
    Group* group = nullptr;  // kept by the dictionary of groups
  };
  static constexpr size_t kGroups = 256, kBlocks = 64;

  AtDepth groups[kGroups];
  KnownBlock blocks[kBlocks];
  PyObject *whole = nullptr, *parts = nullptr;  // a value, and its parts as rows

  void Clear() {
    for (AtDepth& group : groups) group = {};
    for (KnownBlock& block : blocks) block.Clear();
    Py_CLEAR(whole);
    Py_CLEAR(parts);
  }
};

struct Calls {
  PyObject_HEAD
  PyObject *groups, *entries, *units, *reals, *views, *constants, *sums;
  Recent* recent;
  long long state, outside, base, calls;
};

Calls* As(PyObject* self) { return reinterpret_cast<Calls*>(self); }

PyObject* CallsNew(PyTypeObject* type, PyObject*, PyObject*) {
  PyObject* self = type->tp_alloc(type, 0);
  if (!self) return nullptr;
  Calls* made = As(self);
  made->recent = new Recent;
  for (PyObject** kept : {&made->groups, &made->entries, &made->units, &made->reals, &made->views,
                          &made->constants, &made->sums})
    *kept = PyDict_New();
  return self;
}

int CallsTraverse(PyObject* self, visitproc visit, void* arg) {
  const Calls& of = *As(self);
  for (PyObject* kept : {of.groups, of.entries, of.units, of.reals, of.views, of.constants, of.sums,
                         of.recent->whole, of.recent->parts})
    Py_VISIT(kept);
  Py_VISIT(Py_TYPE(self));
  for (const KnownBlock& block : of.recent->blocks)
    for (PyObject* kept : {block.block, block.signature, block.flat, block.pre_hooks, block.hooks})
      Py_VISIT(kept);
  return 0;
}

int CallsClear(PyObject* self) {
  Calls& of = *As(self);
  of.recent->Clear();
  for (PyObject** kept : {&of.groups, &of.entries, &of.units, &of.reals, &of.views, &of.constants,
                          &of.sums})
    Py_CLEAR(*kept);
  return 0;
}

void CallsDealloc(PyObject* self) {
  PyObject_GC_UnTrack(self);
  CallsClear(self);
  delete As(self)->recent;
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
  const long long number = serial << kDepthBits | depth;
  Recent::AtDepth& recent = As(self)->recent->groups[(37 * serial + depth) % Recent::kGroups];
  if (recent.key == number) return recent.group;
  Ref key(PyLong_FromLongLong(number));
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
  if (found) recent = {number, reinterpret_cast<Group*>(found)};
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

PyObject* CallsReset(PyObject* self, PyObject*) {
  As(self)->recent->Clear();
  Py_RETURN_NONE;
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

/* ---- What stands in classes of others ---- */

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

/* ---- What MXNet says of arrays ---- */

/* Functions of MXNet's library; each returns 0 if it went well. */
int (*shape_of)(void*, int*, const int**);
int (*dtype_of)(void*, int*);
int (*device_of)(void*, int*, int*);
PyObject *kinds_by_codes, *slow_typed;

/* (shape, kind) of a real array of at least one axis, as kinds.py finds them. */
PyObject* Typed(PyObject*, PyObject* array) {
  Ref handle(PyObject_GetAttr(array, name_handle));
  Ref number(handle ? PyObject_GetAttr(handle.get(), name_value) : nullptr);
  if (!number) return nullptr;
  void* address = PyLong_AsVoidPtr(number.get());
  if (!address && PyErr_Occurred()) return nullptr;
  int rank, dtype, device, which;
  const int* extents;
  if (shape_of(address, &rank, &extents) || dtype_of(address, &dtype) ||
      device_of(address, &device, &which) || rank < 1)
    return PyObject_CallOneArg(slow_typed, array);  // which says what is wrong
  Ref shape(PyTuple_New(rank)), tail(PyTuple_New(rank - 1));
  for (int axis = 0; shape && tail && axis < rank; ++axis) {
    PyTuple_SET_ITEM(shape.get(), axis, PyLong_FromLong(extents[axis]));
    if (axis) PyTuple_SET_ITEM(tail.get(), axis - 1, PyLong_FromLong(extents[axis]));
  }
  Ref key(Py_BuildValue("(Oiii)", tail.get(), dtype, device, which));
  PyObject* kind = key ? PyDict_GetItemWithError(kinds_by_codes, key.get()) : nullptr;
  if (!kind) return PyErr_Occurred() ? nullptr : PyObject_CallOneArg(slow_typed, array);
  return PyTuple_Pack(2, shape.get(), kind);
}

/* ask(addresses of MXNDArrayGetShapeEx, ...GetDType, ...GetContext, kinds by codes, kinds.typed) */
PyObject* Ask(PyObject*, PyObject* args) {
  unsigned long long shape, dtype, device;
  if (!PyArg_ParseTuple(args, "KKKOO", &shape, &dtype, &device, &kinds_by_codes, &slow_typed))
    return nullptr;
  Py_INCREF(kinds_by_codes);
  Py_INCREF(slow_typed);
  shape_of = reinterpret_cast<decltype(shape_of)>(shape);
  dtype_of = reinterpret_cast<decltype(dtype_of)>(dtype);
  device_of = reinterpret_cast<decltype(device_of)>(device);
  Py_RETURN_NONE;
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
