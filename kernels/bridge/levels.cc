#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <string>

#include "tree.h"

namespace graphopt {

namespace {

/* Children of every node, in the order of edges. */
struct Children {
  std::vector<int64_t> begin;
  std::vector<int32_t> node;
};

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

/* Nodes with children before their parents, and their heights. */
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

/* The first node of the tree, or connected part, of every node. */
std::vector<int32_t> Parts(const Children& children) {
  int64_t nodes = children.begin.size() - 1;
  std::vector<int32_t> first(nodes);
  std::iota(first.begin(), first.end(), 0);
  auto find = [&](int32_t node) {
    while (first[node] != node) node = first[node] = first[first[node]];
    return node;
  };
  for (int64_t n = 0; n < nodes; ++n)
    for (int64_t k = children.begin[n]; k < children.begin[n + 1]; ++k) {
      int32_t a = find(n), b = find(children.node[k]);
      first[std::max(a, b)] = std::min(a, b);
    }
  for (int64_t n = 0; n < nodes; ++n) first[n] = find(n);
  return first;
}

/* The chunk of every node: connected parts in their order, until there are enough nodes. */
std::vector<int32_t> Divide(const std::vector<int32_t>& parts, int64_t size, int64_t* chunks) {
  int64_t nodes = parts.size();
  std::vector<int64_t> sizes(nodes, 0);
  for (int32_t part : parts) ++sizes[part];
  std::vector<int32_t> chunk(nodes);
  int64_t filled = 0;
  *chunks = 0;
  for (int64_t n = 0; n < nodes; ++n) {
    if (parts[n] != n) {
      chunk[n] = chunk[parts[n]];
      continue;
    }
    // A part goes where the border is nearest to where it should be.
    if (*chunks == 0 || filled + sizes[n] / 2 > size) {
      ++*chunks;
      filled = 0;
    }
    filled += sizes[n];
    chunk[n] = *chunks - 1;
  }
  return chunk;
}

}  // namespace

Levels FindLevels(const int32_t* sources, const int32_t* targets, int64_t count, int64_t nodes,
                  int64_t size) {
  Children children = Collect(sources, targets, count, nodes);
  std::vector<int32_t> heights;
  std::vector<int32_t> sorted = Sort(children, sources, targets, count, &heights);
  int64_t chunks = 0;
  std::vector<int32_t> chunk_of = Divide(Parts(children), size, &chunks);
  Levels found;
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
  for (int64_t c = 0; c <= chunks; ++c) found.chunks.push_back(found.levels[found.level_of_chunk[c]]);
  std::vector<int64_t> at(found.levels.begin(), found.levels.end() - 1);
  std::vector<int32_t> place(nodes);
  found.order.resize(nodes);
  for (int64_t n = 0; n < nodes; ++n) {
    place[n] = at[level(n)]++;
    found.order[place[n]] = n;
  }
  found.edges.push_back(0);
  found.child.reserve(children.node.size());
  for (int64_t p = 0; p < nodes; ++p) {
    int32_t node = found.order[p];
    for (int64_t k = children.begin[node]; k < children.begin[node + 1]; ++k)
      found.child.push_back(place[children.node[k]] - found.chunks[chunk_of[node]]);
    found.edges.push_back(found.child.size());
  }
  return found;
}

}  // namespace graphopt
