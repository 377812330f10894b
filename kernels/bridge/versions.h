/*
 * How often arrays were written: MXNet's engine counts that for the variable that stands for an
 * array's memory, and its C interface does not hand it out.
 *
 * The numbers are taken by an operator of the engine that reads the arrays: it runs behind what was
 * started on them before, and in front of what is started on them later, and nobody waits for it.
 */
#pragma once

#include <unistd.h>

#include <algorithm>
#include <future>
#include <memory>
#include <vector>

#include "legacy.h"

namespace graphopt {

using Variable = mxnet::engine::Var;

/* Whether there is memory, without touching it: the kernel tells of a wrong address by an error. */
bool IsReadable(const void* at, size_t size) {
  int ends[2];
  if (pipe(ends) != 0) return false;
  const bool found = write(ends[1], at, size) == static_cast<ssize_t>(size);
  close(ends[0]);
  close(ends[1]);
  return found;
}

Variable* VariableOf(void* array) {
  return (*static_cast<std::shared_ptr<LegacyChunk>*>(array))->variable;
}

/* The variable, or null if what lies there cannot be one. */
Variable* CheckedVariable(void* array) {
  const void* chunk = static_cast<std::shared_ptr<LegacyChunk>*>(array)->get();
  if (!IsReadable(chunk, sizeof(LegacyChunk))) return nullptr;
  Variable* found = VariableOf(array);
  if (reinterpret_cast<uintptr_t>(found) % alignof(Variable)) return nullptr;
  return IsReadable(found, sizeof(Variable)) ? found : nullptr;
}

/* Whether the first two arrays have one variable, and the third another one. */
bool VariablesFit(void* array, void* same, void* other) {
  Variable* first = CheckedVariable(array);
  Variable* last = CheckedVariable(other);
  return first && last && first != last && CheckedVariable(same) == first;
}

struct Noted {
  std::vector<Variable*> variables;
  std::vector<uint64_t> counts;
  std::promise<void> promise;
  std::shared_future<void> done = promise.get_future().share();
};

using SharedNoted = std::shared_ptr<Noted>;

void* NoteVersions(void** arrays, int64_t count) {
  auto noted = std::make_shared<Noted>();
  for (int64_t i = 0; i < count; ++i) noted->variables.push_back(VariableOf(arrays[i]));
  std::vector<Variable*> once = noted->variables;  // the engine takes none twice
  std::sort(once.begin(), once.end());
  once.erase(std::unique(once.begin(), once.end()), once.end());
  auto take = [](void*, void* given) {
    Noted& noted = **static_cast<SharedNoted*>(given);
    for (Variable* variable : noted.variables) noted.counts.push_back(variable->version_);
    noted.promise.set_value();
  };
  auto forget = [](void* given) { delete static_cast<SharedNoted*>(given); };
  mxnet::Context ctx = mxnet::Context::CPU();
  // Also if what writes the arrays fails: somebody may be waiting.
  mxnet::FnProperty property = mxnet::FnProperty::kNoSkip;
  if (MXEnginePushSync(take, new SharedNoted(noted), forget, &ctx, once.data(), once.size(), nullptr,
                       0, &property, 0, "graphopt_versions") != 0)
    Fail(std::string("versions of arrays cannot be read: ") + MXGetLastError());
  return new SharedNoted(noted);
}

void ReadVersions(void* noted, uint64_t* counts) {
  Noted& found = **static_cast<SharedNoted*>(noted);
  found.done.wait();
  std::copy(found.counts.begin(), found.counts.end(), counts);
}

void FreeVersions(void* noted) { delete static_cast<SharedNoted*>(noted); }

}  // namespace graphopt
