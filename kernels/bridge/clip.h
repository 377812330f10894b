/*
 * The norm of several arrays together, and their scaling to a bound of it, in one operation of MXNet's engine; see
 * graphopt/optimizers/clipping.py.
 */
#pragma once

#include <cmath>

#include "update.h"

namespace graphopt {

struct Clip {
  Plan *squares, *scaling;  // a row to its sum of squares; a flat array and a number to their product
  std::vector<NDArray> arrays;
  NDArray total;            // of one element
  double most;
  bool is_one_thread = false;
};

class ClipRun {
 public:
  explicit ClipRun(const Clip& clip)
      : clip_(clip), squares_(Ready(clip.squares)), scaling_(Ready(clip.scaling)), item_(clip.squares->item_size) {
    for (const NDArray& array : clip.arrays) {
      PutInPlainOrder(array);
      at_.push_back(static_cast<char*>(array.data().dptr_));
      sizes_.push_back(array.shape().Size());
      pieces_.push_back(pieces_.back() + (sizes_.back() + kTileElements - 1) / kTileElements);
    }
  }

  void All() {
    const int dtype = clip_.squares->inputs[0].dtype;
    // Of each piece, so that as many threads as there are sum them up alike.
    std::vector<double> sums(pieces_.back());
    ForPieces([&](int64_t piece, char* at, int64_t count) {
      alignas(8) char sum[8];
      Call(squares_, {at, sum}, count);
      sums[piece] = item_ == 4 ? *reinterpret_cast<float*>(sum) : *reinterpret_cast<double*>(sum);
    });
    double total = 0;
    for (double sum : sums) total += sum;
    total = std::sqrt(total);
    Write(static_cast<char*>(clip_.total.data().dptr_), dtype, 0, total);
    const double scale = clip_.most / (total + 1e-8);  // as MXNet's
    if (!(scale < 1)) return;
    alignas(8) char number[8];
    Write(number, dtype, 0, scale);
    ForPieces([&](int64_t, char* at, int64_t count) { Call(scaling_, {at, number, at}, count); });
  }

 private:
  template <typename Run>
  void ForPieces(const Run& run) {
    int64_t elements = 0;
    for (int64_t size : sizes_) elements += size;
    const int threads = clip_.is_one_thread ? 1 : Threads(clip_.squares->cost * elements, pieces_.back());
    std::atomic<int64_t> next{0};
#pragma omp parallel num_threads(threads) if (threads > 1)
    for (int64_t piece; (piece = next.fetch_add(1, std::memory_order_relaxed)) < pieces_.back();) {
      const int64_t array = std::upper_bound(pieces_.begin(), pieces_.end(), piece) - pieces_.begin() - 1;
      const int64_t first = (piece - pieces_[array]) * kTileElements;
      run(piece, at_[array] + first * item_, std::min(kTileElements, sizes_[array] - first));
    }
  }

  static void Call(Function function, std::initializer_list<char*> operands, int64_t count) {
    int64_t pointers[4], strides[4] = {}, *to = pointers;
    for (char* operand : operands) *to++ = reinterpret_cast<int64_t>(operand);
    function(pointers, strides, 1, count, 0);
  }

  const Clip& clip_;
  const Function squares_, scaling_;
  const int64_t item_;
  std::vector<char*> at_;
  std::vector<int64_t> sizes_, pieces_{0};
};

/* Has the engine write the norm of some arrays to `total`, and scale them where it is above `most`; the caller's thread
 * if they have few elements and nothing has to be waited for. */
void PushClip(const char* squares, const char* scaling, void** handles, int64_t count, void* total, double most) {
  const auto plan = [](const char* spec) {
    NodeAttrs attrs;
    attrs.name = "graphopt_clip";
    attrs.dict["spec"] = spec;
    return FindPlan(attrs, false);
  };
  std::unique_ptr<Clip> clip(new Clip{plan(squares), plan(scaling), {}, *static_cast<NDArray*>(total), most});
  if (NeedsScratch(*clip->squares) || NeedsScratch(*clip->scaling)) Fail("a kernel of a norm needs scratch");
  Variables written{ChunkOf(clip->total)->variable};
  int64_t elements = 0;
  for (int64_t i = 0; i < count; ++i) {
    clip->arrays.push_back(*static_cast<NDArray*>(handles[i]));
    written.push_back(ChunkOf(clip->arrays.back())->variable);
    elements += clip->arrays.back().shape().Size();
  }
  const bool is_small = elements <= kFewWeights;
  // Arrays in the same memory are scaled one after the other, as MXNet does.
  std::sort(written.begin(), written.end());
  clip->is_one_thread = is_small || std::adjacent_find(written.begin(), written.end()) != written.end();
  Push([](void*, void* given) { ClipRun(*static_cast<Clip*>(given)).All(); }, clip.release(),
       [](void* given) { delete static_cast<Clip*>(given); }, written, written, is_small, "graphopt_clip");
}

}  // namespace graphopt
