/*
 * Arrays in blocks of as many channels as vectors have lanes (blocked.h), however they lay before.
 */
#pragma once

#include <algorithm>

#include "arrays.h"
#include "blocked.h"
#include "layouts.h"

namespace graphopt {

/* oneDNN's description of an array in rows of so many float32. */
Layout BlocksOf(const mxnet::TShape& shape) {
  return InBlocks(RowLayout(shape), shape, static_cast<int>(blocked::BlockLanes()));
}

/* Channels that lie together: all of them, or those of a block; 0 in rows, -1 where it is something else. */
int64_t Together(const NDArray& array) {
  const Layout* layout = LayoutOf(array);
  if (!layout) return 0;
  const mxnet::TShape& shape = array.shape();
  const int block = BlockOf(*layout, shape);
  if (block) return block;
  const dnnl_blocking_desc_t& blocking = layout->data.format_desc.blocking;
  const bool is_last = IsDense(*layout, shape) && blocking.inner_nblks == 0 &&
                       blocking.strides[1] == 1 && blocking.strides[3] == shape[1] &&
                       blocking.strides[2] == shape[3] * shape[1];
  return is_last ? shape[1] : -1;
}

/* Blocks of `given` channels become blocks of `wanted`, of which one is a multiple of the other. */
void Regroup(const float* from, int64_t given, float* to, int64_t wanted, int64_t images,
             int64_t channels, int64_t places) {
  const int64_t width = std::min(given, wanted), parts = channels / width;
  constexpr int64_t kPlaces = 256;
  const int64_t pieces = (places + kPlaces - 1) / kPlaces;
  const int threads = Threads(0.2 * images * channels * places, images * pieces);
#pragma omp parallel for num_threads(threads) if (threads > 1)
  for (int64_t piece = 0; piece < images * pieces; ++piece) {
    const int64_t image = piece / pieces, begin = piece % pieces * kPlaces;
    const int64_t end = std::min(begin + kPlaces, places);
    const int64_t whole = image * channels * places;
    for (int64_t part = 0; part < parts; ++part) {
      const int64_t channel = part * width;
      const float* source = from + whole + channel / given * given * places + channel % given;
      float* target = to + whole + channel / wanted * wanted * places + channel % wanted;
      for (int64_t place = begin; place < end; ++place)
        std::copy_n(source + place * given, width, target + place * wanted);
    }
  }
}

/* An image in blocks of as many channels as vectors have; a copy unless it lies so. */
NDArray Blocked(const NDArray& array) {
  const int64_t lanes = blocked::BlockLanes(), given = Together(array);
  if (given == lanes) return array;
  const mxnet::TShape& shape = array.shape();
  if (given <= 0 || (given % lanes && lanes % given)) return CopyIn(array, BlocksOf(shape));
  NDArray copy(shape, array.ctx(), false, array.dtype());
  copy.CreateMKLDNNData(BlocksOf(shape));
  Regroup(static_cast<const float*>(Raw(array).dptr_), given,
          static_cast<float*>(Raw(copy).dptr_), lanes, shape[0], shape[1], shape[2] * shape[3]);
  return copy;
}

float* WriteBlocks(const NDArray& array) {
  const_cast<NDArray&>(array).CreateMKLDNNData(BlocksOf(array.shape()));
  return static_cast<float*>(Raw(array).dptr_);
}

float* WriteRows(const NDArray& array) {
  return static_cast<float*>(AsRows(array, mxnet::kWriteTo).dptr_);
}

const float* Floats(const NDArray& array) { return static_cast<const float*>(Raw(array).dptr_); }

}  // namespace graphopt
