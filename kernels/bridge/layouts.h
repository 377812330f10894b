/*
 * Arrays as oneDNN lays them out: in blocks of 4, 8 or 16 channels, around convolutions.
 *
 * What is called a layout here is MXNet's description of one. Of oneDNN the package has the headers, but
 * exports no functions; MXNet's own are enough.
 */
#pragma once

#include <atomic>
#include <cstring>
#include <memory>

#include "legacy.h"

namespace graphopt {

using mxnet::NDArray;
using Layout = mkldnn::memory::desc;

/* By now: calls of fused kernels that left arrays in blocks, and arrays that were brought into another
 * layout for operators of MXNet. */
std::atomic<int64_t> calls_in_blocks{0}, mended_layouts{0};

/* As mxnet::MKLDNNMemory begins, whose header the wheel does not have. */
struct LegacyMemory {
  std::shared_ptr<void> memory;
  Layout layout;
};

/* How an array is laid out; null: in rows. */
const Layout* LayoutOf(const NDArray& array) {
  if (array.storage_type() != mxnet::kDefaultStorage || !array.IsMKLDNNData()) return nullptr;
  return &reinterpret_cast<LegacyMemory*>(array.ptr_->mkl_mem_.get())->layout;
}

bool AreEqual(const Layout& left, const Layout& right) {
  const dnnl_memory_desc_t &a = left.data, &b = right.data;
  const dnnl_blocking_desc_t &p = a.format_desc.blocking, &q = b.format_desc.blocking;
  const auto same = [](const auto* x, const auto* y, int n) { return std::equal(x, x + n, y); };
  return a.ndims == b.ndims && same(a.dims, b.dims, a.ndims) && a.data_type == b.data_type &&
         a.offset0 == b.offset0 && a.format_kind == b.format_kind &&
         same(p.strides, q.strides, a.ndims) && p.inner_nblks == q.inner_nblks &&
         same(p.inner_blks, q.inner_blks, p.inner_nblks) &&
         same(p.inner_idxs, q.inner_idxs, p.inner_nblks);
}

/* Whether a layout has each element of an array of that shape once and nothing else. */
bool IsDense(const Layout& layout, const mxnet::TShape& shape) {
  const dnnl_memory_desc_t& desc = layout.data;
  if (desc.format_kind != dnnl_blocked || desc.data_type != dnnl_f32 || desc.offset0 != 0 ||
      desc.extra.flags != dnnl_memory_extra_flag_none || desc.ndims != shape.ndim())
    return false;
  int64_t extent = 0;  // of all that is there, gaps too
  for (int d = 0; d < desc.ndims; ++d)
    if (desc.dims[d] != shape[d] || desc.padded_dims[d] != desc.dims[d]) return false;
  const dnnl_blocking_desc_t& blocking = desc.format_desc.blocking;
  int64_t inner[DNNL_MAX_NDIMS], size = 1;
  std::fill(inner, inner + desc.ndims, 1);
  for (int b = 0; b < blocking.inner_nblks; ++b) {
    inner[blocking.inner_idxs[b]] *= blocking.inner_blks[b];
    size *= blocking.inner_blks[b];
  }
  for (int d = 0; d < desc.ndims; ++d)
    extent += (desc.dims[d] / inner[d] - 1) * blocking.strides[d];
  return extent + size == static_cast<int64_t>(shape.Size());
}

/* How many channels make a block of a dense layout; 0 if it is another one. */
int BlockOf(const Layout& layout, const mxnet::TShape& shape) {
  const dnnl_blocking_desc_t& blocking = layout.data.format_desc.blocking;
  if (!IsDense(layout, shape) || blocking.inner_nblks != 1 || blocking.inner_idxs[0] != 1) return 0;
  int64_t stride = blocking.inner_blks[0];
  for (int d = shape.ndim() - 1; d >= 0; --d) {
    if (blocking.strides[d] != stride) return 0;
    stride *= d == 1 ? shape[d] / blocking.inner_blks[0] : shape[d];
  }
  return blocking.inner_blks[0];
}

/* Of arrays in blocks: how many channels; 0 in rows, -1 where it is something else. */
int BlockOf(const NDArray& array) {
  const Layout* layout = LayoutOf(array);
  if (!layout) return 0;
  const int block = array.shape().ndim() == 4 ? BlockOf(*layout, array.shape()) : 0;
  return block ? block : -1;
}

/* Whether there is fast code for a BatchNorm in such blocks, oneDNN's and ours. */
bool IsFast(int block) { return block == 8 || block == 16; }

/* The layout of rows. */
Layout RowLayout(const mxnet::TShape& shape) {
  Layout made;
  dnnl_memory_desc_t& desc = made.data;
  std::memset(&desc, 0, sizeof(desc));
  desc.ndims = shape.ndim();
  desc.data_type = dnnl_f32;
  desc.format_kind = dnnl_blocked;
  for (int d = 0; d < desc.ndims; ++d) desc.dims[d] = desc.padded_dims[d] = shape[d];
  int64_t stride = 1;
  for (int d = desc.ndims - 1; d >= 0; --d) {
    desc.format_desc.blocking.strides[d] = stride;
    stride *= shape[d];
  }
  return made;
}

/* The layout in blocks of so many channels, of which there are whole blocks. */
Layout InBlocks(const Layout& like, const mxnet::TShape& shape, int block) {
  Layout made = like;
  dnnl_blocking_desc_t& blocking = made.data.format_desc.blocking;
  blocking.inner_nblks = 1;
  blocking.inner_idxs[0] = 1;
  blocking.inner_blks[0] = block;
  int64_t stride = block;
  for (int d = shape.ndim() - 1; d >= 0; --d) {
    blocking.strides[d] = stride;
    stride *= d == 1 ? shape[d] / block : shape[d];
  }
  return made;
}

/* The memory of an array in whatever layout; NDArray tells only where rows are. */
TBlob Raw(const NDArray& array) {
  TBlob blob;
  blob.dptr_ = static_cast<char*>(array.ptr_->shandle.dptr) + array.byte_offset_;
  blob.shape_ = array.shape();
  blob.type_flag_ = array.dtype();
  return blob;
}

NDArray InRows(const NDArray& array) { return LayoutOf(array) ? array.Reorder2Default() : array; }

/* A copy of an array, laid out so. */
NDArray CopyIn(const NDArray& array, const Layout& layout) {
  NDArray copy = InRows(array);
  // Memory is laid out from its start on, and that of a view begins with other rows.
  if (!LayoutOf(array) || copy.IsView()) {
    const NDArray rows = copy;
    copy = NDArray(array.shape(), array.ctx(), false, array.dtype());
    const TBlob from = rows.data();
    std::memcpy(copy.data().dptr_, from.dptr_, from.shape_.Size() * sizeof(float));
  }
  copy.ptr_->MKLDNNDataReorder(layout);
  return copy;
}

/* What an operator that knows rows only writes, or adds to. */
TBlob AsRows(const NDArray& given, OpReqType request) {
  NDArray& array = const_cast<NDArray&>(given);
  if (request == mxnet::kAddTo && LayoutOf(array))
    array.ptr_->Reorder2Default();
  else if (request != mxnet::kNullOp)
    array.InvalidateMKLDNNData();
  else if (LayoutOf(array))
    return Raw(array);  // nobody looks at it
  return array.data();
}

}  // namespace graphopt
