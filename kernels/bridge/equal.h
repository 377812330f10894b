/*
 * Equal subtrees, which are computed once.
 *
 * Nodes that read the same row and have equal children, in the same order, have equal states. They are
 * told apart by a number for each kind of node, children before parents: hash consing (Ershov, On
 * Programming of Arithmetic Operations, 1958; Downey, Sethi and Tarjan, Variations on the Common
 * Subexpression Problem, 1980). Since chunks do not see each other's nodes, trees that have much in
 * common are put into one chunk.
 */
#pragma once

#include <cstdint>
#include <vector>

namespace graphopt {

/* Children of every node, in the order of edges. */
struct Children {
  std::vector<int64_t> begin;
  std::vector<int32_t> node;

  int64_t nodes() const { return begin.size() - 1; }
  int64_t count(int32_t of) const { return begin[of + 1] - begin[of]; }
  const int32_t* of(int32_t parent) const { return node.data() + begin[parent]; }
};

/* Disjoint sets of nodes, each called by its first node. */
class Parts {
 public:
  explicit Parts(int64_t nodes);

  int32_t Find(int32_t node) {
    while (first_[node] != node) node = first_[node] = first_[first_[node]];
    return node;
  }

  int64_t Size(int32_t part) const { return sizes_[part]; }

  /* Makes two parts one. */
  void Join(int32_t a, int32_t b);

 private:
  std::vector<int32_t> first_;
  std::vector<int64_t> sizes_;
};

/* Of each node, the first one in `sorted` that equals it; `sorted` has children before their parents,
 * and rows[n] is the row that node n reads. */
std::vector<int32_t> FindEqual(const Children& children, const std::vector<int32_t>& sorted,
                               const int32_t* rows);

/* Joins parts of equal inner nodes, highest nodes first, unless more than `size` nodes come together;
 * `sorted` is in the order of heights, lowest first. */
void JoinAlike(const Children& children, const std::vector<int32_t>& sorted,
               const std::vector<int32_t>& equal, int64_t size, Parts* parts);

}  // namespace graphopt
