#include "recurrence.h"

#include <omp.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>

#include "ends.h"
#include "execute.h"
#include "slots.h"
#include "walk.h"
#include "whole.h"

namespace graphopt {

std::atomic<int64_t> rows_beside_products{0};

namespace walks {
namespace {

/* The scratch of a call: weights unless they come packed, a walk of each thread, partial gradients of
 * each unit, rings that have a row for each of the batch. */
template <typename T>
struct Layout {
  int64_t chunks, units, threads, walk_bytes, walks_at, partials_at, rings_at, bytes;

  explicit Layout(Shared<T>* all) {
    const Shared<T>& shared = *all;
    const RecurrenceCall& call = shared.call;
    const Prepared<T>& weights = shared.weights;
    chunks = (call.batch + shared.rows_per_chunk - 1) / shared.rows_per_chunk;
    units = chunks;
    if (weights.program.backward)
      units = std::max<int64_t>(1, std::min(chunks, std::max<int64_t>(call.threads, kUnits)));
    threads = std::max<int64_t>(1, std::min<int64_t>(call.threads, units));
    if (shared.in_slots)  // as many for each thread; other sequences wait until there is room
      chunks = std::min<int64_t>(RoundUp(chunks, threads), threads * (shared.in_turns ? 2 : 1));
    Buffers<T> wanted;
    if (shared.in_slots)
      Slots<T>(shared, nullptr, &wanted);
    else
      Walk<T>(shared, &wanted);
    walk_bytes = wanted.Bytes();
    walks_at = call.packed ? 0 : RoundUp(weights.packed_bytes, kLine);
    if (shared.in_turns) walk_bytes *= 2;
    partials_at = walks_at + threads * walk_bytes;
    int64_t partials = weights.program.backward ? units * weights.partial_size * sizeof(T) : 0;
    rings_at = partials_at + RoundUp(partials, kLine);
    bytes = rings_at + WholeRings(all).Bytes() + kLine;  // to begin where a line does
  }
};

template <typename T>
Shared<T> Share(const std::vector<bool>& whole, const RecurrenceCall& call,
                const Prepared<T>& weights) {
  Shared<T> shared{call, weights};
  shared.ring_is_whole = FindWholeRings(weights.program, whole);
  shared.whole_rings.resize(shared.ring_is_whole.size());
  Divide(&shared);
  return shared;
}

/* What the threads of a call have in common. */
struct Progress {
  std::atomic<int64_t> thread{0}, chunk{0}, sequence{0}, cleared{0};
};

/* Thread `number`'s part of sequences of different lengths, forward. */
template <typename T>
void RunSlots(const Shared<T>& shared, const Layout<T>& layout, int64_t number, char* scratch,
              Progress* progress) {
  Ends<T> ends(shared, &progress->cleared);
  Buffers<T> wanted, more;
  Slots<T> one(shared, &progress->sequence, &wanted);
  wanted.Place(scratch);
  int64_t chunk = number;
  auto start = [&](Slots<T>* free) {
    if (chunk >= layout.chunks) return false;
    free->Start(chunk, layout.threads);
    chunk += omp_get_num_threads();
    return true;
  };
  if (shared.in_turns) {
    Slots<T> other(shared, &progress->sequence, &more);
    more.Place(scratch + layout.walk_bytes / 2);
    RunInTurns(&one, &other, &ends, start);
  } else {
    while (start(&one)) one.Run(&ends);
  }
  ends.Finish();
}

/* A thread's part of a forward program over equally long sequences, in turns. */
template <typename T>
void RunWalksInTurns(const Shared<T>& shared, const Layout<T>& layout, char* scratch, Progress* progress) {
  Ends<T> none(shared, &progress->cleared);
  Buffers<T> wanted, more;
  Walk<T> one(shared, &wanted), other(shared, &more);
  wanted.Place(scratch);
  more.Place(scratch + layout.walk_bytes / 2);
  RunInTurns(&one, &other, &none, [&](Walk<T>* free) {
    const int64_t chunk = progress->chunk.fetch_add(1), first = chunk * shared.rows_per_chunk;
    if (chunk >= layout.chunks) return false;
    free->Start(first, std::min(shared.rows_per_chunk, shared.call.batch - first));
    return true;
  });
}

/* A thread's part of anything else. */
template <typename T>
void RunWalks(const Shared<T>& shared, const Layout<T>& layout, char* scratch, T* partials,
              Progress* progress) {
  const Prepared<T>& weights = shared.weights;
  const bool is_backward = weights.program.backward;
  Buffers<T> wanted;
  Walk<T> walk(shared, &wanted);
  wanted.Place(scratch);
  Ends<T>(shared, &progress->cleared).Finish();
  for (int64_t unit; (unit = progress->chunk.fetch_add(1)) < layout.units;) {
    T* partial = is_backward ? partials + unit * weights.partial_size : nullptr;
    if (partial) std::memset(partial, 0, weights.partial_size * sizeof(T));
    for (int64_t chunk = unit; chunk < layout.chunks; chunk += layout.units) {
      int64_t first = chunk * shared.rows_per_chunk;
      walk.Run(first, std::min(shared.rows_per_chunk, shared.call.batch - first), partial);
    }
  }
}

/* Those of calls with so many rows, or any number of them where matrices are `kept`. */
template <typename T>
const Products<T>& ProductsOf(const Program& program, int64_t rows, bool kept) {
  const int64_t elements = ElementsOf(program);
  return program.by_vectors ? ProductsWithoutUnit<T>(elements) : ProductsFor<T>(rows, elements, kept);
}

template <typename T>
void RunAs(const Program& program, const RecurrenceCall& call) {
  const std::vector<bool> whole = FindWhole(program, call);
  Prepared<T> weights(program, call, ProductsOf<T>(program, call.batch, call.packed), whole);
  Shared<T> shared = Share(whole, call, weights);
  Sort(&shared);
  NumberRows(&shared);
  const Layout<T> layout(&shared);
  std::unique_ptr<char[]> own;
  if (call.scratch_bytes < layout.bytes) own.reset(new char[layout.bytes]);
  auto address = reinterpret_cast<uintptr_t>(own ? own.get() : call.scratch);
  auto scratch = reinterpret_cast<char*>((address + kLine - 1) / kLine * kLine);
  if (call.packed)
    weights.Use(static_cast<const T*>(call.packed));
  else
    weights.Pack(call.threads, reinterpret_cast<T*>(scratch));
  T* partials = reinterpret_cast<T*>(scratch + layout.partials_at);
  WholeRings(&shared).Place(scratch + layout.rings_at);
  Progress progress;
  progress.sequence = layout.chunks * shared.rows_per_chunk;
  int threads = static_cast<int>(layout.threads);
#pragma omp parallel num_threads(threads) if (threads > 1)
  {
    const Flushing flushing(program.backward);
    const int64_t number = progress.thread.fetch_add(1);
    char* own_scratch = scratch + layout.walks_at + number * layout.walk_bytes;
    if (shared.in_slots)
      RunSlots(shared, layout, number, own_scratch, &progress);
    else if (shared.in_turns)
      RunWalksInTurns(shared, layout, own_scratch, &progress);
    else
      RunWalks(shared, layout, own_scratch, partials, &progress);
  }
  if (program.backward)
    weights.Collect(partials, weights.partial_size, layout.chunks ? layout.units : 0,
                    call.threads);
  RunWhole(whole, shared);
}

template <typename T>
int64_t BytesAs(const Program& program, const RecurrenceCall& call) {
  const std::vector<bool> whole = FindWhole(program, call);
  Prepared<T> weights(program, call, ProductsOf<T>(program, call.batch, call.packed), whole);
  Shared<T> shared = Share(whole, call, weights);
  return Layout<T>(&shared).bytes;
}

template <typename T>
Prepared<T> Kept(const Program& program, const Learned& learned) {
  return {program, learned, ProductsOf<T>(program, 0, true)};
}

}  // namespace
}  // namespace walks

using namespace walks;

void RunRecurrence(const Program& program, const RecurrenceCall& call) {
  if (program.is_double)
    RunAs<double>(program, call);
  else
    RunAs<float>(program, call);
}

int64_t ScratchBytes(const Program& program, const RecurrenceCall& call) {
  return program.is_double ? BytesAs<double>(program, call) : BytesAs<float>(program, call);
}

int64_t PackedBytes(const Program& program) {
  const Learned none;
  return program.is_double ? Kept<double>(program, none).packed_bytes
                           : Kept<float>(program, none).packed_bytes;
}

void PackMatrices(const Program& program, const Learned& learned, int threads, void* to) {
  if (program.is_double)
    Kept<double>(program, learned).Pack(threads, static_cast<double*>(to));
  else
    Kept<float>(program, learned).Pack(threads, static_cast<float*>(to));
}

}  // namespace graphopt
