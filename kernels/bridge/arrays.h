/*
 * What all operators need for their arrays: memory, threads, sizes and single elements.
 */
#pragma once

#include <omp.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <initializer_list>
#include <vector>

#include "legacy.h"

namespace graphopt {

/* By now: calls of operators of MXNet that were computed here instead. */
std::atomic<int64_t> mended_calls{0};

/* Whether this is a child of a process that ran threads; it has none. */
std::atomic<bool> forked{false};

constexpr double kParallelNs = 12000;   // work below this is done by one thread
constexpr int64_t kMaxKept = 16 << 20;  // bytes
constexpr int64_t kLineBytes = 64;      // what vectors like to begin at

int64_t Align(int64_t bytes) { return (bytes + kLineBytes - 1) / kLineBytes * kLineBytes; }

template <typename T>
T* Aligned(void* memory) {
  return reinterpret_cast<T*>(Align(reinterpret_cast<uintptr_t>(memory)));
}

/* Memory of the calling thread, kept from call to call unless it is much. */
char* Arena(int64_t bytes) {
  static thread_local std::vector<char> memory;
  if (static_cast<int64_t>(memory.size()) > std::max(bytes + kLineBytes, kMaxKept))
    std::vector<char>().swap(memory);
  if (static_cast<int64_t>(memory.size()) < bytes + kLineBytes) memory.resize(bytes + kLineBytes);
  return Aligned<char>(memory.data());
}

mxnet::TShape ShapeFrom(const int64_t* extents, int axes) {
  mxnet::TShape shape(axes, 0);
  std::copy(extents, extents + axes, shape.begin());
  return shape;
}

mxnet::TShape Shaped(std::initializer_list<int64_t> extents) {
  mxnet::TShape shape(static_cast<int>(extents.size()), 0);
  int d = 0;
  for (int64_t extent : extents) shape[d++] = extent;
  return shape;
}

int ItemSize(int dtype) { return static_cast<int>(mshadow::mshadow_sizeof(dtype)); }

float HalfToFloat(uint16_t half) { return static_cast<float>(mshadow::half::half_t::Binary(half)); }
uint16_t FloatToHalf(float value) { return mshadow::half::half_t(value).half_; }

double Read(const char* at, int dtype, int64_t i) {
  switch (dtype) {
    case mshadow::kFloat64: return reinterpret_cast<const double*>(at)[i];
    case mshadow::kFloat16: return HalfToFloat(reinterpret_cast<const uint16_t*>(at)[i]);
    default: return reinterpret_cast<const float*>(at)[i];
  }
}

void Write(char* at, int dtype, int64_t i, double value) {
  switch (dtype) {
    case mshadow::kFloat64: reinterpret_cast<double*>(at)[i] = value; break;
    case mshadow::kFloat16: reinterpret_cast<uint16_t*>(at)[i] = FloatToHalf(value); break;
    default: reinterpret_cast<float*>(at)[i] = static_cast<float>(value);
  }
}

int Threads(double nanoseconds, int64_t parts) {
  if (nanoseconds < 2 * kParallelNs || parts < 2 || forked.load()) return 1;
  int64_t useful = static_cast<int64_t>(nanoseconds / kParallelNs);
  return static_cast<int>(std::min({static_cast<int64_t>(omp_get_max_threads()), useful, parts}));
}

int64_t Bytes(const TBlob& blob) { return blob.shape_.Size() * ItemSize(blob.type_flag_); }

}  // namespace graphopt
