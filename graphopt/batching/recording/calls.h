/*
 * Calls: all groups of one recorder, and how calls of operators join them.
 */
#pragma once

#include <algorithm>

#include "group.h"

namespace {

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

}  // namespace
