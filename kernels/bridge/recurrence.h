/*
 * Runs a recurrence: a small program per step, over the rows of a batch, step after step.
 *
 * Rows do not depend on each other. A few of them, a chunk, go through all steps before the next few
 * do: what a step needs stays in the cache, and threads that take different chunks never wait for
 * each other. Sequences of different lengths are sorted, longest first. Forward, one that has ended makes
 * room for the next (slots.h); backward, those that have ended are at the end of a chunk and cost
 * nothing.
 */
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "meanwhile.h"

namespace graphopt {

/* Where an operand of an instruction lies; see graphopt/kernels/recurrence/program.py. */
enum Place {
  kSequence = 0,     // what has a row for every step, at this step
  kPrevious = 1,     // a state before this step
  kNext = 2,         // a state after it
  kStash = 3,        // what forward keeps for backward
  kScratch = 4,      // a buffer of this step
  kRing = 5,         // a buffer that lives until the gradients of matrices are added up
  kVector = 6,       // a row that is the same in all steps and for the whole batch
  kVectorSum = 7,    // the gradient of one
  kCarryIn = 8,      // the gradient of a state after this step
  kCarryOut = 9,     // the gradient of a state before it
};

struct Spot {
  int64_t place, index, offset;
};

enum Code { kProduct = 0, kKernel = 1, kCopy = 2, kAdd = 3, kZero = 4, kOuter = 5 };

struct Step {
  int64_t code;
  int64_t which;          // product: a pack; kernel: a kernel; outer: a matrix
  int64_t width, depth;   // columns; of products: how many are summed
  bool adds;
  int64_t row, column;    // outer: where in the matrix
  std::vector<Spot> spots;  // what is written first, then what is read; of kernels in their order
  // Products that need no state: they can be computed for many steps at once, before these or after.
  bool early = false, late = false;
  int64_t together = 1;  // products from this one on that are added to the same columns, itself first
  int64_t alike = 1;  // products, or outer products, from this one on with the same left operand
};

/* A part of a matrix, packed for products with it. */
struct PackOf {
  int64_t matrix;
  bool transposed;  // rows of the part are summed over, not columns
  int64_t row, column, depth, width;
  int64_t times;  // a power of two that its products are to be multiplied by
};

/* Where a state lies after a step. */
enum Home { kPingPong = 0, kInStash = 1, kInSequence = 2, kFixed = 3 };

struct StateOf {
  int64_t width, home, index, offset;
};

struct KernelOf {
  KernelFunction function;
  int64_t scratch_rows;
  bool has_one_space;  // every operand has every element: adjacent rows may be one long row
  Stages stages;  // which compute the same for some columns of a row
};

struct Program {
  bool is_double = false;
  bool backward = false;
  bool by_vectors = false;  // even where there is a matrix unit
  int64_t stash_width = 0;
  int64_t stash_unit = 0;  // columns whose rows lie together where all sequences are equally long
  std::vector<int64_t> sequence_widths, vector_widths;
  std::vector<bool> sequence_is_written;
  std::vector<int64_t> matrix_rows, matrix_columns;
  std::vector<int64_t> scratch_widths, ring_widths;
  std::vector<StateOf> states;
  std::vector<PackOf> packs;
  std::vector<KernelOf> kernels;
  std::vector<Step> steps;
};

/* Reads what Python wrote, and moves on behind it; see graphopt/kernels/recurrence/program.py. */
Program ReadProgram(const int64_t** numbers);

/* An array with a row of adjacent elements for every step and sequence of the batch. */
struct SequenceArray {
  void* data = nullptr;  // null: it is not wanted
  int64_t step_stride = 0, row_stride = 0;  // in elements
};

/* What is learned, and where its gradients go. */
struct Learned {
  std::vector<const void*> matrices, vectors;
  std::vector<void*> matrix_gradients, vector_gradients;  // null: not wanted
};

struct RecurrenceCall : Learned {
  int64_t steps = 0, batch = 0;
  bool reverse = false;
  const int64_t* lengths = nullptr;  // null: all have `steps`
  // Of each step and sequence, which row of sequence 0 it reads; null: that has a row for each.
  const int32_t* index = nullptr;
  std::vector<SequenceArray> sequences;
  std::vector<const void*> first;    // forward: initial states; backward: gradients of final ones
  std::vector<void*> last;           // forward: final states; backward: gradients of initial ones
  std::vector<const void*> initial;  // backward: initial states
  void* stash = nullptr;
  int threads = 1;
  void* scratch = nullptr;  // what it computes in; memory of its own if that is too small
  int64_t scratch_bytes = 0;
  const void* packed = nullptr;  // the matrices by PackMatrices; null: packed in scratch by the call
};

void RunRecurrence(const Program& program, const RecurrenceCall& call);

/* Rows of kernels that were computed while a matrix unit was busy, in all calls by now. */
extern std::atomic<int64_t> rows_beside_products;

/* Whether every step of a forward program has read sequence `read` before it writes to sequence
 * `written`; then one array may be both, as long as rows have the same width. */
bool ReadsFirst(const Program& program, int64_t read, int64_t written);

/* How much scratch a call wants with so many steps, sequences and threads, `lengths` and `packed` null
 * or not. */
int64_t ScratchBytes(const Program& program, const RecurrenceCall& call);

/* Bytes of the matrices that a program reads once they are packed, and packing them to where a line
 * begins. */
int64_t PackedBytes(const Program& program);
void PackMatrices(const Program& program, const Learned& learned, int threads, void* to);

}  // namespace graphopt
