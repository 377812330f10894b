/*
 * graphopt_attention: products of queries and keys, a kernel over their rows (scales, masks, softmax),
 * Dropout, and the product with the values, some rows at a time.
 *
 * The idea is FlashAttention's (Dao et al., 2022): scores stay in the second-level cache and are computed
 * again in backward, instead of being written and kept. As keys of one head fit into the cache, rows are
 * whole, and what lies between the products may be any kernel that reads whole rows of scores.
 *
 * Attributes: `spec`, the kernel; `scores`, which of its inputs they are; `queries`, `keys`, `values`, where
 * those lie, five numbers each: the node's input, 0 for (products, rows, columns), 1 for (batch, rows, heads,
 * columns), 2 for (rows, batch, heads * parts * columns), the heads, the parts, which of them; `mixed`, the
 * same of the result, without an input; `scaled`, whether scores are over the square root of the columns;
 * `heads`, where the kernel sees scores as (batch, heads, rows, keys), else 0; `p` and `salt`, of Dropout.
 *
 * Inputs: the arrays; what the kernel reads besides scores, in its order; the seed of Dropout if there is p.
 */
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "dropout_operator.h"
#include "fused.h"
#include "products.h"
#include "stack.h"

namespace graphopt {

/* How matrices lie in an array; see above. */
struct Site {
  int64_t input = 0, form = 0, heads = 1, parts = 1, part = 0;

  int axes() const { return form == 1 ? 4 : 3; }

  Stack In(const mxnet::TShape& shape) const {
    if (form == 0) return Adjacent(shape[0], shape[1], shape[2]);
    if (form == 1) return SideBySide(shape[0], shape[1], heads, shape[3]);
    return Interleaved(shape[0], shape[1] * heads, parts, part, shape[2] / (heads * parts));
  }

  bool Fits(const mxnet::TShape& shape) const {
    if (shape.ndim() != axes()) return false;
    return form == 1 ? shape[2] == heads : form == 2 ? shape[2] % (heads * parts) == 0 : true;
  }

  mxnet::TShape ShapeOf(int64_t products, int64_t rows, int64_t columns) const {
    if (form == 0) return Shaped({products, rows, columns});
    if (form == 1) return Shaped({products / heads, rows, heads, columns});
    return Shaped({rows, products / heads, heads * columns});
  }
};

/* The numbers in a text such as "(0, 2, 12, 3, 1)". */
std::vector<int64_t> NumbersOf(const NodeAttrs& attrs, const char* key) {
  const std::string text = TextOf(attrs, key, "");
  std::vector<int64_t> found;
  for (const char* at = text.c_str(); *at;) {
    if (*at < '0' || *at > '9') { ++at; continue; }
    char* end = nullptr;
    found.push_back(std::strtoll(at, &end, 10));
    at = end;
  }
  return found;
}

Site SiteOf(const NodeAttrs& attrs, const char* key, bool is_result = false) {
  const std::vector<int64_t> n = NumbersOf(attrs, key);
  if (n.size() != (is_result ? 4u : 5u))
    Fail("node " + attrs.name + " needs numbers that say where its " + key + " lie");
  const size_t at = is_result ? 0 : 1;
  Site place{is_result ? 0 : n[0], n[at], n[at + 1], n[at + 2], n[at + 3]};
  if (place.form > 2 || place.heads < 1 || place.parts < 1 || place.part >= place.parts)
    Fail("node " + attrs.name + " has impossible numbers for where its " + key + " lie");
  return place;
}

/* What an attention node computes, without sizes. */
struct Attention {
  Site queries, keys, values, mixed;
  Plan* kernel;
  int64_t scores, heads, arrays;
  bool scaled, drops;

  explicit Attention(const NodeAttrs& attrs)
      : queries(SiteOf(attrs, "queries")), keys(SiteOf(attrs, "keys")), values(SiteOf(attrs, "values")),
        mixed(SiteOf(attrs, "mixed", true)), kernel(FindPlan(attrs, false)),
        scores(std::stoll(TextOf(attrs, "scores", "0"))), heads(std::stoll(TextOf(attrs, "heads", "0"))),
        arrays(std::max({queries.input, keys.input, values.input}) + 1), scaled(Flag(attrs, "scaled")),
        drops(attrs.dict.count("p") > 0) {
    const int64_t count = kernel->inputs.size();
    if (scores >= count || kernel->outputs.size() != 1 || !kernel->whole_rows || kernel->by_columns)
      Fail("node " + attrs.name + " needs a kernel that makes one array of whole rows of scores");
  }

  int64_t inputs() const { return arrays + kernel->inputs.size() - 1 + drops; }
  /* The node's input that the kernel's input is; of scores it has no meaning. */
  int64_t InputOf(int64_t i) const { return arrays + i - (i > scores); }
};

/* The sizes of an attention node whose shapes are known, and how its operands lie. */
struct AttentionSizes {
  Stack queries, keys, values;
  int64_t products, rows, others;  // matrices of scores, and of each its rows and columns

  AttentionSizes(const NodeAttrs& attrs, const Attention& node, const mxnet::TShape* shapes) {
    auto in = [&](const Site& place, const char* what) {
      if (!place.Fits(shapes[place.input]))
        Fail("node " + attrs.name + " cannot have its " + what + " in an array of that shape");
      return place.In(shapes[place.input]);
    };
    queries = in(node.queries, "queries");
    keys = in(node.keys, "keys");
    values = in(node.values, "values");
    products = queries.products;
    rows = queries.rows;
    others = keys.rows;
    if (keys.products != products || values.products != products || keys.columns != queries.columns ||
        values.rows != others)
      Fail("the queries, keys and values of node " + attrs.name + " do not fit each other");
    if (products % node.mixed.heads || (node.heads && products % node.heads))
      Fail("the products of node " + attrs.name + " are no whole number of heads");
  }

  mxnet::TShape ScoresFor(const Attention& node) const {
    if (node.heads) return Shaped({products / node.heads, node.heads, rows, others});
    return Shaped({products, rows, others});
  }
  /* Without columns of queries all scores are zero. */
  bool IsEmpty() const { return !products || !rows || !others || !values.columns; }
};

}  // namespace graphopt
