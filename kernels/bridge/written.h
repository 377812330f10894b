/*
 * Whether arrays were written since: by how often MXNet's engine says they were, without an operator of the
 * engine in the way as versions.h has one, and by what they hold.
 */
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include "versions.h"

namespace graphopt {

/* How often each array has been written once all is written that was started before. */
void CountWrites(void** arrays, int64_t count, uint64_t* counts) {
  for (int64_t i = 0; i < count; ++i) {
    // At once if nothing is to be written. Also starts what mx.engine.bulk holds back.
    if (MXNDArrayWaitToRead(arrays[i]) != 0) Fail(MXGetLastError());
    counts[i] = VariableOf(arrays[i])->version_;
  }
}

/* Whether one of them is not as often written as `counts` says. */
bool IsWritten(void** arrays, int64_t count, const uint64_t* counts) {
  for (int64_t i = 0; i < count; ++i) {
    uint64_t now;
    CountWrites(arrays + i, 1, &now);
    if (now != counts[i]) return true;
  }
  return false;
}

uint64_t Digest(const void* data, int64_t bytes);

/* A number for what some arrays hold, in this order, once all is written that MXNet's engine knows of. */
uint64_t DigestOf(void** arrays, int64_t count) {
  std::vector<uint64_t> found(count);
  for (int64_t i = 0; i < count; ++i) {
    const auto& array = *static_cast<mxnet::NDArray*>(arrays[i]);
    void* data = nullptr;
    if (MXNDArrayWaitToRead(arrays[i]) != 0 || MXNDArrayGetData(arrays[i], &data) != 0) Fail(MXGetLastError());
    found[i] = Digest(data, array.shape().Size() * mshadow::mshadow_sizeof(array.dtype()));
  }
  return Digest(found.data(), count * sizeof(uint64_t));
}

/* A number for what is in memory, about as fast as it is read: eight chains of multiplications whose upper
 * halves are folded onto the lower ones (wyhash: Wang Yi, 2019), so that a sign that changes does not stay
 * one bit. Two contents have the same number in one of 2^64 cases. */
uint64_t Digest(const void* data, int64_t bytes) {
  constexpr uint64_t kOdd = 0x9e3779b97f4a7c15;  // 2^64 by the golden ratio
  constexpr int kChains = 8, kWord = sizeof(uint64_t);
  uint64_t chains[kChains];
  for (int i = 0; i < kChains; ++i) chains[i] = kOdd * (i + 1);
  auto add = [&](int chain, uint64_t word) {
    const auto product = static_cast<unsigned __int128>(chains[chain] ^ word) * kOdd;
    chains[chain] = static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
  };
  auto* at = static_cast<const char*>(data);
  const char* end = at + bytes;
  for (; end - at >= kChains * kWord; at += kChains * kWord)
    for (int i = 0; i < kChains; ++i) {
      uint64_t word;
      std::memcpy(&word, at + i * kWord, kWord);
      add(i, word);
    }
  for (int i = 0; at < end; at += kWord, ++i) {
    uint64_t word = 0;
    std::memcpy(&word, at, std::min<int64_t>(kWord, end - at));
    add(i, word);
  }
  for (int i = 1; i < kChains; ++i) add(0, chains[i]);
  add(0, bytes);
  return chains[0];
}

}  // namespace graphopt
