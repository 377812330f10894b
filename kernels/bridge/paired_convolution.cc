/*
 * Direct convolutions in pairs (paired.h).
 *
 * A task copies what some pixels of the output sum over as rows, which then stay in its own cache while panels of
 * filters pass by.
 */
#include <vector>

#include "execute.h"
#include "filtering.h"
#include "paired_blocks.h"
#include "winograd.h"

namespace graphopt::blocked {
namespace {

constexpr double kTaskWork = 1.5e6;         // multiplications a task is worth
constexpr int64_t kMostCopied = 96 << 10;   // floats of rows that are copied at a time
constexpr int64_t kFewestStrips = 4;        // of a task, if there are so many: they share what is read of a panel
constexpr int64_t kFewestPanels = 4;        // of a task, as each copies its rows
constexpr int64_t kFewestTasks = 12;
constexpr int64_t kNotedAtATime = 128;      // filters, or numbers of the depth, when filters are packed

/* How tasks share the pixels, in strips of a row, and the panels. */
struct PairedShare {
  Cut cut;
  int64_t strips, band, bands;  // strips of a task
  int64_t panels, team, teams;  // panels of a task

  explicit PairedShare(const Step& step)
      : cut(step.out.width, kRows),
        strips(step.images * step.out.height * cut.pieces),
        panels(Groups(step)) {
    const double strip = static_cast<double>(cut.width) * Depth(step) * step.filters;
    band = std::min(strips, std::max<int64_t>(kFewestStrips, kTaskWork / strip));
    bands = Ceil(strips, band);
    teams = std::clamp<int64_t>(kFewestTasks / bands, 1, std::max<int64_t>(1, panels / kFewestPanels));
    team = Ceil(panels, teams);
    teams = Ceil(panels, team);
  }
  int64_t FirstOf(int64_t number) const { return strips * number / bands; }
};

/* Where a strip is. */
struct Strip {
  int64_t image, y, x, width;
  bool begins;  // a row

  Strip(const PairedShare& share, const Step& step, int64_t number)
      : image(number / share.cut.pieces / step.out.height),
        y(number / share.cut.pieces % step.out.height),
        x(share.cut.Begin(number % share.cut.pieces)),
        width(share.cut.Width(number % share.cut.pieces)),
        begins(number % share.cut.pieces == 0) {}
};

/* Rows of some strips; of each the sums of its pairs and what they were multiplied by. */
struct CopiedStrips {
  float *at, *sums, *inverses;
  int64_t each, parts;

  CopiedStrips(int64_t strips, const PairedPack& pack) : each(kRows * pack.depth), parts(pack.parts) {
    static thread_local Arena arena;
    at = reinterpret_cast<float*>(arena.Reserve(strips * (each + (parts + 1) * kLanes) * sizeof(float)));
    sums = at + strips * each;
    inverses = sums + strips * parts * kLanes;
  }
};

void CopyStrip(const Bound& bound, const Strip& strip, const float* factors, const CopiedStrips& to, int64_t slot) {
  const Step& step = *bound.step;
  const float* in = bound.arena + step.in.Place(strip.image, 0, strip.y * step.stride_y) +
                    strip.x * step.stride_x * kLanes;
  const auto at = [&](int64_t run) { return bound.offsets[run]; };
  const Rows<decltype(at)> rows{in, step.stride_x * kLanes, bound.runs, at, factors};
  Lanes sums[kLanes] = {};
  ForRows<kRows>(strip.width, [&](auto count) { AddSquares<count>(rows, sums); });
  Sizes sizes(sums, bound.runs * kLanes);
  sizes.Settle(0, strip.width, rows);
  for (int64_t part = 0; part < to.parts; ++part) {
    const int64_t begin = part * kPart, end = std::min(begin + kPart, rows.depth);
    std::fill(sums, sums + kLanes, Lanes{});
    ForRows<kRows>(strip.width, [&](auto count) {
      CopyRows<count>(rows, begin, end, sizes, 0, to.at + slot * to.each, count * kLanes, sums);
    });
    StoreLanes(to.sums + (slot * to.parts + part) * kLanes, SumsOf(sums));
  }
  StoreLanes(to.inverses + slot * kLanes, LoadLanes(sizes.inverses));
}

void Multiply(const Bound& bound, const Strip& strip, const PairedPack& pack, int64_t panel, const CopiedStrips& from,
              int64_t slot) {
  const Step& step = *bound.step;
  const int64_t block = panel * kVectors, blocks = BlocksOf(step, panel);
  if (strip.begins)
    for (int64_t b = 0; b < blocks; ++b) ClearHalo(step.out, bound.arena, strip.image, block + b, strip.y);
  PairedOperands rows{};
  rows.in = from.at + slot * from.each;
  rows.stride = strip.width * kLanes;
  rows.depth = bound.runs;
  rows.row_sums = from.sums + slot * from.parts * kLanes;
  rows.row_part = kLanes;
  rows.row_inverses = from.inverses + slot * kLanes;
  const int64_t x = strip.x * kLanes;
  const Target to{bound.arena + step.out.Place(strip.image, block, strip.y) + x,
                  step.out.block_stride,
                  step.has_other ? bound.arena + step.other.Place(strip.image, block, strip.y) + x : nullptr,
                  step.other.block_stride,
                  bound.bias ? bound.bias + block * kLanes : nullptr,
                  bound.slopes ? bound.slopes + block * kLanes : nullptr,
                  &step,
                  block + blocks - 1};
  PickPaired(strip.width, blocks)(WithPanel(rows, pack, bound.weights, 0, panel), to);
}

}  // namespace

int64_t PairedTasks(const Step& step) {
  const PairedShare share(step);
  return share.bands * share.teams;
}

void PairedTask(const Bound& bound, int64_t task) {
  const Step& step = *bound.step;
  const PairedShare share(step);
  const PairedPack pack(Depth(step), step.filters, 1);
  const Notes<const float> notes(pack, 0, bound.weights);
  const int64_t band = task % share.bands, team = task / share.bands;
  const int64_t last = share.FirstOf(band + 1);
  const int64_t some = std::max<int64_t>(1, kMostCopied / (kRows * pack.depth));
  const int64_t end = std::min(share.panels, (team + 1) * share.team);
  const CopiedStrips copied(std::min(some, share.band), pack);
  for (int64_t first = share.FirstOf(band); first < last; first += some) {
    const int64_t count = std::min(some, last - first);
    for (int64_t i = 0; i < count; ++i)
      CopyStrip(bound, Strip(share, step, first + i), notes.factors, copied, i);
    for (int64_t panel = team * share.team; panel < end; ++panel)
      for (int64_t i = 0; i < count; ++i)
        Multiply(bound, Strip(share, step, first + i), pack, panel, copied, i);
  }
}

/* Filters of one pixel are a matrix, whose rows are the numbers that are summed over. Filters are noted, then these
 * numbers, and then panels are packed. */
int64_t PointwiseTasks(const Step& step, int64_t phase) {
  const PairedPack pack(step.channels, step.filters, 1);
  return phase == 0 ? Ceil(step.filters, kNotedAtATime) : phase == 1 ? Ceil(step.channels, kNotedAtATime) : pack.panels;
}

void PointwiseTask(const Filters& filters, const Step& step, int64_t phase, int64_t task, float* packed) {
  const PairedPack pack(step.channels, step.filters, 1);
  const Notes<float> notes(pack, 0, packed);
  const int64_t row = filters.is_turned ? filters.count : 1, column = filters.is_turned ? 1 : filters.channels;
  const int64_t begin = task * kNotedAtATime;
  if (phase == 0)  // where it will be noted what they were multiplied by
    return paired::NoteLargest(filters.weights, row, column, step.channels, begin,
                               std::min(begin + kNotedAtATime, step.filters), notes.inverses);
  if (phase == 1) {
    const int64_t end = std::min(begin + kNotedAtATime, step.channels);
    static thread_local std::vector<float> weights;
    weights.resize(step.filters);
    paired::WeighColumns(notes.inverses, step.filters, weights.data());
    paired::SumSquares(filters.weights, row, column, begin, end, step.filters, weights.data(), notes.factors);
    return NoteFactors(notes, begin, end, step.filters);
  }
  const int64_t first = task * kWidth, width = WidthOf(pack, task);
  float* panel = packed + first * pack.depth;
  PackPanel(filters.weights + first * column, row, column, pack.depth, width, panel, width);
  PairPanel(pack, notes, task, panel);
}

int64_t PackedPaired(const Step& step, int64_t depth, int64_t points) {
  return PairedPack(depth, step.filters, points).size();
}

void PairFilters(const Step& step, int64_t depth, int64_t points, int64_t point, float* packed) {
  PairPoint(PairedPack(depth, step.filters, points), step.filters, point, packed);
}

}  // namespace graphopt::blocked
