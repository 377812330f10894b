/*
 * A call of a recurrence, as its node and its arrays ask for it.
 */
#pragma once

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "recurrence_numbers.h"

namespace graphopt {

/* Asks for large pages: arrays of many megabytes are new memory on most calls. */
void Enlarge(const TBlob& blob) {
#if defined(MADV_HUGEPAGE)
  const uintptr_t large = 2 << 20;
  auto begin = reinterpret_cast<uintptr_t>(blob.dptr_);
  uintptr_t end = begin + blob.shape_.Size() * ItemSize(blob.type_flag_);
  begin = (begin + large - 1) / large * large;
  if (end > begin + 4 * large)
    madvise(reinterpret_cast<void*>(begin), (end - begin) / large * large, MADV_HUGEPAGE);
#endif
}

/* Memory for an output that is not simply written. */
class Results {
 public:
  /* Where to write: null if nobody wants it. */
  void* Add(const TBlob& blob, OpReqType request) {
    if (request == mxnet::kNullOp) return nullptr;
    Enlarge(blob);
    if (request != mxnet::kAddTo) return blob.dptr_;
    added_.push_back({&blob, std::vector<char>(blob.shape_.Size() * ItemSize(blob.type_flag_))});
    return added_.back().second.data();
  }

  /* Adds what had to be added. */
  void Finish() {
    for (auto& [blob, memory] : added_) {
      if (blob->type_flag_ == mshadow::kFloat32)
        Sum<float>(*blob, memory);
      else
        Sum<double>(*blob, memory);
    }
  }

 private:
  template <typename T>
  static void Sum(const TBlob& blob, const std::vector<char>& memory) {
    auto to = static_cast<T*>(blob.dptr_);
    auto from = reinterpret_cast<const T*>(memory.data());
    const int64_t size = blob.shape_.Size();
    int threads = Threads(0.3 * size, size);
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t i = 0; i < size; ++i) to[i] += from[i];
  }

  std::vector<std::pair<const TBlob*, std::vector<char>>> added_;
};

/* Places of one direction's inputs among a node's inputs, and of its final states. */
struct Places {
  Places(const Signature& s, size_t direction)
      : states(s.sequences.size() + direction * s.given_states()),
        matrices(s.sequences.size() + s.directions * s.given_states() +
                 direction * s.matrix_rows.size()),
        vectors(s.sequences.size() +
                s.directions * (s.given_states() + s.matrix_rows.size()) +
                direction * s.vectors.size()),
        finals(s.emitted.size() + direction * s.states.size()) {}
  size_t states, matrices, vectors, finals;
};

Extents ExtentsOf(const NodeAttrs& attrs, const TBlob* inputs) {
  const Signature& signature = SignatureOf(attrs);
  const TBlob& steps = inputs[signature.is_indexed ? signature.integers() : 0];
  if (Flag(attrs, "flat")) return {1, steps.shape_[0]};
  bool batch_major = Flag(attrs, "batch_major");
  return {steps.shape_[batch_major ? 1 : 0], steps.shape_[batch_major ? 0 : 1],
          signature.is_indexed ? inputs[0].shape_[0] : -1};
}

/* What a call in one direction needs of a node; `inputs` are those of the forward operator. */
struct Direction {
  const NodeAttrs& attrs;
  const Signature& signature;
  const TBlob* inputs;
  Extents extents;
  size_t number;
  Places places;
  RecurrenceCall call;

  Direction(const NodeAttrs& attrs, const TBlob* inputs, size_t number, const int64_t* lengths)
      : attrs(attrs),
        signature(SignatureOf(attrs)),
        inputs(inputs),
        extents(ExtentsOf(attrs, inputs)),
        number(number),
        places(signature, number) {
    call.steps = extents.steps;
    call.batch = extents.batch;
    call.reverse = signature.directions == 2 ? number == 1 : Flag(attrs, "reverse");
    call.lengths = lengths;
    for (size_t i = 0; i < signature.sequences.size(); ++i)
      call.sequences.push_back(Input(inputs[i].dptr_, signature.sequences[i]));
    for (size_t i = 0; i < signature.matrix_rows.size(); ++i)
      call.matrices.push_back(inputs[places.matrices + i].dptr_);
    for (size_t i = 0; i < signature.vectors.size(); ++i)
      call.vectors.push_back(inputs[places.vectors + i].dptr_);
    call.threads = ThreadsOf(signature, extents);
  }

  void ComputeIn(const TBlob& scratch) {
    call.scratch = scratch.dptr_;
    call.scratch_bytes = scratch.shape_.Size() * ItemSize(signature.dtype);
  }

  SequenceArray Strided(void* data, int64_t columns, int64_t first) const {
    bool batch_major = Flag(attrs, "batch_major");
    char* at = static_cast<char*>(data) + (data ? first * ItemSize(signature.dtype) : 0);
    return {data ? at : nullptr, batch_major ? columns : extents.batch * columns,
            batch_major ? extents.steps * columns : columns};
  }

  SequenceArray Input(void* data, int64_t width) const { return Strided(data, width, 0); }

  /* This direction's columns of an emitted sequence. */
  SequenceArray Emitted(void* data, int64_t width) const {
    return Strided(data, signature.directions * width, number * width);
  }

  void* Stash(const TBlob& blob) const {
    return static_cast<char*>(blob.dptr_) +
           number * extents.steps * extents.batch * std::max<int64_t>(signature.stash_width, 1) *
               ItemSize(signature.dtype);
  }

  /* A row for each step and sequence, steps first. */
  SequenceArray ByStep(void* data, int64_t width) const {
    return {data, extents.batch * width, width};
  }

  const void* State(size_t i) const {
    return signature.zero_states ? nullptr : inputs[places.states + i].dptr_;
  }
};

std::vector<int64_t> LengthsOf(const NodeAttrs& attrs, const TBlob* inputs) {
  const Signature& signature = SignatureOf(attrs);
  if (!signature.has_lengths) return {};
  return Lengths(inputs[signature.inputs() - 1], attrs.name, ExtentsOf(attrs, inputs));
}

/* A table whose rows a node's steps read by number, and what is computed of it for one direction after
 * the other. */
class ByNumber {
 public:
  ByNumber(const NodeAttrs& attrs, const Program& program, const TBlob* inputs,
           const std::vector<int64_t>& lengths, const TBlob& scratch)
      : program_(program),
        signature_(SignatureOf(attrs)),
        table_(inputs[0]),
        scratch_(scratch),
        extents_(ExtentsOf(attrs, inputs)),
        rows_(ReadRows(attrs, inputs[signature_.integers()], extents_, lengths)) {
    for (const Step& step : program.steps)
      for (size_t n = 0; n < step.spots.size(); ++n)
        reads_rows_ |= step.spots[n].place == kSequence && step.spots[n].index == 0;
  }

  /* Gives a direction its projected table, and room to compute in; to be called when everything else
   * of it is there. */
  void Enter(Direction* one) {
    RecurrenceCall& call = one->call;
    call.index = rows_.index.data();
    const TableScratch places(signature_, extents_, ScratchBytes(program_, call),
                              program_.backward);
    // With more threads than when shapes were inferred it wants more than there is.
    const bool is_enough =
        static_cast<int64_t>(scratch_.shape_.Size()) * ItemSize(signature_.dtype) >= places.bytes;
    if (!is_enough) own_.reset(new char[places.bytes]);
    char* at = Aligned<char>(is_enough ? scratch_.dptr_ : own_.get());
    call.scratch = at;
    call.scratch_bytes = places.projected;
    projected_ = at + places.projected;
    gradients_ = at + places.gradients;
    call.sequences[0] = {projected_, 0, signature_.projection.width};
    if (reads_rows_) Project(TableOf(call), rows_, projected_);
    if (!program_.backward) return;
    const size_t gradient = call.sequences.size() - signature_.sequences.size();
    call.sequences[gradient] = one->ByStep(gradients_, signature_.projection.width);
  }

  /* Runs backward of a direction that was entered; `table_gradient` is added to. */
  void Back(const RecurrenceCall& call, void* table_gradient) {
    RecurrenceCall rest = call;
    for (size_t i = 0; i < rest.matrix_gradients.size(); ++i)
      if (void* gradient = rest.matrix_gradients[i]; gradient && !Learns(i)) {
        std::memset(gradient, 0,
                    signature_.matrix_rows[i] * signature_.matrix_columns[i] *
                        ItemSize(signature_.dtype));
        rest.matrix_gradients[i] = nullptr;
      }
    RunRecurrence(program_, rest);
    // The projected table is not read any more.
    AddGradients(TableOf(call), rows_, gradients_, projected_, table_gradient);
  }

 private:
  Table TableOf(const RecurrenceCall& call) const {
    return {signature_.projection,
            call,
            signature_.matrix_columns,
            table_.dptr_,
            signature_.sequences[0],
            program_.is_double,
            call.threads};
  }

  /* Whether the steps themselves have a part in the gradient of a matrix. */
  bool Learns(size_t matrix) const {
    return std::any_of(program_.steps.begin(), program_.steps.end(), [&](const Step& step) {
      return step.code == kOuter && step.which == static_cast<int64_t>(matrix);
    });
  }

  const Program& program_;
  const Signature& signature_;
  const TBlob &table_, &scratch_;
  Extents extents_;
  RowsInUse rows_;
  bool reads_rows_ = false;
  char *projected_ = nullptr, *gradients_ = nullptr;
  std::unique_ptr<char[]> own_;
};

}  // namespace graphopt
