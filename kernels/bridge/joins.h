/*
 * MXNet's concatenation and its gradient of arrays in rows, as copies of what lies together.
 *
 * oneDNN's reference code copies by elements along the last axis, where a detector joins a class, a score
 * and the corners of each box: 5 million numbers in 30 ms, of which a copy takes 2.
 */
#pragma once

#include <algorithm>
#include <cstring>
#include <vector>

#include "arrays.h"
#include "layouts.h"

namespace mxnet {
namespace op {
/* As MXNet has it, in a header that its wheel has not; dmlc::any compares the name. */
struct ConcatParam {
  int num_args;
  int dim;
};
}  // namespace op
}  // namespace mxnet

namespace graphopt {

mxnet::FCompute plain_concat_on_rows, plain_concat_gradient_on_rows;
mxnet::FComputeEx plain_concat, plain_concat_gradient;

/* What a piece of an array is copied from and to: one for each row. */
struct Piece {
  const char* from;
  char* to;
  int64_t bytes, from_stride, to_stride;
};

template <int kBytes>
void CopyEach(const Piece& piece, int64_t begin, int64_t end) {
  const char* from = piece.from + begin * piece.from_stride;
  char* to = piece.to + begin * piece.to_stride;
  for (int64_t row = begin; row < end; ++row, from += piece.from_stride, to += piece.to_stride)
    __builtin_memcpy(to, from, kBytes);
}

void CopyRows(const Piece& piece, int64_t begin, int64_t end) {
  switch (piece.bytes) {
    case 0: return;
    case 4: return CopyEach<4>(piece, begin, end);
    case 8: return CopyEach<8>(piece, begin, end);
    case 12: return CopyEach<12>(piece, begin, end);
    case 16: return CopyEach<16>(piece, begin, end);
    case 20: return CopyEach<20>(piece, begin, end);
    case 24: return CopyEach<24>(piece, begin, end);
    case 32: return CopyEach<32>(piece, begin, end);
    case 64: return CopyEach<64>(piece, begin, end);
  }
  for (int64_t row = begin; row < end; ++row)
    std::memcpy(piece.to + row * piece.to_stride, piece.from + row * piece.from_stride, piece.bytes);
}

/* All pieces of some rows before the next rows, so that what lies together is written together. */
void CopyPieces(const std::vector<Piece>& pieces, int64_t rows, int64_t row_bytes) {
  constexpr int64_t kBytesAtOnce = 16384;
  const int64_t at_once = std::max<int64_t>(kBytesAtOnce / std::max<int64_t>(row_bytes, 1), 1);
  const int64_t parts = (rows + at_once - 1) / at_once;
  const int64_t columns = parts == 1 ? static_cast<int64_t>(pieces.size()) : 1;
  const int threads = Threads(0.1 * rows * row_bytes, parts * columns);
#pragma omp parallel for num_threads(threads) if (threads > 1)
  for (int64_t part = 0; part < parts * columns; ++part) {
    const int64_t begin = part / columns * at_once, end = std::min(begin + at_once, rows);
    if (columns > 1)
      CopyRows(pieces[part], begin, end);
    else
      for (const Piece& piece : pieces) CopyRows(piece, begin, end);
  }
}

/* The axis of a concatenation of arrays with so many axes. */
int AxisOf(const NodeAttrs& attrs, int rank) {
  const auto& param =
      dmlc::unsafe_get<mxnet::op::ConcatParam>(reinterpret_cast<const LegacyNode*>(&attrs)->parsed);
  return param.dim < 0 ? param.dim + rank : param.dim;
}

/* How parts lie along an axis of a whole. */
struct Join {
  int64_t rows = 1, row_bytes = 0;
  std::vector<int64_t> bytes;  // of each part's row

  Join(const std::vector<TBlob>& parts, int axis) {
    for (const TBlob& part : parts) {
      int64_t inner = ItemSize(part.type_flag_);
      for (int d = axis; d < part.shape_.ndim(); ++d) inner *= part.shape_[d];
      bytes.push_back(inner);
      row_bytes += inner;
    }
    for (int d = 0; d < axis; ++d) rows *= parts[0].shape_[d];
  }
};

/* Copies parts into a whole. */
void Concatenate(const std::vector<TBlob>& parts, const TBlob& whole, int axis) {
  mended_calls.fetch_add(1, std::memory_order_relaxed);
  const Join join(parts, axis);
  std::vector<Piece> pieces;
  auto to = static_cast<char*>(whole.dptr_);
  for (size_t i = 0; i < parts.size(); to += join.bytes[i++]) {
    auto from = static_cast<const char*>(parts[i].dptr_);
    pieces.push_back({from, to, join.bytes[i], join.bytes[i], join.row_bytes});
  }
  CopyPieces(pieces, join.rows, join.row_bytes);
}

/* Copies a whole into those of its parts that are asked for. */
void Split(const TBlob& whole, const std::vector<TBlob>& parts,
           const std::vector<OpReqType>& requests, int axis) {
  mended_calls.fetch_add(1, std::memory_order_relaxed);
  const Join join(parts, axis);
  std::vector<Piece> pieces;
  auto from = static_cast<const char*>(whole.dptr_);
  for (size_t i = 0; i < parts.size(); from += join.bytes[i++]) {
    if (requests[i] == mxnet::kNullOp) continue;
    auto to = static_cast<char*>(parts[i].dptr_);
    pieces.push_back({from, to, join.bytes[i], join.row_bytes, join.bytes[i]});
  }
  CopyPieces(pieces, join.rows, join.row_bytes);
}

/* Whether all that is written is written anew. */
bool AllWrite(const std::vector<OpReqType>& requests) {
  return std::all_of(requests.begin(), requests.end(), [](OpReqType request) {
    return request == mxnet::kWriteTo || request == mxnet::kNullOp;
  });
}

void ConcatOnRows(const NodeAttrs& attrs, const mxnet::OpContext& context,
                  const std::vector<TBlob>& inputs, const std::vector<OpReqType>& requests,
                  const std::vector<TBlob>& outputs) {
  if (requests[0] != mxnet::kWriteTo)
    return plain_concat_on_rows(attrs, context, inputs, requests, outputs);
  Concatenate(inputs, outputs[0], AxisOf(attrs, outputs[0].shape_.ndim()));
}

/* Inputs: the gradient of the output, and what was concatenated. */
void ConcatGradientOnRows(const NodeAttrs& attrs, const mxnet::OpContext& context,
                          const std::vector<TBlob>& inputs, const std::vector<OpReqType>& requests,
                          const std::vector<TBlob>& outputs) {
  if (!AllWrite(requests))
    return plain_concat_gradient_on_rows(attrs, context, inputs, requests, outputs);
  Split(inputs[0], outputs, requests, AxisOf(attrs, inputs[0].shape_.ndim()));
}

/* Whether oneDNN copies whole images, which it does as fast. */
bool IsOfImages(const NDArray& whole, int axis) { return whole.shape().ndim() == 4 && axis == 1; }

/* Whether arrays lie in rows. */
bool AreInRows(const std::vector<NDArray>& arrays) {
  return std::all_of(arrays.begin(), arrays.end(), [](const NDArray& array) {
    return array.storage_type() == mxnet::kDefaultStorage && !LayoutOf(array);
  });
}

/* Outputs for an operator that knows rows only. */
std::vector<TBlob> RowsOf(const std::vector<NDArray>& arrays,
                          const std::vector<OpReqType>& requests) {
  std::vector<TBlob> found;
  for (size_t i = 0; i < arrays.size(); ++i) found.push_back(AsRows(arrays[i], requests[i]));
  return found;
}

std::vector<TBlob> DataOf(const std::vector<NDArray>& arrays) {
  std::vector<TBlob> found;
  for (const NDArray& array : arrays) found.push_back(array.data());
  return found;
}

void ConcatOnArrays(const NodeAttrs& attrs, const mxnet::OpContext& context,
                    const std::vector<NDArray>& inputs, const std::vector<OpReqType>& requests,
                    const std::vector<NDArray>& outputs) {
  const int axis = AxisOf(attrs, inputs[0].shape().ndim());
  if (requests[0] != mxnet::kWriteTo || !AreInRows(inputs) || IsOfImages(inputs[0], axis) ||
      outputs[0].storage_type() != mxnet::kDefaultStorage)
    return plain_concat(attrs, context, inputs, requests, outputs);
  Concatenate(DataOf(inputs), RowsOf(outputs, requests)[0], axis);
}

/* How many channels make a block of images whose channels come apart between blocks; else 0. */
int BlockOfParts(const NDArray& whole, const std::vector<NDArray>& parts, int axis) {
  const Layout* layout = LayoutOf(whole);
  if (!layout || !IsOfImages(whole, axis) || whole.IsView()) return 0;
  const int block = BlockOf(*layout, whole.shape());
  if (!block) return 0;
  const bool fits = std::all_of(parts.begin(), parts.end(), [block](const NDArray& part) {
    return part.shape()[1] % block == 0 && part.storage_type() == mxnet::kDefaultStorage &&
           !part.IsView();
  });
  return fits ? block : 0;
}

/* Blocks of channels lie one behind the other, as rows of channels do. */
void SplitBlocks(const NDArray& whole, const std::vector<NDArray>& parts,
                 const std::vector<OpReqType>& requests, int block) {
  std::vector<TBlob> found;
  for (size_t i = 0; i < parts.size(); ++i) {
    const mxnet::TShape& shape = parts[i].shape();
    if (requests[i] != mxnet::kNullOp)
      const_cast<NDArray&>(parts[i]).CreateMKLDNNData(InBlocks(RowLayout(shape), shape, block));
    found.push_back(Raw(parts[i]));
  }
  Split(Raw(whole), found, requests, 1);
}

void ConcatGradientOnArrays(const NodeAttrs& attrs, const mxnet::OpContext& context,
                            const std::vector<NDArray>& inputs,
                            const std::vector<OpReqType>& requests,
                            const std::vector<NDArray>& outputs) {
  const int axis = AxisOf(attrs, inputs[0].shape().ndim());
  if (AllWrite(requests) && inputs[0].dtype() == mshadow::kFloat32)
    if (const int block = BlockOfParts(inputs[0], outputs, axis))
      return SplitBlocks(inputs[0], outputs, requests, block);
  // Data in blocks want gradients in blocks, since gradients from elsewhere are added to them.
  if (!AllWrite(requests) || !AreInRows(inputs) || IsOfImages(inputs[0], axis))
    return plain_concat_gradient(attrs, context, inputs, requests, outputs);
  Split(inputs[0].data(), RowsOf(outputs, requests), requests, axis);
}

}  // namespace graphopt
