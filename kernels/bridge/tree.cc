#include "tree.h"

#include <atomic>
#include <thread>

#include "rows.h"

namespace graphopt {

namespace {

/* What all chunks of a call share. */
template <typename T>
struct Shared {
  const TreeShape& shape;
  const TreeCall& call;
  const Prepared<T>&message, &update;
  int64_t rows = 0, edges = 0;  // of the largest chunk
};

/* One chunk on its way through the levels. */
template <typename T>
class TreeWalk {
 public:
  explicit TreeWalk(const Shared<T>& shared) : TreeWalk(shared, Buffers<T>()) {}

  /* Chunk `number`; gradients are added to `partial`. */
  void Run(int64_t number, T* partial) {
    first_ = levels_.chunks[number];
    count_ = levels_.chunks[number + 1] - first_;
    copies_ = levels_.copies.data() + levels_.copies_of_chunk[number];
    copies_end_ = levels_.copies.data() + levels_.copies_of_chunk[number + 1];
    first_edge_ = levels_.edges[first_];
    message_.Begin(partial);
    update_.Begin(partial ? partial + s_.message.partial_size : nullptr);
    Number();
    Place();
    int64_t low = levels_.level_of_chunk[number], high = levels_.level_of_chunk[number + 1];
    if (!is_backward_) {
      for (int64_t level = low; level < high; ++level) Up(Find(level), level == low);
      for (size_t k = 0; k < c_.emitted.size(); ++k)
        if (c_.emitted[k]) Repeat(static_cast<T*>(c_.emitted[k]), shape_.emitted[k]);
      return;
    }
    for (size_t k = 0; k < heads_.size(); ++k)
      Gather(c_.heads[k], heads_[k], shape_.emitted[k]);
    for (int64_t level = high; level-- > low;) Down(Find(level), level == low);
    message_.Flush();
    update_.Flush();
  }

 private:
  /* Places of nodes and edges within the chunk. */
  struct Range {
    int64_t begin, end, edge_begin, edge_end;
  };

  TreeWalk(const Shared<T>& shared, Buffers<T> buffers)
      : s_(shared),
        shape_(shared.shape),
        c_(shared.call),
        levels_(*shared.call.levels),
        is_backward_(shared.update.program.backward),
        message_(shared.message, shared.edges, &buffers),
        update_(shared.update, shared.rows, &buffers) {
    static thread_local Arena arena;
    auto want = [&](std::vector<T*>* group, const std::vector<int64_t>& widths, int64_t rows) {
      group->assign(widths.size(), nullptr);
      for (size_t i = 0; i < widths.size(); ++i) buffers.Want(&(*group)[i], rows * widths[i]);
    };
    want(&messages_, shape_.messages, s_.edges);
    want(&reduced_, shape_.reduced, s_.rows);
    if (is_backward_) {
      want(&heads_, shape_.emitted, s_.rows);
      want(&edge_row_gradients_, shape_.edge_rows, s_.edges);
      want(&child_gradients_, shape_.states, s_.edges);
    } else {
      emitted_.assign(shape_.emitted.size(), nullptr);
      for (size_t k = 0; k < emitted_.size(); ++k)
        if (!c_.emitted[k]) buffers.Want(&emitted_[k], s_.rows * shape_.emitted[k]);
      for (size_t j = 0; j < shape_.messages.size(); ++j)
        passed_.push_back(Keeps(j) ? -1 : message_.SkipCopy(EdgeInputs() + j));
    }
    buffers.Take(&arena);
  }

  T* NodeStash(int64_t offset) const {
    return static_cast<T*>(c_.node_stash) + first_ * shape_.node_stash_width() + offset;
  }

  T* EdgeStash(int64_t offset) const {
    return static_cast<T*>(c_.edge_stash) + first_edge_ * shape_.edge_stash_width() + offset;
  }

  size_t EdgeInputs() const { return shape_.edge_rows.size() + shape_.states.size(); }

  /* Whether backward wants to know a message. */
  bool Keeps(size_t j) const { return c_.node_stash && shape_.reduce[j] == kMax; }

  /* Numbers of rows of the chunk's nodes and edges. */
  void Number() {
    const int32_t* node = Order();
    rows_.resize(count_);
    parent_places_.clear();
    parent_rows_.clear();
    child_nodes_.clear();
    for (int64_t p = 0; p < count_; ++p) {
      rows_[p] = c_.index ? c_.index[node[p]] : node[p];
      for (int64_t e = EdgesOf(p); e < EdgesOf(p + 1); ++e) {
        parent_places_.push_back(p);
        parent_rows_.push_back(rows_[p]);
        child_nodes_.push_back(node[Child(e)]);
      }
    }
  }

  /* Tells the programs where rows of this chunk lie: what belongs to nodes is read and written where
   * it is, by its number. */
  void Place() {
    const size_t n_node = shape_.node_rows.size(), n_edge = shape_.edge_rows.size();
    const size_t n_messages = shape_.messages.size(), n_emitted = shape_.emitted.size();
    PlaceMessages();
    auto set = [](RowProgram<T>* program, size_t from, const std::vector<T*>& group,
                  const std::vector<int64_t>& widths) {
      for (size_t i = 0; i < group.size(); ++i)
        program->sequences[from + i] = {group[i], widths[i]};
    };
    auto number = [](RowProgram<T>* program, size_t from, const auto& group,
                     const std::vector<int64_t>& widths, const int32_t* index) {
      for (size_t i = 0; i < widths.size(); ++i)
        program->sequences[from + i] = {static_cast<T*>(const_cast<void*>(group[i])), widths[i],
                                        index};
    };
    number(&update_, 0, c_.node_rows, shape_.node_rows, rows_.data());
    for (size_t j = 0; j < n_messages; ++j) update_.sequences[n_node + j] = reduced_at_[j];
    number(&message_, 0, c_.edge_rows, shape_.edge_rows, parent_rows_.data());
    number(&message_, n_edge, c_.emitted, shape_.states, child_nodes_.data());
    const size_t node_inputs = n_node + n_messages, edge_inputs = EdgeInputs();
    if (!is_backward_) {
      number(&update_, node_inputs, c_.emitted, shape_.emitted, Order());
      for (size_t k = 0; k < n_emitted; ++k)
        if (emitted_[k]) update_.sequences[node_inputs + k] = {emitted_[k], shape_.emitted[k]};
      for (size_t i = 0; i < shape_.states.size(); ++i)
        if (emitted_[i])
          message_.sequences[n_edge + i] = {emitted_[i], shape_.states[i],
                                            levels_.child.data() + first_edge_};
      for (size_t j = 0; j < n_messages; ++j) {
        if (passed_[j] >= 0) message_at_[j] = message_.sequences[passed_[j]];
        message_.sequences[edge_inputs + j] = message_at_[j];
      }
      return;
    }
    set(&update_, node_inputs + n_emitted, heads_, shape_.emitted);
    node_gradients_ = node_inputs + 2 * n_emitted;
    number(&update_, node_gradients_, c_.node_row_gradients, shape_.node_rows, Order());
    set(&update_, node_gradients_ + n_node, reduced_, shape_.reduced);
    for (size_t j = 0; j < n_messages; ++j)
      message_.sequences[edge_inputs + n_messages + j] =
          shape_.reduce[j] == kSum
              ? Located<T>{reduced_[j], shape_.reduced[j], parent_places_.data()}
              : Located<T>{messages_[j], shape_.messages[j]};
    const size_t edge_gradients = edge_inputs + 2 * n_messages;
    for (size_t i = 0; i < n_edge; ++i)
      if (c_.edge_row_gradients[i])
        message_.sequences[edge_gradients + i] = {edge_row_gradients_[i], shape_.edge_rows[i]};
    set(&message_, edge_gradients + n_edge, child_gradients_, shape_.states);
  }

  /* Where messages lie, and what they are reduced to. */
  void PlaceMessages() {
    int64_t node_width = shape_.node_stash_width(), edge_width = shape_.edge_stash_width();
    bool keeps = c_.node_stash != nullptr;
    if (keeps) {
      update_.stash = {NodeStash(0), node_width};
      message_.stash = {EdgeStash(0), edge_width};
    }
    int64_t at = shape_.node_stash, edge_at = shape_.edge_stash;
    reduced_at_.clear();
    message_at_.clear();
    for (size_t j = 0; j < shape_.messages.size(); ++j) {
      int64_t width = shape_.messages[j];
      bool is_reduced_kept = keeps && shape_.kept[j];
      reduced_at_.push_back(is_reduced_kept ? Located<T>{NodeStash(at), node_width}
                                            : Located<T>{reduced_[j], shape_.reduced[j]});
      if (is_reduced_kept) at += shape_.reduced[j];
      message_at_.push_back(Keeps(j) ? Located<T>{EdgeStash(edge_at), edge_width}
                                     : Located<T>{messages_[j], width});
      if (Keeps(j)) edge_at += width;
    }
  }

  Range Find(int64_t level) const {
    int64_t begin = levels_.levels[level], end = levels_.levels[level + 1];
    return {begin - first_, end - first_, levels_.edges[begin] - first_edge_,
            levels_.edges[end] - first_edge_};
  }

  const int32_t* Order() const { return levels_.order.data() + first_; }
  int64_t EdgesOf(int64_t place) const { return levels_.edges[first_ + place] - first_edge_; }
  int32_t Child(int64_t edge) const { return levels_.child[first_edge_ + edge]; }

  /* What nodes have that equal others. */
  void Repeat(T* rows, int64_t width) const {
    for (const CopyOf* copy = copies_; copy < copies_end_; ++copy)
      CopyRow(rows + copy->node * width, rows + Order()[copy->place] * width, width);
  }

  /* Rows of all places of the chunk, with those of copies added to them; zeros from nowhere. */
  void Gather(const void* from, T* to, int64_t width) const {
    if (!from) {
      std::memset(to, 0, count_ * width * sizeof(T));
      return;
    }
    for (int64_t p = 0; p < count_; ++p) {
      if (p + 1 < count_) AskForRow(static_cast<const T*>(from) + Order()[p + 1] * width, width);
      CopyRow(to + p * width, static_cast<const T*>(from) + Order()[p] * width, width);
    }
    for (const CopyOf* copy = copies_; copy < copies_end_; ++copy) {
      if (copy + 1 < copies_end_)
        AskForRow(static_cast<const T*>(from) + copy[1].node * width, width);
      AddRow(to + copy->place * width, static_cast<const T*>(from) + copy->node * width, width);
    }
  }

  /* From children to parents. */
  void Up(const Range& range, bool are_leaves) {
    const size_t n_messages = shape_.messages.size();
    if (!are_leaves) {
      message_.Run(range.edge_begin, range.edge_end - range.edge_begin, range.edge_begin);
      for (size_t j = 0; j < n_messages; ++j) Reduce(j, range);
    }
    RunUpdate(range, are_leaves);
  }

  /* Leaves get no messages. */
  void RunUpdate(const Range& range, bool are_leaves) {
    Bare bare;
    if (are_leaves) {
      bare.begin = shape_.node_rows.size();
      bare.end = bare.begin + static_cast<int64_t>(shape_.messages.size());
      if (is_backward_) bare.gradients = node_gradients_;
    }
    update_.Run(range.begin, range.end - range.begin, range.begin, bare);
  }

  void Reduce(size_t j, const Range& range) const {
    const Located<T>&from = message_at_[j], &to = reduced_at_[j];
    for (int64_t p = range.begin; p < range.end; ++p) {
      if (shape_.reduce[j] == kConcat)
        Join(to.Row(p), from, EdgesOf(p), EdgesOf(p + 1), j);
      else
        Combine(to.Row(p), from, EdgesOf(p), EdgesOf(p + 1), j);
    }
  }

  /* Children side by side; where there are fewer than there could be, zeros. */
  void Join(T* row, const Located<T>& from, int64_t begin, int64_t end, size_t j) const {
    int64_t width = shape_.messages[j], used = (end - begin) * width;
    for (int64_t e = begin; e < end; ++e) CopyRow(row + (e - begin) * width, from.Row(e), width);
    std::memset(row + used, 0, (shape_.reduced[j] - used) * sizeof(T));
  }

  void Combine(T* row, const Located<T>& from, int64_t begin, int64_t end, size_t j) const {
    int64_t width = shape_.messages[j], kind = shape_.reduce[j];
    CopyRow(row, from.Row(begin), width);
    for (int64_t e = begin + 1; e < end; ++e) {
      if (kind == kMax)
        MaxRow(row, from.Row(e), width);
      else
        AddRow(row, from.Row(e), width);
    }
    if (kind == kMean)
      for (int64_t k = 0; k < width; ++k) row[k] /= static_cast<T>(end - begin);
  }

  /* From parents to children. */
  void Down(const Range& range, bool are_leaves) {
    const size_t n_messages = shape_.messages.size();
    RunUpdate(range, are_leaves);
    if (!are_leaves) {
      for (size_t j = 0; j < n_messages; ++j) Spread(j, range);
      message_.Run(range.edge_begin, range.edge_end - range.edge_begin, range.edge_begin);
      for (size_t i = 0; i < child_gradients_.size(); ++i)
        for (int64_t e = range.edge_begin; e < range.edge_end; ++e)
          AddRow(heads_[i] + Child(e) * shape_.states[i],
                 child_gradients_[i] + e * shape_.states[i], shape_.states[i]);
    }
    for (size_t i = 0; i < edge_row_gradients_.size(); ++i)
      if (c_.edge_row_gradients[i]) SumEdges(i, range);
  }

  /* Gradients of messages from those of what they were reduced to; of a sum's these are the same. */
  void Spread(size_t j, const Range& range) const {
    int64_t width = shape_.messages[j], kind = shape_.reduce[j];
    if (kind == kSum) return;
    for (int64_t p = range.begin; p < range.end; ++p) {
      const T* gradient = reduced_[j] + p * shape_.reduced[j];
      const T* largest = reduced_at_[j].at + p * reduced_at_[j].stride;
      int64_t begin = EdgesOf(p), end = EdgesOf(p + 1);
      for (int64_t e = begin; e < end; ++e) {
        T* to = messages_[j] + e * width;
        const T* made = message_at_[j].at + e * message_at_[j].stride;
        if (kind == kConcat)
          CopyRow(to, gradient + (e - begin) * width, width);
        else if (kind == kMean)
          for (int64_t k = 0; k < width; ++k) to[k] = gradient[k] / static_cast<T>(end - begin);
        else
          for (int64_t k = 0; k < width; ++k) to[k] = made[k] == largest[k] ? gradient[k] : T(0);
      }
    }
  }

  /* The gradient of a row that several messages read. */
  void SumEdges(size_t i, const Range& range) const {
    int64_t width = shape_.edge_rows[i];
    for (int64_t p = range.begin; p < range.end; ++p) {
      T* to = static_cast<T*>(c_.edge_row_gradients[i]) + Order()[p] * width;
      int64_t begin = EdgesOf(p), end = EdgesOf(p + 1);
      if (begin == end) {
        std::memset(to, 0, width * sizeof(T));
        continue;
      }
      CopyRow(to, edge_row_gradients_[i] + begin * width, width);
      for (int64_t e = begin + 1; e < end; ++e)
        AddRow(to, edge_row_gradients_[i] + e * width, width);
    }
  }

  const Shared<T>& s_;
  const TreeShape& shape_;
  const TreeCall& c_;
  const Levels& levels_;
  bool is_backward_;
  RowProgram<T> message_, update_;
  std::vector<T*> messages_, reduced_, emitted_, heads_, edge_row_gradients_, child_gradients_;
  std::vector<int32_t> rows_, parent_places_, parent_rows_, child_nodes_;
  std::vector<int64_t> passed_;  // of each message, which sequence it is a copy of, or -1
  std::vector<Located<T>> reduced_at_, message_at_;
  const CopyOf *copies_ = nullptr, *copies_end_ = nullptr;
  int64_t first_ = 0, count_ = 0, first_edge_ = 0;
  int64_t node_gradients_ = 0;
};

/* Who may add to which partial gradient: chunk c to number c % units, once chunk c - units has done so.
 * Chunks are taken in their order by at most as many threads as there are units, so hardly anyone ever
 * waits, threads end together, and sums are the same for any number of threads. */
class Turns {
 public:
  explicit Turns(int64_t units) : next_(units) {
    for (int64_t unit = 0; unit < units; ++unit) next_[unit] = unit;
  }

  void Await(int64_t chunk) const {
    const std::atomic<int64_t>& next = next_[chunk % next_.size()];
    while (next.load(std::memory_order_acquire) != chunk) std::this_thread::yield();
  }

  void Finish(int64_t chunk) {
    next_[chunk % next_.size()].store(chunk + next_.size(), std::memory_order_release);
  }

 private:
  std::vector<std::atomic<int64_t>> next_;
};

template <typename T>
void RunAs(const TreeProgram& program, const TreeShape& shape, const TreeCall& call) {
  // Levels of a chunk are too small for a matrix unit.
  const Products<T>& products = ProductsWithoutUnit<T>(ElementsOf(program.message) + ElementsOf(program.update));
  Prepared<T> message(program.message, call.message, products, call.threads);
  Prepared<T> update(program.update, call.update, products, call.threads);
  Shared<T> shared{shape, call, message, update};
  const Levels& levels = *call.levels;
  int64_t chunks = levels.chunks.size() - 1;
  for (int64_t c = 0; c < chunks; ++c) {
    int64_t begin = levels.chunks[c], end = levels.chunks[c + 1];
    shared.rows = std::max(shared.rows, end - begin);
    shared.edges = std::max(shared.edges, levels.edges[end] - levels.edges[begin]);
  }
  bool backward = program.update.backward;
  int64_t units = backward ? std::min(chunks, kUnits) : chunks;
  int64_t size = message.partial_size + update.partial_size;
  std::unique_ptr<T[]> partials;
  if (backward) partials.reset(new T[units * size]);
  std::atomic<int64_t> next{0};
  Turns turns(units);
  int threads = static_cast<int>(std::min<int64_t>(call.threads, units));
#pragma omp parallel num_threads(threads) if (threads > 1)
  {
    const Flushing flushing(backward);
    TreeWalk<T> walk(shared);
    for (int64_t chunk; (chunk = next.fetch_add(1)) < chunks;) {
      if (!backward) {
        walk.Run(chunk, nullptr);
        continue;
      }
      T* partial = partials.get() + chunk % units * size;
      turns.Await(chunk);
      if (chunk < units) std::memset(partial, 0, size * sizeof(T));
      walk.Run(chunk, partial);
      turns.Finish(chunk);
    }
  }
  if (!backward) return;
  message.Collect(partials.get(), size, units, call.threads);
  update.Collect(partials.get() + message.partial_size, size, units, call.threads);
}

template <typename T>
void SumAs(const RowSum& sum, const std::vector<int64_t>& begin, const std::vector<int32_t>& users,
           int threads) {
  constexpr int64_t kAhead = 4;  // rows that are asked for, as they come from beyond the caches
  const int64_t rows = begin.size() - 1, nodes = users.size(), width = sum.width;
  auto from = static_cast<const T*>(sum.from);
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(dynamic, 64)
  for (int64_t r = 0; r < rows; ++r) {
    T* to = static_cast<T*>(sum.to) + r * width;
    if (begin[r] == begin[r + 1]) std::memset(to, 0, width * sizeof(T));
    for (int64_t k = begin[r]; k < begin[r + 1]; ++k) {
      if (k + kAhead < nodes) AskForRow(from + users[k + kAhead] * width, width);
      if (k == begin[r])
        CopyRow(to, from + users[k] * width, width);
      else
        AddRow(to, from + users[k] * width, width);
    }
  }
}

}  // namespace

void SumRows(const std::vector<RowSum>& sums, const int32_t* index, int64_t nodes, int64_t rows,
             bool is_double, int threads) {
  if (sums.empty()) return;
  std::vector<int64_t> begin(rows + 1, 0);
  for (int64_t n = 0; n < nodes; ++n)
    if (index[n] >= 0) ++begin[index[n] + 1];
  for (int64_t r = 0; r < rows; ++r) begin[r + 1] += begin[r];
  std::vector<int32_t> users(begin[rows]);
  std::vector<int64_t> at(begin.begin(), begin.end() - 1);
  for (int64_t n = 0; n < nodes; ++n)
    if (index[n] >= 0) users[at[index[n]]++] = n;
  for (const RowSum& sum : sums)
    if (is_double)
      SumAs<double>(sum, begin, users, threads);
    else
      SumAs<float>(sum, begin, users, threads);
}

int64_t TreeShape::node_stash_width() const {
  int64_t width = node_stash;
  for (size_t j = 0; j < reduced.size(); ++j)
    if (kept[j]) width += reduced[j];
  return width;
}

int64_t TreeShape::edge_stash_width() const {
  int64_t width = edge_stash;
  for (size_t j = 0; j < messages.size(); ++j)
    if (reduce[j] == kMax) width += messages[j];
  return width;
}

void RunTree(const TreeProgram& program, const TreeShape& shape, const TreeCall& call) {
  if (program.update.is_double)
    RunAs<double>(program, shape, call);
  else
    RunAs<float>(program, shape, call);
}

}  // namespace graphopt
