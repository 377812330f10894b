/*
 * Products of float32 matrices by a processor's matrix unit (AMX), which multiplies smaller numbers.
 *
 * A number is the sum of three bfloat16, of 8 binary digits each, so a product of two is nine products of
 * those; the three smallest are below a float32's last digit and left out. Six such products of large
 * matrices take half the time that vectors need for one, and their sums, of which the unit rounds fewer,
 * have half the error. See Henry, Tang and Heinecke, Leveraging the bfloat16 Artificial Intelligence
 * Datatype For Higher-Precision Computations, 2019. Where the unit multiplies float16 (AMX-FP16), two
 * parts and three products do, if numbers are first multiplied by powers of two; it is used if it is asked
 * for, as small numbers beside large ones then have fewer digits (tile_formats.h). See Ootomo and Yokota,
 * Recovering single precision accuracy from Tensor Cores while surpassing the FP32 theoretical peak
 * performance, 2022.
 *
 * Parts of thirds below 1e-38 count as zero. What is infinite, no number, or would be rounded to infinity cannot be
 * split; such rows, or the whole product, are multiplied without the unit.
 */
#pragma once

#include <cstdint>

#include "matrix.h"

namespace graphopt::tiles {

/* Whether this processor has such a unit and the system lets this process use it. */
bool AreThere();

/* Whether it is to multiply float16, and can: the processor says so, or does. */
bool HaveHalves();

/* A power of two: sums of products that are to be multiplied by it are stored as the unit has them. */
int UsualFactor();

/* Products of rows with packed matrices, and outer products; `vectors` does what tiles cannot, and its
 * packed form lies in front of theirs. */
const Products<float>& MakeProducts(const Products<float>& vectors);

}  // namespace graphopt::tiles
