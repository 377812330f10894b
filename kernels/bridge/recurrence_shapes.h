/*
 * Shapes and types of a recurrence's arrays, and of what it computes in.
 */
#pragma once

#include <algorithm>
#include <sstream>
#include <string>
#include <vector>

#include "arrays.h"
#include "recurrence_signature.h"

namespace graphopt {

/* Steps and batch size of sequences, and rows of a table that is read by number, -1 where not known. */
struct Extents {
  int64_t steps = -1, batch = -1, table_rows = -1;
};

void Agree(const NodeAttrs& attrs, int64_t found, const char* what, int64_t* known) {
  if (found < 0) return;
  if (*known >= 0 && *known != found)
    Fail("inputs of node " + attrs.name + " have " + std::to_string(*known) + " and " +
         std::to_string(found) + " " + what);
  *known = found;
}

mxnet::TShape SequenceShape(const NodeAttrs& attrs, const Extents& extents, int64_t width) {
  if (Flag(attrs, "flat")) return Shaped({extents.batch, width});
  return Flag(attrs, "batch_major") ? Shaped({extents.batch, extents.steps, width})
                                    : Shaped({extents.steps, extents.batch, width});
}

void Settle(const NodeAttrs& attrs, size_t number, const mxnet::TShape& shape,
            mxnet::TShape* known) {
  if (known->ndim() < 0 || !mxnet::shape_is_known(*known)) {
    *known = shape;
  } else if (*known != shape && mxnet::shape_is_known(shape)) {
    std::ostringstream told;
    told << "input " << number << " of node " << attrs.name << " has shape " << *known << ", not "
         << shape;
    Fail(told.str());
  }
}

int ThreadsOf(const Signature& signature, const Extents& extents) {
  double work = 0;
  for (size_t i = 0; i < signature.matrix_rows.size(); ++i)
    work += static_cast<double>(signature.matrix_rows[i]) * signature.matrix_columns[i];
  for (int64_t width : signature.states) work += 20.0 * width;
  return Threads(0.02 * work * extents.batch * extents.steps, extents.batch);
}

/* What a node computes in, if it reads a table by number: what recurrences compute in, the projected
 * table, and, backward, its gradients step by step. Each begins where a line does. */
struct TableScratch {
  int64_t walk, projected, gradients, bytes;  // where they begin, and where they end

  TableScratch(const Signature& signature, const Extents& extents, int64_t walk_bytes,
               bool is_backward)
      : walk(0), projected(Align(walk_bytes)) {
    const int64_t row = signature.projection.width * ItemSize(signature.dtype);
    const int64_t reads = extents.steps * extents.batch;
    gradients = projected + Align(std::min(reads, extents.table_rows) * row);
    bytes = gradients + (is_backward ? Align(reads * row) : 0) + kLineBytes;
  }
};

bool IsKnown(const Signature& signature, const Extents& extents) {
  return extents.steps >= 0 && extents.batch >= 0 &&
         (extents.table_rows >= 0 || !signature.is_indexed);
}

/* Of what a node computes in: elements, -1 as long as steps or batch are not known. `is_packed`: its
 * matrices come packed. */
mxnet::TShape ScratchShape(const NodeAttrs& attrs, Mode mode, const Extents& extents,
                           bool is_packed = false) {
  if (!IsKnown(SignatureOf(attrs), extents)) return Shaped({-1});
  static const int64_t some = 0;
  static const int32_t row = 0;
  const Signature& signature = SignatureOf(attrs);
  RecurrenceCall call;
  call.steps = extents.steps;
  call.batch = extents.batch;
  call.lengths = signature.has_lengths ? &some : nullptr;
  call.index = signature.is_indexed ? &row : nullptr;
  call.packed = is_packed ? &some : nullptr;
  call.threads = ThreadsOf(signature, extents);
  const int64_t item = ItemSize(signature.dtype);
  int64_t bytes = ScratchBytes(ProgramOf(attrs, mode), call);
  if (signature.is_indexed)
    bytes = TableScratch(signature, extents, bytes, mode == kBackwardPass).bytes;
  return Shaped({(bytes + item - 1) / item});
}

Mode ForwardMode(const NodeAttrs& attrs) { return Flag(attrs, "stash") ? kTraining : kInference; }

void CheckAxes(const NodeAttrs& attrs, size_t input, const mxnet::TShape& shape, int wanted) {
  if (shape.ndim() != wanted)
    Fail("input " + std::to_string(input) + " of node " + attrs.name + " has " +
         std::to_string(shape.ndim()) + " axes, not " + std::to_string(wanted));
}

/* Settles the shapes of a forward node's inputs and results; returns what they have in common. */
Extents SettleShapes(const NodeAttrs& attrs, mxnet::ShapeVector* in, mxnet::ShapeVector* out) {
  const Signature& signature = SignatureOf(attrs);
  bool batch_major = Flag(attrs, "batch_major"), flat = Flag(attrs, "flat");
  Extents extents;
  if (flat) extents.steps = 1;
  size_t at = 0;
  for (size_t i = 0; i < signature.sequences.size(); ++i, ++at) {
    const mxnet::TShape& shape = (*in)[at];
    const bool is_table = i == 0 && signature.is_indexed;
    if (shape.ndim() < 0) continue;
    CheckAxes(attrs, at, shape, flat || is_table ? 2 : 3);
    if (is_table) {
      extents.table_rows = shape[0];
      continue;
    }
    if (flat) {
      Agree(attrs, shape[0], "rows", &extents.batch);
      continue;
    }
    Agree(attrs, shape[batch_major ? 1 : 0], "steps", &extents.steps);
    Agree(attrs, shape[batch_major ? 0 : 1], "sequences", &extents.batch);
  }
  if (signature.is_indexed) {
    const mxnet::TShape& shape = (*in)[signature.integers()];
    if (shape.ndim() >= 0) {
      CheckAxes(attrs, signature.integers(), shape, 2);
      Agree(attrs, shape[batch_major ? 1 : 0], "steps", &extents.steps);
      Agree(attrs, shape[batch_major ? 0 : 1], "sequences", &extents.batch);
    }
  }
  const size_t directions = signature.directions, n_states = signature.given_states();
  for (size_t i = 0; i < directions * n_states; ++i)
    if ((*in)[at + i].ndim() == 2) Agree(attrs, (*in)[at + i][0], "sequences", &extents.batch);
  at = 0;
  auto settle = [&](const mxnet::TShape& shape) {
    Settle(attrs, at, shape, &(*in)[at]);
    ++at;
  };
  for (int64_t width : signature.sequences)
    settle(at == 0 && signature.is_indexed ? Shaped({extents.table_rows, width})
                                           : SequenceShape(attrs, extents, width));
  for (size_t d = 0; d < directions; ++d)
    for (size_t i = 0; i < n_states; ++i) settle(Shaped({extents.batch, signature.states[i]}));
  for (size_t d = 0; d < directions; ++d)
    for (size_t i = 0; i < signature.matrix_rows.size(); ++i)
      settle(Shaped({signature.matrix_rows[i], signature.matrix_columns[i]}));
  for (size_t d = 0; d < directions; ++d)
    for (int64_t width : signature.vectors) settle(Shaped({width}));
  if (signature.is_indexed)
    settle(batch_major ? Shaped({extents.batch, extents.steps})
                       : Shaped({extents.steps, extents.batch}));
  if (signature.has_lengths) settle(Shaped({extents.batch}));
  at = 0;
  for (int64_t width : signature.emitted)
    (*out)[at++] = SequenceShape(attrs, extents, directions * width);
  for (size_t d = 0; d < directions; ++d)
    for (int64_t width : signature.states) (*out)[at++] = Shaped({extents.batch, width});
  if (Flag(attrs, "stash")) {
    int64_t width = std::max<int64_t>(signature.stash_width, 1);
    int64_t rows = extents.steps < 0 ? -1 : static_cast<int64_t>(directions) * extents.steps;
    (*out)[at] = Shaped({rows, extents.batch, width});
  }
  return extents;
}

bool RecurrenceShape(const NodeAttrs& attrs, mxnet::ShapeVector* in, mxnet::ShapeVector* out) {
  Extents extents = SettleShapes(attrs, in, out);
  out->back() = ScratchShape(attrs, ForwardMode(attrs), extents);
  return IsKnown(SignatureOf(attrs), extents);
}

/* The values of a backward node by those of its forward node: the inputs `in` and results `out`. */
template <typename Values>
void FromForward(const Signature& signature, const Values& in, const Values& out,
                 Values* backward_in, Values* backward_out) {
  auto to = std::copy_n(out.begin(), signature.results(), backward_in->begin());
  to = std::copy(in.begin(), in.end(), to);
  if (signature.reads_outputs) to = std::copy_n(out.begin(), signature.emitted.size(), to);
  *to = out[signature.results()];
  std::copy(in.begin(), in.end(), backward_out->begin());
}

bool RecurrenceBackwardShape(const NodeAttrs& attrs, mxnet::ShapeVector* in,
                             mxnet::ShapeVector* out) {
  const Signature& signature = SignatureOf(attrs);
  auto first = in->begin() + signature.results();
  mxnet::ShapeVector forward(first, first + signature.inputs()), results(signature.results() + 2);
  Extents extents = SettleShapes(attrs, &forward, &results);
  for (size_t i = 0; i < signature.results(); ++i) RequireSizeOfHead(attrs, (*in)[i], results[i]);
  FromForward(signature, forward, results, in, out);
  out->back() = ScratchShape(attrs, kBackwardPass, extents);
  return IsKnown(signature, extents);
}

bool RecurrenceType(const NodeAttrs& attrs, std::vector<int>* in, std::vector<int>* out) {
  const Signature& signature = SignatureOf(attrs);
  for (size_t i = 0; i < in->size(); ++i) {
    const bool is_integer = i >= signature.integers();
    if ((*in)[i] == -1) (*in)[i] = is_integer ? mshadow::kInt32 : signature.dtype;
    if (!is_integer && (*in)[i] != signature.dtype)
      Fail("input " + std::to_string(i) + " of node " + attrs.name + " has type code " +
           std::to_string((*in)[i]) + ", not " + std::to_string(signature.dtype));
  }
  for (int& type : *out) type = signature.dtype;
  return true;
}

bool RecurrenceBackwardType(const NodeAttrs& attrs, std::vector<int>* in, std::vector<int>* out) {
  const Signature& signature = SignatureOf(attrs);
  auto first = in->begin() + signature.results();
  for (auto head = in->begin(); head != first; ++head) TypeOfHead(attrs, *head, signature.dtype);
  std::vector<int> forward(first, first + signature.inputs()), results(signature.results() + 2);
  RecurrenceType(attrs, &forward, &results);
  FromForward(signature, forward, results, in, out);
  out->back() = signature.dtype;
  return true;
}

}  // namespace graphopt
