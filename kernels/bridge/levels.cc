#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>

#include "equal.h"
#include "tree.h"

namespace graphopt {

namespace {

[[noreturn]] void Refuse(const std::string& what) { throw std::invalid_argument(what); }

Children Collect(const int32_t* sources, const int32_t* targets, int64_t count, int64_t nodes) {
  Children found;
  found.begin.assign(nodes + 1, 0);
  for (int64_t e = 0; e < count; ++e) {
    if (targets[e] == -1) continue;
    for (int64_t node : {sources[e], targets[e]})
      if (node < 0 || node >= nodes)
        Refuse("an edge leads from node " + std::to_string(sources[e]) + " to node " +
               std::to_string(targets[e]) + ", but nodes are 0 to " + std::to_string(nodes - 1) +
               " (-1 for the parent of a root)");
    ++found.begin[targets[e] + 1];
  }
  std::partial_sum(found.begin.begin(), found.begin.end(), found.begin.begin());
  found.node.resize(found.begin[nodes]);
  std::vector<int64_t> at(found.begin.begin(), found.begin.end() - 1);
  for (int64_t e = 0; e < count; ++e)
    if (targets[e] != -1) found.node[at[targets[e]]++] = sources[e];
  return found;
}

/* Nodes in the order of their heights, which are told as well. */
std::vector<int32_t> Sort(const Children& children, const int32_t* sources,
                          const int32_t* targets, int64_t count, std::vector<int32_t>* heights) {
  int64_t nodes = children.begin.size() - 1;
  std::vector<int64_t> waits(nodes), parent_begin(nodes + 1, 0);
  for (int64_t e = 0; e < count; ++e)
    if (targets[e] != -1) ++parent_begin[sources[e] + 1];
  std::partial_sum(parent_begin.begin(), parent_begin.end(), parent_begin.begin());
  std::vector<int32_t> parents(parent_begin[nodes]);
  std::vector<int64_t> at(parent_begin.begin(), parent_begin.end() - 1);
  for (int64_t e = 0; e < count; ++e)
    if (targets[e] != -1) parents[at[sources[e]]++] = targets[e];
  heights->assign(nodes, 0);
  std::vector<int32_t> sorted;
  sorted.reserve(nodes);
  for (int64_t n = 0; n < nodes; ++n) {
    waits[n] = children.begin[n + 1] - children.begin[n];
    if (!waits[n]) sorted.push_back(n);
  }
  for (size_t i = 0; i < sorted.size(); ++i) {
    int32_t node = sorted[i];
    for (int64_t k = parent_begin[node]; k < parent_begin[node + 1]; ++k) {
      int32_t parent = parents[k];
      (*heights)[parent] = std::max((*heights)[parent], (*heights)[node] + 1);
      if (--waits[parent] == 0) sorted.push_back(parent);
    }
  }
  if (static_cast<int64_t>(sorted.size()) < nodes) {
    int64_t node = std::find_if(waits.begin(), waits.end(), [](int64_t w) { return w > 0; }) -
                   waits.begin();
    Refuse("the edges form a cycle, which node " + std::to_string(node) +
           " is part of or depends on");
  }
  return sorted;
}

/* Trees, or connected parts. */
Parts Connect(const Children& children) {
  Parts parts(children.nodes());
  for (int64_t n = 0; n < children.nodes(); ++n)
    for (int64_t k = 0; k < children.count(n); ++k) parts.Join(n, children.of(n)[k]);
  return parts;
}

/* The chunk of every node: parts in their order, until there are enough nodes. */
std::vector<int32_t> Divide(Parts* parts, int64_t nodes, int64_t size, int64_t* chunks) {
  std::vector<int32_t> chunk(nodes);
  int64_t filled = 0;
  *chunks = 0;
  for (int64_t n = 0; n < nodes; ++n) {
    const int32_t part = parts->Find(n);
    if (part != n) {
      chunk[n] = chunk[part];
      continue;
    }
    // A part goes where the border is nearest to where it should be.
    if (*chunks == 0 || filled + parts->Size(n) / 2 > size) {
      ++*chunks;
      filled = 0;
    }
    filled += parts->Size(n);
    chunk[n] = *chunks - 1;
  }
  return chunk;
}

/* Nodes by chunk, and by height within it. */
struct Layers {
  std::vector<int64_t> level_of_chunk;  // chunk c has levels level_of_chunk[c] to [c + 1]
  std::vector<int64_t> levels;          // level l has places levels[l] to levels[l + 1] of `order`
  std::vector<int32_t> order;
};

Layers Arrange(const std::vector<int32_t>& chunk_of, const std::vector<int32_t>& heights,
               int64_t chunks) {
  const int64_t nodes = chunk_of.size();
  Layers found;
  // Levels of chunks, one behind the other: a place for every height up to the chunk's largest.
  std::vector<int64_t> tops(chunks, 0);
  for (int64_t n = 0; n < nodes; ++n)
    tops[chunk_of[n]] = std::max<int64_t>(tops[chunk_of[n]], heights[n] + 1);
  found.level_of_chunk.assign(chunks + 1, 0);
  std::partial_sum(tops.begin(), tops.end(), found.level_of_chunk.begin() + 1);
  found.levels.assign(found.level_of_chunk[chunks] + 1, 0);
  auto level = [&](int32_t node) { return found.level_of_chunk[chunk_of[node]] + heights[node]; };
  for (int64_t n = 0; n < nodes; ++n) ++found.levels[level(n) + 1];
  std::partial_sum(found.levels.begin(), found.levels.end(), found.levels.begin());
  std::vector<int64_t> at(found.levels.begin(), found.levels.end() - 1);
  found.order.resize(nodes);
  for (int64_t n = 0; n < nodes; ++n) found.order[at[level(n)]++] = n;
  return found;
}

/* Gives a place to one of the nodes that are equal, chunk by chunk. */
class Placing {
 public:
  Placing(const Children& children, const std::vector<int32_t>& equal)
      : children_(children), equal_(equal), places_(equal.size()), chunks_(equal.size(), -1) {}

  Levels Run(const Layers& layers) {
    const int64_t chunks = layers.level_of_chunk.size() - 1;
    found_.nodes = equal_.size();
    found_.level_of_chunk = layers.level_of_chunk;
    found_.edges.push_back(0);
    found_.child.reserve(children_.node.size());
    for (int64_t c = 0; c < chunks; ++c) {
      found_.chunks.push_back(found_.order.size());
      found_.copies_of_chunk.push_back(found_.copies.size());
      for (int64_t l = layers.level_of_chunk[c]; l < layers.level_of_chunk[c + 1]; ++l) {
        found_.levels.push_back(found_.order.size());
        for (int64_t i = layers.levels[l]; i < layers.levels[l + 1]; ++i) Put(layers.order[i], c);
      }
    }
    found_.chunks.push_back(found_.order.size());
    found_.levels.push_back(found_.order.size());
    found_.copies_of_chunk.push_back(found_.copies.size());
    return std::move(found_);
  }

 private:
  void Put(int32_t node, int32_t chunk) {
    const int32_t kind = equal_[node];
    if (chunks_[kind] == chunk) {
      found_.copies.push_back({node, places_[kind]});
      return;
    }
    chunks_[kind] = chunk;
    places_[kind] = static_cast<int32_t>(found_.order.size() - found_.chunks.back());
    found_.order.push_back(node);
    for (int64_t k = 0; k < children_.count(node); ++k)
      found_.child.push_back(places_[equal_[children_.of(node)[k]]]);
    found_.edges.push_back(found_.child.size());
  }

  const Children& children_;
  const std::vector<int32_t>& equal_;
  std::vector<int32_t> places_, chunks_;  // of each kind of node, the place it got last, and where
  Levels found_;
};

}  // namespace

Levels FindLevels(const int32_t* sources, const int32_t* targets, int64_t count, int64_t nodes,
                  int64_t size, const int32_t* rows) {
  const Children children = Collect(sources, targets, count, nodes);
  std::vector<int32_t> heights;
  const std::vector<int32_t> sorted = Sort(children, sources, targets, count, &heights);
  Parts parts = Connect(children);
  std::vector<int32_t> equal;
  if (rows) {
    equal = FindEqual(children, sorted, rows);
    JoinAlike(children, sorted, equal, size, &parts);
  } else {
    equal.resize(nodes);
    std::iota(equal.begin(), equal.end(), 0);
  }
  int64_t chunks = 0;
  const std::vector<int32_t> chunk_of = Divide(&parts, nodes, size, &chunks);
  return Placing(children, equal).Run(Arrange(chunk_of, heights, chunks));
}

}  // namespace graphopt
