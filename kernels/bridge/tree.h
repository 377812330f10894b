/*
 * Message passing over trees and acyclic graphs: from children to parents, level by level.
 *
 * A node's height is the longest way from it down to a leaf. Nodes of one height do not depend on
 * each other and are computed together; all leaves are one level, and need no product with what
 * reaches them. Trees do not depend on each other either: a chunk of them goes through all levels
 * before the next chunk does, so that threads never wait for each other and a chunk stays in the
 * cache. Looks et al., Deep Learning with Dynamic Computation Graphs (2017), batch by depth.
 */
#pragma once

#include <cstdint>
#include <vector>

#include "recurrence.h"

namespace graphopt {

/* How messages become one row; graphopt/kernels/tree/spec.py has the same list. */
enum Reduction { kSum = 0, kMean = 1, kMax = 2, kConcat = 3 };

/* A node that equals the one at a place, counted from the start of its chunk. */
struct CopyOf {
  int32_t node, place;
};

/* Nodes and edges in the order in which they are computed: by chunk, then by height. Of nodes that are
 * equal, one has a place in its chunk, and the others are copies of it. */
struct Levels {
  int64_t nodes = 0;
  std::vector<int64_t> chunks;  // places of nodes: chunk c has chunks[c] to chunks[c + 1]
  std::vector<int32_t> order;   // the node at each place
  std::vector<int64_t> edges;   // the node at place p gets messages edges[p] to edges[p + 1]
  std::vector<int32_t> child;   // of each edge, the child's place from the start of its chunk
  std::vector<int64_t> level_of_chunk;  // chunk c has levels level_of_chunk[c] to [c + 1]
  std::vector<int64_t> levels;  // level l has places levels[l] to levels[l + 1]; chunks adjoin
  std::vector<CopyOf> copies;
  std::vector<int64_t> copies_of_chunk;  // chunk c has copies copies_of_chunk[c] to [c + 1]

  int64_t places() const { return order.size(); }
};

/* Finds the levels of a graph whose edge e leads from sources[e] to targets[e], negative targets
 * meaning that there is no edge; chunks get about `chunk` nodes. If rows[n] is the row that node n
 * reads, equal nodes are computed once in each chunk; null: no nodes are taken for equal. Throws
 * std::invalid_argument if a node is outside of 0 to nodes - 1, or if there is a cycle. */
Levels FindLevels(const int32_t* sources, const int32_t* targets, int64_t count, int64_t nodes,
                  int64_t chunk, const int32_t* rows);

/* What happens along edges and at nodes, forward or backward. */
struct TreeProgram {
  Program message, update;
};

/* Columns of everything; `reduce` says how each message is reduced, `reduced` to how many columns, and
 * `kept` whether backward reads that. */
struct TreeShape {
  int64_t node_stash = 0, edge_stash = 0;  // columns of the programs' own stashes
  std::vector<int64_t> node_rows, edge_rows, states, messages, reduce, reduced, kept, emitted;

  /* What an update's and a message's row of the stashes hold behind that: what was reduced, and
   * messages whose largest one was taken. */
  int64_t node_stash_width() const;
  int64_t edge_stash_width() const;
};

struct TreeCall {
  const Levels* levels = nullptr;
  // Rows that updates and messages read: that of node n is number index[n], or n without an index.
  std::vector<const void*> node_rows, edge_rows;
  const int32_t* index = nullptr;
  // A row per node, in the order of nodes.
  std::vector<const void*> heads;  // null: zeros
  std::vector<void*> emitted;  // forward writes them, backward reads them
  std::vector<void*> node_row_gradients, edge_row_gradients;  // a row per node; null: not wanted
  void *node_stash = nullptr, *edge_stash = nullptr;  // null: there is no backward
  Learned message, update;
  int threads = 1;
};

/* A row for each node, and where their sums by row go. */
struct RowSum {
  const void* from;
  void* to;
  int64_t width;
};

/* to[r] = the sum of from[n] over all nodes n whose row is r = index[n], in the order of nodes; a node
 * whose index is negative has none. */
void SumRows(const std::vector<RowSum>& sums, const int32_t* index, int64_t nodes, int64_t rows,
             bool is_double, int threads);

void RunTree(const TreeProgram& program, const TreeShape& shape, const TreeCall& call);

}  // namespace graphopt
