/*
 * Products of float32 matrices with half of the multiplications of most of their numbers, for processors
 * that add while they multiply.
 *
 * Two terms of an inner product take one multiplication: x1 y1 + x2 y2 = (x1 + y2) (x2 + y1) - x1 x2 -
 * y1 y2, and what is subtracted is the same for a row and for a column. See Winograd, A new algorithm for
 * inner product, 1968. AMD's Zen has two ports for multiplications, or multiplications and sums, and two
 * more for sums, so two thirds of the terms are paired, which keeps all four busy: three terms take two
 * multiplications and two sums.
 *
 * Digits are lost where what is added differs in size. So rows and columns of the packed matrix, and rows of
 * the other operand, are multiplied by powers of two that bring them to one size (paired_sizes.h). What is infinite or
 * no number, zero, or too far from that is multiplied number by number, and so are columns of which a few numbers
 * are much larger than the others.
 */
#pragma once

#include "matrix.h"

namespace graphopt::paired {

/* Whether this processor has AVX-512 and ports for sums besides those for multiplications; GRAPHOPT_PAIRED=0 says
 * no. */
bool ArePaired();

/* Products of rows with packed matrices, and outer products, in this way; `vectors` does what pairs cannot. */
const Products<float>& MakeProducts(const Products<float>& vectors);

}  // namespace graphopt::paired
