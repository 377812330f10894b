#include "recurrence.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <numeric>

#include "execute.h"

namespace graphopt {

std::atomic<int64_t> rows_beside_products{0};

namespace {

bool Touches(const Step& step, const Spot& spot) {
  return std::any_of(step.spots.begin(), step.spots.end(), [&](const Spot& other) {
    return other.place == spot.place && other.index == spot.index;
  });
}

/* Marks products that have no part in the recurrence. */
void FindFree(Program* program) {
  std::vector<Step>& steps = program->steps;
  for (size_t n = 0; n < steps.size(); ++n) {
    if (steps[n].code != kProduct) continue;
    const Spot &to = steps[n].spots[0], &from = steps[n].spots[1];
    if (!program->backward) {
      bool is_first = !steps[n].adds && (to.place == kScratch || to.place == kStash);
      bool follows = n > 0 && steps[n].adds && steps[n - 1].early &&
                     to.index == steps[n - 1].spots[0].index &&
                     to.offset == steps[n - 1].spots[0].offset;
      // Not what an earlier step emits: that is not there before its turn.
      bool is_input = from.place == kSequence && !program->sequence_is_written[from.index];
      steps[n].early = is_input && (is_first || follows);
    } else if (to.place == kSequence && from.place == kRing && !steps[n].adds) {
      steps[n].late = std::count_if(steps.begin(), steps.end(), [&](const Step& step) {
                        return Touches(step, to);
                      }) == 1;
    }
  }
}

/* Counts products that are added to what the one before them wrote. */
void FindTogether(Program* program) {
  std::vector<Step>& steps = program->steps;
  for (size_t n = steps.size(); n-- > 1;) {
    const Step &one = steps[n], &before = steps[n - 1];
    if (one.code != kProduct || before.code != kProduct || !one.adds || one.width != before.width)
      continue;
    const Spot &to = one.spots[0], &same = before.spots[0], &from = one.spots[1];
    const bool is_read = from.place == to.place && from.index == to.index;
    if (to.place == same.place && to.index == same.index && to.offset == same.offset && !is_read)
      steps[n - 1].together = one.together < kMostFactors ? one.together + 1 : 1;
  }
}

}  // namespace

Program ReadProgram(const int64_t** numbers) {
  const int64_t*& at = *numbers;
  Program program;
  program.is_double = *at++;
  program.backward = *at++;
  program.stash_width = *at++;
  for (int64_t n = *at++; n > 0; --n) {
    program.sequence_widths.push_back(*at++);
    program.sequence_is_written.push_back(*at++);
  }
  for (int64_t n = *at++; n > 0; --n) {
    program.states.push_back({at[0], at[1], at[2], at[3]});
    at += 4;
  }
  for (int64_t n = *at++; n > 0; --n) {
    program.matrix_rows.push_back(*at++);
    program.matrix_columns.push_back(*at++);
  }
  for (int64_t n = *at++; n > 0; --n) program.vector_widths.push_back(*at++);
  for (int64_t n = *at++; n > 0; --n) program.scratch_widths.push_back(*at++);
  for (int64_t n = *at++; n > 0; --n) program.ring_widths.push_back(*at++);
  for (int64_t n = *at++; n > 0; --n) {
    program.packs.push_back({at[0], at[1] != 0, at[2], at[3], at[4], at[5]});
    at += 6;
  }
  for (int64_t n = *at++; n > 0; --n) {
    KernelOf kernel{reinterpret_cast<KernelFunction>(at[0]), at[1], {at[2], {}}};
    int64_t stages = at[3];
    for (at += 4; stages > 0; --stages, at += 2 + at[1])
      kernel.stages.all.push_back(
          {reinterpret_cast<KernelFunction>(at[0]), {at + 2, at + 2 + at[1]}});
    program.kernels.push_back(std::move(kernel));
  }
  for (int64_t n = *at++; n > 0; --n) {
    Step step{at[0], at[1], at[2], at[3], at[4] != 0, at[5], at[6], {}};
    int64_t spots = at[7];
    at += 8;
    for (; spots > 0; --spots, at += 3) step.spots.push_back({at[0], at[1], at[2]});
    program.steps.push_back(step);
  }
  FindFree(&program);
  FindTogether(&program);
  return program;
}

namespace {

constexpr int64_t kCacheBytes = 512 << 10;  // weights below this stay in the level-2 cache
constexpr int64_t kSmallChunk = 32;         // rows; enough for full register tiles
constexpr int64_t kMiddleChunk = 64;        // rows; the matrix unit starts and stops less often
constexpr int64_t kLargeChunk = 128;        // rows; enough for weights that come from far
constexpr int64_t kMultiple = 8;
constexpr int64_t kRingRows = 512;          // summed at once for the gradients of matrices
constexpr int64_t kMaxRing = 32;
constexpr int64_t kMaxBlock = 16;
constexpr int64_t kEarlyRows = 256;         // of products that are computed early
constexpr int64_t kEarlyShare = 4;          // what these take is this part of the weights at most

/* What all chunks of a call share. */
template <typename T>
struct Shared {
  const RecurrenceCall& call;
  const Prepared<T>& weights;
  int64_t rows_per_chunk = 0, ring = 1;
  int64_t block = 1;      // steps whose early products are computed together
  bool is_large = false;  // weights do not stay near the processor
  bool adds_up = false;   // products that are added to others are computed with them
  bool in_turns = false;  // a thread computes one chunk's kernels during another's products
  std::vector<bool> ring_is_whole;  // it has a row for each of the batch; see FindWhole
  std::vector<T*> whole_rings;
  std::vector<int64_t> order, lengths;  // of the sorted batch
  std::vector<int32_t> index;           // the call's, in the order in which steps are walked
  // Of sequences of different lengths, the number of each row in arrays that have steps first, and in
  // those that have the batch first, in the order in which they are walked; empty: there are none.
  std::vector<int32_t> steps_first, batch_first;

  bool HasStepsFirst(const SequenceArray& array) const {
    return array.step_stride == call.batch * array.row_stride;
  }
};

/* How many products a program begins with; all of its products, or 0 if there are others. */
size_t LeadingProducts(const Program& program) {
  size_t count = 0;
  while (count < program.steps.size() && program.steps[count].code == kProduct) ++count;
  for (size_t n = count; n < program.steps.size(); ++n)
    if (program.steps[n].code == kProduct) return 0;
  return count;
}

/* One chunk on its way through the steps. */
template <typename T>
class Walk : public Executor<T, Walk<T>> {
  using Base = Executor<T, Walk<T>>;
  using Base::live_, Base::meanwhile_, Base::p_, Base::partial_;

 public:
  /* Before it runs, `buffers` have to be given a place. */
  Walk(const Shared<T>& shared, Buffers<T>* buffers)
      : Base(shared.weights, buffers), s_(shared), c_(shared.call) {
    Want(buffers);
  }

  /* Rows `first` to `first + count` of the sorted batch; gradients are added to `partial`. */
  void Run(int64_t first, int64_t count, T* partial) {
    first_ = first;
    count_ = count;
    partial_ = partial;
    int64_t steps = s_.lengths[first];
    Begin();
    if (p_.backward) {
      for (step_ = steps; step_-- > 0;) {
        One();
        if (step_ == 0 || ++kept_ == s_.ring) Finish();
      }
    } else {
      for (step_ = 0; step_ < steps; ++step_) {
        if (s_.block > 1 && step_ % s_.block == 0) Early(std::min(step_ + s_.block, steps));
        One();
        Leave(step_);
        if (++kept_ == s_.ring) kept_ = 0;
      }
    }
    End();
  }

  /* The same of a forward program in turns with another walk: products and what follows them, step by
   * step, until it is over. */
  void Start(int64_t first, int64_t count) {
    first_ = first;
    count_ = count;
    step_ = 0;
    steps_ = s_.lengths[first];
    is_waiting_ = false;
    Begin();
    if (IsOver()) End();
  }

  bool IsOver() const { return step_ == steps_; }

  /* A step's products, while the other walk's kernel is computed, and its own kernel is taken down. */
  void MultiplyBeside(Walk* other, Errand* errand) {
    live_ = Live(step_);
    Ahead();
    meanwhile_ = other->is_waiting_ ? &other->waiting_ : nullptr;
    for (size_t n = 0; n < leading_; n += p_.steps[n].together) {
      Base::Execute(p_.steps[n], n, p_.steps[n].together);
      Fetch();
    }
    meanwhile_ = nullptr;
    Base::Take(p_.steps[leading_], errand, &waiting_);
    is_waiting_ = true;
  }

  /* What is left of the step. */
  void Settle() {
    if (!is_waiting_) return;
    is_waiting_ = false;
    size_t n = leading_;
    const int64_t done = waiting_.Settle();
    rows_beside_products += done;
    if (done < live_) Base::Call(p_.steps[n], done);
    while (++n < p_.steps.size()) {
      Base::Execute(p_.steps[n], n);
      Fetch();
    }
    Leave(step_);
    ++step_;
    if (IsOver()) End();
  }

 private:
  friend Base;

  void Want(Buffers<T>* buffers) {
    int64_t rows = s_.rows_per_chunk;
    auto want = [&](std::vector<T*>* group, size_t count) { group->assign(count, nullptr); };
    size_t n_states = p_.states.size();
    want(&initial_, n_states);
    want(&turns_[0], n_states);
    want(&turns_[1], n_states);
    want(&carry_[0], n_states);
    want(&carry_[1], n_states);
    want(&scratch_, p_.scratch_widths.size());
    want(&rings_, p_.ring_widths.size());
    for (size_t i = 0; i < n_states; ++i) {
      int64_t size = rows * p_.states[i].width;
      buffers->Want(&initial_[i], size);
      for (int turn = 0; turn < 2; ++turn) {
        if (p_.states[i].home == kPingPong && !p_.backward) buffers->Want(&turns_[turn][i], size);
        if (p_.backward) buffers->Want(&carry_[turn][i], size);
      }
    }
    for (size_t i = 0; i < scratch_.size(); ++i)
      buffers->Want(&scratch_[i], s_.block * rows * p_.scratch_widths[i]);
    for (size_t i = 0; i < rings_.size(); ++i)
      if (!s_.ring_is_whole[i]) buffers->Want(&rings_[i], s_.ring * rows * p_.ring_widths[i]);
    late_.resize(p_.steps.size());
    // The matrix unit's rows are split before anything is computed, which waits for them.
    const bool asks = c_.index || (c_.lengths && s_.weights.products.are_tiled && !p_.backward);
    for (const Step& step : p_.steps)
      for (const Spot& spot : step.spots)
        reads_by_number_ |= asks && spot.place == kSequence && spot.index == 0;
  }

  int64_t Live(int64_t step) const {
    if (!c_.lengths) return step < c_.steps ? count_ : 0;
    int64_t live = count_;
    while (live > 0 && s_.lengths[first_ + live - 1] <= step) --live;
    return live;
  }

  int64_t Time(int64_t row, int64_t step) const {
    return c_.reverse ? s_.lengths[first_ + row] - 1 - step : step;
  }

  void CopyRows(const void* from, T* to, int64_t width) {
    for (int64_t r = 0; r < count_; ++r)
      if (from)
        std::memcpy(to + r * width, static_cast<const T*>(from) + s_.order[first_ + r] * width,
                    width * sizeof(T));
      else
        std::memset(to + r * width, 0, width * sizeof(T));
  }

  void Begin() {
    kept_ = 0;
    for (size_t i = 0; i < p_.states.size(); ++i) {
      int64_t width = p_.states[i].width;
      if (!p_.backward) {
        CopyRows(c_.first[i], initial_[i], width);
        continue;
      }
      CopyRows(c_.initial[i], initial_[i], width);
      for (auto& carry : carry_) CopyRows(c_.first[i], carry[i], width);
    }
  }

  /* Rows whose last step was `step` hand over their states. */
  void Leave(int64_t step) {
    int64_t before = Live(step), after = Live(step + 1);
    for (size_t i = 0; i < p_.states.size() && after < before; ++i) {
      if (!c_.last[i]) continue;
      Located<T> from = NextState(i, 0);
      int64_t width = p_.states[i].width;
      for (int64_t r = after; r < before; ++r)
        std::memcpy(static_cast<T*>(c_.last[i]) + s_.order[first_ + r] * width, from.Row(r),
                    width * sizeof(T));
    }
  }

  void End() {
    for (size_t i = 0; i < p_.states.size(); ++i) {
      if (!c_.last[i]) continue;
      int64_t width = p_.states[i].width;
      for (int64_t r = 0; r < count_; ++r) {
        if (!p_.backward && s_.lengths[first_ + r] > 0) continue;
        const T* from = p_.backward ? carry_[0][i] : initial_[i];
        std::memcpy(static_cast<T*>(c_.last[i]) + s_.order[first_ + r] * width, from + r * width,
                    width * sizeof(T));
      }
    }
  }

  T* RingSlot(T* base, int64_t width) { return base + kept_ * s_.rows_per_chunk * width; }

  bool IsByNumber(size_t i) const { return i == 0 && c_.index; }

  Located<T> SequenceAt(int64_t i, int64_t step, int64_t offset) {
    const SequenceArray& array = c_.sequences[i];
    if (!array.data) return {nullptr, 0};
    if (IsByNumber(i))
      return {static_cast<T*>(array.data) + offset, array.row_stride,
              s_.index.data() + step * c_.batch + first_};
    if (c_.lengths) {
      const bool steps_first = s_.HasStepsFirst(array);
      const auto& numbers = steps_first ? s_.steps_first : s_.batch_first;
      return {static_cast<T*>(array.data) + offset,
              steps_first ? array.row_stride : array.step_stride,
              numbers.data() + step * c_.batch + first_};
    }
    return {static_cast<T*>(array.data) + Time(0, step) * array.step_stride +
                first_ * array.row_stride + offset,
            array.row_stride};
  }

  Located<T> StashAt(int64_t step, int64_t offset) {
    return {static_cast<T*>(c_.stash) + (step * c_.batch + first_) * p_.stash_width + offset,
            p_.stash_width};
  }

  Located<T> StateAfter(int64_t i, int64_t step, int64_t offset) {
    const StateOf& state = p_.states[i];
    if (state.home == kFixed) return {initial_[i] + offset, state.width};
    if (state.home == kInStash) return StashAt(step, state.offset + offset);
    if (state.home == kInSequence) return SequenceAt(state.index, step, state.offset + offset);
    return {turns_[step & 1][i] + offset, state.width};
  }

  Located<T> NextState(int64_t i, int64_t offset) { return StateAfter(i, step_, offset); }

  Located<T> Locate(const Spot& spot) {
    int64_t i = spot.index, offset = spot.offset;
    switch (spot.place) {
      case kSequence: return SequenceAt(i, step_, offset);
      case kPrevious:
        if (step_ == 0) return {initial_[i] + offset, p_.states[i].width};
        return StateAfter(i, step_ - 1, offset);
      case kNext: return NextState(i, offset);
      case kStash: return StashAt(step_, offset);
      case kScratch: {
        int64_t width = p_.scratch_widths[i], slot = s_.block > 1 ? step_ % s_.block : 0;
        return {scratch_[i] + slot * s_.rows_per_chunk * width + offset, width};
      }
      case kRing: {
        const int64_t width = p_.ring_widths[i];
        if (s_.ring_is_whole[i]) return {s_.whole_rings[i] + first_ * width + offset, width};
        return {RingSlot(rings_[i], width) + offset, width};
      }
      case kVector:
      case kVectorSum: return Base::VectorAt(spot);
      case kCarryIn: return {carry_[(step_ + 1) & 1][i] + offset, p_.states[i].width};
      default: return {carry_[step_ & 1][i] + offset, p_.states[i].width};
    }
  }

  /* Products with sequences for the steps up to `end`: weights are read once for all of them. */
  void Early(int64_t end) {
    int64_t now = step_;
    for (const Step& step : p_.steps) {
      if (!step.early) continue;
      blocks_.clear();
      for (step_ = now; step_ < end; ++step_) {
        Located<T> to = Locate(step.spots[0]), from = Locate(step.spots[1]);
        blocks_.push_back(
            {from.at, from.stride, to.at, to.stride, Live(step_), from.index, to.index});
      }
      Multiply(blocks_, step, step.adds);
    }
    step_ = now;
  }

  void One() {
    live_ = Live(step_);
    Ahead();
    for (size_t n = 0; n < p_.steps.size();) {
      const Step& step = p_.steps[n];
      int64_t count = 1;
      if (step.late && s_.is_large && !c_.lengths)
        Postpone(step, n);
      else if (!step.early || s_.block == 1)
        Base::Execute(step, n, count = s_.adds_up ? step.together : 1);
      for (n += count; count > 0; --count) Fetch();
    }
  }

  /* Finds out which rows by number and what of the stash the next step reads or writes. */
  void Ahead() {
    int64_t next = p_.backward ? step_ - 1 : step_ + 1;
    numbers_ = end_of_numbers_ = nullptr;
    if (reads_by_number_ && next >= 0 && next < s_.lengths[first_]) {
      rows_ = SequenceAt(0, next, 0);
      numbers_ = rows_.index;
      end_of_numbers_ = numbers_ ? numbers_ + Live(next) : nullptr;
    }
    if (next < 0 || next >= s_.lengths[first_] || !c_.stash || !p_.stash_width) {
      ahead_ = end_ = nullptr;
      return;
    }
    ahead_ = reinterpret_cast<char*>(StashAt(next, 0).at);
    end_ = ahead_ + Live(next) * p_.stash_width * sizeof(T);
    part_ = (end_ - ahead_) / p_.steps.size() + kLine;
  }

  /* Brings a part of it near while products keep the processor busy. */
  void Fetch() {
    FetchRows();
    char* end = std::min(end_, ahead_ + part_);
    if (p_.backward)
      for (; ahead_ < end; ahead_ += kLine) __builtin_prefetch(ahead_, 0, 2);
    else
      for (; ahead_ < end; ahead_ += kLine) __builtin_prefetch(ahead_, 1, 2);
  }

  /* The same of rows by number, which are in no stream. */
  void FetchRows() {
    if (numbers_ == end_of_numbers_) return;
    const int64_t steps = p_.steps.size(), part = (live_ + steps - 1) / steps;
    const size_t bytes = p_.sequence_widths[0] * sizeof(T);
    const int32_t* end = std::min(end_of_numbers_, numbers_ + part);
    for (; numbers_ < end; ++numbers_) {
      auto row = reinterpret_cast<const char*>(rows_.at + *numbers_ * rows_.stride);
      for (size_t at = 0; at < bytes; at += kLine) __builtin_prefetch(row + at, 0, 2);
    }
  }

  void Multiply(const std::vector<Rows<T>>& blocks, const Step& step, bool adds) {
    const PackedMatrix<T> packed{s_.weights.packs[step.which], step.depth};
    s_.weights.products.multiply(blocks.data(), blocks.size(), &packed, 1, step.width, adds, nullptr);
  }

  void Postpone(const Step& step, size_t number) {
    Located<T> to = Locate(step.spots[0]), from = Locate(step.spots[1]);
    if (to.at) late_[number].push_back(
        {from.at, from.stride, to.at, to.stride, live_, from.index, to.index});
  }

  /* What was put off until enough steps are there. */
  void Finish() {
    Base::Flush();
    for (size_t n = 0; n < p_.steps.size(); ++n) {
      if (late_[n].empty()) continue;
      Multiply(late_[n], p_.steps[n], false);
      late_[n].clear();
    }
    kept_ = 0;
  }

  const Shared<T>& s_;
  const RecurrenceCall& c_;
  std::vector<T*> initial_, turns_[2], carry_[2], scratch_, rings_;
  std::vector<std::vector<Rows<T>>> late_;
  std::vector<Rows<T>> blocks_;
  int64_t first_ = 0, count_ = 0, step_ = 0, steps_ = 0, kept_ = 0;
  const size_t leading_ = LeadingProducts(p_);
  Meanwhile waiting_;
  bool is_waiting_ = false;
  char *ahead_ = nullptr, *end_ = nullptr;
  bool reads_by_number_ = false;
  const int32_t *numbers_ = nullptr, *end_of_numbers_ = nullptr;
  Located<T> rows_{};
  int64_t part_ = 0;
};

/* Two walks in turns, as long as `next(walk)` starts another chunk, with an errand besides. */
template <typename T, typename Next>
void RunInTurns(Walk<T>* one, Walk<T>* other, Errand* errand, const Next& next) {
  for (bool is_more = true; is_more; std::swap(one, other)) {
    while (one->IsOver() && next(one)) {
    }
    const bool is_over = one->IsOver();
    if (!is_over) one->MultiplyBeside(other, errand);
    other->Settle();
    is_more = !is_over || !other->IsOver();
  }
}

template <typename T>
void Sort(Shared<T>* shared) {
  const RecurrenceCall& call = shared->call;
  shared->order.resize(call.batch);
  std::iota(shared->order.begin(), shared->order.end(), 0);
  if (call.lengths)
    std::stable_sort(shared->order.begin(), shared->order.end(), [&](int64_t a, int64_t b) {
      return call.lengths[a] > call.lengths[b];
    });
  for (int64_t row : shared->order)
    shared->lengths.push_back(call.lengths ? call.lengths[row] : call.steps);
}

/* Numbers of rows in the order in which sequences and steps are walked: number(time, row of the batch);
 * none behind the end of a sequence. */
template <typename T, typename Number>
std::vector<int32_t> Walked(const Shared<T>& shared, const Number& number) {
  const RecurrenceCall& call = shared.call;
  std::vector<int32_t> found(call.steps * call.batch);
  for (int64_t step = 0; step < call.steps; ++step)
    for (int64_t row = 0; row < call.batch && shared.lengths[row] > step; ++row) {
      const int64_t time = call.reverse ? shared.lengths[row] - 1 - step : step;
      found[step * call.batch + row] = static_cast<int32_t>(number(time, shared.order[row]));
    }
  return found;
}

/* Numbers of the rows that are read by number, and of all rows of sequences of different lengths. */
template <typename T>
void NumberRows(Shared<T>* shared) {
  const RecurrenceCall& call = shared->call;
  if (call.index)
    shared->index = Walked(*shared, [&](int64_t time, int64_t row) {
      return call.index[time * call.batch + row];
    });
  if (!call.lengths) return;
  for (size_t i = call.index ? 1 : 0; i < call.sequences.size(); ++i) {
    const SequenceArray& array = call.sequences[i];
    if (!array.data) continue;
    const bool steps_first = shared->HasStepsFirst(array);
    std::vector<int32_t>* numbers = steps_first ? &shared->steps_first : &shared->batch_first;
    if (numbers->empty())
      *numbers = Walked(*shared, [&](int64_t time, int64_t row) {
        return steps_first ? time * call.batch + row : row * call.steps + time;
      });
  }
}

/* Zeros behind the ends of sequences. Rows are cleared in the order of memory: those that have ended lie
 * side by side in the end, but not those of a chunk. Threads take parts of the arrays. */
template <typename T>
class Ends : public Errand {
 public:
  Ends(const Shared<T>& shared, std::atomic<int64_t>* parts) : s_(shared), c_(shared.call), parts_(parts) {
    if (c_.lengths && c_.steps > 0) array_ = c_.sequences.size();
  }

  /* Clears a row, if one is near and there is one. */
  void Do() override {
    for (int64_t looked_at = 0; array_ >= 0 && looked_at < kLook; ++looked_at)
      if (Look()) return;
  }

  /* All that are left. */
  void Finish() {
    while (array_ >= 0) Look();
  }

 private:
  static constexpr int64_t kParts = 128;  // of each array
  static constexpr int64_t kLook = 32;    // rows

  /* Goes on to the next row; whether it was cleared. */
  bool Look() {
    if (outer_ == end_ && !Take()) return false;
    const SequenceArray& array = c_.sequences[array_];
    const int64_t time = steps_first_ ? outer_ : inner_, row = steps_first_ ? inner_ : outer_;
    if (++inner_ == (steps_first_ ? c_.batch : c_.steps)) {
      inner_ = 0;
      ++outer_;
    }
    if (time < c_.lengths[row]) return false;
    std::memset(static_cast<T*>(array.data) + time * array.step_stride + row * array.row_stride, 0,
                s_.weights.program.sequence_widths[array_] * sizeof(T));
    return true;
  }

  /* The next part; none of what is not written. */
  bool Take() {
    const int64_t arrays = c_.sequences.size(), part = parts_->fetch_add(1);
    array_ = part / kParts;
    if (array_ >= arrays) {
      array_ = -1;
      return false;
    }
    const SequenceArray& array = c_.sequences[array_];
    if (!array.data || !s_.weights.program.sequence_is_written[array_]) return false;
    steps_first_ = s_.HasStepsFirst(array);
    const int64_t all = steps_first_ ? c_.steps : c_.batch, number = part % kParts;
    outer_ = all * number / kParts;
    end_ = all * (number + 1) / kParts;
    return outer_ < end_;
  }

  const Shared<T>& s_;
  const RecurrenceCall& c_;
  std::atomic<int64_t>* parts_;
  int64_t array_ = -1;  // that it is at; none: it is done
  int64_t outer_ = 0, end_ = 0, inner_ = 0;
  bool steps_first_ = false;
};

/* Steps whose early products are computed together. What they take is bounded by the weights: those
 * come from far, and a step's part of them is what is saved. */
template <typename T>
int64_t Block(const Shared<T>& shared) {
  const std::vector<int64_t>& widths = shared.weights.program.scratch_widths;
  const int64_t columns = std::accumulate(widths.begin(), widths.end(), int64_t{1});
  const int64_t bytes = shared.rows_per_chunk * columns * sizeof(T);
  const int64_t most = std::min(kEarlyRows / shared.rows_per_chunk,
                                shared.weights.read_bytes / kEarlyShare / bytes);
  return std::max<int64_t>(1, std::min(kMaxBlock, most));
}

/* Whether no place is named twice: pieces of a kernel may overlap, so what it reads has to stay. */
bool AreApart(const std::vector<Spot>& spots) {
  for (size_t i = 0; i < spots.size(); ++i)
    for (size_t j = 0; j < i; ++j)
      if (spots[i].place == spots[j].place && spots[i].index == spots[j].index &&
          spots[i].offset == spots[j].offset)
        return false;
  return true;
}

/* Whether a thread gains from two chunks in turns: its matrix unit and its vectors are busy at once. */
template <typename T>
bool GainsFromTurns(const Shared<T>& shared, int64_t share) {
  const Program& program = shared.weights.program;
  const size_t count = LeadingProducts(program);
  if (!shared.weights.products.are_tiled || program.backward || shared.is_large || count == 0)
    return false;
  if (count == program.steps.size() || share < 2 * kSmallChunk) return false;
  const Step& next = program.steps[count];
  if (next.code != kKernel || program.kernels[next.which].stages.all.empty()) return false;
  return next.width >= Meanwhile::kPiece && AreApart(next.spots);
}

template <typename T>
void Divide(Shared<T>* shared) {
  const RecurrenceCall& call = shared->call;
  int64_t share = RoundUp((call.batch + call.threads - 1) / call.threads, kMultiple);
  bool are_far = shared->weights.read_bytes > kCacheBytes;
  shared->is_large = are_far && call.steps > 1;
  // Early products are written in between, and how many steps have theirs early depends on threads,
  // of which results must not.
  shared->adds_up = !shared->is_large || call.lengths || shared->weights.program.backward;
  // Chunks of different lengths are taken by whoever has time, so there have to be some.
  const bool are_tiled = shared->weights.products.are_tiled;
  shared->in_turns = GainsFromTurns(*shared, share);
  int64_t most = kSmallChunk;
  if (are_far || (are_tiled && !call.lengths && !shared->in_turns))
    most = kLargeChunk;
  else if (are_tiled && !shared->in_turns)
    most = kMiddleChunk;
  shared->rows_per_chunk = share;
  if (!shared->is_large && share > most)
    shared->rows_per_chunk = RoundUp(share / ((share + most - 1) / most), kMultiple);
  // Buffers have no rows that no sequence has.
  shared->rows_per_chunk = std::max<int64_t>(std::min(shared->rows_per_chunk, call.batch), 1);
  if (!shared->weights.program.backward) {
    if (shared->is_large && !call.lengths) shared->block = Block(*shared);
    return;
  }
  shared->ring = std::min(kMaxRing, std::max<int64_t>(1, kRingRows / shared->rows_per_chunk));
}

/* Whether two outer products are added to the same elements. */
bool Overlap(const Step& a, const Step& b) {
  return a.which == b.which && a.row < b.row + b.width && b.row < a.row + a.width &&
         a.column < b.column + b.depth && b.column < a.column + a.depth;
}

/* Whether all rows of an operand may lie there once there was a single step; a ring of very many rows
 * would be more memory than partial gradients are. */
bool Stays(const Program& program, const Spot& spot, int64_t rows) {
  if (spot.place == kSequence) return !program.sequence_is_written[spot.index];
  if (spot.place != kRing) return false;
  const int64_t item = program.is_double ? sizeof(double) : sizeof(float);
  return rows * program.ring_widths[spot.index] * item <= kMostKept;
}

/* Matrices whose gradient is one product over the whole batch: there is one step, and its operands are
 * rows of sequences, or of rings that get a row for each of the batch. Partial gradients of chunks
 * would have to be cleared and summed. */
std::vector<bool> FindWhole(const Program& program, const RecurrenceCall& call) {
  std::vector<bool> whole(program.matrix_rows.size(),
                          program.backward && call.steps == 1 && !call.lengths);
  for (size_t n = 0; n < program.steps.size(); ++n) {
    const Step& step = program.steps[n];
    if (step.code != kOuter) continue;
    for (const Spot& spot : step.spots)
      if (!Stays(program, spot, call.batch)) whole[step.which] = false;
    // Threads that take different products must not meet.
    for (size_t other = 0; other < n; ++other)
      if (program.steps[other].code == kOuter && Overlap(step, program.steps[other]))
        whole[step.which] = false;
  }
  return whole;
}

/* Rings that such products read. */
std::vector<bool> FindWholeRings(const Program& program, const std::vector<bool>& whole) {
  std::vector<bool> found(program.ring_widths.size(), false);
  for (const Step& step : program.steps) {
    if (step.code != kOuter || !whole[step.which]) continue;
    for (const Spot& spot : step.spots)
      if (spot.place == kRing) found[spot.index] = true;
  }
  return found;
}

/* Some columns of a left operand, which are rows of a matrix's gradient. */
struct Slice {
  const Step* step;
  int64_t begin, end;
};

constexpr int64_t kSlice = 128;  // more would leave threads idle, fewer copy the right operand often

std::vector<Slice> SlicesOf(const Program& program, const Learned& learned,
                            const std::vector<bool>& whole) {
  std::vector<Slice> slices;
  for (const Step& step : program.steps) {
    if (step.code != kOuter || !whole[step.which] || !learned.matrix_gradients[step.which])
      continue;
    const int64_t parts = (step.width + kSlice - 1) / kSlice;
    const int64_t size = RoundUp((step.width + parts - 1) / parts, kMultiple);
    for (int64_t begin = 0; begin < step.width; begin += size)
      slices.push_back({&step, begin, std::min(begin + size, step.width)});
  }
  return slices;
}

template <typename T>
void AddSlice(const Slice& slice, const Shared<T>& shared) {
  const Step& step = *slice.step;
  const Prepared<T>& weights = shared.weights;
  const RecurrenceCall& call = shared.call;
  auto rows_of = [&](const Spot& spot) {
    if (spot.place == kRing)
      return Located<T>{shared.whole_rings[spot.index] + spot.offset,
                        weights.program.ring_widths[spot.index]};
    const SequenceArray& array = call.sequences[spot.index];
    const bool is_by_number = spot.index == 0 && call.index;
    return Located<T>{static_cast<T*>(array.data) + spot.offset, array.row_stride,
                      is_by_number ? shared.index.data() : nullptr};
  };
  const Located<T> left = rows_of(step.spots[0]), right = rows_of(step.spots[1]);
  const int64_t columns = weights.program.matrix_columns[step.which];
  const Segment<T> all{left.at + slice.begin, right.at,   left.stride, right.stride,
                       call.batch,            left.index, right.index};
  weights.products.outer(&all, 1, slice.end - slice.begin, step.depth,
                         static_cast<T*>(call.matrix_gradients[step.which]) +
                             (step.row + slice.begin) * columns + step.column,
                         columns);
}

/* Gradients of matrices that FindWhole found; the numbers do not depend on the number of threads. */
template <typename T>
void RunWhole(const std::vector<bool>& whole, const Shared<T>& shared) {
  const Program& program = shared.weights.program;
  const RecurrenceCall& call = shared.call;
  for (size_t i = 0; i < whole.size(); ++i)
    if (whole[i] && call.matrix_gradients[i])
      std::memset(call.matrix_gradients[i], 0,
                  program.matrix_rows[i] * program.matrix_columns[i] * sizeof(T));
  const std::vector<Slice> slices = SlicesOf(program, call, whole);
  const int64_t count = slices.size();
#pragma omp parallel for num_threads(call.threads) if (call.threads > 1) schedule(dynamic, 1)
  for (int64_t n = 0; n < count; ++n) {
    const Flushing flushing(true);
    AddSlice(slices[n], shared);
  }
}

/* The rings that have a row for each of the batch, to be given a place. */
template <typename T>
Buffers<T> WholeRings(Shared<T>* shared) {
  Buffers<T> wanted;
  for (size_t i = 0; i < shared->whole_rings.size(); ++i)
    if (shared->ring_is_whole[i])
      wanted.Want(&shared->whole_rings[i],
                  shared->call.batch * shared->weights.program.ring_widths[i]);
  return wanted;
}

/* The scratch of a call: weights unless they come packed, a walk of each thread, partial gradients of
 * each unit, rings that have a row for each of the batch. */
template <typename T>
struct Layout {
  int64_t chunks, units, threads, walk_bytes, walks_at, partials_at, rings_at, bytes;

  explicit Layout(Shared<T>* all) {
    const Shared<T>& shared = *all;
    const RecurrenceCall& call = shared.call;
    const Prepared<T>& weights = shared.weights;
    chunks = (call.batch + shared.rows_per_chunk - 1) / shared.rows_per_chunk;
    units = chunks;
    if (weights.program.backward)
      units = std::max<int64_t>(1, std::min(chunks, std::max<int64_t>(call.threads, kUnits)));
    threads = std::max<int64_t>(1, std::min<int64_t>(call.threads, units));
    Buffers<T> wanted;
    Walk<T> walk(shared, &wanted);
    walk_bytes = wanted.Bytes();
    walks_at = call.packed ? 0 : RoundUp(weights.packed_bytes, kLine);
    if (shared.in_turns) walk_bytes *= 2;
    partials_at = walks_at + threads * walk_bytes;
    int64_t partials = weights.program.backward ? units * weights.partial_size * sizeof(T) : 0;
    rings_at = partials_at + RoundUp(partials, kLine);
    bytes = rings_at + WholeRings(all).Bytes() + kLine;  // to begin where a line does
  }
};

template <typename T>
Shared<T> Share(const std::vector<bool>& whole, const RecurrenceCall& call,
                const Prepared<T>& weights) {
  Shared<T> shared{call, weights};
  shared.ring_is_whole = FindWholeRings(weights.program, whole);
  shared.whole_rings.resize(shared.ring_is_whole.size());
  Divide(&shared);
  return shared;
}

template <typename T>
void RunAs(const Program& program, const RecurrenceCall& call) {
  const std::vector<bool> whole = FindWhole(program, call);
  Prepared<T> weights(program, call, ProductsFor<T>(call.batch, ElementsOf(program), call.packed), whole);
  Shared<T> shared = Share(whole, call, weights);
  Sort(&shared);
  NumberRows(&shared);
  const Layout<T> layout(&shared);
  std::unique_ptr<char[]> own;
  if (call.scratch_bytes < layout.bytes) own.reset(new char[layout.bytes]);
  auto address = reinterpret_cast<uintptr_t>(own ? own.get() : call.scratch);
  auto scratch = reinterpret_cast<char*>((address + kLine - 1) / kLine * kLine);
  if (call.packed)
    weights.Use(static_cast<const T*>(call.packed));
  else
    weights.Pack(call.threads, reinterpret_cast<T*>(scratch));
  T* partials = reinterpret_cast<T*>(scratch + layout.partials_at);
  WholeRings(&shared).Place(scratch + layout.rings_at);
  std::atomic<int64_t> next{0}, thread{0}, cleared{0};
  int threads = static_cast<int>(layout.threads);
#pragma omp parallel num_threads(threads) if (threads > 1)
  {
    const Flushing flushing(program.backward);
    Buffers<T> wanted;
    Walk<T> walk(shared, &wanted);
    const int64_t number = thread.fetch_add(1);
    wanted.Place(scratch + layout.walks_at + number * layout.walk_bytes);
    Ends<T> ends(shared, &cleared);
    if (!shared.in_turns) ends.Finish();
    if (shared.in_turns) {
      Buffers<T> more;
      Walk<T> other(shared, &more);
      more.Place(scratch + layout.walks_at + number * layout.walk_bytes + layout.walk_bytes / 2);
      RunInTurns(&walk, &other, &ends, [&](Walk<T>* free) {
        const int64_t chunk = next.fetch_add(1), first = chunk * shared.rows_per_chunk;
        if (chunk >= layout.chunks) return false;
        free->Start(first, std::min(shared.rows_per_chunk, call.batch - first));
        return true;
      });
      ends.Finish();
    }
    for (int64_t unit; (unit = next.fetch_add(1)) < layout.units;) {
      T* partial = program.backward ? partials + unit * weights.partial_size : nullptr;
      if (partial) std::memset(partial, 0, weights.partial_size * sizeof(T));
      for (int64_t chunk = unit; chunk < layout.chunks; chunk += layout.units) {
        int64_t first = chunk * shared.rows_per_chunk;
        walk.Run(first, std::min(shared.rows_per_chunk, call.batch - first), partial);
      }
    }
  }
  if (program.backward)
    weights.Collect(partials, weights.partial_size, layout.chunks ? layout.units : 0,
                    call.threads);
  RunWhole(whole, shared);
}

template <typename T>
int64_t BytesAs(const Program& program, const RecurrenceCall& call) {
  const std::vector<bool> whole = FindWhole(program, call);
  Prepared<T> weights(program, call, ProductsFor<T>(call.batch, ElementsOf(program), call.packed), whole);
  Shared<T> shared = Share(whole, call, weights);
  return Layout<T>(&shared).bytes;
}

/* For calls with any number of rows. */
template <typename T>
Prepared<T> Kept(const Program& program, const Learned& learned) {
  return {program, learned, ProductsFor<T>(0, ElementsOf(program), true)};
}

}  // namespace

bool ReadsFirst(const Program& program, int64_t read, int64_t written) {
  bool is_written = false;
  for (const Step& step : program.steps) {
    auto touches = [&](int64_t sequence) {
      return std::any_of(step.spots.begin(), step.spots.end(), [&](const Spot& spot) {
        if (spot.place == kSequence) return spot.index == sequence;
        if (spot.place != kNext) return false;
        const StateOf& state = program.states[spot.index];
        return state.home == kInSequence && state.index == sequence;
      });
    };
    is_written = is_written || touches(written);
    if (is_written && touches(read)) return false;
  }
  return true;
}

void RunRecurrence(const Program& program, const RecurrenceCall& call) {
  if (program.is_double)
    RunAs<double>(program, call);
  else
    RunAs<float>(program, call);
}

int64_t ScratchBytes(const Program& program, const RecurrenceCall& call) {
  return program.is_double ? BytesAs<double>(program, call) : BytesAs<float>(program, call);
}

int64_t PackedBytes(const Program& program) {
  const Learned none;
  return program.is_double ? Kept<double>(program, none).packed_bytes
                           : Kept<float>(program, none).packed_bytes;
}

void PackMatrices(const Program& program, const Learned& learned, int threads, void* to) {
  if (program.is_double)
    Kept<double>(program, learned).Pack(threads, static_cast<double*>(to));
  else
    Kept<float>(program, learned).Pack(threads, static_cast<float*>(to));
}

}  // namespace graphopt
