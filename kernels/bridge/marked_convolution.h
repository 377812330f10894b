/*
 * MXNet's Convolution and its gradient by Winograd's algorithm, where a node is marked for it.
 *
 * The mark is an attribute, `__winograd__`, of what is computed so: "forward data weight". MXNet hands it on to the node of the gradient; all else of the operator stays MXNet's. What is not
 * marked, or lies otherwise than the mark promises, is left to MXNet.
 */
#pragma once

#include <algorithm>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "arrays.h"
#include "filtering.h"
#include "layouts.h"

namespace graphopt {

mxnet::FComputeEx plain_convolution, plain_convolution_gradient;

/* Memory that is kept from call to call, also over threads: pages are dear. */
class Scratch {
 public:
  explicit Scratch(size_t floats) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (!kept_.empty()) {
        memory_ = std::move(kept_.back());
        kept_.pop_back();
      }
    }
    const size_t wanted = floats + kLineBytes / sizeof(float);
    if (memory_.size < wanted) memory_ = {std::unique_ptr<float[]>(new float[wanted]), wanted};
  }
  ~Scratch() {
    std::lock_guard<std::mutex> lock(mutex_);
    if (kept_.size() < kMostKept) kept_.push_back(std::move(memory_));
  }
  Scratch(const Scratch&) = delete;
  float* data() { return Aligned<float>(memory_.floats.get()); }

 private:
  struct Memory {
    std::unique_ptr<float[]> floats;
    size_t size = 0;
  };
  static constexpr size_t kMostKept = 2;
  static std::mutex mutex_;
  static std::vector<Memory> kept_;
  Memory memory_;
};
std::mutex Scratch::mutex_;
std::vector<Scratch::Memory> Scratch::kept_;

/* Whether a direction of a node is to be computed so. */
bool IsMarked(const NodeAttrs& attrs, const char* direction) {
  auto found = attrs.dict.find("__winograd__");
  return found != attrs.dict.end() && found->second.find(direction) != std::string::npos;
}

/* Whether strides or the like are those of every convolution that says nothing. */
bool AreOnes(const NodeAttrs& attrs, const char* key) {
  auto found = attrs.dict.find(key);
  return found == attrs.dict.end() || found->second.find_first_of("023456789") == std::string::npos ||
         found->second == "None";
}

/* A convolution of 3x3 pixels, in whole blocks of channels and filters; one that does not fit is another one. */
struct Geometry {
  int64_t images = 0, channels = 0, filters = 0, in[2], out[2], pad[2];
  bool fits = false;

  Geometry(const NodeAttrs& attrs, const NDArray& data, const mxnet::TShape& weight,
           const mxnet::TShape& made) {
    const mxnet::TShape& shape = data.shape();
    const int64_t lanes = blocked::BlockLanes();
    if (shape.ndim() != 4 || weight.ndim() != 4 || made.ndim() != 4 || shape.Size() == 0 ||
        made.Size() == 0 || data.dtype() != mshadow::kFloat32 || weight[2] != 3 || weight[3] != 3 ||
        weight[1] != shape[1] || shape[1] % lanes || weight[0] % lanes ||
        shape[1] > blocked::kMostBlocks * lanes || weight[0] > blocked::kMostBlocks * lanes ||
        !AreOnes(attrs, "stride") || !AreOnes(attrs, "dilate"))
      return;
    images = shape[0], channels = shape[1], filters = weight[0];
    for (int d = 0; d < 2; ++d) {
      in[d] = shape[2 + d], out[d] = made[2 + d];
      const int64_t twice = out[d] - in[d] + 2;
      if (twice < 0 || twice % 2 || twice > 4) return;
      pad[d] = twice / 2;
    }
    fits = true;
  }
};

blocked::View ViewOf(const float* data, const float* arena, int64_t channels, const int64_t* extent) {
  const int64_t lanes = blocked::BlockLanes(), row = extent[1] * lanes, block = extent[0] * row;
  return {(reinterpret_cast<intptr_t>(data) - reinterpret_cast<intptr_t>(arena)) /
              static_cast<intptr_t>(sizeof(float)),
          channels / lanes * block, block, row, channels / lanes, extent[0], extent[1], 0};
}

/*
 * Floats of the transformed tiles of all blocks that are worked on at a time: those of one thread, which stay in
 * its level-2 cache, or those of all threads.
 */
constexpr int64_t kOwnFloats = 100000, kSharedFloats = 1600000, kFewestTiles = 28;
/* Channels and filters of which a thread's tiles stay near it. */
constexpr int64_t kOwnChannels = 256;

/* A convolution, without the places of its images. */
blocked::Step StepOf(int64_t images, int64_t channels, int64_t filters, const int64_t* in,
                     const int64_t* out, const int64_t* pad, int64_t near) {
  constexpr int tile = blocked::kTrainingTile;
  blocked::Step step{};
  step.kind = blocked::kWinograd;
  step.groups = step.bundle = 1;
  step.images = images, step.channels = channels, step.filters = filters;
  step.kernel_y = step.kernel_x = 3;
  step.stride_y = step.stride_x = step.dilation_y = step.dilation_x = 1;
  step.pad_y = pad[0], step.pad_x = pad[1];
  step.bias = -1;
  step.tile = tile;
  step.in = ViewOf(nullptr, nullptr, channels, in);
  step.out = ViewOf(nullptr, nullptr, filters, out);
  const int64_t tiles = images * blocked::Ceil(out[0], tile) * blocked::Ceil(out[1], tile);
  const int64_t each = (tile + 2) * (tile + 2) * (channels + filters);
  const int64_t most = std::max(kFewestTiles, near / each);
  step.chunk = blocked::Ceil(tiles, blocked::Ceil(tiles, most));
  step.group = blocked::BestGroup(step);
  return step;
}

int64_t TransformedFloats(const blocked::Step& step) {
  return step.chunk * (step.tile + 2) * (step.tile + 2) * (step.channels + step.filters);
}

/* Runs tasks of phases, threads taking them as they come. */
template <typename Tasks, typename Run>
void RunPhases(int64_t phases, const Tasks& tasks, const Run& run, int threads) {
#pragma omp parallel num_threads(threads) if (threads > 1)
  for (int64_t phase = 0; phase < phases; ++phase) {
    const int64_t count = tasks(phase);
#pragma omp for schedule(dynamic)
    for (int64_t task = 0; task < count; ++task) run(phase, task);
  }
}

int AllThreads() { return Threads(1e9, 1 << 10); }

/* Whether threads work on tiles of their own, from their transform to the output, or on each other's. */
bool IsOwn(int64_t channels, int64_t filters) { return channels + filters <= kOwnChannels; }

/* Images through filters; `from` and `to` are in blocks. */
void Filter(blocked::Step step, const blocked::Filters& filters, const float* from, float* to,
            const float* bias) {
  const int threads = AllThreads();
  const int64_t floats = Align(blocked::PackedWeights(step) * sizeof(float)) / sizeof(float);
  const bool is_own = IsOwn(step.channels, step.filters);
  Scratch scratch(floats + (is_own ? threads : 1) * TransformedFloats(step));
  float *packed = scratch.data(), *arena = packed + floats;
  const int64_t in[] = {step.in.height, step.in.width}, out[] = {step.out.height, step.out.width};
  step.in = ViewOf(from, arena, step.channels, in);
  step.out = ViewOf(to, arena, step.filters, out);
  const int64_t tasks = blocked::FilterTasks(filters), phases = blocked::Phases(step);
  const auto run = [&](const blocked::Step& mine, int64_t phase, int64_t task) {
    blocked::RunTask({&mine, arena, packed, bias, nullptr, nullptr, 0}, phase, task, nullptr, nullptr);
  };
  if (!is_own) {
    RunPhases(
        1 + phases, [&](int64_t phase) { return phase ? blocked::Tasks(step, phase - 1) : tasks; },
        [&](int64_t phase, int64_t task) {
          if (phase)
            run(step, phase - 1, task);
          else
            blocked::FilterTask(filters, step, task, packed);
        },
        threads);
    return;
  }
  constexpr int64_t kPhases = 3;  // of a chunk
  RunPhases(
      2, [&](int64_t phase) { return phase ? phases / kPhases : tasks; },
      [&](int64_t phase, int64_t item) {
        if (!phase) return blocked::FilterTask(filters, step, item, packed);
        blocked::Step mine = step;
        mine.scratch = omp_get_thread_num() * TransformedFloats(step);
        for (int64_t p = kPhases * item; p < kPhases * (item + 1); ++p)
          for (int64_t task = 0; task < blocked::Tasks(step, p); ++task) run(mine, p, task);
      },
      threads);
}

/* The gradient of filters from images and the gradient of the output, both in blocks. */
void FilterGradient(blocked::Step step, const float* x, const float* dy, float* gradient) {
  const int64_t floats = Align(blocked::PackedWeights(step) * sizeof(float)) / sizeof(float);
  Scratch scratch(floats + TransformedFloats(step));
  float *sums = scratch.data(), *arena = sums + floats;
  const int64_t in[] = {step.in.height, step.in.width}, out[] = {step.out.height, step.out.width};
  step.in = ViewOf(x, arena, step.channels, in);
  step.out = ViewOf(dy, arena, step.filters, out);
  const blocked::Bound bound{&step, arena, nullptr, nullptr, nullptr, nullptr, 0};
  RunPhases(
      blocked::GradientPhases(step),
      [&](int64_t phase) { return blocked::GradientTasks(step, phase); },
      [&](int64_t phase, int64_t task) { blocked::GradientTask(bound, phase, task, sums, gradient); },
      AllThreads());
}

/* The sums of each channel's numbers, of an array in blocks. */
void SumChannels(const float* from, int64_t images, int64_t channels, int64_t places, float* to) {
  const int64_t lanes = blocked::BlockLanes(), blocks = channels / lanes;
#pragma omp parallel for num_threads(Threads(0.2 * images * channels * places, blocks))
  for (int64_t block = 0; block < blocks; ++block) {
    std::vector<double> sum(lanes);
    for (int64_t image = 0; image < images; ++image) {
      const float* at = from + (image * blocks + block) * places * lanes;
      std::vector<float> part(lanes);
      for (int64_t place = 0; place < places; ++place, at += lanes)
        for (int64_t lane = 0; lane < lanes; ++lane) part[lane] += at[lane];
      for (int64_t lane = 0; lane < lanes; ++lane) sum[lane] += part[lane];
    }
    for (int64_t lane = 0; lane < lanes; ++lane) to[block * lanes + lane] = sum[lane];
  }
}

/* oneDNN's description of an array in rows of so many float32. */
Layout BlocksOf(const mxnet::TShape& shape) {
  return InBlocks(RowLayout(shape), shape, static_cast<int>(blocked::BlockLanes()));
}

/* Channels that lie together: all of them, or those of a block; 0 in rows, -1 where it is something else. */
int64_t Together(const NDArray& array) {
  const Layout* layout = LayoutOf(array);
  if (!layout) return 0;
  const mxnet::TShape& shape = array.shape();
  const int block = BlockOf(*layout, shape);
  if (block) return block;
  const dnnl_blocking_desc_t& blocking = layout->data.format_desc.blocking;
  const bool is_last = IsDense(*layout, shape) && blocking.inner_nblks == 0 &&
                       blocking.strides[1] == 1 && blocking.strides[3] == shape[1] &&
                       blocking.strides[2] == shape[3] * shape[1];
  return is_last ? shape[1] : -1;
}

/* Blocks of `given` channels become blocks of `wanted`, of which one is a multiple of the other. */
void Regroup(const float* from, int64_t given, float* to, int64_t wanted, int64_t images,
             int64_t channels, int64_t places) {
  const int64_t width = std::min(given, wanted), parts = channels / width;
  constexpr int64_t kPlaces = 256;
  const int64_t pieces = (places + kPlaces - 1) / kPlaces;
  const int threads = Threads(0.2 * images * channels * places, images * pieces);
#pragma omp parallel for num_threads(threads) if (threads > 1)
  for (int64_t piece = 0; piece < images * pieces; ++piece) {
    const int64_t image = piece / pieces, begin = piece % pieces * kPlaces;
    const int64_t end = std::min(begin + kPlaces, places);
    const int64_t whole = image * channels * places;
    for (int64_t part = 0; part < parts; ++part) {
      const int64_t channel = part * width;
      const float* source = from + whole + channel / given * given * places + channel % given;
      float* target = to + whole + channel / wanted * wanted * places + channel % wanted;
      for (int64_t place = begin; place < end; ++place)
        std::copy_n(source + place * given, width, target + place * wanted);
    }
  }
}

/* An image in blocks of as many channels as vectors have; a copy unless it lies so. */
NDArray Blocked(const NDArray& array) {
  const int64_t lanes = blocked::BlockLanes(), given = Together(array);
  if (given == lanes) return array;
  const mxnet::TShape& shape = array.shape();
  if (given <= 0 || (given % lanes && lanes % given)) return CopyIn(array, BlocksOf(shape));
  NDArray copy(shape, array.ctx(), false, array.dtype());
  copy.CreateMKLDNNData(BlocksOf(shape));
  Regroup(static_cast<const float*>(Raw(array).dptr_), given,
          static_cast<float*>(Raw(copy).dptr_), lanes, shape[0], shape[1], shape[2] * shape[3]);
  return copy;
}

float* WriteBlocks(const NDArray& array) {
  const_cast<NDArray&>(array).CreateMKLDNNData(BlocksOf(array.shape()));
  return static_cast<float*>(Raw(array).dptr_);
}

float* WriteRows(const NDArray& array) {
  return static_cast<float*>(AsRows(array, mxnet::kWriteTo).dptr_);
}

const float* Floats(const NDArray& array) { return static_cast<const float*>(Raw(array).dptr_); }

bool IsWhole(const NDArray& array) { return array.byte_offset_ == 0 && !array.IsView(); }

int64_t NearFloats(const Geometry& found) {
  return IsOwn(found.channels, found.filters) ? kOwnFloats : kSharedFloats;
}

/* Inputs: images, filters and maybe a bias. */
void ConvolutionOnArrays(const NodeAttrs& attrs, const mxnet::OpContext& context,
                         const std::vector<NDArray>& inputs, const std::vector<OpReqType>& requests,
                         const std::vector<NDArray>& outputs) {
  if (!IsMarked(attrs, "forward") || requests[0] != mxnet::kWriteTo || !IsWhole(outputs[0]))
    return plain_convolution(attrs, context, inputs, requests, outputs);
  const Geometry found(attrs, inputs[0], inputs[1].shape(), outputs[0].shape());
  const bool has_rows = inputs.size() < 3 || !LayoutOf(inputs[2]);
  if (!found.fits || !has_rows) return plain_convolution(attrs, context, inputs, requests, outputs);
  mended_calls.fetch_add(1, std::memory_order_relaxed);
  const NDArray x = Blocked(inputs[0]), weight = InRows(inputs[1]);
  const float* bias = inputs.size() > 2 ? Floats(inputs[2]) : nullptr;
  const blocked::Step step = StepOf(found.images, found.channels, found.filters, found.in, found.out,
                                    found.pad, NearFloats(found));
  Filter(step, {Floats(weight), found.filters, found.channels, false}, Floats(x),
         WriteBlocks(outputs[0]), bias);
}

/* Inputs: the gradient of the output, images, filters and maybe a bias. Outputs: gradients of the latter. */
void ConvolutionGradientOnArrays(const NodeAttrs& attrs, const mxnet::OpContext& context,
                                 const std::vector<NDArray>& inputs,
                                 const std::vector<OpReqType>& requests,
                                 const std::vector<NDArray>& outputs) {
  const auto plain = [&](const std::vector<OpReqType>& left) {
    plain_convolution_gradient(attrs, context, inputs, left, outputs);
  };
  const auto is_marked = [&](const char* direction, size_t output) {
    return IsMarked(attrs, direction) && requests[output] == mxnet::kWriteTo &&
           IsWhole(outputs[output]);
  };
  const bool data = is_marked("data", 0), bias = requests.size() > 2;
  const bool weight = is_marked("weight", 1) && (!bias || requests[2] == mxnet::kWriteTo);
  if (!data && !weight) return plain(requests);
  const Geometry found(attrs, inputs[1], inputs[2].shape(), inputs[0].shape());
  if (!found.fits) return plain(requests);
  mended_calls.fetch_add(1, std::memory_order_relaxed);
  std::vector<OpReqType> left = requests;
  if (data) left[0] = mxnet::kNullOp;
  if (weight) std::fill(left.begin() + 1, left.end(), mxnet::kNullOp);
  if (std::any_of(left.begin(), left.end(), [](OpReqType r) { return r != mxnet::kNullOp; })) plain(left);
  const NDArray dy = Blocked(inputs[0]);
  if (weight) {
    const NDArray x = Blocked(inputs[1]);
    const blocked::Step step = StepOf(found.images, found.channels, found.filters, found.in,
                                      found.out, found.pad, kSharedFloats);
    FilterGradient(step, Floats(x), Floats(dy), WriteRows(outputs[1]));
    if (bias)
      SumChannels(Floats(dy), found.images, found.filters, found.out[0] * found.out[1],
                  WriteRows(outputs[2]));
  }
  if (data) {
    const NDArray filters = InRows(inputs[2]);
    const int64_t pad[] = {2 - found.pad[0], 2 - found.pad[1]};
    const blocked::Step step = StepOf(found.images, found.filters, found.channels, found.out,
                                      found.in, pad, NearFloats(found));
    Filter(step, {Floats(filters), found.channels, found.filters, true}, Floats(dy),
           WriteBlocks(outputs[0]), nullptr);
  }
}

}  // namespace graphopt
