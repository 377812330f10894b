#include "equal.h"

#include <algorithm>
#include <numeric>

namespace graphopt {

Parts::Parts(int64_t nodes) : first_(nodes), sizes_(nodes, 1) {
  std::iota(first_.begin(), first_.end(), 0);
}

void Parts::Join(int32_t a, int32_t b) {
  a = Find(a);
  b = Find(b);
  if (a == b) return;
  first_[std::max(a, b)] = std::min(a, b);
  sizes_[std::min(a, b)] = sizes_[a] + sizes_[b];
}

namespace {

uint64_t Mix(uint64_t hash, uint64_t number) {
  hash = (hash ^ number) * 0x9e3779b97f4a7c15;
  return hash ^ hash >> 32;
}

}  // namespace

std::vector<int32_t> FindEqual(const Children& children, const std::vector<int32_t>& sorted,
                               const int32_t* rows) {
  const int64_t nodes = sorted.size();
  std::vector<int32_t> equal(nodes);
  uint64_t places = 16;
  while (places < 2 * static_cast<uint64_t>(nodes)) places *= 2;
  std::vector<int32_t> table(places, -1);
  auto is_equal = [&](int32_t a, int32_t b) {
    if (rows[a] != rows[b] || children.count(a) != children.count(b)) return false;
    for (int64_t k = 0; k < children.count(a); ++k)
      if (equal[children.of(a)[k]] != equal[children.of(b)[k]]) return false;
    return true;
  };
  for (int32_t node : sorted) {
    uint64_t hash = Mix(children.count(node), rows[node]);
    for (int64_t k = 0; k < children.count(node); ++k)
      hash = Mix(hash, equal[children.of(node)[k]]);
    uint64_t at = hash & (places - 1);
    while (table[at] >= 0 && !is_equal(table[at], node)) at = (at + 1) & (places - 1);
    if (table[at] < 0) table[at] = node;
    equal[node] = table[at];
  }
  return equal;
}

void JoinAlike(const Children& children, const std::vector<int32_t>& sorted,
               const std::vector<int32_t>& equal, int64_t size, Parts* parts) {
  for (auto node = sorted.rbegin(); node != sorted.rend(); ++node) {
    if (children.count(*node) == 0) return;  // only leaves are left, and these are in many trees
    const int32_t a = parts->Find(*node), b = parts->Find(equal[*node]);
    if (a != b && parts->Size(a) + parts->Size(b) <= size) parts->Join(a, b);
  }
}

}  // namespace graphopt
