#include "dropout.h"

#include <algorithm>

namespace graphopt::dropout {

namespace {

/* Elements that have keys of their own: numbers within are few, and hashed well by 32 bits. */
constexpr int64_t kBlock = 4096;
constexpr int kBits = 24;  // of a hash that are compared, the upper ones

struct Keys {
  uint32_t first, second;
};

/* Two keys of a block: one step of the generator SplitMix64 (Steele, Lea and Flood, 2014). */
Keys KeysOf(uint64_t seed, int64_t block) {
  uint64_t x = seed + 0x9e3779b97f4a7c15u * (static_cast<uint64_t>(block) + 1);
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  x ^= x >> 31;
  return {static_cast<uint32_t>(x), static_cast<uint32_t>(x >> 32)};
}

/* Two rounds of multiplying and folding, each under a key. */
inline uint32_t Hash(uint32_t at, Keys keys) {
  uint32_t x = at * 0x9e3779b9u + keys.first;
  x ^= x >> 16;
  x *= 0x7feb352du;
  x ^= x >> 15;
  x ^= keys.second;
  x *= 0x846ca68bu;
  return x ^ (x >> 16);
}

template <bool kAdds>
void ApplyBlock(Keys keys, int32_t kept, float scale, int begin, const float* from, float* to, int count) {
#pragma omp simd
  for (int i = 0; i < count; ++i) {
    const int32_t drawn = static_cast<int32_t>(Hash(static_cast<uint32_t>(begin + i), keys) >> (32 - kBits));
    const float found = from[i] * (drawn < kept ? scale : 0.0f);
    to[i] = kAdds ? to[i] + found : found;
  }
}

/* Of all values that are compared, those below this one stay. */
int32_t KeptOf(const Mask& mask) {
  return static_cast<int32_t>(static_cast<double>(mask.keep) * (1 << kBits) + 0.5);
}

}  // namespace

void ApplyFrom(const Mask& mask, int64_t first, const float* from, float* to, int64_t count) {
  for (int64_t done = 0; done < count;) {
    const int64_t block = (first + done) / kBlock, begin = (first + done) % kBlock;
    const int64_t size = std::min(kBlock - begin, count - done);
    ApplyBlock<false>(KeysOf(mask.seed, block), KeptOf(mask), mask.scale(), static_cast<int>(begin),
                      from + done, to + done, static_cast<int>(size));
    done += size;
  }
}

void Apply(const Mask& mask, const float* from, float* to, int64_t count, bool adds, int threads) {
  const int32_t kept = KeptOf(mask);
  const int64_t blocks = (count + kBlock - 1) / kBlock;
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
  for (int64_t block = 0; block < blocks; ++block) {
    const int64_t first = block * kBlock;
    const int size = static_cast<int>(std::min(kBlock, count - first));
    (adds ? ApplyBlock<true> : ApplyBlock<false>)(KeysOf(mask.seed, block), kept, mask.scale(), 0, from + first,
                                                  to + first, size);
  }
}

}  // namespace graphopt::dropout
