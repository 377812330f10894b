/*
 * The three directions of a convolution in training, over images in blocks: the output, the gradient of the images, and
 * that of the filters.
 */
#pragma once

#include <algorithm>
#include <memory>
#include <mutex>
#include <vector>

#include "arrays.h"
#include "filtering.h"

namespace graphopt {

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

/* How a direction is computed. */
struct Algorithm {
  bool is_ours, is_winograd, is_paired, is_by_columns = false;
};

/* A convolution in whole blocks of channels and filters, its kernel as high as wide. */
struct Geometry {
  int64_t images, channels, filters, groups, kernel, in[2], out[2], pad[2], stride[2], dilation[2];

  /* The one that makes the gradient of its images from that of its output; its strides are ones. */
  Geometry Turned() const {
    Geometry found = *this;
    std::swap(found.channels, found.filters);
    std::swap(found.in, found.out);
    for (int d = 0; d < 2; ++d) found.pad[d] = (kernel - 1) * dilation[d] - pad[d];
    return found;
  }
};

blocked::View ViewOf(const float* data, const float* arena, int64_t channels, const int64_t* extent) {
  const int64_t lanes = blocked::BlockLanes(), row = extent[1] * lanes, block = extent[0] * row;
  return {(reinterpret_cast<intptr_t>(data) - reinterpret_cast<intptr_t>(arena)) /
              static_cast<intptr_t>(sizeof(float)),
          channels / lanes * block, block, row, channels / lanes, extent[0], extent[1], 0};
}

/*
 * Floats of what is transformed and worked on at a time: those of one thread, which stay in its level-2 cache, or those
 * of all threads; of large layers images alone.
 */
constexpr int64_t kOwnFloats = 100000, kSharedFloats = 1600000, kLargeFloats = 2400000, kFewestTiles = 28;
constexpr int64_t kStrip = 8;  // tiles that are multiplied at a time in pairs

/* A convolution, without the places of its images. */
blocked::Step StepOf(const Geometry& geometry, const Algorithm& algorithm) {
  blocked::Step step{};
  step.kind = algorithm.is_winograd ? blocked::kWinograd : geometry.groups > 1 ? blocked::kDepthwise : blocked::kDirect;
  step.is_paired = algorithm.is_paired;
  step.groups = geometry.groups, step.bundle = 1;
  step.images = geometry.images, step.channels = geometry.channels, step.filters = geometry.filters;
  step.kernel_y = step.kernel_x = geometry.kernel;
  step.stride_y = geometry.stride[0], step.stride_x = geometry.stride[1];
  step.dilation_y = geometry.dilation[0], step.dilation_x = geometry.dilation[1];
  step.pad_y = geometry.pad[0], step.pad_x = geometry.pad[1];
  step.bias = -1;
  step.tile = blocked::kTrainingTile;
  step.group = 1;
  step.in = ViewOf(nullptr, nullptr, geometry.channels, geometry.in);
  step.out = ViewOf(nullptr, nullptr, geometry.filters, geometry.out);
  return step;
}

/* Tiles that are transformed at a time, some `near` floats of so many channels. */
int64_t TilesAtATime(const blocked::Step& step, int64_t near, int64_t channels) {
  const int64_t tiles = step.images * blocked::TilesOf(step.out.height, step.dilation_y, step.tile) *
                        blocked::TilesOf(step.out.width, step.dilation_x, step.tile);
  const int64_t each = (step.tile + 2) * (step.tile + 2) * channels;
  return blocked::Ceil(tiles, blocked::Ceil(tiles, std::max(kFewestTiles, near / each)));
}

/* The step with its images where they lie, counted from `arena`. */
void Place(const float* from, const float* to, const float* arena, blocked::Step* step) {
  const int64_t in[] = {step->in.height, step->in.width}, out[] = {step->out.height, step->out.width};
  step->in = ViewOf(from, arena, step->channels, in);
  step->out = ViewOf(to, arena, step->filters, out);
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

int64_t AlignedFloats(int64_t floats) { return Align(floats * sizeof(float)) / sizeof(float); }

/* Images through filters that are packed before; threads that work on tiles of their own do so from their transform to the
 * output. */
void FilterPacked(const blocked::Step& step, const blocked::Filters& filters, const blocked::Bound& bound, float* packed,
                  int64_t own) {
  const int64_t packing = blocked::PackingPhases(step), phases = blocked::Phases(step);
  const auto run = [&](const blocked::Step& mine, int64_t phase, int64_t task) {
    blocked::Bound found = bound;
    found.step = &mine;
    blocked::RunTask(found, phase, task, nullptr, nullptr);
  };
  constexpr int64_t kPhases = 3;  // of Winograd's, for some tiles
  const bool is_own = step.kind == blocked::kWinograd;
  const auto run_own = [&](int64_t some) {
    blocked::Step mine = step;
    mine.scratch = omp_get_thread_num() * own;
    for (int64_t phase = kPhases * some; phase < kPhases * (some + 1); ++phase)
      for (int64_t task = 0; task < blocked::Tasks(step, phase); ++task) run(mine, phase, task);
  };
  RunPhases(
      packing + (is_own ? 1 : phases),
      [&](int64_t phase) {
        if (phase < packing) return blocked::PackingTasks(filters, step, phase);
        return is_own ? phases / kPhases : blocked::Tasks(step, phase - packing);
      },
      [&](int64_t phase, int64_t task) {
        if (phase < packing) return blocked::PackingTask(filters, step, phase, task, packed);
        return is_own ? run_own(task) : run(step, phase - packing, task);
      },
      AllThreads());
}

/* The same in groups. */
void FilterGroups(blocked::Step step, const blocked::Filters& filters, const float* from, float* to, const float* bias) {
  Scratch scratch(blocked::GroupedFloats(step));
  float* packed = scratch.data();
  Place(from, to, packed, &step);
  const blocked::Bound bound{&step, packed, packed, bias, nullptr, nullptr, 0};
  RunPhases(
      2, [&](int64_t phase) { return blocked::GroupedTasks(step, phase); },
      [&](int64_t phase, int64_t task) { blocked::GroupedTask(bound, filters, phase, task, packed); }, AllThreads());
}

/* Images through filters; `from` and `to` are in blocks. */
void Filter(Geometry geometry, const Algorithm& algorithm, const float* weights, bool is_turned, const float* from,
            float* to, const float* bias) {
  if (geometry.kernel == 1 && geometry.stride[0] == 1 && geometry.stride[1] == 1)
    for (auto extent : {geometry.in, geometry.out}) extent[1] *= extent[0], extent[0] = 1;  // one long row
  blocked::Step step = StepOf(geometry, algorithm);
  const blocked::Filters filters{weights, geometry.filters, geometry.channels, is_turned};
  if (geometry.groups > 1) return FilterGroups(step, filters, from, to, bias);
  const bool is_large = algorithm.is_winograd && blocked::IsLarge(step);
  if (algorithm.is_winograd)
    step.chunk = is_large ? TilesAtATime(step, kLargeFloats, step.channels)
                          : TilesAtATime(step, kOwnFloats, step.channels + step.filters);
  if (algorithm.is_paired) step.chunk = blocked::Ceil(step.chunk, kStrip) * kStrip;
  step.group = blocked::BestGroup(step);
  const int64_t floats = AlignedFloats(is_large ? step.channels + step.filters : blocked::PackedWeights(step));
  const int64_t own = AlignedFloats(blocked::ScratchFloats(step));
  Scratch scratch(floats + (is_large ? 1 : AllThreads()) * own);
  float *packed = scratch.data(), *arena = packed + floats;
  Place(from, to, arena, &step);
  std::vector<int64_t> offsets;
  if (!algorithm.is_winograd) offsets = blocked::DirectOffsets(step);
  const int64_t runs = offsets.size();
  blocked::Bound bound{&step, arena, packed, bias, nullptr, offsets.data(), runs};
  if (is_large && algorithm.is_paired) bound.factors = packed;
  if (!is_large) return FilterPacked(step, filters, bound, packed, own);
  RunPhases(
      blocked::LargePhases(step), [&](int64_t phase) { return blocked::LargeTasks(step, phase); },
      [&](int64_t phase, int64_t task) { blocked::LargeTask(bound, filters, phase, task, packed); }, AllThreads());
}

/* The gradient of filters from images and the gradient of the output, both in blocks. */
void FilterGradient(const Geometry& geometry, const Algorithm& algorithm, const float* x, const float* dy,
                    float* gradient) {
  blocked::Step step = StepOf(geometry, algorithm);
  const int64_t channels = geometry.channels + geometry.filters;
  if (algorithm.is_winograd)
    step.chunk = TilesAtATime(step, blocked::IsLarge(step) ? 2 * kLargeFloats : kSharedFloats, channels);
  else if (algorithm.is_paired)
    step.chunk = blocked::PartsOf(step, kSharedFloats);
  const int64_t floats = AlignedFloats(blocked::SummedFloats(step));
  Scratch scratch(floats + blocked::GradientScratchFloats(step));
  float *sums = scratch.data(), *arena = sums + floats;
  Place(x, dy, arena, &step);
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

}  // namespace graphopt
